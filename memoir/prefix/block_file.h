#pragma once

// One block of the directory tier as a file: rows of up to kBlockKeys positions, or a checkpoint. What its bytes mean
// is for its writer and its reader to agree on: the identity says which model and format of caches they are of.
//
//   0   8   "memoirB1"
//   8   4   bytes of the identity             all numbers little-endian
//   12  4   bytes of the note
//   16  4   kind: 0 rows, 1 a checkpoint
//   20  4   from
//   24  4   to
//   28  4   bytes of a key: 4, or 8 where one doesn't fit in 4
//   32  8   bytes of the payload
//   40      identity, note, keys [from, to), keys [0, from), payload
//   end 8   XXH3 of all before
//
// Invariants after BlockFile's construction: all parts lie in the file, which has nothing else; from and to are as
// BlockName's. Whether the bytes are those that were written is known after read_payload().
// Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/prefix/block_name.h"
#include "memoir/prefix/keys.h"

namespace memoir::prefix {

/// What a block says beside its payload.
struct BlockHead {
  std::string identity;  // at most kMaxText bytes each
  std::string note;
  BlockKind kind = BlockKind::kRows;
  std::vector<Key> keys;  // from position 0 on; the block's own begin at block_from(keys.size())

  static constexpr std::size_t kMaxText = std::size_t{1} << 20;
};

/// The file's bytes before the payload, and those behind it. Throws std::invalid_argument if a text is too long, there
/// are no keys, or more than 2^30.
std::vector<std::byte> block_beginning(const BlockHead& head, std::uint64_t payload_bytes);
std::vector<std::byte> block_end(std::uint64_t checksum);

class BlockFile {
 public:
  /// Reads what lies before the payload. Throws FormatError (path, key), FileError.
  explicit BlockFile(std::unique_ptr<ByteSource> source);

  const std::string& identity() const { return head_.identity; }
  const std::string& note() const { return head_.note; }
  BlockKind kind() const { return head_.kind; }
  const std::vector<Key>& keys() const { return head_.keys; }
  std::uint64_t payload_bytes() const { return payload_bytes_; }
  const std::string& path() const { return source_->path(); }

  /// Reads the payload piece by piece and compares the checksum of the whole file.
  /// Throws FormatError where it differs, the pieces are of no use then; FileError; std::invalid_argument unless the
  /// pieces have payload_bytes() together.
  void read_payload(std::span<const std::span<std::byte>> pieces) const;

  /// The same without keeping the payload.
  void check() const;

 private:
  void check_end(const Checksum& checksum) const;

  std::unique_ptr<ByteSource> source_;
  std::vector<std::byte> beginning_;
  BlockHead head_;
  std::uint64_t payload_bytes_ = 0;
};

}  // namespace memoir::prefix
