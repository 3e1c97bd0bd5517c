#pragma once

// A layer that owns several caches: attention beside a recurrence (Falcon-H1), or keys and values beside an indexer's.
// After mlx-lm's CacheList.
//
// A verb does what it does for every child, or changes nothing. Invariant: all children are at one offset between
// forward passes. A null child keeps no state and is passed over.

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/cache/cache.h"

namespace memoir::cache {

class CacheList final : public LayerCache {
 public:
  /// Throws std::invalid_argument if every child is null.
  explicit CacheList(std::vector<std::unique_ptr<LayerCache>> children);
  CacheList(const CacheList&) = delete;
  CacheList& operator=(const CacheList&) = delete;

  std::size_t n_children() const { return children_.size(); }

  /// Throws std::invalid_argument if there is none, it is null, or it is not a Cache. Void after a call that threw or
  /// returned false.
  template <typename Cache = LayerCache>
  Cache& child(std::size_t index) const {
    auto* cache = index < children_.size() ? dynamic_cast<Cache*>(children_[index].get()) : nullptr;
    if (!cache) throw std::invalid_argument("[cache.child] child " + std::to_string(index) + " is not such a cache");
    return *cache;
  }

  /// Null where child() throws because there is no cache.
  const LayerCache* find(std::size_t index) const {
    return index < children_.size() ? children_[index].get() : nullptr;
  }

  /// The children, for another list to be made of. They have no hook any more.
  std::vector<std::unique_ptr<LayerCache>> release() &&;

  /// A list with attention children as AttentionCache::to_quantized makes them, copies of the others, and this one's
  /// hook; null if no child changes. Throws as that does.
  std::unique_ptr<CacheList> to_quantized(const KVQuantization& quantization) const;

  std::string_view kind() const override { return "CacheList"; }

  /// The smallest of the children's, should a failed forward have left them apart.
  int offset() const override;
  std::size_t size_bytes() const override;

  /// The children's arrays one after the other. Numbers: of each child its kind, how many arrays and how many numbers
  /// it has, and those; of a null child "", "0", "0".
  std::vector<mlx::core::array> state() const override;
  std::vector<std::string> meta_state() const override;
  void set_state(const std::vector<mlx::core::array>& state, const std::vector<std::string>& meta) override;
  void materialize() const override;
  void reserve(int n_tokens) override;
  void free() override;
  std::unique_ptr<LayerCache> copy() const override;

  /// Of every child; of the whole, null only if offset() <= from.
  std::unique_ptr<Snapshot> snapshot(int from) const override;

  /// Where the snapshot has nothing of a child (the front half of a split, whose end has no recurrent state), it holds
  /// for no target behind its start.
  bool restore(const Snapshot* snapshot, int target) override;
  bool can_rewind(int target) const override;

  /// Children by children; null if that leaves nothing.
  std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const override;
  SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const override;
  int trim(int n_tokens) override;
  bool is_trimmable() const override;

  /// The first unfit child's kind.
  std::string_view unfit_for_transaction(int n_max) const override;

 protected:
  void begun(const OpenTransaction& transaction) override;
  Held keep_first(int n) override;

 private:
  void forward_hook(LayerCache& child);
  bool has_all_parts(const std::vector<std::unique_ptr<Snapshot>>& parts) const;
  bool for_all_or_none(const std::function<bool(std::size_t)>& change);

  std::vector<std::unique_ptr<LayerCache>> children_;
};

}  // namespace memoir::cache
