#pragma once

// A StepRunner without a model, and clients of a service: for tests of the scheduler.

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memoir/engine/scheduler.h"

namespace memoir::test {

using Tokens = std::vector<TokenId>;

inline constexpr int kFakeVocab = 32;
inline constexpr TokenId kPoison = kFakeVocab - 1;  // the fake model never says it by itself

/// The fake model: what follows these tokens, a number that depends on all of them and their order (FNV-1a).
inline TokenId token_after(std::span<const TokenId> tokens) {
  std::uint64_t hash = 14695981039346656037U;
  for (const TokenId token : tokens) hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 1099511628211U;
  return static_cast<TokenId>((hash >> 32) % (kFakeVocab - 1));
}

/// Its logits: distinct, the token that follows has the largest.
inline std::vector<float> logits_after(std::span<const TokenId> tokens) {
  std::vector<float> logits(kFakeVocab);
  for (int i = 0; i < kFakeVocab; ++i) logits[static_cast<std::size_t>(i)] = 0.03F * static_cast<float>(i);
  logits[static_cast<std::size_t>(token_after(tokens))] = 3;
  return logits;
}

inline constexpr std::size_t kFakeStateSize = 4;

/// The state of the last of these tokens: small whole numbers, so that sums of them are exact.
inline std::vector<float> state_after(std::span<const TokenId> tokens) {
  const auto next = static_cast<float>(token_after(tokens));
  return {next + 1, static_cast<float>(tokens.back()), -next, static_cast<float>(tokens.size() % 5)};
}

/// A prompt of n tokens that the fake model does not break at.
inline Tokens counted(int n, int first = 1) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((first + i * 7) % kPoison);
  return tokens;
}

/// The n tokens that the fake model says after a prompt.
inline Tokens fake_answer(Tokens tokens, int n) {
  const auto n_prompt = static_cast<std::ptrdiff_t>(tokens.size());
  for (int i = 0; i < n; ++i) tokens.push_back(token_after(tokens));
  return {tokens.begin() + n_prompt, tokens.end()};
}

/// What a test tells the fake, and learns of it. Outlives the service.
struct FakeControl {
  int context = 1000;
  engine::CacheCost cost{0, 1, 1};
  Tokens scripted;  // if not empty, what it says to every prompt
  bool keeps_caches = false;
  bool shares_prompts = false;       // what a running sequence has computed serves others
  bool loses_caches = false;         // a step that fails
  bool fails_to_begin = false;       // for a prompt that begins with kPoison
  bool fails_on_poison = false;      // a step with kPoison among its tokens
  std::function<void()> before_run;  // on the service's thread
  int max_drafts = 0;
  bool adapts_drafts = true;
  std::function<bool(std::size_t place)> is_draft_right;  // of a text's token; none: the drafts are all right
  bool fails_to_draft = false;                            // behind a prompt that begins with 1

  std::atomic<int> n_proposals = 0;
  std::atomic<int> max_rows = 0;  // of logits in a step

  std::atomic<int> n_runs = 0;
  std::atomic<int> max_slices = 0;
  std::atomic<int> max_tokens = 0;  // in slices of more than one
  std::atomic<int> n_sequences = 0;
  std::atomic<int> n_retired = 0;
  std::atomic<int> n_broken_rules = 0;  // of StepRunner, by the scheduler
  std::atomic<bool> is_destroyed = false;
};

class FakeRunner : public engine::StepRunner {
 public:
  explicit FakeRunner(FakeControl& control) : control_(control) {}
  ~FakeRunner() override {
    require(sequences_.empty());
    require(std::this_thread::get_id() == thread_);
    control_.is_destroyed = true;
  }

  int n_vocab() const override { return kFakeVocab; }
  int context() const override { return control_.context; }
  engine::CacheCost cost() const override { return control_.cost; }
  int max_drafts() const override { return control_.max_drafts; }

  bool adapts_drafts() const override { return control_.adapts_drafts; }

  int create(const NewSequence& sequence) override {
    const std::span<const TokenId> tokens = sequence.tokens;
    require(!sequences_.contains(sequence.id) && sequence.n_prompt >= 1 &&
            static_cast<std::size_t>(sequence.n_prompt) <= tokens.size());
    if (control_.fails_to_begin && tokens[0] == kPoison) throw std::runtime_error("no room");
    Tokens& held = sequences_[sequence.id];
    for (const auto& [id, other] : sequences_) {
      if (sequence.is_shared && control_.shares_prompts && id != sequence.id) offer(other, sequence, held);
    }
    if (!sequence.is_shared) unshared_.insert(sequence.id);
    for (const Tokens& kept : kept_) {
      if (sequence.is_shared) offer(kept, sequence, held);
    }
    control_.n_sequences = static_cast<int>(sequences_.size());
    return static_cast<int>(held.size());
  }

