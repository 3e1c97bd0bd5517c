#pragma once

// How much memory the machine has, for defaults that depend on it.

#include <cstddef>

namespace memoir::cli {

/// A quarter of the machine's memory, 4 GiB if that can't be told: what is kept of prompts by default.
std::size_t default_prefix_cache_bytes();

}  // namespace memoir::cli
