#pragma once

// The tier (tier.h) below memory that lasts: blocks in a directory (block_folder.h), written behind (block_writer.h).
// Rows are in blocks of 256 positions and what is left at a prompt's end, each checkpoint in one of its own.
//
// What is given back is of this model, this version of memoir, this sort of device and this format of caches, of
// exactly these tokens, and to the bit what was kept: identity, tokens and a checksum are compared, and every size is
// the CacheForm's. Anything else is not found.
// Threads: the thread that owns MLX's work; the writer has one of its own, which touches no array but its bytes.
// Errors: none from the directory; a warning, once, if it can't be written.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "memoir/prefix/block_folder.h"
#include "memoir/prefix/block_writer.h"
#include "memoir/prefix/cache_form.h"
#include "memoir/prefix/directory_options.h"
#include "memoir/prefix/tier.h"

namespace memoir::prefix {

class DirectoryTier final : public Tier {
 public:
  DirectoryTier(const DirectoryTierOptions& options, CacheForm form);

  bool wants_rows(std::span<const Key> keys) override;
  void keep(std::span<const Key> keys, std::shared_ptr<const RowBlock> block) override;
  void keep(std::span<const Key> keys, std::shared_ptr<const StateCheckpoint::States> states,
            CheckpointRule rule) override;
  Found find(std::span<const Key> keys, int n_rows, int restorable) override;

  /// Waits until all that was kept is written.
  void flush() { writer_.flush(); }

  /// {"path", "bytes", "max_bytes", "files", "loaded", "damaged", "removed", "written", "dropped", "is_writing"}.
  std::uint64_t size_bytes() const override { return folder_.size_bytes(); }
  nlohmann::json report() const override;

  const BlockFolder& folder() const { return folder_; }

 private:
  void add(const BlockName& name, std::span<const Key> keys, nlohmann::ordered_json note, PayloadBytes payload);
  std::shared_ptr<const RowBlock> load(const BlockFolder::RowsPart& part, std::span<const Key> keys);
  std::optional<FoundCheckpoint> load(const BlockName& name, std::span<const Key> keys);
  bool read(const BlockName& name, const BlockFile& file, const PayloadArrays& arrays);
  Found find_rows_only(const KeyChain& chain, const std::vector<BlockFolder::RowsPart>& parts, int n_rows,
                       int restorable);
  Found find_states(const KeyChain& chain, const std::vector<BlockFolder::RowsPart>& parts, int n_rows, int restorable);
  int add_rows(const std::vector<BlockFolder::RowsPart>& parts, std::span<const Key> keys, int n_rows, int to,
               RowBlocks::Blocks& blocks);

  CacheForm form_;
  DirectoryTierOptions options_;
  BlockFolder folder_;
  BlockWriter writer_;
};

}  // namespace memoir::prefix
