#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/cache/cell_caches.h"
#include "memoir/cli/batch_file.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/messages_file.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/prefix_cache.h"
#include "memoir/cli/prompt_cache.h"
#include "memoir/cli/prompt_tokens.h"
#include "memoir/cli/report.h"
#include "memoir/cli/signals.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/cli/text_checks.h"
#include "memoir/engine/conversation.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/generate_batch.h"
#include "memoir/engine/samples.h"
#include "memoir/engine/scheduler.h"

namespace memoir::cli {
namespace {

constexpr int kMaxSamples = 1024;

struct GenerateArguments {
  RunOptions run;
  KvArguments kv;
  SamplingOptions sampling;
  PromptCache cache;
  PrefixCacheArguments prefix_cache;
  DraftOptions draft;
  ContextShiftOptions shift;
  int n_samples = 1;
  std::string prompt;
  std::string tokens;
  std::string messages_file;
  std::string batch_file;
  int n_side_by_side = 8;
  bool is_raw = false;
  bool is_json = false;
  CLI::Option* prompt_option = nullptr;
  CLI::Option* tokens_option = nullptr;
};

const text::Tokenizer& need_tokenizer(const model::LoadedModel& loaded, const GenerateArguments& arguments) {
  if (loaded.tokenizer) return *loaded.tokenizer;
  throw UnsupportedError(arguments.run.model, "tokenizer.json",
                         "there is none, so the prompt must be given as --tokens");
}

std::vector<TokenId> prompt_tokens(const model::LoadedModel& loaded, const GenerateArguments& arguments) {
  if (arguments.tokens_option->count() > 0) return parse_tokens(arguments.tokens);
  const text::Tokenizer& tokenizer = need_tokenizer(loaded, arguments);
  const Preface preface = Preface::of(find_package(arguments.run.model));
  if (arguments.prompt_option->count() > 0) return text_tokens(tokenizer, arguments.prompt, arguments.is_raw, preface);
  text::ChatTemplate::Inputs inputs = read_messages_file(arguments.messages_file, tokenizer);
  inputs.messages = with_preface(preface, inputs.messages);
  return chat_tokens(tokenizer, inputs, arguments.run.model);
}

nlohmann::ordered_json json_of(const engine::Completion& completion, std::uint64_t seed) {
  return {{"tokens", completion.tokens},
          {"text", completion.text},
          {"seed", seed},
          {"prompt_tokens", completion.prompt_tokens},
          {"cached_tokens", completion.cached_tokens},
          {"prefill_s", completion.prefill_s},
          {"decode_s", completion.decode_s},
          {"drafted", completion.drafts.n_drafted},
          {"accepted", completion.drafts.n_accepted},
          {"rounds", completion.drafts.n_rounds},
          {"finish_reason", engine::finish_reason_name(completion.finish_reason)}};
}

// Without a tokenizer there is no text: the ids, as --tokens takes them.
std::string tokens_text(const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

// ---- --batch

nlohmann::ordered_json json_of(const engine::BatchResult& result, std::uint64_t seed, nlohmann::ordered_json id) {
  nlohmann::ordered_json json = {{"index", result.index}};
  if (!id.is_null()) json["id"] = std::move(id);
  if (result.error) {
    json["error"] = *result.error;
    return json;
  }
  json["tokens"] = result.tokens;
  json["text"] = result.text;
  json["seed"] = seed;
  json["prompt_tokens"] = result.counts.prompt_tokens;
  json["cached_tokens"] = result.counts.cached_tokens;
  json["prefill_s"] = result.counts.prefill_s;
  json["decode_s"] = result.counts.decode_s;
  json["finish_reason"] = engine::finish_reason_name(result.finish_reason);
  if (result.counts.drafted_tokens > 0) {
    json["drafted"] = result.counts.drafted_tokens;
    json["accepted"] = result.counts.accepted_tokens;
  }
  return json;
}

// What is wrong with a request, with its line in front.
std::string error_at(const std::string& place, const std::string& error) {
  return error.starts_with(place + ":") ? error : place + ": " + std::string(reason(error));
}

// Reads lines and writes results, by their numbers.
class BatchRun {
 public:
  BatchRun(const std::string& path, BatchDefaults defaults) : file_(path), defaults_(std::move(defaults)) {}

  /// Whether next() would not wait. Shows what is wrong with lines that come before.
  bool is_ready() {
    while (!ready_ && file_.is_ready()) {
      const auto line = file_.next();
      if (!line) return true;
      ready_ = request_of(*line);
    }
    return ready_.has_value();
  }

  std::optional<engine::Request> next() {
    while (!ready_) {
      const auto line = file_.next();
      if (!line) return std::nullopt;
      ready_ = request_of(*line);
    }
    return std::exchange(ready_, std::nullopt);
  }

  void show(engine::BatchResult result) {
    Place place = std::move(places_.extract(result.index).mapped());
    result.index = place.index;
    if (result.error) result.error = error_at(place.name, *result.error);
    show(result, place.seed, std::move(place.id));
  }

  std::size_t n_failed() const { return n_failed_; }
  std::size_t n_done() const { return n_done_; }
  std::size_t n_read() const { return n_lines_; }

 private:
  struct Place {
    std::string name;   // FILE:LINE
    std::size_t index;  // of the result
    std::uint64_t seed;
    nlohmann::ordered_json id;
  };

  // Nothing, once its error is shown, for a line that is none.
  std::optional<engine::Request> request_of(const BatchFile::Line& line) {
    const std::string name = file_.name() + ":" + std::to_string(line.number);
    nlohmann::ordered_json id;
    try {
      engine::Request request = read_batch_request(line.text, name, defaults_, id);
      std::optional<std::uint64_t>& seed = request.sampler.seed;
      if (!seed) seed = random_seed();
      places_.emplace(n_given_++, Place{name, n_lines_++, *seed, std::move(id)});
      return request;
    } catch (const std::exception& error) {
      engine::BatchResult result;
      result.index = n_lines_++;
      result.error = error_at(name, error.what());
      show(result, 0, std::move(id));
      return std::nullopt;
    }
  }

  void show(const engine::BatchResult& result, std::uint64_t seed, nlohmann::ordered_json id) {
    ++n_done_;
    if (result.error) ++n_failed_;
    write_out(json_text(json_of(result, seed, std::move(id))) + "\n");
  }

  BatchFile file_;
  BatchDefaults defaults_;
  std::optional<engine::Request> ready_;  // found by is_ready()
  std::map<std::size_t, Place> places_;   // of what the engine was given and has not answered, by its number
  std::size_t n_given_ = 0;
  std::size_t n_lines_ = 0;
  std::size_t n_done_ = 0;
  std::size_t n_failed_ = 0;
};

int run_batch(const GenerateArguments& arguments) {
  model::LoadedModel loaded = arguments.run.load();
  const engine::GenerateOptions options = arguments.sampling.generate_options(loaded);
  const std::optional<text::Tokenizer> tokenizer = loaded.tokenizer;
  BatchDefaults defaults{arguments.run.model, tokenizer ? &*tokenizer : nullptr, arguments.is_raw, {}};
  defaults.request.max_tokens = options.max_tokens;
  defaults.request.sampler = options.sampler;
  defaults.request.stop_tokens = options.stop_tokens;
  defaults.request.stop_strings = options.stop_strings;
  defaults.preface = Preface::of(find_package(arguments.run.model));
  BatchRun run(arguments.batch_file, std::move(defaults));
  engine::ServiceOptions service_options;
  service_options.max_running = arguments.n_side_by_side;
  service_options.prefill_tokens_per_step = options.prefill_chunk;
  service_options.prefix_cache_bytes = arguments.prefix_cache.bytes();
  service_options.prefix_cache_format = arguments.prefix_cache.format();
  service_options.prefix_cache_directory = arguments.prefix_cache.directory(arguments.run.model);
  const cache::CacheOptions caches = arguments.kv.cache_options(loaded.model->config());
  arguments.kv.check(*loaded.model);
  service_options.drafting = arguments.draft.drafting(arguments.run.model, loaded, caches, options.prefill_chunk);
  arguments.prefix_cache.check(true, *loaded.model, caches, engine::companion_of(service_options.drafting));
  const std::unique_ptr<engine::Service> service = engine::make_service(std::move(loaded), service_options, caches);
  ProgressLine progress("requests");
  engine::generate_batch(
      *service, 2 * arguments.n_side_by_side, [&] { return run.next(); },
      [&](const engine::BatchResult& result) {
        progress.clear();
        run.show(result);
        progress.show(static_cast<int>(run.n_done()), static_cast<int>(run.n_read()));
      },
      [&] { return run.is_ready(); });
  return run.n_failed() == 0 ? kDone : kFailed;
}

// ---- --n

// One object a line, or the texts with a line between them.
void write_samples(const engine::Samples& samples, const GenerateArguments& arguments, bool has_text) {
  for (std::size_t i = 0; i < samples.completions.size(); ++i) {
    const engine::Completion& completion = samples.completions[i];
    if (arguments.is_json) {
      nlohmann::ordered_json object = json_of(completion, samples.seeds[i]);
      object["sample"] = i;
      write_out(json_text(object) + "\n");
    } else {
      write_out((i == 0 ? "" : "---\n") + (has_text ? completion.text : tokens_text(completion.tokens)) + "\n");
    }
  }
}

// The samples share cells of keys and values, which other layers don't have.
void check_can_share(const cache::ModelCache& cache) {
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    const std::string_view unfit = cache::unfit_for_cells(cache, i);
    if (unfit.empty()) continue;
    throw UsageError("--n: layer " + std::to_string(i) + " of the model has a " + std::string(unfit) +
                     ", and several continuations need layers of attention alone");
  }
}

int run_samples(const GenerateArguments& arguments, const model::LoadedModel& loaded,
                const std::vector<TokenId>& prompt, const engine::GenerateOptions& options) {
  check_can_share(loaded.model->make_cache());
  arguments.prefix_cache.check(false, *loaded.model, {}, {});
  const auto [cache, n] = std::pair(arguments.kv.cache_options(loaded.model->config()), arguments.n_samples);
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  write_samples(engine::generate_samples(*loaded.model, cache, prompt, options, n, tokenizer), arguments,
                tokenizer != nullptr);
  return kDone;
}

void check_samples(const GenerateArguments& arguments) {
  if (arguments.n_samples == 1) return;
  const auto refuse = [](const char* option) { throw UsageError(std::string("--n: not together with ") + option); };
  if (arguments.cache.is_used()) refuse("--prompt-cache");
  if (arguments.draft.is_asked_for()) refuse("--draft");
  if (arguments.shift.is_used()) refuse("--context-shift");
  if (arguments.prefix_cache.has_directory()) refuse("--prefix-cache-dir");
  if (arguments.prefix_cache.format() != prefix::StoreFormat::kAsComputed) refuse("--prefix-cache-format");
  if (arguments.kv.quantize_from > 0) refuse("--quantized-kv-start");
}

// What a package drafts with is no reason to refuse what can't be drafted for.
void leave_out_draft(GenerateArguments& arguments) {
  if (arguments.n_samples > 1) arguments.draft.leave_out_default("--n");
  if (arguments.shift.is_used()) arguments.draft.leave_out_default("--context-shift");
}

int run_generate(GenerateArguments& arguments) {
  if (const std::optional<model::Package> package = find_package(arguments.run.model)) {
    arguments.sampling.use_defaults(package->modelfile.parameters);
    arguments.draft.use_defaults(*package);
    leave_out_draft(arguments);
  }
  arguments.draft.check();
  if (!arguments.batch_file.empty()) return run_batch(arguments);
  check_samples(arguments);
  arguments.cache.open(arguments.run.model);
  const model::LoadedModel loaded = arguments.run.load();
  arguments.kv.check(*loaded.model);
  const std::vector<TokenId> prompt = prompt_tokens(loaded, arguments);
  if (prompt.empty()) throw UsageError("the prompt is empty");
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  engine::GenerateOptions options = arguments.sampling.generate_options(loaded);
  if (!options.sampler.seed) options.sampler.seed = random_seed();
  arguments.draft.use(arguments.run.model, loaded, options);
  ProgressLine progress("prompt");
  options.on_prefill = [&](int n_done, int n_total) {
    n_done < n_total ? progress.show(n_done, n_total) : progress.clear();
  };
  if (arguments.n_samples > 1) return run_samples(arguments, loaded, prompt, options);
  const auto show = [&](std::string_view text) {
    if (!arguments.is_json) write_out(text);
  };
  const model::ModelConfig& config = loaded.model->config();
  const cache::CacheOptions caches = arguments.kv.cache_options(config);
  const std::optional<engine::ContextShift> shift =
      arguments.shift.shift(loaded, {{"--prompt-cache", arguments.cache.is_used()},
                                     {"--prefix-cache-dir", arguments.prefix_cache.has_directory()},
                                     {"--draft", arguments.draft.is_asked_for()},
                                     {"--max-kv-size", arguments.kv.max_size > 0}});
  arguments.prefix_cache.check(arguments.prefix_cache.has_directory(), *loaded.model, caches,
                               arguments.draft.companion());
  // A single prompt has no use for one that does not last.
  std::unique_ptr<prefix::Store> store;
  if (arguments.prefix_cache.has_directory()) {
    store = arguments.prefix_cache.store(arguments.run.model, *loaded.model, caches, arguments.draft.companion());
    options.turn_ends = engine::turn_ends(prompt, loaded.end_tokens);
  }
  engine::Session session(*loaded.model, caches, store.get(), shift);
  arguments.cache.load_into(session);
  // What was computed is not lost by a signal, nor by a reader who goes away, where there is a file for it.
  std::optional<InterruptFlag> interrupt;
  if (arguments.cache.is_used() || store) {
    interrupt.emplace(Ending::kInOrder);
    options.should_cancel = [&interrupt] { return interrupt->is_set(); };
  }
  try {
    const engine::Completion completion = engine::generate(session, prompt, options, tokenizer, show);
    if (arguments.is_json) {
      write_out(json_text(json_of(completion, *options.sampler.seed)) + "\n");
    } else {
      write_out((tokenizer ? "" : tokens_text(completion.tokens)) + "\n");
    }
  } catch (const OutputError&) {
    arguments.cache.save(session);
    if (interrupt && interrupt->is_set()) return kSignalled + interrupt->signal();
    throw;
  }
  arguments.cache.save(session);
  return interrupt && interrupt->is_set() ? kSignalled + interrupt->signal() : kDone;
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "continue a prompt, or answer one message");
  arguments->run.add_to(*command);
  arguments->kv.add_to(*command);
  CLI::Option_group* prompt = command->add_option_group("prompt", "what to answer or to continue");
  arguments->prompt_option = prompt->add_option("-p,--prompt", arguments->prompt, "the prompt")->type_name("TEXT");
  arguments->tokens_option =
      prompt->add_option("--tokens", arguments->tokens, "the prompt as token ids, 1,2,3")->type_name("IDS");
  CLI::Option* messages = prompt
                              ->add_option("--messages", arguments->messages_file,
                                           "a chat, {\"messages\": [...], \"tools\": [...]}; - is stdin")
                              ->type_name("FILE.json");
  CLI::Option* batch =
      prompt
          ->add_option("--batch", arguments->batch_file,
                       "requests, one JSON object a line (docs/batch.md), answered side by side, each with\n"
                       "a line of JSON as it ends; - is stdin")
          ->type_name("FILE.jsonl")
          ->check(not_empty());
  prompt->require_option(1);
  arguments->sampling.add_to(*command);
  arguments->cache.add_to(*command);
  arguments->prefix_cache.add_to(*command, "requests of --batch have computed, for others of them");
  arguments->draft.add_to(*command);
  arguments->shift.add_to(*command);
  command
      ->add_option("--n", arguments->n_samples,
                   "K continuations with the seeds --seed, --seed + 1, ...; the prompt is computed once. With --temp 0 "
                   "they are all alike")
      ->type_name("K")
      ->transform(whole_number(1, kMaxSamples))
      ->capture_default_str();
  command->add_flag("--raw", arguments->is_raw, "take the prompt as it is, without the chat template")
      ->excludes(messages)
      ->excludes(arguments->tokens_option);
  command->add_flag("--json", arguments->is_json, "print one JSON object instead of the text; with --n one a line");
  command->add_option("--batch-size", arguments->n_side_by_side, "with --batch: requests that run side by side")
      ->type_name("N")
      ->transform(whole_number(1, 256))
      ->capture_default_str()
      ->needs(batch);
  for (const char* name : {"--json", "--prompt-cache", "--quantized-kv-start", "--n", "--context-shift"}) {
    batch->excludes(command->get_option(name));
  }
  command->callback([arguments, &action] { action = [arguments] { return run_generate(*arguments); }; });
}

}  // namespace memoir::cli
