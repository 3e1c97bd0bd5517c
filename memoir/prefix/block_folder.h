#pragma once

// A directory of blocks (block_file.h): what is there, within a budget of bytes. Several processes may use it at once,
// for different models too.
//
// The index is the directory: it is listed at the start, and again, at most once a second, when it has changed. A block
// is written aside and renamed, and its name tells what it is of, so there are no locks: whoever writes the same block
// writes the same bytes. A file that is gone is a miss. What was used last stays longest; that is the file's time of
// modification, or that of a later one which goes on from it, so that prompts shrink from their ends.
//
// A file that is damaged is removed. What is not called as blocks are is never touched, apart from what a process left
// behind that was killed while it wrote a block.
// Threads: any; one writes (block_writer.h).

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memoir/prefix/block_file.h"
#include "memoir/prefix/block_name.h"

namespace memoir::prefix {

struct BlockFolderOptions {
  std::filesystem::path path;
  std::string identity;         // of the model and the format of its caches: blocks of others are not looked at
  std::uint64_t max_bytes = 0;  // of all blocks in the directory, whosever
};

struct BlockFolderCounters {
  std::uint64_t n_loaded = 0;
  std::uint64_t n_damaged = 0;  // and removed
  std::uint64_t n_removed = 0;  // to make room
};

class BlockFolder {
 public:
  /// Makes the directory if there is none, and lists it. One that can't be made or read is empty; a write tells why.
  explicit BlockFolder(BlockFolderOptions options);
  BlockFolder(const BlockFolder&) = delete;
  BlockFolder& operator=(const BlockFolder&) = delete;

  const std::string& identity() const { return options_.identity; }
  const std::string& space() const { return space_; }

  /// Lists the directory again if it has changed and the last time is a second ago, or in any case.
  void refresh(bool is_forced = false);

  /// Rows of positions [name.from, to) of the prompt, the first ones of a block.
  struct RowsPart {
    BlockName name;
    int to;
  };

  /// Blocks that follow each other from the last cut at or before `from` on, as far as they go.
  std::vector<RowsPart> find_rows(const KeyChain& chain, int from);

  /// Checkpoints at offsets in (above, chain.n_keys()], the deepest first.
  std::vector<BlockName> find_states(const KeyChain& chain, int above) const;

  bool contains(const BlockName& name) const;

  /// The block, if it is there and its first `to` keys are those of `keys`; null otherwise. Its payload isn't checked.
  std::unique_ptr<BlockFile> open(const BlockName& name, std::span<const Key> keys, int to);

  /// It was of use.
  void touch(const BlockName& name);

  /// Its content is not what was written: removes it.
  void discard(const BlockName& name);

  /// Removes what was used least recently until n_bytes more fit; false if they never will.
  bool make_room(std::uint64_t n_bytes);

  /// Throws FileError if no file can be made in the directory, which is made if it is not there.
  void check_writable() const;

  /// Writes a block. Throws FileError.
  void write(const BlockName& name, std::span<const std::span<const std::byte>> pieces);

  /// Takes a written block in: its keys from name.from on. Shorter ones of the same keys are removed.
  void add(const BlockName& name, std::vector<Key> own_keys, std::uint64_t n_bytes);

  /// Of all blocks in the directory, as far as is known.
  std::uint64_t size_bytes() const;
  std::size_t n_files() const;
  BlockFolderCounters counters() const;

 private:
  struct RowsEntry {
    BlockName name;
    std::vector<Key> keys;  // its own; empty: not read yet
  };
  struct DigestHash {
    std::size_t operator()(const Digest& digest) const { return static_cast<std::size_t>(digest.low); }
  };

  std::filesystem::path path_of(const BlockName& name) const { return options_.path / name.file_name(); }
  void list();
  void take_in(const std::string& file_name, std::uint64_t n_bytes);
  void forget(const std::string& file_name);
  void remove(const BlockName& name);
  std::vector<BlockName> in_order_of_use() const;
  std::vector<RowsEntry> rows_at(const Digest& cut) const;
  std::vector<Key> read_keys(const BlockName& name);
  void learn_keys(const BlockName& name, const std::vector<Key>& keys);
  std::optional<RowsPart> longest_at(const KeyChain& chain, int cut);

  BlockFolderOptions options_;
  std::string space_;
  mutable std::mutex mutex_;                              // of all below
  std::unordered_map<std::string, std::uint64_t> files_;  // name and bytes, of all spaces
  std::uint64_t size_bytes_ = 0;
  std::unordered_map<Digest, std::vector<RowsEntry>, DigestHash> rows_;  // by the cut that they begin at
  std::map<int, std::size_t> states_;                                    // how many there are at an offset
  std::filesystem::file_time_type changed_;                              // of the directory, when it was listed
  std::chrono::steady_clock::time_point listed_;
  BlockFolderCounters counters_;
};

}  // namespace memoir::prefix
