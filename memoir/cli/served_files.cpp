#include "memoir/cli/served_files.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/cli/heap.h"
#include "memoir/cli/report.h"
#include "memoir/cli/status.h"
#include "memoir/engine/measured_cost.h"
#include "memoir/model/config.h"
#include "memoir/model/load.h"
#include "memoir/model/package.h"
#include "memoir/model/weights.h"
#include "memoir/text/utf8.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

bool is_gguf(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".gguf" && !fs::is_directory(path, ignored);
}

// What a package, or a model by itself, is read from.
struct Source {
  fs::path model;
  std::optional<fs::path> draft = std::nullopt;
  std::optional<std::string> chat_template = std::nullopt;  // instead of the model's own

  explicit Source(const fs::path& path) : model(path) {
    if (!model::is_package(path)) return;
    model::Package package = model::read_package(path);
    model = std::move(package.model);
    draft = std::move(package.draft);
    chat_template = std::move(package.modelfile.chat_template);
  }

  void use_template(text::Tokenizer& tokenizer) const {
    if (chat_template) tokenizer.use_chat_template(*chat_template);
  }
};

// Of anything that tells that there may be something else to read now; the least time for what is not there.
fs::file_time_type time_of(const fs::path& path) {
  fs::file_time_type latest = fs::file_time_type::min();
  const fs::path inside = path / "model";
  for (const fs::path& one : {path, path / "config.json", path / "Modelfile", inside, inside / "config.json"}) {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(one, error);
    if (!error) latest = std::max(latest, time);
  }
  return latest;
}

// Entries of a folder that may be meant as models; notes, hidden files and the like are not.
bool may_be_model(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.path().filename().string().starts_with('.')) return false;
  return entry.path().extension() == ".gguf" || !entry.is_regular_file(error);
}

void need(const fs::path& file) {
  if (!entry_exists(file)) throw FileError(file.string(), "", "no such file");
}

// Without reading weights or the tokenizer, which takes long. Throws InputError saying what is missing.
void check_parts(const fs::path& model) {
  if (!fs::is_directory(existing_status(model))) {
    if (GgufFile::open(model).string("tokenizer.ggml.model")) return;
    throw UnsupportedError(model.string(), "tokenizer.ggml.model", "there is no tokenizer to serve with");
  }
  need(model / "config.json");
  need(model / "tokenizer.json");
  for (const fs::path& file : model::safetensors_files(model).paths) need(file);
}

std::chrono::system_clock::time_point system_time(fs::file_time_type time) {
  const auto age = fs::file_time_type::clock::now() - time;
  return std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(age);
}

// Of the files that have the weights.
std::uint64_t weight_bytes(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  std::uint64_t n_bytes = 0;
  for (const fs::path& file : model::safetensors_files(path).paths) n_bytes += fs::file_size(file);
  return n_bytes;
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

// Of it, what --max-cache-bytes has room for, as the service cuts it.
int context_with_room(const model::Model& model, const ServingOptions& options) {
  const int context = context_of(model.config(), options);
  if (!options.service.max_cache_bytes) return context;
  const std::size_t max_bytes = *options.service.max_cache_bytes;
  const engine::CacheCost cost = engine::measured_cost(model, options.kv.cache_options(model.config()));
  if (max_bytes < cost.bytes(1)) {
    throw UsageError("--max-cache-bytes: " + std::to_string(max_bytes) + " bytes for a model, expected at least the " +
                     std::to_string(cost.bytes(1)) + " of one token's keys, values and states");
  }
  return std::min(context, cost.tokens_within(max_bytes));
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
                              .context = context_with_room(*loaded.model, options),
                              .n_vocab = config.vocab_size,
                              .details = details_of(config, path, loaded.model->size_bytes()),
                              .n_embedding = config.hidden_size});
}

std::optional<engine::Drafting> served_drafting(const model::LoadedModel& loaded, const fs::path& path,
                                                const ServingOptions& options) {
  const cache::CacheOptions caches = options.kv.cache_options(loaded.model->config());
  return options.draft.drafting(path.string(), loaded, caches, options.service.prefill_tokens_per_step);
}

std::unique_ptr<engine::Service> served_engine(model::LoadedModel loaded, const fs::path& path,
                                               const ServingOptions& options) {
  const cache::CacheOptions caches = options.kv.cache_options(loaded.model->config());
  options.prefix_cache.check(true, *loaded.model, caches, engine::companion_of(options.service.drafting));
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
    if (may_be_model(entry)) found.push_back(entry.path());
  }
  // Of one name the file first, as -m takes them.
  std::ranges::sort(found, {}, [](const fs::path& path) { return std::pair(served_name(path), !is_gguf(path)); });
  paths.insert(paths.end(), found.begin(), found.end());
  return paths;
}

/// Reads the configuration of a path that is new or has changed.
const ServedFiles::Known& ServedFiles::know(const fs::path& path) {
  const fs::file_time_type time = time_of(path);
  const auto found = known_.find(path);
  if (found != known_.end() && found->second.time == time) return found->second;
  Known known{time, std::nullopt};
  try {
    if (!text::utf8::valid(served_name(path))) throw FormatError(path.string(), "", "its name is not UTF-8");
    const Source source(path);
    check_parts(source.model);
    known.details = details_of(model::read_model_config(source.model), source.model, weight_bytes(source.model));
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
        if (!known.details) continue;
        const std::string name = served_name(path);
        const auto [first, is_new] = paths_.emplace(name, path);
        if (is_new) {
          listed.push_back({name, *known.details});
        } else if (!fs::equivalent(first->second, path) && hidden_.insert(path).second) {
          on_skipped_(path, first->second.string() + " has the same name");
        }
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
  const Source source(path_of(name));
  const model::ModelConfig config = model::read_model_config(source.model);
  text::Tokenizer tokenizer = model::load_tokenizer(source.model);
  source.use_template(tokenizer);
  return server::ServedModel({.name = name,
                              .tokenizer = std::move(tokenizer),
                              .end_tokens = {},
                              .context = context_of(config, options_),
                              .n_vocab = config.vocab_size,
                              .details = details_of(config, source.model, weight_bytes(source.model)),
                              .n_embedding = config.hidden_size});
}

server::ModelSource::Loaded ServedFiles::load(const std::string& name) {
  const Source source(path_of(name));
  options_.run.use_device();
  const FreedBlocksReturn while_loading;
  model::LoadedModel loaded = model::load_model(source.model);
  if (loaded.tokenizer) source.use_template(*loaded.tokenizer);
  for (const std::string& note : loaded.notes) report(name + ": " + note);
  server::ServedModel model = served_model(loaded, source.model, name, options_);
  ServingOptions serving = options_;
  serving.draft.use_for_auto(source.draft);
  try {
    serving.service.drafting = served_drafting(loaded, source.model, serving);
  } catch (const std::exception& error) {
    report(name + ": no drafts: " + std::string(reason(error.what())));
  }
  std::shared_ptr<engine::Service> service = served_engine(std::move(loaded), source.model, serving);
  server::CacheHooks hooks = cache_hooks(*service);
  return {std::move(model), std::move(service), std::move(hooks)};
}

void ServedFiles::unloaded() {
  const FreedBlocksReturn at_once;
}

}  // namespace memoir::cli
