#include "memoir/cli/prefix_cache.h"

#include <filesystem>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/report.h"
#include "memoir/cli/status.h"
#include "memoir/cli/text_checks.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/model/fingerprint.h"
#include "memoir/prefix/narrow_rows.h"

namespace fs = std::filesystem;

namespace memoir::cli {

void PrefixCacheArguments::add_to(CLI::App& command, const std::string& what) {
  const auto most = std::uint64_t{1} << 50;
  bytes_option_ = command
                      .add_option("--prefix-cache-bytes", bytes_,
                                  "bytes of memory for what " + what + "\n(default: a quarter of the memory)")
                      ->type_name("N")
                      ->transform(whole_number(0, most));
  command
      .add_option_function<std::string>(
          "--prefix-cache-format",
          [this](const std::string& name) {
            format_ = name == "q8" ? prefix::StoreFormat::kQ8 : prefix::StoreFormat::kAsComputed;
          },
          "how rows are kept there: exact, or q8, which takes a half to a quarter\nof the bytes and gives answers that "
          "are near to, and not always the same as,\nthose without the cache")
      ->check(CLI::IsMember({"exact", "q8"}))
      ->type_name("exact|q8");
  CLI::Option* directory = command.add_option("--prefix-cache-dir", directory_, "keep that in DIR too, for later runs")
                               ->type_name("DIR")
                               ->check(not_empty());
  disk_bytes_option_ = command
                           .add_option("--prefix-cache-disk-bytes", disk_bytes_,
                                       "bytes of all that is in DIR, the least recently used goes")
                           ->type_name("N")
                           ->transform(whole_number(0, most))
                           ->capture_default_str()
                           ->needs(directory);
}

std::optional<prefix::DirectoryTierOptions> PrefixCacheArguments::directory(const std::string& model) const {
  if (directory_.empty()) return std::nullopt;
  if (bytes_ == 0) throw UsageError("--prefix-cache-dir: nothing can be kept there with --prefix-cache-bytes 0");
  std::error_code ignored;
  if (fs::exists(directory_, ignored) && !fs::is_directory(directory_, ignored)) {
    throw UsageError("--prefix-cache-dir " + directory_ + ": is no directory");
  }
  const fs::path path = resolve_model(model);
  prefix::DirectoryTierOptions options;
  options.path = directory_;
  options.max_bytes = disk_bytes_;
  options.model = model::fingerprint(path);
  options.model_name = path.stem().string();
  options.on_warning = [](const std::string& why) { report("--prefix-cache-dir: nothing more is kept there: " + why); };
  return options;
}

void PrefixCacheArguments::check(bool is_kept, const model::Model& model, const cache::CacheOptions& caches,
                                 const std::optional<prefix::CompanionCaches>& companion) const {
  if (!is_kept && bytes_ > 0 && bytes_option_->count() > 0) {
    throw UsageError("--prefix-cache-bytes: nothing is kept that it could be for");
  }
  const bool is_narrow = format_ != prefix::StoreFormat::kAsComputed;
  if (is_narrow) {
    if (!is_kept || bytes_ == 0) throw UsageError("--prefix-cache-format q8: nothing is kept that it could be for");
    if (caches.quantization) throw UsageError("--prefix-cache-format q8: with --kv the rows are quantized already");
  }
  const bool has_bounds = bytes_option_->count() > 0 || disk_bytes_option_->count() > 0;
  if (is_kept && bytes_ > 0 && (is_narrow || has_bounds)) check_room(kept_size(model, caches, companion));
}

prefix::StateSize PrefixCacheArguments::kept_size(const model::Model& model, const cache::CacheOptions& caches,
                                                  const std::optional<prefix::CompanionCaches>& companion) const {
  try {
    return engine::kept_size(model, caches, format_, companion);
  } catch (const UnsupportedError& error) {
    if (error.key() != prefix::NarrowRows::kFormatName) throw;
    const std::string type = caches.dtype ? " beside --kv " + KvArguments::name_of(*caches.dtype) : "";
    throw UnsupportedError("", "--prefix-cache-format q8" + type, error.reason());
  }
}

void PrefixCacheArguments::check_room(const prefix::StateSize& size) const {
  const std::string rows = "the rows of a single token take " + std::to_string(size.row_bytes);
  const std::string checkpoint =
      "a checkpoint of states and full windows takes " + std::to_string(size.checkpoint_bytes);
  std::string why = "nothing can be kept, " + rows;
  if (size.checkpoint_bytes > 0) why = "is too little, " + checkpoint + (size.row_bytes > 0 ? " and " + rows : "");
  const auto need = [&](const CLI::Option& option, std::uint64_t n_bytes) {
    if (option.count() == 0 || n_bytes >= size.row_bytes + size.checkpoint_bytes) return;
    throw UsageError(option.get_name() + " " + std::to_string(n_bytes) + ": " + why);
  };
  need(*bytes_option_, bytes_);
  need(*disk_bytes_option_, disk_bytes_);
}

std::unique_ptr<prefix::Store> PrefixCacheArguments::store(
    const std::string& model_name, const model::Model& model, const cache::CacheOptions& caches,
    const std::optional<prefix::CompanionCaches>& companion) const {
  if (caches.quantize_from > 0 && has_directory()) {
    throw UsageError("--prefix-cache-dir: --quantized-kv-start changes the format of what would be kept");
  }
  std::optional<prefix::DirectoryTierOptions> tier = directory(model_name);
  if (bytes_ == 0 || caches.quantize_from > 0) return nullptr;
  return engine::make_prefix_store(model, {.max_bytes = bytes_, .format = format_}, caches, std::move(tier), companion);
}

}  // namespace memoir::cli
