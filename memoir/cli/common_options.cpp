#include "memoir/cli/common_options.h"

#include <mlx/device.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <random>
#include <stdexcept>

#include "memoir/base/error.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cli/heap.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/report.h"
#include "memoir/cli/status.h"
#include "memoir/cli/text_checks.h"
#include "memoir/engine/draft_model.h"
#include "memoir/kernels/device.h"
#include "memoir/model/gemma4_assistant.h"
#include "memoir/model/mtp_head.h"

namespace mx = mlx::core;

namespace memoir::cli {
namespace {

// Beyond, threads cost memory and bring nothing: no product of a model here is cut into that many parts.
constexpr int kMaxThreads = 256;

bool holds_rows(const cache::LayerCache& layer) {
  if (dynamic_cast<const cache::KVCache*>(&layer)) return true;
  const auto* list = dynamic_cast<const cache::CacheList*>(&layer);
  for (std::size_t i = 0; list && i < list->n_children(); ++i) {
    if (list->find(i) && holds_rows(*list->find(i))) return true;
  }
  return false;
}

}  // namespace

void RunOptions::add_to(CLI::App& command) {
  CLI::Option* option = command.add_option("-m,--model", model, kModelHelp)->type_name("MODEL");
  if (model.empty()) {
    option->required();
  } else {
    option->capture_default_str();
  }
  add_device_to(command);
}

void RunOptions::add_device_to(CLI::App& command) {
  command.add_option("--threads", threads, "threads of the CPU kernels (default: the physical cores)")
      ->type_name("N")
      ->transform(whole_number(1, kMaxThreads));
  command.add_option("--device", device, "where to compute")
      ->check(CLI::IsMember({"cpu", "gpu"}))
      ->type_name("cpu|gpu")
      ->capture_default_str();
}

void RunOptions::use_device() const {
  const mx::Device chosen(device == "gpu" ? mx::Device::gpu : mx::Device::cpu);
  if (!mx::is_available(chosen)) throw UsageError("--device " + device + ": this build of MLX has no such device here");
  mx::set_default_device(chosen);
}

void RunOptions::prepare(int n_stated) const {
  use_device();
  const char* instruction_set = std::getenv("MEMOIR_CPU");
  try {
    kernels::choose_cpu_kernels(instruction_set ? instruction_set : "");
  } catch (const std::invalid_argument& error) {
    throw UsageError(std::string("MEMOIR_CPU: ") + error.what());
  }
  kernels::set_cpu_threads(threads > 0 ? threads : n_stated > 0 ? n_stated : kernels::cpu_threads());
}

model::LoadedModel RunOptions::load() const {
  const std::optional<model::Package> package = find_package(model);
  prepare(package ? package->modelfile.parameters.num_thread.value_or(0) : 0);
  const FreedBlocksReturn while_loading;
  model::LoadedModel loaded = model::load_model(package ? package->model : resolve_model(model));
  if (loaded.tokenizer && package && package->modelfile.chat_template) {
    loaded.tokenizer->use_chat_template(*package->modelfile.chat_template);
  }
  for (const std::string& note : loaded.notes) report(model + ": " + note);
  return loaded;
}

void KvArguments::add_formats_to(CLI::App& command) {
  command
      .add_option("--kv", kv,
                  "how keys and values are kept: a type, or so many bits in groups of 64 or 32 (auto: f16 for a "
                  "quantized model, else as the model computes, on the CPU f32)")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16", "q8", "q6", "q5", "q4", "q3", "q2"}))
      ->type_name("TYPE")
      ->capture_default_str();
  command
      .add_option("--max-kv-size", max_size,
                  "keep the first 4 and the latest positions, N in all (default: the context)")
      ->type_name("N")
      ->transform(whole_number(1, 1 << 30));
}

void KvArguments::add_to(CLI::App& command) {
  add_formats_to(command);
  command
      .add_option("--quantized-kv-start", quantize_from, "with --kv q8 and the like: quantize once there are N tokens")
      ->type_name("N")
      ->transform(whole_number(0, 1 << 30));
}

namespace {

const std::array<std::pair<const char*, mx::Dtype>, 3> kRowTypes = {
    {{"f32", mx::float32}, {"f16", mx::float16}, {"bf16", mx::bfloat16}}};

}  // namespace

std::string KvArguments::name_of(mx::Dtype dtype) {
  return std::ranges::find(kRowTypes, dtype, [](const auto& type) { return type.second; })->first;
}

cache::CacheOptions KvArguments::cache_options(const model::ModelConfig& config) const {
  cache::CacheOptions options;
  if (max_size > 0) options.max_size = max_size;
  options.quantize_from = quantize_from;
  for (const auto& [name, dtype] : kRowTypes) {
    if (kv == name) options.dtype = dtype;
  }
  if (kv.front() == 'q') {
    if (config.head_dim % 32 != 0) {
      throw UsageError("--kv " + kv + ": the model's heads have " + std::to_string(config.head_dim) +
                       " dimensions, quantized rows need a multiple of 32");
    }
    options.quantization = cache::KVQuantization{kv[1] - '0', config.head_dim % 64 == 0 ? 64 : 32};
  }
  if (quantize_from > 0 && !options.quantization) {
    throw UsageError("--quantized-kv-start: there is nothing to quantize without --kv q8, q6, q5, q4, q3 or q2");
  }
  return options;
}

void KvArguments::check(const model::Model& model) const {
  std::string names = kv == "auto" ? "" : "--kv " + kv;
  if (max_size > 0) names += (names.empty() ? "" : ", ") + ("--max-kv-size " + std::to_string(max_size));
  if (names.empty()) return;
  try {
    const cache::ModelCache cache = model.make_cache(cache_options(model.config()));
    for (std::size_t i = 0; i < cache.n_layers(); ++i) {
      if (cache.find(i) && holds_rows(*cache.find(i))) return;
    }
  } catch (const std::invalid_argument& refusal) {
    throw UsageError(names + ": " + std::string(reason(refusal.what())));
  }
  throw UsageError(names + ": a " + model.config().model_type + " keeps no keys and values");
}

void SamplingOptions::add_to(CLI::App& command) {
  const auto whole = [&](const char* names, auto& value, std::int64_t low, std::uint64_t high, const char* help) {
    CLI::Option* option = command.add_option(names, value, help)->type_name("N")->transform(whole_number(low, high));
    options_[option->get_name()] = option;
    return option;
  };
  const auto real = [&](const char* name, double& value, const CLI::Validator& range, const char* help) {
    options_[name] = command.add_option(name, value, help)->type_name("X")->check(range)->capture_default_str();
  };
  whole("-n,--max-tokens", max_tokens, 0, 1 << 30, "the most tokens to generate")->capture_default_str();
  real("--temp", sampler.temperature, number(0, 1e6), "temperature, 0 takes the likeliest token");
  real("--top-p", sampler.top_p, number_above(0, 1), "keep the likeliest tokens up to this mass");
  real("--min-p", sampler.min_p, number(0, 1), "drop tokens below this share of the likeliest");
  whole("--top-k", sampler.top_k, 0, 1 << 30, "keep the k likeliest tokens, 0 all")->capture_default_str();
  real("--repeat-penalty", sampler.repetition_penalty, number_above(0, 1e6),
       "divide the logits of seen tokens, 1 is none");
  real("--presence-penalty", sampler.presence_penalty, number(-1e6, 1e6), "subtract from the logits of seen tokens");
  real("--frequency-penalty", sampler.frequency_penalty, number(-1e6, 1e6), "the same, times how often they were seen");
  whole("--repeat-last-n", sampler.penalty_window, -1, 1 << 30, "how many tokens the penalties look at, -1 all")
      ->capture_default_str();
  whole("--seed", seed_, 0, std::numeric_limits<std::uint64_t>::max(),
        "the same seed gives the same text (default: a random one)");
  options_["--stop"] = command.add_option("--stop", stop_strings, "end where this text would appear; may be repeated")
                           ->type_name("TEXT")
                           ->take_all()
                           ->expected(1);
  whole("--prefill-chunk", prefill_chunk, 1, 1 << 20, "tokens of the prompt in one forward pass")
      ->capture_default_str();
}

void SamplingOptions::use_defaults(const model::ModelfileParameters& parameters) {
  const auto use = [&](const char* name, const auto& stated, auto& value) {
    if (stated && !is_given(name)) value = static_cast<std::decay_t<decltype(value)>>(*stated);
  };
  use("--temp", parameters.temperature, sampler.temperature);
  use("--top-p", parameters.top_p, sampler.top_p);
  use("--min-p", parameters.min_p, sampler.min_p);
  use("--top-k", parameters.top_k, sampler.top_k);
  use("--repeat-penalty", parameters.repeat_penalty, sampler.repetition_penalty);
  use("--presence-penalty", parameters.presence_penalty, sampler.presence_penalty);
  use("--frequency-penalty", parameters.frequency_penalty, sampler.frequency_penalty);
  use("--repeat-last-n", parameters.repeat_last_n, sampler.penalty_window);
  use("--seed", parameters.seed, seed_);
  has_seed_ = parameters.seed.has_value();
  use("--max-tokens", parameters.num_predict, max_tokens);
  if (max_tokens < 0) max_tokens = 1 << 30;
  if (!is_given("--stop")) stop_strings = parameters.stop;
}

engine::GenerateOptions SamplingOptions::generate_options(const model::LoadedModel& loaded) const {
  engine::GenerateOptions options;
  options.max_tokens = max_tokens;
  options.prefill_chunk = prefill_chunk;
  options.sampler = sampler;
  if (has_seed_ || is_given("--seed")) options.sampler.seed = seed_;
  options.stop_tokens = loaded.end_tokens;
  if (is_given("--stop") && !loaded.tokenizer) throw UsageError("--stop: the model has no tokenizer, so no texts");
  for (const std::string& stop : stop_strings) {
    if (stop.empty()) throw UsageError("--stop: the text is empty");
  }
  options.stop_strings = stop_strings;
  return options;
}

void DraftOptions::add_to(CLI::App& command) {
  option_ =
      command
          .add_option("--draft", draft_,
                      "guess tokens ahead and check them together, which gives the same text sooner:\n"
                      "ngram looks in the text so far; auto asks what the package names (DRAFT), or where it names\n"
                      "nothing the head that the model carries; else a small MODEL of the same vocabulary is asked,\n"
                      "or an assistant that was made for the model; none: nothing is guessed, also where the package\n"
                      "names something")
          ->type_name("ngram|auto|none|MODEL")
          ->check(not_empty());
  max_option_ = command.add_option("--draft-max", max_drafts_, "the most tokens to guess at a time")
                    ->type_name("N")
                    ->transform(whole_number(1, engine::DraftLength::kMax))
                    ->capture_default_str();
}

void DraftOptions::use_defaults(const model::Package& package) {
  const std::optional<int> n_most = package.modelfile.parameters.draft_num_predict;
  const bool is_off = n_most == 0 && max_option_->count() == 0;
  if (draft_.empty() && package.draft && !is_off) draft_ = package.draft->string();
  use_for_auto(package.draft);
  if (n_most && *n_most > 0 && max_option_->count() == 0) max_drafts_ = *n_most;
}

void DraftOptions::check() const {
  if (max_option_->count() > 0 && !is_used()) throw UsageError("--draft-max: without --draft nothing is guessed");
}

void DraftOptions::leave_out_default(const std::string& reason) {
  if (draft_.empty() || option_->count() > 0) return;
  report("with " + reason + " the model's DRAFT is not used");
  draft_.clear();
}

namespace {

std::shared_ptr<const model::MtpHead> carried_head(const std::string& model) {
  try {
    return model::load_mtp_head(resolve_model(model));
  } catch (const UnsupportedError& error) {
    if (error.key() != model::kNoMtpHead) throw;
    throw UnsupportedError(error.path(), "--draft auto",
                           "the model carries no head that predicts further tokens, and no package names a DRAFT");
  }
}

}  // namespace

engine::Drafting DraftOptions::made(const std::string& model, const model::LoadedModel& loaded,
                                    std::optional<int> n_at_once) const {
  if (draft_ == "ngram") return engine::draft_by_lookup();
  const FreedBlocksReturn while_loading;
  if (draft_ == "auto") return engine::draft_with_head(carried_head(model), *loaded.model);
  const std::filesystem::path path = resolve_model(draft_);
  if (model::is_gemma4_assistant(path)) {
    return engine::draft_with_assistant(model::load_gemma4_assistant(path), *loaded.model);
  }
  const auto draft = std::make_shared<const model::LoadedModel>(model::load_model(path));
  check_same_vocabulary(loaded, *draft, "--draft " + draft_);
  try {
    return engine::draft_with_model(draft, n_at_once);
  } catch (const std::invalid_argument& error) {
    throw UsageError("--draft " + draft_ + ": " + std::string(reason(error.what())));
  }
}

std::optional<engine::Drafting> DraftOptions::drafting(const std::string& model, const model::LoadedModel& loaded,
                                                       const cache::CacheOptions& caches, int n_at_once) const {
  if (!is_used()) return std::nullopt;
  engine::Drafting drafting = made(model, loaded, n_at_once);
  drafting.max_drafts = max_drafts_;
  try {
    engine::check_takes_drafts_back(loaded.model->make_cache(caches), max_drafts_);
  } catch (const std::invalid_argument& error) {
    throw UsageError("--draft " + draft_ + ": " + std::string(reason(error.what())));
  }
  return drafting;
}

void DraftOptions::use(const std::string& model, const model::LoadedModel& loaded, engine::GenerateOptions& options) {
  if (!is_used()) return;
  drafting_ = made(model, loaded, std::nullopt);
  drafter_ = drafting_->make(*loaded.model);
  options.drafter = drafter_.get();
  options.max_drafts = max_drafts_;
}

void ContextShiftOptions::add_to(CLI::App& command) {
  CLI::Option* shift = command.add_flag(
      "--context-shift", is_used_, "when the context is full keep its first tokens, drop half of the others, go on");
  command.add_option("--context", context_, "with --context-shift: a context of N tokens (default: the model's)")
      ->type_name("N")
      ->transform(whole_number(2, 1 << 30))
      ->needs(shift);
  command.add_option("--keep", keep_, "with --context-shift: how many of the first tokens stay")
      ->type_name("N")
      ->transform(whole_number(0, 1 << 30))
      ->needs(shift)
      ->capture_default_str();
}

std::optional<engine::ContextShift> ContextShiftOptions::shift(
    const model::LoadedModel& loaded, const std::vector<std::pair<const char*, bool>>& others) const {
  if (!is_used_) return std::nullopt;
  const model::ModelConfig& config = loaded.model->config();
  for (const auto& [name, is_other_used] : others) {
    if (is_other_used) throw UsageError(std::string("--context-shift: not together with ") + name);
  }
  if (context_ > config.max_position) {
    throw UsageError("--context " + std::to_string(context_) + ": the model's is " +
                     std::to_string(config.max_position));
  }
  engine::ContextShift shift{context_ > 0 ? context_ : config.max_position, keep_};
  if (shift.keep >= shift.context) {
    throw UsageError("--keep " + std::to_string(keep_) + ": the context has " + std::to_string(shift.context) +
                     " tokens, and some must go");
  }
  try {
    const engine::Session trial(*loaded.model, {}, nullptr, shift);
  } catch (const std::invalid_argument& refusal) {
    throw UsageError("--context-shift: " + std::string(reason(refusal.what())));
  }
  if (loaded.tokenizer) shift.goes_on = engine::goes_on_character(*loaded.tokenizer);
  return shift;
}

void check_same_vocabulary(const model::LoadedModel& target, const model::LoadedModel& draft, const std::string& name) {
  std::string difference;
  if (target.tokenizer && draft.tokenizer) {
    difference = engine::vocabulary_difference(*target.tokenizer, *draft.tokenizer);
  } else if (target.model->config().vocab_size != draft.model->config().vocab_size) {
    difference = "it has " + std::to_string(draft.model->config().vocab_size) + " tokens, the model " +
                 std::to_string(target.model->config().vocab_size);
  }
  if (!difference.empty()) throw UsageError(name + ": another vocabulary: " + difference);
}

std::uint64_t random_seed() {
  std::random_device device;
  const auto high = static_cast<std::uint64_t>(device());
  return high << 32 | device();
}

std::vector<TokenId> parse_tokens(const std::string& text) {
  std::vector<TokenId> tokens;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    TokenId token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    const bool is_number = error == std::errc() && token >= 0;
    if (!is_number || (next != end && (*next != ',' || next + 1 == end))) {
      throw UsageError("--tokens: '" + text + "' is not a list of token ids like 1,2,3");
    }
    tokens.push_back(token);
    at = next == end ? end : next + 1;
  }
  return tokens;
}

}  // namespace memoir::cli
