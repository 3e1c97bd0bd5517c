#pragma once

// The process's peak memory. One implementation per system, chosen by CMake.

#include <cstdint>

namespace memoir::cli {

/// The most memory that was resident at once since the start, in bytes.
std::int64_t peak_rss_bytes();

}  // namespace memoir::cli
