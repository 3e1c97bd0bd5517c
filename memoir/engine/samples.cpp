#include "memoir/engine/samples.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "memoir/cache/cell_caches.h"
#include "memoir/engine/request_run.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using Clock = RequestRun::Clock;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[engine.generate_samples] " + what);
}

void check_options(const GenerateOptions& options, const cache::CacheOptions& cache, int n) {
  if (n < 1) refuse("n is " + std::to_string(n) + ", expected at least 1");
  if (options.drafter) refuse("there is a drafter, expected none with several samples");
  if (options.prefill_chunk < 1) {
    refuse("prefill_chunk is " + std::to_string(options.prefill_chunk) + ", expected at least 1");
  }
  if (cache.quantization && cache.quantize_from > 0)
    refuse("rows in cells are quantized from the first on, or not at all");
}

// One continuation.
struct Sample {
  std::unique_ptr<RequestRun> run;
  Completion completion;
  bool is_over = false;
};

class SampleRun {
 public:
  SampleRun(const model::Model& model, std::span<const TokenId> prompt, const GenerateOptions& options,
            const std::function<void(int, const Completion&)>& on_finished)
      : model_(model), prompt_(prompt), options_(options), on_finished_(on_finished) {}

  // Each with its seed: the first one's, and the numbers after it.
  void add_samples(int n, const text::Tokenizer* tokenizer, std::vector<std::uint64_t>& seeds) {
    std::uint64_t seed = Sampler(options_.sampler, model_.config().vocab_size).seed();
    const Clock::time_point now = Clock::now();
    samples_.resize(static_cast<std::size_t>(n));
    for (Sample& sample : samples_) {
      Request request;
      request.prompt.assign(prompt_.begin(), prompt_.end());
      request.max_tokens = options_.max_tokens;
      request.sampler = options_.sampler;
      request.stop_tokens = options_.stop_tokens;
      if (tokenizer) request.stop_strings = options_.stop_strings;
      request.on_event = [&sample](const Event& event) { take(event, sample.completion); };
      request.sampler.seed = seed;
      seeds.push_back(seed++);
      const RequestRun::Limits limits{model_.config().vocab_size, model_.context()};
      sample.run = std::make_unique<RequestRun>(std::move(request), limits, tokenizer, now);
      sample.run->start(&sample == &samples_.front() ? 0 : static_cast<int>(prompt_.size()), now);
    }
  }

  std::size_t run(cache::CellCaches& cells) {
    const std::optional<mx::array> first = prefill(cells);
    for (int number = 1; number < n_samples(); ++number) {
      cells.copy_prefix(0, number, static_cast<int>(prompt_.size()));
    }
    if (!first) {
      finish_all(FinishReason::kCancelled);
      return cells.size_bytes();
    }
    std::vector<int> running;
    for (int number = 0; number < n_samples(); ++number) running.push_back(number);
    take_row(*first, running);
    const std::size_t n_bytes = cells.size_bytes();
    while (!(running = still_running(cells)).empty()) {
      if (is_cancelled()) {
        finish_all(FinishReason::kCancelled);
        break;
      }
      take_row(step(cells, running), running);
    }
    return n_bytes;
  }

  std::vector<Completion> completions() {
    std::vector<Completion> result;
    for (Sample& sample : samples_) result.push_back(std::move(sample.completion));
    return result;
  }

 private:
  int n_samples() const { return static_cast<int>(samples_.size()); }
  Sample& sample(int number) { return samples_[static_cast<std::size_t>(number)]; }
  bool is_cancelled() const { return options_.should_cancel && options_.should_cancel(); }

