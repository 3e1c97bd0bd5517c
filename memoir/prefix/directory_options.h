#pragma once

// Where the directory tier (directory_tier.h) keeps its blocks, and for which model. No MLX.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace memoir::prefix {

struct DirectoryTierOptions {
  std::filesystem::path path;
  std::uint64_t max_bytes = std::uint64_t{16} << 30;  // of all blocks there, whosever
  std::string model;                                  // a fingerprint: what differs may not share state
  std::string model_name;                             // what people call it
  std::size_t max_queued_bytes = std::size_t{256} << 20;
  std::function<void(const std::string&)> on_warning;  // called once at most, here or on another thread; may be empty
};

}  // namespace memoir::prefix
