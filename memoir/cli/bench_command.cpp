#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "memoir/base/json_text.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/peak_memory.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/generate.h"
#include "memoir/kernels/device.h"

namespace mx = mlx::core;

namespace memoir::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct BenchArguments {
  RunOptions run;
  KvArguments kv;
  int n_prompt = 512;
  int n_decode = 64;
  int n_batch = 1;
  int n_repeat = 5;
  int prefill_chunk = 256;
  bool is_json = false;
};

struct Spread {
  double min, median, max;
};

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {values.front(), median, values.back()};
}

struct Measured {
  std::vector<double> prefill_tok_s;
  std::vector<double> decode_tok_s;
  std::string kv;  // the type of the cached rows
};

// What --kv chose, or the type that the model's own choice came to.
std::string kv_name(const KvArguments& kv, const cache::ModelCache& cache) {
  if (kv.kv != "auto") return kv.kv;
  const mx::Dtype dtype = cache.state().at(0).dtype();
  if (dtype == mx::float16) return "f16";
  return dtype == mx::bfloat16 ? "bf16" : "f32";
}

// Any tokens do: the work does not depend on which. These are spread over the vocabulary (Knuth's multiplier).
std::vector<TokenId> bench_tokens(int n_tokens, int n_vocab) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(n_tokens); ++i) {
    tokens.push_back(static_cast<TokenId>((i * 2654435761U) % static_cast<std::uint32_t>(n_vocab)));
  }
  return tokens;
}

// One prompt and one answer in a fresh session. The first token belongs to the prompt's time, as its logits do.
void measure(const model::Model& model, const BenchArguments& arguments, Measured& measured) {
  engine::Session session(model, arguments.kv.cache_options(model.config()));
  engine::GenerateOptions options;
  options.max_tokens = arguments.n_decode + 1;
  options.prefill_chunk = arguments.prefill_chunk;
  const std::vector<TokenId> prompt = bench_tokens(arguments.n_prompt, model.config().vocab_size);
  const engine::Completion completion = engine::generate(session, prompt, options, nullptr);
  measured.prefill_tok_s.push_back(arguments.n_prompt / completion.prefill_s);
  measured.decode_tok_s.push_back(arguments.n_decode / completion.decode_s);
  measured.kv = kv_name(arguments.kv, session.cache());
}

// The likeliest token of each sequence. logits: [B, 1, V].
std::vector<TokenId> likeliest(const mx::array& logits) {
  const mx::array tokens = mx::astype(mx::argmax(logits, -1), mx::int32);
  mx::eval(tokens);
  return {tokens.data<std::int32_t>(), tokens.data<std::int32_t>() + tokens.size()};
}

// The same for several sequences of one length, which share each forward pass; speeds are of all together.
void measure_batch(const model::Model& model, const BenchArguments& arguments, Measured& measured) {
  const int n_batch = arguments.n_batch;
  const std::vector<TokenId> prompts = bench_tokens(n_batch * arguments.n_prompt, model.config().vocab_size);
  cache::ModelCache cache = model.make_cache(arguments.kv.cache_options(model.config()));
  std::vector<TokenId> tokens;
  const Clock::time_point start = Clock::now();
  for (int begin = 0; begin < arguments.n_prompt; begin += arguments.prefill_chunk) {
    const int n_tokens = std::min(arguments.prefill_chunk, arguments.n_prompt - begin);
    std::vector<TokenId> chunk;
    for (int sequence = 0; sequence < n_batch; ++sequence) {
      const auto from = prompts.begin() + sequence * arguments.n_prompt + begin;
      chunk.insert(chunk.end(), from, from + n_tokens);
    }
    const mx::array logits = model.forward(chunk, cache, model::LogitRows::kLast, n_batch);
    cache.materialize();
    if (begin + n_tokens == arguments.n_prompt) tokens = likeliest(logits);
  }
  measured.prefill_tok_s.push_back(n_batch * arguments.n_prompt / seconds_since(start));
  const Clock::time_point decode = Clock::now();
  for (int i = 0; i < arguments.n_decode; ++i) {
    tokens = likeliest(model.forward(tokens, cache, model::LogitRows::kLast, n_batch));
  }
  measured.decode_tok_s.push_back(n_batch * arguments.n_decode / seconds_since(decode));
  measured.kv = kv_name(arguments.kv, cache);
}