  static void take(const Event& event, Completion& completion) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      completion.tokens.push_back(token->token);
      completion.text += token->text;
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      completion.text += finished->text;
      completion.finish_reason = finished->reason;
      completion.prompt_tokens = finished->counts.prompt_tokens;
      completion.cached_tokens = finished->counts.cached_tokens;
      completion.prefill_s = finished->counts.prefill_s;
      completion.decode_s = finished->counts.decode_s;
    }
  }

  // The prompt as sequence 0. Returns the logits behind it; nullopt if it was cancelled.
  std::optional<mx::array> prefill(cache::CellCaches& cells) {
    const auto n_total = prompt_.size();
    std::optional<mx::array> logits;
    for (std::size_t n_done = 0; n_done < n_total;) {
      if (is_cancelled()) return std::nullopt;
      const std::size_t n = std::min(static_cast<std::size_t>(options_.prefill_chunk), n_total - n_done);
      const bool is_last = n_done + n == n_total;
      const model::CellTokens chunk{prompt_.subspan(n_done, n), 0,
                                    is_last ? model::LogitRows::kLast : model::LogitRows::kNone};
      logits = forward(cells, {&chunk, 1});
      if (!is_last) cells.materialize();
      n_done += n;
      if (is_last) mx::eval(*logits);
      if (options_.on_prefill) options_.on_prefill(static_cast<int>(n_done), static_cast<int>(n_total));
    }
    return logits;
  }

  mx::array forward(cache::CellCaches& cells, std::span<const model::CellTokens> tokens) const {
    const std::optional<mx::array> logits = model_.forward(cells, tokens);
    if (!logits) throw std::runtime_error("[engine.generate_samples] the cells are full");
    return mx::contiguous(mx::astype(*logits, mx::float32));
  }

  mx::array step(cache::CellCaches& cells, const std::vector<int>& running) {
    std::vector<model::CellTokens> tokens;
    for (const int number : running) {
      const std::span<const TokenId> all = sample(number).run->tokens();
      tokens.push_back({all.last(1), number});
    }
    return forward(cells, tokens);
  }

  // Chooses the next token of each: from the row of its own, or all from the only one.
  void take_row(mx::array logits, const std::vector<int>& running) {
    mx::eval(logits);
    const auto n_vocab = static_cast<std::size_t>(logits.shape(1));
    for (std::size_t i = 0; i < running.size(); ++i) {
      const float* row = logits.data<float>() + (logits.shape(0) == 1 ? 0 : i * n_vocab);
      row_.assign(row, row + n_vocab);
      const std::optional<FinishReason> reason = sample(running[i]).run->push(row_, {}, Clock::now()).reason;
      if (reason) finish(running[i], *reason);
    }
  }

  void finish(int number, FinishReason reason) {
    Sample& one = sample(number);
    const Event event = one.run->ending(reason, Clock::now());
    if (const auto* failed = std::get_if<Failed>(&event)) throw std::runtime_error(failed->message);
    one.run->send_last(event);
    one.is_over = true;
    if (on_finished_) on_finished_(number, one.completion);
  }

  void finish_all(FinishReason reason) {
    for (int number = 0; number < n_samples(); ++number) {
      if (!sample(number).is_over) finish(number, reason);
    }
  }

  // The others give their cells back.
  std::vector<int> still_running(cache::CellCaches& cells) {
    std::vector<int> running;
    for (int number = 0; number < n_samples(); ++number) {
      if (!sample(number).is_over) {
        running.push_back(number);
      } else if (cells.offset(number) > 0) {
        cells.remove(number, 0);
      }
    }
    return running;
  }

  const model::Model& model_;
  std::span<const TokenId> prompt_;
  const GenerateOptions& options_;
  const std::function<void(int, const Completion&)>& on_finished_;
  std::vector<Sample> samples_;
  std::vector<float> row_;  // [V], the samplers' scratch
};

// Room for the prompt once and for each sample's tokens but its last, which is never fed.
cache::CellRoom room_for(const model::Model& model, std::size_t n_prompt, const GenerateOptions& options, int n) {
  const auto n_shared = static_cast<std::int64_t>(n_prompt);
  const std::int64_t n_positions = n_shared + std::max(0, options.max_tokens - 1);
  return {.max_sequences = n,
          .capacity = static_cast<int>(std::min<std::int64_t>(n_positions, model.context())),
          .n_shared = static_cast<int>(n_shared),
          .max_batch = std::max(n, static_cast<int>(std::min<std::int64_t>(options.prefill_chunk, n_shared)))};
}

}  // namespace

Samples generate_samples(const model::Model& model, const cache::CacheOptions& cache, std::span<const TokenId> prompt,
                         const GenerateOptions& options, int n, const text::Tokenizer* tokenizer,
                         const std::function<void(int, const Completion&)>& on_finished) {
  check_options(options, cache, n);
  Samples samples;
  SampleRun run(model, prompt, options, on_finished);
  run.add_samples(n, tokenizer, samples.seeds);
  cache::CellCaches cells =
      cache::make_cell_caches(model.make_cache(cache), room_for(model, prompt.size(), options, n));
  samples.cache_bytes = run.run(cells);
  samples.completions = run.completions();
  return samples;
}

}  // namespace memoir::engine
