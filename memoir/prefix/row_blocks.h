#pragma once

// Rows (payload.h) of all flat layers of a model, in blocks of 256 positions, aligned to multiples of 256: edges can be
// cut and joined by moving blocks from one list to the other, and only a block that is cut, or two parts of one, are
// copied. No two Rows share an array, so that what is dropped is freed. (MLX may leave a copy in the buffer that it
// comes from where that has no more than 16 KiB beside it.)
//
// A block never changes once it is made, and may be held by others (a tier that writes it to a file).
// Threads: the thread that owns MLX's work.

#include <memory>
#include <vector>

#include "memoir/cache/kv_snapshot.h"
#include "memoir/prefix/cache_parts.h"
#include "memoir/prefix/narrow_rows.h"
#include "memoir/prefix/payload.h"

namespace memoir::prefix {

/// The rows of [from, to), which lie between two multiples of kRowBlock; one snapshot for each flat part, evaluated.
struct RowBlock {
  int from;
  int to;
  std::size_t n_bytes;
  std::vector<std::unique_ptr<cache::KVSnapshot>> parts;
};

inline constexpr int kRowBlock = 256;

class RowBlocks final : public Rows {
 public:
  using Blocks = std::vector<std::shared_ptr<const RowBlock>>;

  /// Blocks that meet, at least one.
  explicit RowBlocks(Blocks blocks) : blocks_(std::move(blocks)) {}

  /// Copies the rows [from, to) out of the parts, which have them, 0 <= from < to; as codes with `narrow`. Evaluates.
  static std::unique_ptr<RowBlocks> copied(const CacheParts& cache, int from, int to,
                                           const std::optional<NarrowRows>& narrow = {});

  const Blocks& blocks() const { return blocks_; }

  int from() const override { return blocks_.front()->from; }
  int to() const override { return blocks_.back()->to; }
  std::size_t size_bytes() const override;
  std::unique_ptr<Rows> split_off(int at) override;
  bool append(Rows& next) noexcept override;
  void trim(int at) override;

 private:
  Blocks blocks_;
};

}  // namespace memoir::prefix
