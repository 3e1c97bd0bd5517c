#pragma once

// Keys and values of one attention layer: a layout (layout.h) over rows of one dtype.
//
// KVCache is the flat layout over dense rows, for one stream or a batch whose sequences have the same length. A write
// goes into the buffer in place as long as no view of an earlier history is held; the buffer is copied only when it
// grows, once every FlatLayout::kStep tokens.

#include <optional>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/layout.h"

namespace memoir::cache {

class KVCache : public AttentionCache {
 public:
  std::string_view kind() const override { return "KVCache"; }
  int offset() const override { return layout_.offset(); }
  int capacity() const { return layout_.capacity(); }
  std::size_t size_bytes() const override;
  std::vector<mlx::core::array> state() const override;
  void free() override;

  History update(const mlx::core::array& keys, const mlx::core::array& values) override;
  std::optional<History> view() const override;

  std::unique_ptr<Snapshot> snapshot(int from) const override;
  bool restore(const Snapshot* snapshot, int target) override;
  bool can_rewind(int target) const override { return target >= 0 && target <= offset(); }
  std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const override;
  SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const override;
  int trim(int n_tokens) override;
  bool is_trimmable() const override { return true; }

 private:
  void check_rows(const mlx::core::array& keys, const mlx::core::array& values) const;
  void append(const mlx::core::array& keys, const mlx::core::array& values);

  FlatLayout layout_;
  std::optional<mlx::core::array> keys_;    // [B, H, capacity, Dk]
  std::optional<mlx::core::array> values_;  // [B, H, capacity, Dv]
};

}  // namespace memoir::cache
