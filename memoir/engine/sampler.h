#pragma once

// From logits to the next token: bias, penalties, filters, temperature, one random draw. Host memory only, no MLX.
//
// The steps, in this order. l is a logit, p = softmax(l) over the tokens still in play.
//   1. bias         l += logit_bias[t]
//   2. repetition   l = l > 0 ? l / r : l * r              if t is in the window   (CTRL, arXiv:1909.05858, sec. 4.1)
//   3. frequency,   l -= count(t) * frequency + presence   if t is in the window   (OpenAI API, "Frequency and presence
//      presence                                                                     penalties")
//   4. top-k        keep the k largest l
//   5. top-p        keep the fewest tokens, largest first, whose p sum to at least top_p: the one that crosses is kept
//                   (arXiv:1904.09751, sec. 3.1). After top-k, p is over the k that are left.
//   6. min-p        keep p >= min_p * max(p), that is exp(l - max(l)) >= min_p      (arXiv:2407.01082)
//   7. temperature  weight = exp((l - max(l)) / temperature) for the kept tokens
//   8. draw         u in [0, 1); the first token, in the order of ids, where the running sum of weights exceeds u * sum
// Temperature 0 takes the largest l after step 3, the lowest id among equals.
// The order is llama.cpp's default chain (bias, penalties, top-k, top-p, min-p, temperature); mlx-lm also filters
// before temperature (top-p, min-p, top-k). So a raised temperature never lets back in a token that the filters would
// remove at temperature 1. Hugging Face transformers applies temperature first: with it and temperature above 1 a
// filter keeps more.
//
// Numbers that are not: a NaN logit counts as -inf, and -inf is never chosen. A +inf logit beats all finite ones, and
// several share the probability equally. A bias of -inf (a ban) beats a +inf logit.
//
// The same seed, options, history and logits give the same token on every platform: the generator is
// std::mt19937_64 (fixed by the standard), u its top 53 bits; the weights, and what min-p compares, come from an exp()
// of our own (relative error below 1e-12) summed in the order of ids in double; top-p sums whole numbers (weights in
// units of 2^-40), which have no order. No result depends on a sort that isn't total: equal logits rank by id. This is
// true of tokens, not of log_probability(), which ends in the platform's log().
//
// Ownership: a Sampler is a value; a copy continues with the same draws and history. One per sequence.
// Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "memoir/base/types.h"

namespace memoir::engine {

/// The defaults are greedy decoding without penalties.
struct SamplerOptions {
  double temperature = 0;         // >= 0; 0 is greedy
  double top_p = 1;               // (0, 1]; 1 keeps all
  double min_p = 0;               // [0, 1]; 0 keeps all
  int top_k = 0;                  // >= 0; 0 keeps all
  double repetition_penalty = 1;  // > 0; 1 is none
  double presence_penalty = 0;    // negative ones encourage repetition
  double frequency_penalty = 0;

  /// The penalties see the last n accepted tokens, the prompt's included if it was primed; -1 all, 0 none.
  /// 64 as in llama.cpp and Ollama (mlx-lm 20; transformers and OpenAI all).
  int penalty_window = 64;

  /// Added to the logit before all else. -inf bans a token, +inf forces it.
  std::map<TokenId, float> logit_bias;

  /// Tokens from this id on are never chosen, whatever their logits and bias: many models pad their embeddings beyond
  /// what the tokenizer has texts for. 0, or V and more: every token may be. Exceptions are the ids in
  /// choosable_beyond, such as an end token that the tokenizer lacks.
  int n_choosable = 0;
  std::vector<TokenId> choosable_beyond;

  /// Absent: one is taken from std::random_device, see Sampler::seed().
  std::optional<std::uint64_t> seed;

  /// Throws std::invalid_argument naming the option, its value and its range.
  void validate() const;
};

/// The options, also without the tokens from n_known on but for those that end a text: for a model whose tokenizer has
/// texts for the first n_known alone.
SamplerOptions choosing_below(SamplerOptions options, int n_known, std::span<const TokenId> end_tokens);

class Sampler {
 public:
  /// n_vocab: V, 1 to kMaxVocab. Throws std::invalid_argument as validate() does, for n_vocab, and for a biased token
  /// outside the vocabulary.
  Sampler(const SamplerOptions& options, int n_vocab);

