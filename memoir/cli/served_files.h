#pragma once

// The models that `memoir serve` has: a file or directory for each, loaded with the same options.
//
// Threads: list() and describe() from any, load() and unloaded() on the server's thread for that.

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "memoir/cli/common_options.h"
#include "memoir/cli/prefix_cache.h"
#include "memoir/engine/scheduler.h"
#include "memoir/server/model_pool.h"

namespace memoir::cli {

/// How all of them are run.
struct ServingOptions {
  RunOptions run;
  KvArguments kv;
  engine::ServiceOptions service;  // but for the directory, which follows from the next for each model
  PrefixCacheArguments prefix_cache;
  DraftOptions draft;
  std::function<void(const std::string& why)> on_warning = {};  // of its directory, from any thread
};

/// The name that clients know a model by: of its file, without .gguf, or of its directory.
std::string served_name(const std::filesystem::path& path);

/// What the server must know of a loaded model. Throws UnsupportedError if it has no tokenizer, and UsageError where
/// service.max_cache_bytes isn't room for a token.
server::ServedModel served_model(const model::LoadedModel& loaded, const std::filesystem::path& path,
                                 const std::string& name, const ServingOptions& options);

/// What its drafts come from, by options.draft. Throws as DraftOptions::drafting.
std::optional<engine::Drafting> served_drafting(const model::LoadedModel& loaded, const std::filesystem::path& path,
                                                const ServingOptions& options);

/// The engine for it, which takes the model.
std::unique_ptr<engine::Service> served_engine(model::LoadedModel loaded, const std::filesystem::path& path,
                                               const ServingOptions& options);

/// What the server asks of its prefix cache. The engine must outlive them.
server::CacheHooks cache_hooks(engine::Service& service);

class ServedFiles : public server::ModelSource {
 public:
  /// Says of a file that it is left out, and why; once for each.
  using OnSkipped = std::function<void(const std::filesystem::path&, const std::string& why)>;

  /// models: paths, of packages (model/package.h) their folders; folder: every model and package directly in it, as it
  /// is at the time, or empty. A package's parameters and messages are not used, its draft where
  /// drafts are "auto". A model that can't have the drafts that are asked for is served without, which stderr says.
  /// What lacks a configuration, a tokenizer or weights is left out, and so is what leads nowhere or is no file. Of a
  /// name that comes twice the first is taken, and a path before the folder's. Throws UsageError for paths of one name.
  ServedFiles(std::vector<std::filesystem::path> models, std::filesystem::path folder, ServingOptions options,
              OnSkipped on_skipped);

  std::vector<server::ListedModel> list() override;
  server::ServedModel describe(const std::string& name) override;
  Loaded load(const std::string& name) override;
  void unloaded() override;

 private:
  /// What was read of a path, good as long as it is of this time.
  struct Known {
    std::filesystem::file_time_type time;
    std::optional<server::ModelDetails> details;  // nullopt: it is no model that can be served
  };

  std::vector<std::filesystem::path> candidates() const;
  const Known& know(const std::filesystem::path& path);
  std::filesystem::path path_of(const std::string& name);

  std::vector<std::filesystem::path> models_;
  std::filesystem::path folder_;
  ServingOptions options_;
  OnSkipped on_skipped_;
  std::mutex mutex_;  // of what follows
  std::map<std::filesystem::path, Known> known_;
  std::map<std::string, std::filesystem::path> paths_;  // by name, of the last list
  std::set<std::filesystem::path> hidden_;              // behind another one's name, which was said
};

}  // namespace memoir::cli
