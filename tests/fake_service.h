#pragma once

// An engine without a model: writes given texts, token by token, as a scheduler would, with delays and failures to
// order. And a model for it: a small tokenizer with a chat template.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/engine/request_fault.h"
#include "memoir/engine/service.h"
#include "memoir/engine/stop.h"
#include "memoir/server/served_model.h"
#include "memoir/text/detokenizer.h"

namespace memoir::test {

/// As Qwen's in short: <s>role\ncontent</s>\n, without tools.
inline constexpr const char* kPlainTemplate =
    "{% for m in messages %}{{ '<s>' + m.role + '\\n' + m.content + '</s>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}";

/// tests/data/tokenizer/smollm.json (526 tokens, every byte among them) with a template.
inline text::Tokenizer fake_tokenizer(const std::string& chat_template,
                                      const std::vector<std::string>& more_special_tokens = {}) {
  static std::atomic<int> counter{0};
  const auto folder =
      std::filesystem::temp_directory_path() /
      ("memoir-fake-" + std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id())) + "-" +
       std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()) + "-" + std::to_string(counter++));
  std::filesystem::create_directories(folder);
  nlohmann::json json = nlohmann::json::parse(read_text_file(MEMOIR_TEST_DATA "/tokenizer/smollm.json"));
  int id = 526;
  for (const std::string& token : more_special_tokens) {
    nlohmann::json added = json["added_tokens"][0];
    added["id"] = id++;
    added["content"] = token;
    json["added_tokens"].push_back(added);
  }
  std::ofstream(folder / "tokenizer.json") << json.dump();
  nlohmann::json config = {{"eos_token", "</s>"}, {"add_bos_token", false}};
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  std::ofstream(folder / "tokenizer_config.json") << config.dump();
  text::Tokenizer tokenizer = text::Tokenizer::from_directory(folder);
  std::filesystem::remove_all(folder);
  return tokenizer;
}

inline constexpr int kFakeEmbedding = 3;

/// What the fake engine makes of a text: some values that depend on it, at length 1.
inline std::vector<float> fake_embedding(const std::vector<TokenId>& tokens, engine::Pooling pooling) {
  const float a = pooling == engine::Pooling::kMean ? 1 : -1;
  const auto b = static_cast<float>(tokens.size());
  const auto c = static_cast<float>(tokens.back());
  const float length = std::sqrt(a * a + b * b + c * c);
  return {a / length, b / length, c / length};
}

