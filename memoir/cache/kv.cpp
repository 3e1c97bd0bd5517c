#include "memoir/cache/kv.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::dtype_text;
using kernels::shape_text;

constexpr int kRowAxis = 2;

mx::array rows(const mx::array& buffer, int begin, int end) {
  const mx::Shape start{0, 0, begin, 0};
  const mx::Shape stop{buffer.shape(0), buffer.shape(1), end, buffer.shape(3)};
  return mx::slice(buffer, start, stop);
}

// A compact copy. Where the rows are (almost) all of the buffer MLX shares it instead, and the copy is made by the next
// write to either.
mx::array copied_rows(const mx::array& buffer, int begin, int end) {
  return mx::contiguous(rows(buffer, begin, end));
}

mx::array with_rows(const mx::array& buffer, const mx::array& update, int begin, int end) {
  const mx::Shape start{0, 0, begin, 0};
  const mx::Shape stop{buffer.shape(0), buffer.shape(1), end, buffer.shape(3)};
  return mx::slice_update(buffer, update, start, stop);
}

mx::array grown(const std::optional<mx::array>& buffer, const mx::array& like, const FlatWrite& write) {
  const mx::array added = mx::zeros({like.shape(0), like.shape(1), write.added_rows, like.shape(3)}, like.dtype());
  if (!buffer || write.kept_rows == 0) return added;
  return mx::concatenate({rows(*buffer, 0, write.kept_rows), added}, kRowAxis);
}

class KVSnapshot : public Snapshot {
 public:
  KVSnapshot(mx::array keys, mx::array values, int from)
      : keys_(std::move(keys)), values_(std::move(values)), from_(from) {
    mx::async_eval(keys_, values_);
  }

  int from() const override { return from_; }
  int to() const override { return from_ + keys_.shape(kRowAxis); }
  std::size_t size_bytes() const override { return keys_.nbytes() + values_.nbytes(); }

  const mx::array& keys() const { return keys_; }
  const mx::array& values() const { return values_; }

 private:
  mx::array keys_;    // [B, H, to - from, Dk]
  mx::array values_;  // [B, H, to - from, Dv]
  int from_;
};

const KVSnapshot& as_kv(const Snapshot& snapshot, const char* function) {
  const auto* kv = dynamic_cast<const KVSnapshot*>(&snapshot);
  if (!kv) {
    throw std::invalid_argument(std::string("[cache.") + function +
                                "] the snapshot is of another kind, expected one of a KVCache");
  }
  return *kv;
}

bool fits(const mx::array& update, const mx::array& buffer) {
  return update.shape(0) == buffer.shape(0) && update.shape(1) == buffer.shape(1) &&
         update.shape(3) == buffer.shape(3) && update.dtype() == buffer.dtype();
}

void check_fits(const char* name, const mx::array& update, const std::optional<mx::array>& buffer) {
  if (buffer && !fits(update, *buffer)) {
    throw std::invalid_argument(std::string("[cache.update] ") + name + " has shape " + shape_text(update) + " " +
                                dtype_text(update.dtype()) + ", expected (" + std::to_string(buffer->shape(0)) + "," +
                                std::to_string(buffer->shape(1)) + ",*," + std::to_string(buffer->shape(3)) + ") " +
                                dtype_text(buffer->dtype()));
  }
}

}  // namespace

std::size_t KVCache::size_bytes() const {
  return keys_ ? keys_->nbytes() + values_->nbytes() : 0;
}

std::vector<mx::array> KVCache::state() const {
  const std::optional<History> history = view();
  if (!history) return {};
  return {history->key_rows(), history->value_rows()};
}

void KVCache::free() {
  layout_.clear();
  keys_.reset();
  values_.reset();
}