  int catch_up(const NewSequence& sequence, int min_gain) override {
    Tokens& held = sequences_.at(sequence.id);
    Tokens better;
    for (const auto& [id, other] : sequences_) {
      if (control_.shares_prompts && id != sequence.id) offer(other, sequence, better);
    }
    if (better.size() >= held.size() + static_cast<std::size_t>(min_gain)) held = std::move(better);
    return static_cast<int>(held.size());
  }

  Tokens propose(engine::SequenceId sequence, std::span<const TokenId> text, int n_max) override {
    ++control_.n_proposals;
    const Tokens& held = sequences_.at(sequence);
    require(std::this_thread::get_id() == thread_ && n_max >= 1 && n_max <= control_.max_drafts);
    require(text.size() == held.size() + 1 && std::equal(held.begin(), held.end(), text.begin()));
    if (control_.fails_to_draft && text[0] == 1) throw std::runtime_error("no guess");
    Tokens guessed(text.begin(), text.end());
    for (int i = 0; i < n_max; ++i) {
      const bool is_right = !control_.is_draft_right || control_.is_draft_right(guessed.size());
      guessed.push_back((token_after(guessed) + (is_right ? 0 : 1)) % kPoison);
    }
    return {guessed.begin() + static_cast<std::ptrdiff_t>(text.size()), guessed.end()};
  }

  void keep_drafts(engine::SequenceId sequence, int n_drafts) override {
    const auto drafted = n_drafted_.find(sequence);
    require(drafted != n_drafted_.end() && n_drafts >= 0 && n_drafts <= drafted->second);
    Tokens& held = sequences_.at(sequence);
    held.resize(held.size() - static_cast<std::size_t>(drafted->second - n_drafts));
    n_drafted_.erase(drafted);
  }

  std::vector<std::span<float>> run(std::span<const Slice> slices) override {
    require(n_drafted_.empty());
    require(std::this_thread::get_id() == thread_);
    if (control_.before_run) control_.before_run();
    ++control_.n_runs;
    check(slices);
    if (control_.fails_on_poison && has_poison(slices)) fail(slices);
    rows_.assign(slices.size(), {});
    std::vector<std::span<float>> rows(slices.size());
    for (std::size_t i = 0; i < slices.size(); ++i) {
      Tokens& held = sequences_.at(slices[i].sequence);
      if (slices[i].n_drafts > 0) n_drafted_[slices[i].sequence] = slices[i].n_drafts;
      for (const TokenId token : slices[i].tokens) {
        held.push_back(token);
        if (!slices[i].wants_states) continue;
        const std::vector<float> state = state_after(held);
        rows_[i].insert(rows_[i].end(), state.begin(), state.end());
        rows[i] = rows_[i];
      }
      if (!slices[i].wants_logits) continue;
      add_logits(slices[i], rows_[i]);
      rows[i] = rows_[i];
    }
    return rows;
  }

  int offset(engine::SequenceId sequence) const override { return static_cast<int>(sequences_.at(sequence).size()); }
  std::size_t cache_bytes(engine::SequenceId sequence) const override { return control_.cost.bytes(offset(sequence)); }
  void retire(engine::SequenceId sequence) noexcept override {
    Tokens tokens = std::move(sequences_.at(sequence));
    sequences_.erase(sequence);
    require(!n_drafted_.contains(sequence));
    n_said_.erase(sequence);
    if (unshared_.erase(sequence) > 0) return;
    ++control_.n_retired;
    if (control_.keeps_caches) kept_.push_back(std::move(tokens));
    if (kept_.size() > 8) kept_.erase(kept_.begin());
  }
  void drop(engine::SequenceId sequence) noexcept override {
    unshared_.erase(sequence);
    sequences_.erase(sequence);
    n_said_.erase(sequence);
    n_drafted_.erase(sequence);
  }
  engine::PrefixCacheCounts kept() const override { return {.bytes = kept_.size()}; }
  std::string kept_report() override { return R"({"kept": )" + std::to_string(kept_.size()) + "}"; }
  void clear_kept() override { kept_.clear(); }

 private:
  /// Takes over what the sequence shares with `other`, if that is more than it has.
  void offer(const Tokens& other, const NewSequence& sequence, Tokens& held) const {
    const auto end = sequence.tokens.end() - 1;
    Tokens shared(other.begin(), std::mismatch(other.begin(), other.end(), sequence.tokens.begin(), end).first);
    const std::size_t n_bytes = control_.cost.bytes(static_cast<int>(shared.size()));
    if (shared.size() > held.size() && n_bytes <= sequence.max_cache_bytes) held = std::move(shared);
  }

  void require(bool holds) const {
    if (!holds) ++control_.n_broken_rules;
  }

