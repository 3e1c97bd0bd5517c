#pragma once

// What blocks of the directory tier (block_folder.h) are called, so that whoever has the keys of a prompt knows the
// names of all that may be there for it, in whatever process.
//
// Positions are cut at multiples of kBlockKeys. The digest of a cut is made of the digest of the cut before it and the
// keys between; the first is made of the space, which stands for the model and the format of its caches. A block's name
// has the digest of the cut that it begins at, and that of its own end:
//
//   <space>-rows-<from>-<to>-<digest at from>-<digest at to>.block
//   <space>-state-<from>-<to>-...                            a checkpoint at `to`; `from` is the cut before it
//
// Digests are addresses, no proof: a block holds all keys from 0 to its end, to be compared (block_file.h).
// Values, any thread.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/checksum.h"
#include "memoir/prefix/keys.h"

namespace memoir::prefix {

inline constexpr int kBlockKeys = 256;

enum class BlockKind { kRows, kState };

/// "rows", "state".
std::string_view block_kind_name(BlockKind kind);

struct BlockName {
  std::string space;  // 16 hexadecimal digits
  BlockKind kind = BlockKind::kRows;
  int from = 0;  // a multiple of kBlockKeys, from < to <= from + kBlockKeys
  int to = 0;
  Digest parent;  // at from
  Digest own;     // at to

  bool operator==(const BlockName&) const = default;

  std::string file_name() const;

  /// Nullopt for what file_name() can't have made.
  static std::optional<BlockName> parse(std::string_view file_name);
};

/// 16 hexadecimal digits that stand for an identity (block_file.h).
std::string space_of(std::string_view identity);

/// The cut at or before an offset, and the one that a block which ends there begins at.
inline int cut_before(int offset) {
  return offset / kBlockKeys * kBlockKeys;
}
inline int block_from(int to) {
  return cut_before(to - 1);
}

/// The digest at up to kBlockKeys keys behind a cut.
Digest digest_after(const Digest& cut, std::span<const Key> keys);

/// The digests along some keys, which must outlive it.
class KeyChain {
 public:
  KeyChain(std::string_view space, std::span<const Key> keys);

  /// offset: 0 to the number of keys.
  Digest at(int offset) const;

  int n_keys() const { return static_cast<int>(keys_.size()); }
  std::span<const Key> keys() const { return keys_; }

  /// Of the block that ends at `to`, 1 to the number of keys.
  BlockName name(BlockKind kind, int to) const;

 private:
  std::string space_;
  std::span<const Key> keys_;
  std::vector<Digest> cuts_;
};

}  // namespace memoir::prefix
