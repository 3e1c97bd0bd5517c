#pragma once

// --prefix-cache-bytes, --prefix-cache-format, --prefix-cache-dir, --prefix-cache-disk-bytes: what is kept of computed
// prefixes, how, and where.

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "memoir/cache/kv.h"
#include "memoir/cli/memory_size.h"
#include "memoir/model/model.h"
#include "memoir/prefix/companion_caches.h"
#include "memoir/prefix/directory_options.h"
#include "memoir/prefix/store.h"

namespace memoir::cli {

class PrefixCacheArguments {
 public:
  /// what: whose computing is kept, in the help.
  void add_to(CLI::App& command, const std::string& what);

  std::size_t bytes() const { return bytes_; }
  prefix::StoreFormat format() const { return format_; }
  bool has_directory() const { return !directory_.empty(); }

  /// For the model as -m has it; nullopt without --prefix-cache-dir. The directory is made if there is none.
  /// Throws UsageError if it is no directory, or without memory to work in; FileError if the model can't be read.
  std::optional<prefix::DirectoryTierOptions> directory(const std::string& model) const;

  /// Throws UsageError if bytes or a format were chosen that have nothing to work on: nothing is kept, or not what this
  /// command computes; bytes that the rows of a single token, and a checkpoint where the model needs them, do not fit
  /// into; or, for a format, rows that are quantized already; UnsupportedError for rows that can't have the format.
  /// is_kept: the command keeps what it computes with these caches, and what a drafter keeps beside them.
  void check(bool is_kept, const model::Model& model, const cache::CacheOptions& caches,
             const std::optional<prefix::CompanionCaches>& companion) const;

  /// A store for sessions with caches of these options and a drafter with such a companion; null where nothing can be
  /// kept.
  /// Throws as directory() and make_prefix_store(), and UsageError for --quantized-kv-start with a directory.
  std::unique_ptr<prefix::Store> store(const std::string& model_name, const model::Model& model,
                                       const cache::CacheOptions& caches,
                                       const std::optional<prefix::CompanionCaches>& companion) const;

 private:
  prefix::StateSize kept_size(const model::Model& model, const cache::CacheOptions& caches,
                              const std::optional<prefix::CompanionCaches>& companion) const;
  void check_room(const prefix::StateSize& size) const;

  CLI::Option* bytes_option_ = nullptr;
  CLI::Option* disk_bytes_option_ = nullptr;
  std::size_t bytes_ = default_prefix_cache_bytes();
  prefix::StoreFormat format_ = prefix::StoreFormat::kAsComputed;
  std::string directory_;
  std::uint64_t disk_bytes_ = prefix::DirectoryTierOptions().max_bytes;
};

}  // namespace memoir::cli