void KVCache::check_rows(const mx::array& keys, const mx::array& values) const {
  if (keys.ndim() != 4 || values.ndim() != 4 ||
      !std::equal(keys.shape().begin(), keys.shape().begin() + 3, values.shape().begin())) {
    throw std::invalid_argument("[cache.update] keys has shape " + shape_text(keys) + ", values " + shape_text(values) +
                                ", expected (B,H,T,Dk) and (B,H,T,Dv)");
  }
  check_fits("keys", keys, keys_);
  check_fits("values", values, values_);
}

void KVCache::append(const mx::array& keys, const mx::array& values) {
  const FlatWrite write = layout_.plan(keys.shape(kRowAxis));
  if (write.added_rows > 0) {
    keys_ = grown(keys_, keys, write);
    values_ = grown(values_, values, write);
  }
  keys_ = with_rows(*keys_, keys, write.begin, write.end);
  values_ = with_rows(*values_, values, write.begin, write.end);
  layout_.apply(write);
}

History KVCache::update(const mx::array& keys, const mx::array& values) {
  check_rows(keys, values);
  append(keys, values);
  return *view();
}

std::optional<History> KVCache::view() const {
  if (is_empty()) return std::nullopt;
  return History{{*keys_}, {*values_}, {{0, 0, offset()}}};
}

std::unique_ptr<Snapshot> KVCache::snapshot(int from) const {
  const int begin = std::max(0, from);
  if (begin >= offset()) return nullptr;
  return std::make_unique<KVSnapshot>(copied_rows(*keys_, begin, offset()), copied_rows(*values_, begin, offset()),
                                      begin);
}

bool KVCache::restore(const Snapshot* snapshot, int target) {
  if (!snapshot) return layout_.rewind(target);
  const KVSnapshot& kv = as_kv(*snapshot, "restore");
  if (target < 0 || target > kv.to() || offset() < kv.from()) return false;
  check_rows(kv.keys(), kv.values());
  layout_.rewind(kv.from());
  append(kv.keys(), kv.values());
  return layout_.rewind(target);
}

std::unique_ptr<Snapshot> KVCache::merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const {
  if (!parent || !child) return nullptr;
  const KVSnapshot& first = as_kv(*parent, "merge");
  const KVSnapshot& second = as_kv(*child, "merge");
  if (first.to() != second.from() || !fits(second.keys(), first.keys()) || !fits(second.values(), first.values())) {
    throw std::invalid_argument("[cache.merge] the parent ends at " + std::to_string(first.to()) + " with keys " +
                                shape_text(first.keys()) + ", the child begins at " + std::to_string(second.from()) +
                                " with keys " + shape_text(second.keys()) + ": expected them to meet and to fit");
  }
  return std::make_unique<KVSnapshot>(mx::concatenate({first.keys(), second.keys()}, kRowAxis),
                                      mx::concatenate({first.values(), second.values()}, kRowAxis), first.from());
}

SnapshotPair KVCache::split(std::unique_ptr<Snapshot> snapshot, int at) const {
  if (!snapshot) return {};
  const KVSnapshot& kv = as_kv(*snapshot, "split");
  if (at <= kv.from()) return {nullptr, std::move(snapshot)};
  if (at >= kv.to()) return {std::move(snapshot), nullptr};
  const int n_parent = at - kv.from();
  const int n_rows = kv.to() - kv.from();
  return {std::make_unique<KVSnapshot>(copied_rows(kv.keys(), 0, n_parent), copied_rows(kv.values(), 0, n_parent),
                                       kv.from()),
          std::make_unique<KVSnapshot>(copied_rows(kv.keys(), n_parent, n_rows),
                                       copied_rows(kv.values(), n_parent, n_rows), at)};
}

int KVCache::trim(int n_tokens) {
  if (n_tokens < 0) {
    throw std::invalid_argument("[cache.trim] n_tokens is " + std::to_string(n_tokens) + ", expected at least 0");
  }
  const int n_dropped = std::min(n_tokens, offset());
  layout_.rewind(offset() - n_dropped);
  return n_dropped;
}

}  // namespace memoir::cache
