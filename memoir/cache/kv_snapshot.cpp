#include "memoir/cache/kv_snapshot.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::cache {

using kernels::KvBuffer;

KVSnapshot::KVSnapshot(const KVCache& owner, int from, const Positions& held)
    : owner_(&owner), layout_(owner.layout_), from_(from), held_(held) {
  owner.lazy_.push_back(this);
}

KVSnapshot::KVSnapshot(const Layout& layout, int from, const Positions& held, KvBuffer keys, KvBuffer values)
    : layout_(layout), from_(from), held_(held), keys_(std::move(keys)), values_(std::move(values)) {}

KVSnapshot::~KVSnapshot() {
  if (owner_) std::erase(owner_->lazy_, this);
}

std::size_t KVSnapshot::size_bytes() const {
  return owner_ ? 0 : keys_->size_bytes() + values_->size_bytes();
}

void KVSnapshot::materialize() {
  if (owner_) owner_->copy_out({this});
}

KvBuffer KVSnapshot::keys() const {
  return owner_ ? taken(*owner_->keys_, owner_->layout_.runs(held_)) : *keys_;
}

KvBuffer KVSnapshot::values() const {
  return owner_ ? taken(*owner_->values_, owner_->layout_.runs(held_)) : *values_;
}

std::unique_ptr<KVSnapshot> KVSnapshot::part(int from, int to) const {
  const bool is_flat = layout_.rule() == Layout::Rule::kFlat;
  if (!is_flat || from < held_.first || from >= to || to > held_.end) {
    throw std::invalid_argument("[cache.part] rows [" + std::to_string(from) + ", " + std::to_string(to) +
                                ") of a snapshot of " + (is_flat ? "" : "no flat rows ") + "[" +
                                std::to_string(held_.first) + ", " + std::to_string(held_.end) + ")");
  }
  const std::vector<StoredRun> runs = owner_ ? owner_->layout_.runs(Positions{0, from, to})
                                             : std::vector<StoredRun>{{from, from - held_.first, to - from}};
  return std::make_unique<KVSnapshot>(layout_, from, Positions{0, from, to}, taken_out(like_keys(), runs),
                                      taken_out(like_values(), runs));
}

std::unique_ptr<KVSnapshot> KVSnapshot::of_both(const KVSnapshot& first, const KVSnapshot& second) {
  const bool are_flat = first.layout_.rule() == Layout::Rule::kFlat && second.layout_.rule() == Layout::Rule::kFlat;
  if (!are_flat || first.to() != second.from() || !fits(first.like_keys(), second.like_keys()) ||
      !fits(first.like_values(), second.like_values())) {
    throw std::invalid_argument("[cache.of_both] expected flat rows that fit and meet");
  }
  return std::make_unique<KVSnapshot>(second.layout_, first.from(), Positions{0, first.from(), second.to()},
                                      joined(first.keys(), second.keys()), joined(first.values(), second.values()));
}

std::vector<mlx::core::array> KVSnapshot::arrays() const {
  return kernels::arrays_of(like_keys(), like_values());
}

int KVSnapshot::earliest() const {
  if (layout_.rule() == Layout::Rule::kFlat) return from_;
  int earliest = to();
  while (earliest > 0 && layout_.reaches(held_, earliest - 1)) --earliest;
  return earliest;
}

const KvBuffer& KVSnapshot::like_keys() const {
  return owner_ ? *owner_->keys_ : *keys_;
}

const KvBuffer& KVSnapshot::like_values() const {
  return owner_ ? *owner_->values_ : *values_;
}

void KVSnapshot::own(KvBuffer keys, KvBuffer values) {
  keys_ = std::move(keys);
  values_ = std::move(values);
  owner_ = nullptr;
}

}  // namespace memoir::cache