void measure_run(const model::Model& model, const BenchArguments& arguments, Measured& measured) {
  if (arguments.n_batch == 1) return measure(model, arguments, measured);
  measure_batch(model, arguments, measured);
}

nlohmann::ordered_json json_of(const Spread& spread) {
  return {{"min", spread.min}, {"median", spread.median}, {"max", spread.max}};
}

std::string text_of(const char* name, const Spread& spread) {
  char line[128];
  std::snprintf(line, sizeof(line), "%-14s median %8.1f  (%.1f to %.1f)\n", name, spread.median, spread.min,
                spread.max);
  return line;
}

int run_bench(const BenchArguments& arguments) {
  if (arguments.n_batch > 1 && arguments.kv.quantize_from > 0) {
    throw UsageError("--quantized-kv-start: not together with --batch");
  }
  const Clock::time_point start = Clock::now();
  const model::LoadedModel loaded = arguments.run.load();
  const double load_s = seconds_since(start);
  const model::Model& model = *loaded.model;
  arguments.kv.check(model);
  if (arguments.n_prompt + arguments.n_decode > model.context()) {
    throw UsageError("--prompt and --decode together pass the model's context of " + std::to_string(model.context()));
  }
  Measured measured;
  {
    Measured warm_up;
    measure_run(model, arguments, warm_up);
  }
  ProgressLine progress("run");
  for (int i = 0; i < arguments.n_repeat; ++i) {
    progress.show(i + 1, arguments.n_repeat);
    measure_run(model, arguments, measured);
  }
  progress.clear();
  const Spread prefill = spread(measured.prefill_tok_s);
  const Spread decode = spread(measured.decode_tok_s);
  if (arguments.is_json) {
    const nlohmann::ordered_json json = {{"prefill_tok_s", json_of(prefill)},
                                         {"decode_tok_s", json_of(decode)},
                                         {"peak_rss_bytes", peak_rss_bytes()},
                                         {"load_s", load_s},
                                         {"threads", kernels::cpu_threads()},
                                         {"batch", arguments.n_batch},
                                         {"cpu", kernels::cpu_kernels()},
                                         {"model", arguments.run.model},
                                         {"kv", measured.kv}};
    write_out(json_text(json) + "\n");
    return kDone;
  }
  char rest[256];
  std::snprintf(rest, sizeof(rest),
                "load           %.2f s\npeak memory    %.1f MiB\nthreads        %d\nbatch          %d\ncpu            "
                "%s\nkv             %s\n",
                load_s, static_cast<double>(peak_rss_bytes()) / (1 << 20), kernels::cpu_threads(), arguments.n_batch,
                kernels::cpu_kernels(), measured.kv.c_str());
  write_out(text_of("prefill tok/s", prefill) + text_of("decode tok/s", decode) + rest);
  return kDone;
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "measure prefill and decode speed, load time and memory");
  arguments->run.add_to(*command);
  arguments->kv.add_to(*command);
  const auto count = [&](const char* name, int& value, const char* help) {
    command->add_option(name, value, help)->type_name("N")->transform(whole_number(1, 1 << 20))->capture_default_str();
  };
  count("--prompt", arguments->n_prompt, "tokens of the prompt");
  count("--decode", arguments->n_decode, "tokens to generate after it");
  command
      ->add_option("--batch", arguments->n_batch, "sequences of that length side by side; speeds are of all together")
      ->type_name("N")
      ->transform(whole_number(1, 256))
      ->capture_default_str();
  count("--repeat", arguments->n_repeat, "measured runs, after one that isn't");
  count("--prefill-chunk", arguments->prefill_chunk, "tokens of the prompt in one forward pass");
  command->add_flag("--json", arguments->is_json, "print one JSON object");
  command->callback([arguments, &action] { action = [arguments] { return run_bench(*arguments); }; });
}

}  // namespace memoir::cli
