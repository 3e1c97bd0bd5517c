#pragma once

// What a directory of blocks (block_folder.h) holds, as trees of prompts: for people. Reads every block's beginning; of
// payloads only the sizes.
//
// A node is some positions of a prompt at whose end there is something: rows of them, a checkpoint, or a fork.
// Values, any thread.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "memoir/prefix/block_name.h"
#include "memoir/prefix/keys.h"

namespace memoir::prefix {

struct StoredNode {
  std::optional<std::size_t> parent = std::nullopt;  // in StoredTree::nodes; none: it begins at 0
  int from = 0;
  int to = 0;
  std::vector<Key> keys = {};                              // of [from, to)
  std::uint64_t row_bytes = 0;                             // of files whose rows end here
  std::uint64_t checkpoint_bytes = 0;                      // at `to`; 0: none
  std::string rule = {};                                   // of the checkpoint
  std::optional<std::chrono::seconds> age = std::nullopt;  // since the last use of what is here
};

/// All blocks of one model in one format of caches.
struct StoredTree {
  std::string identity;    // as the blocks have it
  std::string model_name;  // empty: not known
  std::size_t n_files = 0;
  std::uint64_t n_bytes = 0;
  std::vector<StoredNode> nodes;  // parents first, then their children in the order of their keys, depth first
};

/// One for each identity, ordered by it. Blocks that can't be read are left out.
/// Throws FileError if there is no such directory or it can't be read.
std::vector<StoredTree> stored_trees(const std::filesystem::path& folder);

}  // namespace memoir::prefix
