#pragma once

// From a prompt to new tokens and text: prefill in chunks, then decode with the model one token ahead of the reader.
//
// "Ahead": when next() hands out a token, the forward pass over it has been scheduled already, so that the model works
// while the caller detokenizes, prints or sends. Nothing is scheduled behind a stop token or the last token asked for.
// With a drafter several tokens may come from one forward pass (speculate.h): the tokens are the same, they only come
// faster. What is scheduled ahead then includes drafts, and the session holds them until they have been judged; when
// the run ends, or the Generation goes, it holds the tokens that were handed out, as without a drafter.
// Threads: the thread that owns MLX's work. Callbacks are called on it and may throw; the throw passes through, and
// the session stays usable.

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/finish_reason.h"
#include "memoir/engine/sampler.h"
#include "memoir/engine/session.h"
#include "memoir/engine/speculate.h"
#include "memoir/text/tokenizer.h"

namespace memoir::engine {

struct GenerateOptions {
  int max_tokens = 256;     // >= 0
  int prefill_chunk = 256;  // tokens of the prompt in one forward pass, >= 1
  SamplerOptions sampler;
  std::vector<TokenId> stop_tokens;       // end the text and are no part of it
  std::vector<std::string> stop_strings;  // the same, found in the text; ignored without a tokenizer
  std::vector<int> turn_ends;             // of the prompt: where a chat's turns end, for the session's prefix store

  Drafter* drafter = nullptr;  // may be null; must outlive the run
  int max_drafts = 8;          // in one forward pass, 1 to DraftLength::kMax
  bool adapts_drafts = true;   // as many as pay; else always max_drafts

  /// After each chunk: tokens of the prompt done (cached ones included) and in all. May be empty.
  std::function<void(int n_done, int n_total)> on_prefill;

  /// Asked between chunks and tokens. May be empty.
  std::function<bool()> should_cancel;
};

/// What a drafter was worth.
struct DraftCounts {
  int n_drafted = 0;   // tokens
  int n_accepted = 0;  // of these
  int n_rounds = 0;    // forward passes with drafts
};

/// One run over one session. Make it, call start() once, then next() until it returns nullopt.
class Generation {
 public:
  /// Throws std::invalid_argument for an option out of its range, or if there is a drafter and a kind of the session's
  /// cache can't take drafts back (the message names it).
  Generation(Session& session, GenerateOptions options);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Computes the prompt, without what the session's cache already holds of it.
  /// Throws std::invalid_argument if the prompt is empty, longer than the context, or has a token outside the
  /// vocabulary; the session is then as before. A session that shifts takes longer ones, and drops what doesn't fit.
  /// After a cancel the computed chunks stay in the session.
  void start(std::span<const TokenId> prompt);

  /// The next token, or nullopt at the end; a stop token is not handed out.
  /// Throws std::invalid_argument if the drafter proposes too many tokens or one outside the vocabulary, and whatever
  /// the drafter throws; the session then holds the tokens handed out so far.
  std::optional<TokenId> next();

  /// Of the prompt's tokens, those that were in the cache.
  int cached_tokens() const { return cached_tokens_; }

  /// Valid once next() has returned nullopt.
  FinishReason finish_reason() const { return finish_reason_; }

  /// So far, the pass under way included.
  DraftCounts draft_counts() const;

 private:
  // A forward pass over a token and its drafts, of which the first n_accepted were right so far.
  struct Round {
    std::vector<TokenId> tokens;  // the token, then the drafts
    std::vector<TokenId> drafts;
    std::optional<mlx::core::array> hidden;  // for a drafter that reads the model
    std::size_t n_accepted = 0;
    std::chrono::steady_clock::time_point begin;
    double seconds = 0;
    bool is_evaluated = false;
  };
  // What a pass gives; the hidden states that the drafter wants, if it reads the model.
  struct Scheduled {
    mlx::core::array logits;
    std::optional<mlx::core::array> hidden;
  };

  bool is_cancelled();
  Scheduled forward(std::span<const TokenId> tokens, model::LogitRows rows, bool is_prompts_end);
  void tell_drafter(std::span<const TokenId> tokens, const mlx::core::array& hidden);
  void prefill(std::span<const TokenId> rest, int n_total);
  std::span<float> next_row();
  std::vector<TokenId> drafts_after(TokenId token);
  void schedule(TokenId token);
  void end_round(bool is_last_judged);
  std::optional<TokenId> finish(FinishReason reason);

  Session& session_;
  GenerateOptions options_;
  Sampler sampler_;
  std::optional<mlx::core::array> logits_;  // [1, T, V], scheduled; nullopt when there is nothing left to sample
  std::vector<float> row_;                  // [V] float32, the sampler's scratch
  int n_generated_ = 0;
  std::vector<TokenId> text_;   // prompt and tokens, for the drafter
  std::optional<Round> round_;  // with a drafter, once the prompt is done
  DraftCounts counts_;
  int cached_tokens_ = 0;
  FinishReason finish_reason_ = FinishReason::kLength;
};

struct Completion {
  std::vector<TokenId> tokens;
  std::string text;
  int prompt_tokens = 0;
  int cached_tokens = 0;
  double prefill_s = 0;  // until the first token was sampled
  double decode_s = 0;   // from there to the end
  DraftCounts drafts;
  FinishReason finish_reason = FinishReason::kLength;
};

/// Runs a Generation to its end. `tokenizer` may be null: then there is no text, stop strings are not looked for and
/// any token may be chosen. With one, only stop tokens and those that it knows: SamplerOptions::n_choosable is its
/// n_vocab(), or less if `options` says less.
/// `on_text`, if not empty, gets the text as it comes: whole characters, and never a part of a stop string; its pieces
/// make up Completion::text.
/// Throws as Generation does.
Completion generate(Session& session, std::span<const TokenId> prompt, const GenerateOptions& options,
                    const text::Tokenizer* tokenizer, const std::function<void(std::string_view)>& on_text = {});

}  // namespace memoir::engine