  void check(std::span<const Slice> slices) {
    std::map<engine::SequenceId, int> n_slices;
    int n_tokens = 0;
    int n_rows = 0;
    for (const Slice& slice : slices) {
      require(sequences_.contains(slice.sequence));
      require(++n_slices[slice.sequence] == 1);
      require(!slice.tokens.empty() && !(slice.wants_logits && slice.wants_states));
      if (slice.n_drafts > 0) {
        require(slice.wants_logits && slice.tokens.size() == static_cast<std::size_t>(1 + slice.n_drafts));
      }
      n_rows += slice.wants_logits ? 1 + slice.n_drafts : 0;
      if (slice.tokens.size() > 1 && slice.n_drafts == 0) n_tokens += static_cast<int>(slice.tokens.size());
    }
    control_.max_slices = std::max(control_.max_slices.load(), static_cast<int>(slices.size()));
    control_.max_rows = std::max(control_.max_rows.load(), n_rows);
    control_.max_tokens = std::max(control_.max_tokens.load(), n_tokens);
  }

  bool has_poison(std::span<const Slice> slices) const {
    for (const Slice& slice : slices) {
      for (const TokenId token : slice.tokens) {
        if (token == kPoison) return true;
      }
    }
    return false;
  }

  [[noreturn]] void fail(std::span<const Slice> slices) {
    for (const Slice& slice : slices) {
      if (control_.loses_caches) sequences_.at(slice.sequence).clear();
    }
    throw std::runtime_error("poisoned");
  }

  /// Behind the slice's last token, with drafts behind each. (The scripted say one token a step.)
  void add_logits(const Slice& slice, std::vector<float>& rows) {
    const std::span<const TokenId> held = sequences_.at(slice.sequence);
    for (auto n_behind = static_cast<std::size_t>(slice.n_drafts) + 1; n_behind-- > 0;) {
      std::vector<float> row(kFakeVocab);
      if (control_.scripted.empty()) {
        row = logits_after(held.first(held.size() - n_behind));
      } else {
        row[static_cast<std::size_t>(control_.scripted.at(n_said_[slice.sequence]++))] = 3;
      }
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }

  FakeControl& control_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::map<engine::SequenceId, Tokens> sequences_;
  std::map<engine::SequenceId, std::size_t> n_said_;
  std::map<engine::SequenceId, int> n_drafted_;  // of a slice that was run and is not settled
  std::set<engine::SequenceId> unshared_;
  std::vector<Tokens> kept_;
  std::vector<std::vector<float>> rows_;
};

/// Holds a thread until it is opened.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    is_waited_for_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  /// Returns when somebody stands before it.
  void await_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_waited_for_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_waited_for_ = false;
};

/// The events of one request.
class Listener {
 public:
  void add(const engine::Event& event) {
    const std::lock_guard lock(mutex_);
    if (const auto* token = std::get_if<engine::TokenEvent>(&event)) {
      tokens.push_back(token->token);
      text += token->text;
      token_events.push_back(*token);
    } else if (const auto* embedded = std::get_if<engine::EmbeddingEvent>(&event)) {
      embedding = embedded->values;
    } else if (const auto* prefill = std::get_if<engine::PrefillEvent>(&event)) {
      prefills.emplace_back(prefill->n_done, prefill->n_total);
    } else {
      ++n_ends_;
      if (const auto* finished_event = std::get_if<engine::Finished>(&event)) {
        finished = *finished_event;
        text += finished->text;
      } else {
        failed = std::get<engine::Failed>(event);
      }
      ended_.notify_all();
    }
    n_after_end_ += n_ends_ > 0 ? 1 : 0;
  }

  /// Waits for the last event. What is public may be read afterwards.
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return n_ends_ > 0; });
  }

  bool has_ended() const {
    const std::lock_guard lock(mutex_);
    return n_ends_ > 0;
  }
  /// One last event, and it came last.
  bool is_orderly() const {
    const std::lock_guard lock(mutex_);
    return n_ends_ == 1 && n_after_end_ == 1;
  }
  bool is_cancelled() const { return finished && finished->reason == engine::FinishReason::kCancelled; }

  std::vector<std::pair<int, int>> prefills;
  Tokens tokens;
  std::vector<engine::TokenEvent> token_events;
  std::string text;
  std::vector<float> embedding;
  std::optional<engine::Finished> finished;
  std::optional<engine::Failed> failed;

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int n_ends_ = 0;
  int n_after_end_ = 0;
};

inline engine::Request request_for(Tokens prompt, int max_tokens, const std::shared_ptr<Listener>& listener) {
  engine::Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.on_event = [listener](const engine::Event& event) { listener->add(event); };
  return request;
}

}  // namespace memoir::test