inline server::ServedModel fake_model(const text::Tokenizer& tokenizer, int context = 4096) {
  server::ModelDetails details;
  details.family = "llama";
  details.format = "gguf";
  details.parameter_size = "135M";
  details.quantization = "Q4_1";
  details.size_bytes = 98'000'000;
  details.modified = std::chrono::system_clock::time_point(std::chrono::seconds(1'760'000'000));
  return server::ServedModel(
      {"fake", tokenizer, {*tokenizer.eos()}, context, tokenizer.n_vocab(), details, kFakeEmbedding});
}

class FakeService : public engine::Service {
 public:
  struct Options {
    /// What a request is answered with; the end token follows.
    std::function<std::string(const engine::Request&)> answer = [](const engine::Request&) { return "Hello there!"; };
    std::chrono::milliseconds token_delay{0};
    std::chrono::milliseconds prefill_delay{0};  // before the first token, while PrefillEvents come
    std::size_t max_running = 16;
    std::size_t max_queued = 256;
    int fails_after = -1;  // tokens; -1: never
  };

  FakeService(text::Tokenizer tokenizer, Options options)
      : tokenizer_(std::move(tokenizer)), options_(std::move(options)), thread_([this] { run(); }) {}

  ~FakeService() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  int max_requests() const override { return static_cast<int>(options_.max_running + options_.max_queued); }

  std::variant<engine::RequestId, engine::Refusal> submit(engine::Request request) override {
    if (request.prompt.empty()) throw std::invalid_argument("[fake.submit] the prompt is empty");
    request.sampler.validate();
    const std::lock_guard lock(mutex_);
    if (is_draining_) return engine::Refusal::kDraining;
    if (requests_.size() >= options_.max_running + options_.max_queued) {
      ++n_refused_;
      return engine::Refusal::kQueueFull;
    }
    last_ = {request.prompt,      request.max_tokens, request.sampler,  request.stop_tokens, request.stop_strings,
             request.n_likeliest, request.turn_ends,  request.priority, request.embedding};
    requests_.emplace_back(next_id_, std::move(request), tokenizer_);
    auto& run = requests_.back();
    run.script = tokenizer_.encode(options_.answer(run.request));
    run.script.push_back(*tokenizer_.eos());
    run.begin = std::chrono::steady_clock::now();
    wake_.notify_all();
    return next_id_++;
  }

  void cancel(engine::RequestId id) override {
    const std::lock_guard lock(mutex_);
    for (Running& run : requests_) {
      if (run.id != id) continue;
      run.is_cancelled = true;
      ++n_cancelled_;
    }
    wake_.notify_all();
  }

  engine::ServiceStats stats() const override {
    const std::lock_guard lock(mutex_);
    engine::ServiceStats stats;
    stats.n_running = static_cast<int>(requests_.size());
    stats.n_submitted = next_id_ - 1;
    stats.n_refused = n_refused_;
    stats.n_finished[engine::FinishReason::kStop] = n_finished_;
    stats.n_completion_tokens = n_tokens_;
    return stats;
  }

  void drain(std::chrono::steady_clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    is_draining_ = true;
    if (!idle_.wait_until(lock, deadline, [&] { return requests_.empty(); })) {
      for (Running& run : requests_) run.is_cancelled = true;
      wake_.notify_all();
      idle_.wait(lock, [&] { return requests_.empty(); });
    }
  }

  /// What the last accepted request asked for.
  struct Seen {
    std::vector<TokenId> prompt;
    int max_tokens = 0;
    engine::SamplerOptions sampler;
    std::vector<TokenId> stop_tokens;
    std::vector<std::string> stop_strings;
    std::optional<int> n_likeliest;
    std::vector<int> turn_ends;
    int priority = 0;
    std::optional<engine::Pooling> embedding;
  };
  Seen last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  int n_cancelled() const {
    const std::lock_guard lock(mutex_);
    return n_cancelled_;
  }
  std::size_t n_open() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

 private:
  struct Running {
    Running(engine::RequestId with_id, engine::Request asked, const text::Tokenizer& tokenizer)
        : id(with_id),
          request(std::move(asked)),
          detokenizer(tokenizer, {.skip_special = true, .is_continuation = true}),
          matcher(request.stop_strings) {}
    engine::RequestId id;
    engine::Request request;
    text::StreamingDetokenizer detokenizer;
    engine::StopMatcher matcher;
    std::vector<TokenId> script;
    std::size_t at = 0;
    int n_tokens = 0;
    bool has_prefilled = false;
    bool is_cancelled = false;
    std::uint64_t noise = 1;
    std::chrono::steady_clock::time_point begin;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (requests_.empty()) idle_.notify_all();
      wake_.wait(lock, [&] { return is_stopping_ || !requests_.empty(); });
      if (is_stopping_) return;
      std::size_t n = 0;
      for (auto at = requests_.begin(); at != requests_.end() && n < options_.max_running; ++n) {
        const bool has_ended = step(*at);
        at = has_ended ? requests_.erase(at) : std::next(at);
      }
      if (options_.token_delay.count() > 0) {
        lock.unlock();
        std::this_thread::sleep_for(options_.token_delay);
        lock.lock();
      } else if (options_.prefill_delay.count() > 0) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        lock.lock();
      }
    }
  }

  engine::Counts counts(const Running& run) const {
    engine::Counts counts;
    counts.prompt_tokens = static_cast<int>(run.request.prompt.size());
    counts.cached_tokens = counts.prompt_tokens / 2;
    counts.completion_tokens = run.n_tokens;
    counts.prefill_s = 0.25;
    counts.decode_s = 0.5;
    return counts;
  }

  bool finish(Running& run, engine::FinishReason reason) {
    const std::string held = run.matcher.finish();
    run.request.on_event(engine::Finished{reason, held, counts(run)});
    ++n_finished_;
    return true;
  }

  // The scripted token, or what the processor leaves of it: the likeliest by a noise that is the same in every run.
  TokenId choose(Running& run) {
    const TokenId wanted = run.at < run.script.size() ? run.script[run.at] : run.script.back();
    if (!run.request.processor && run.request.sampler.logit_bias.empty()) return wanted;
    std::vector<float> logits(static_cast<std::size_t>(tokenizer_.n_vocab()));
    for (float& logit : logits) {
      run.noise = run.noise * 6364136223846793005U + 1442695040888963407U;
      logit = static_cast<float>(run.noise >> 40) / static_cast<float>(1U << 24);
    }
    logits[static_cast<std::size_t>(wanted)] += 5;
    if (run.request.processor) run.request.processor->apply(logits);
    engine::SamplerOptions greedy;
    greedy.logit_bias = run.request.sampler.logit_bias;
    return engine::Sampler(greedy, tokenizer_.n_vocab()).sample(logits);
  }

  bool step(Running& run) {
    if (run.is_cancelled) return finish(run, engine::FinishReason::kCancelled);
    if (!run.has_prefilled) {
      const auto n_prompt = static_cast<int>(run.request.prompt.size());
      const bool is_done = std::chrono::steady_clock::now() - run.begin >= options_.prefill_delay;
      run.request.on_event(engine::PrefillEvent{is_done ? n_prompt : n_prompt / 2, n_prompt});
      run.has_prefilled = is_done;
      if (!is_done) return false;
    }
    if (run.request.embedding && options_.fails_after != 0) {
      run.request.on_event(engine::EmbeddingEvent{fake_embedding(run.request.prompt, *run.request.embedding)});
      return finish(run, engine::FinishReason::kStop);
    }
    if (run.n_tokens >= run.request.max_tokens && !run.request.embedding)
      return finish(run, engine::FinishReason::kLength);
    if (run.n_tokens == options_.fails_after) {
      run.request.on_event(engine::Failed{"it was told to", counts(run)});
      return true;
    }
    TokenId token = 0;
    try {
      token = choose(run);
      ++run.at;
      const auto& stops = run.request.stop_tokens;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) return finish(run, engine::FinishReason::kStop);
      if (run.request.processor) run.request.processor->accept(token);
    } catch (const engine::RequestFault& fault) {
      run.request.on_event(engine::Failed{fault.what(), counts(run), fault.field()});
      return true;
    } catch (const std::exception& error) {
      run.request.on_event(engine::Failed{error.what(), counts(run)});
      return true;
    }
    ++run.n_tokens;
    ++n_tokens_;
    engine::StopMatcher::Result result = run.matcher.push(run.detokenizer.push(token));
    engine::TokenEvent event{token, std::move(result.text), 0, {}};
    if (run.request.n_likeliest) {
      event.log_probability = -0.5F;
      for (int i = 0; i < *run.request.n_likeliest; ++i) {
        event.likeliest.emplace_back(i == 0 ? token : i, -0.5F - static_cast<float>(i));
      }
    }
    run.request.on_event(event);
    return result.stop ? finish(run, engine::FinishReason::kStop) : false;
  }

  text::Tokenizer tokenizer_;
  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::list<Running> requests_;
  engine::RequestId next_id_ = 1;
  Seen last_;
  int n_cancelled_ = 0;
  std::uint64_t n_refused_ = 0;
  std::uint64_t n_finished_ = 0;
  std::uint64_t n_tokens_ = 0;
  bool is_draining_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace memoir::test