  /// The token that follows. `logits` has V floats and is scratch: its contents afterwards are unspecified.
  /// Takes exactly one draw, also when a single token is left, and none at temperature 0. The token is not accepted
  /// on its own: call accept(), so that a caller may drop it instead (a rejected draft).
  /// Throws std::invalid_argument for another size, RequestFault if logit_bias bans all that may be chosen,
  /// std::runtime_error if every logit that may be chosen is -inf or NaN before; no draw is taken then. Cost: O(V),
  /// without a sort of V.
  TokenId sample(std::span<float> logits);

  /// Appends a token to the history that the penalties see. Throws std::invalid_argument outside the vocabulary.
  void accept(TokenId token);

  /// accept() for each token of a prompt, in order. Nothing is accepted if one is outside the vocabulary.
  /// Whether a prompt counts is the caller's choice: llama.cpp and mlx-lm count it, vLLM for the repetition penalty
  /// only.
  void prime(std::span<const TokenId> prompt);

  /// Back to the state after construction: an empty history, and the draws of seed() from the first again.
  void reset();

  /// The seed in use, given or taken, to repeat a run.
  std::uint64_t seed() const { return seed_; }

  /// True if sample() is the plain argmax of the logits (temperature 0, no bias, no penalty, every token choosable),
  /// which a caller may then compute where the logits are instead of copying them.
  bool is_plain_argmax() const;

  const SamplerOptions& options() const { return options_; }

 private:
  /// A token as the filters rank it: by logit, the larger first, equals by id.
  struct Candidate {
    float logit;
    TokenId id;
    std::int64_t mass;  // weight before temperature, in units of 2^-40; set for top-p only

    bool operator<(const Candidate& other) const {
      return logit > other.logit || (logit == other.logit && id < other.id);
    }
  };

  bool has_penalties() const;
  bool has_padding() const;
  bool bans_a_choice(std::span<const float> logits) const;
  void remember(TokenId token);
  void apply_bias_and_penalties(std::span<float> logits) const;
  void mask_padding(std::span<float> logits) const;
  void select_top_k(std::span<const float> logits);
  double weigh_candidates(float max_logit);
  double gather_for_top_p(std::span<const float> logits, float max_logit);
  Candidate last_of_top_p(double total_mass);
  Candidate find_cutoff(std::span<const float> logits, float max_logit);
  bool min_p_keeps(double below_max) const;
  void keep_from(std::span<const float> logits, const Candidate& cutoff, float max_logit);
  TokenId draw(float max_logit);

  SamplerOptions options_;
  int n_vocab_;
  double log_min_p_;  // -inf if min_p is 0
  std::uint64_t seed_;
  std::mt19937_64 generator_;

  std::deque<TokenId> recent_;               // the window, oldest first; unused if it is unbounded
  std::unordered_map<TokenId, int> counts_;  // how often each token occurs in the window

  // Scratch of one call, kept to allocate once.
  std::vector<Candidate> candidates_;
  std::vector<float> kept_logits_;
  std::vector<TokenId> kept_ids_;
  std::vector<double> weights_;
};

/// probabilities[t] = exp((l[t] - max(l)) / temperature) / sum, over all tokens, with NaN and infinities as described
/// at the top. Throws std::invalid_argument if the sizes differ or temperature is not finite and above 0,
/// std::runtime_error if every logit is -inf or NaN.
void softmax(std::span<const float> logits, double temperature, std::span<double> probabilities);

/// ln softmax(logits)[token] at temperature 1; -inf for a token that can't be chosen. Throws std::invalid_argument if
/// `token` is outside the logits, std::runtime_error as softmax().
float log_probability(std::span<const float> logits, TokenId token);

}  // namespace memoir::engine
