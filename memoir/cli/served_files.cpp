#include "memoir/cli/served_files.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/cli/heap.h"
#include "memoir/cli/report.h"
#include "memoir/cli/status.h"
#include "memoir/model/config.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

bool is_gguf(const fs::path& path) {
  return path.extension() == ".gguf";
}

std::chrono::system_clock::time_point system_time(fs::file_time_type time) {
  const auto age = fs::file_time_type::clock::now() - time;
  return std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(age);
}

// Of the files that have the weights.
std::uint64_t weight_bytes(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  std::uint64_t n_bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") n_bytes += entry.file_size();
  }
  return n_bytes;
}

model::ModelConfig config_of(const fs::path& path) {
  return fs::is_directory(path) ? model::read_config(path, model::check_supported)
                                : model::config_from_gguf(GgufFile::open(path), model::check_supported);
}

server::ModelDetails details_of(const model::ModelConfig& config, const fs::path& path, std::uint64_t n_bytes) {
  server::ModelDetails details;
  details.family = config.model_type;
  details.format = is_gguf(path) ? "gguf" : "safetensors";
  if (config.quantization) details.quantization = std::to_string(config.quantization->bits) + "-bit";
  details.size_bytes = n_bytes;
  std::error_code error;
  const fs::file_time_type modified = fs::last_write_time(path, error);
  if (!error) details.modified = system_time(modified);
  return details;
}

int context_of(const model::ModelConfig& config, const ServingOptions& options) {
  return options.service.max_context ? std::min(config.max_position, *options.service.max_context)
                                     : config.max_position;
}

}  // namespace

std::string served_name(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path last = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return is_gguf(last) ? last.stem().string() : last.string();
}

server::ServedModel served_model(const model::LoadedModel& loaded, const fs::path& path, const std::string& name,
                                 const ServingOptions& options) {
  if (!loaded.tokenizer) throw UnsupportedError(path.string(), "tokenizer.json", "there is none to serve with");
  const model::ModelConfig& config = loaded.model->config();
  return server::ServedModel({.name = name,
                              .tokenizer = *loaded.tokenizer,
                              .end_tokens = loaded.end_tokens,
                              .context = context_of(config, options),
                              .n_vocab = config.vocab_size,
                              .details = details_of(config, path, loaded.model->size_bytes()),
                              .n_embedding = config.hidden_size});
}

std::unique_ptr<engine::Service> served_engine(model::LoadedModel loaded, const fs::path& path,
                                               const ServingOptions& options) {
  const cache::CacheOptions caches = options.kv.cache_options(loaded.model->config());
  options.prefix_cache.check_format(true, caches);
  engine::ServiceOptions service = options.service;
  service.prefix_cache_format = options.prefix_cache.format();
  service.prefix_cache_directory = options.prefix_cache.directory(path.string());
  if (service.prefix_cache_directory && options.on_warning)
    service.prefix_cache_directory->on_warning = options.on_warning;
  return engine::make_service(std::move(loaded), service, caches);
}

server::CacheHooks cache_hooks(engine::Service& service) {
  return {[&service] { return server::Json::parse(service.prefix_cache_report()); },
          [&service] { service.clear_prefix_cache(); }};
}

ServedFiles::ServedFiles(std::vector<fs::path> models, fs::path folder, ServingOptions options, OnSkipped on_skipped)
    : models_(std::move(models)),
      folder_(std::move(folder)),
      options_(std::move(options)),
      on_skipped_(std::move(on_skipped)) {
  std::map<std::string, fs::path> names;
  for (const fs::path& path : models_) {
    const auto [first, is_new] = names.emplace(served_name(path), path);
    if (!is_new) {
      throw UsageError("--model: " + first->second.string() + " and " + path.string() + " have one name, " +
                       first->first);
    }
  }
}

std::vector<fs::path> ServedFiles::candidates() const {
  std::vector<fs::path> paths = models_;
  if (folder_.empty()) return paths;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const bool is_model = is_gguf(entry.path()) ? entry.is_regular_file() : entry_exists(entry.path() / "config.json");
    if (is_model) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  paths.insert(paths.end(), found.begin(), found.end());
  return paths;
}

/// Reads the configuration of a path that is new or has changed.
const ServedFiles::Known& ServedFiles::know(const fs::path& path) {
  const fs::path dated = fs::is_directory(path) ? path / "config.json" : path;
  const fs::file_time_type time = fs::last_write_time(dated);
  const auto found = known_.find(path);
  if (found != known_.end() && found->second.time == time) return found->second;
  Known known{time, std::nullopt};
  try {
    known.details = details_of(config_of(path), path, weight_bytes(path));
  } catch (const InputError& error) {
    on_skipped_(path, error.what());
  }
  return known_.insert_or_assign(path, std::move(known)).first->second;
}

std::vector<server::ListedModel> ServedFiles::list() {
  const std::lock_guard lock(mutex_);
  std::vector<server::ListedModel> listed;
  paths_.clear();
  try {
    for (const fs::path& path : candidates()) {
      try {
        const Known& known = know(path);
        const std::string name = served_name(path);
        if (!known.details || !paths_.emplace(name, path).second) continue;
        listed.push_back({name, *known.details});
      } catch (const fs::filesystem_error&) {
        // It went away meanwhile.
      }
    }
  } catch (const fs::filesystem_error&) {
    // So did the folder.
  }
  return listed;
}

fs::path ServedFiles::path_of(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = paths_.find(name);
  if (found == paths_.end()) throw FileError(name, "", "the model is not there any more");
  return found->second;
}

server::ServedModel ServedFiles::describe(const std::string& name) {
  const fs::path path = path_of(name);
  const model::ModelConfig config = config_of(path);
  return server::ServedModel({.name = name,
                              .tokenizer = model::load_tokenizer(path),
                              .end_tokens = {},
                              .context = context_of(config, options_),
                              .n_vocab = config.vocab_size,
                              .details = details_of(config, path, weight_bytes(path)),
                              .n_embedding = config.hidden_size});
}

server::ModelSource::Loaded ServedFiles::load(const std::string& name) {
  const fs::path path = path_of(name);
  options_.run.use_device();
  const FreedBlocksReturn while_loading;
  model::LoadedModel loaded = model::load_model(path);
  for (const std::string& note : loaded.notes) report(name + ": " + note);
  server::ServedModel model = served_model(loaded, path, name, options_);
  std::shared_ptr<engine::Service> service = served_engine(std::move(loaded), path, options_);
  server::CacheHooks hooks = cache_hooks(*service);
  return {std::move(model), std::move(service), std::move(hooks)};
}

void ServedFiles::unloaded() {
  const FreedBlocksReturn at_once;
}

}  // namespace memoir::cli
