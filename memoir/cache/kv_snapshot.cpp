#include "memoir/cache/kv_snapshot.h"

#include <algorithm>
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
