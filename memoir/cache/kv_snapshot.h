#pragma once

// Rows of a KVCache for later. Lazy at first: only the positions are noted, the rows are still those of the cache that
// it was taken of, its owner; the owner sees to it that they stay, or are copied out before they go.

#include <memory>
#include <optional>
#include <vector>

#include "memoir/cache/kv.h"

namespace memoir::cache {

class KVSnapshot final : public Snapshot {
 public:
  /// Lazy; registers with the owner.
  KVSnapshot(const KVCache& owner, int from, const Positions& held);

  /// With rows of its own, those of `held` one after the other. `layout` tells the rule.
  KVSnapshot(const Layout& layout, int from, const Positions& held, kernels::KvBuffer keys, kernels::KvBuffer values);

  ~KVSnapshot() override;
  KVSnapshot(const KVSnapshot&) = delete;
  KVSnapshot& operator=(const KVSnapshot&) = delete;

  int from() const override { return from_; }
  int to() const override { return held_.end; }
  int earliest() const override;
  bool is_lazy() const override { return owner_ != nullptr; }
  std::size_t size_bytes() const override;
  void materialize() override;

  const KVCache* owner() const { return owner_; }
  const Layout& layout() const { return layout_; }
  const Positions& held() const { return held_; }

  /// The rows of `held`, one after the other. Of a lazy one, a view of its owner's buffers or lazy copies of them.
  kernels::KvBuffer keys() const;
  kernels::KvBuffer values() const;

  /// The rows [from, to) of a flat cache's snapshot as one with rows of its own, or the rows of two that meet, one
  /// after the other. Not evaluated; arrays() are what to evaluate. This one is left as it is.
  /// Throws std::invalid_argument if the rows are not there, are not flat, don't meet or don't fit.
  std::unique_ptr<KVSnapshot> part(int from, int to) const;
  static std::unique_ptr<KVSnapshot> of_both(const KVSnapshot& first, const KVSnapshot& second);
  std::vector<mlx::core::array> arrays() const;

  /// Buffers whose rows have this snapshot's shape and type.
  const kernels::KvBuffer& like_keys() const;
  const kernels::KvBuffer& like_values() const;

  /// The rows are its own from now on.
  void own(kernels::KvBuffer keys, kernels::KvBuffer values);

 private:
  const KVCache* owner_ = nullptr;
  Layout layout_;  // the rule
  int from_;
  Positions held_;
  std::optional<kernels::KvBuffer> keys_;
  std::optional<kernels::KvBuffer> values_;
};

}  // namespace memoir::cache
