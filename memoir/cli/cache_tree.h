#pragma once

// memoir cache tree: what a directory of prefixes holds.

#include <string>

namespace memoir::cli {

struct CacheTreeArguments {
  std::string directory;
  std::string model;  // empty: tokens are shown as ids
  bool is_json = false;
};

/// Prints it. Throws FileError if there is no such directory, and what loading a tokenizer throws.
int run_cache_tree(const CacheTreeArguments& arguments);

}  // namespace memoir::cli
