#pragma once

// Speculative decoding: a drafter guesses the tokens that come next, one forward pass over the present token and the
// guesses tells which of them the model would have chosen, and those are kept (generate.h). No MLX here.
//
// Guesses are given without probabilities, so a draft d is a distribution with all its mass on d. For that the rule of
// speculative sampling (Leviathan et al., arXiv:2211.17192, sec. 2.3) becomes: accept d with probability p(d), else
// draw from p without d. Drawing x from p and accepting d if x = d is the same rule: x is d with probability p(d), and
// given that it isn't, x has p's other tokens in their proportions. It takes the draws of plain decoding, one for each
// token. So the same seed gives the same tokens with any drafter and without one; penalties, bias and filters see the
// drafts before as they see any token.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/draft_length.h"
#include "memoir/engine/sampler.h"

namespace mlx::core {
class array;
}
namespace memoir::cache {
class ModelCache;
}
namespace memoir::prefix {
class Companion;
}

namespace memoir::engine {

/// What the model has taken in and keeps, as it is told to drafters that read the model.
struct TakenIn {
  std::span<const TokenId> tokens;
  int offset;                      // the position of the first of them
  const mlx::core::array& hidden;  // [1, n, hidden]: hidden states behind the final norm, of the last n of them
  const cache::ModelCache& cache;  // holds them; as it is until the drafter is told of more, with no draft open
};

/// Where drafts come from. It may keep what helps it between calls and texts; a text need not go on from the last one.
/// Threads: one at a time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// Tokens that may follow `tokens`, in order; at most n_max (at least 1), or none. All in the model's vocabulary.
  virtual std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) = 0;

  /// What it reads of the model: of which tokens it wants hidden states.
  enum class Reads : std::uint8_t { kNothing, kLastToken, kAllTokens };
  virtual Reads reads() const { return Reads::kNothing; }

  /// Called, if it reads the model, for tokens that the model has taken in and keeps: the prompt's that were not in its
  /// cache, with kLastToken only up to the last, and those that were chosen, before more is proposed behind them. An
  /// offset below the end of what was told before means that the model went back there.
  virtual void taken_in(const TakenIn&) {}

  /// What it keeps of a position may depend on so many tokens behind it. Where a text goes another way, the model then
  /// takes in as many more.
  virtual int lookahead() const { return 0; }

  /// What it keeps of the text, for a prefix store to keep beside the model's cache; null: nothing that would have to
  /// be.
  virtual std::shared_ptr<prefix::Companion> companion() { return nullptr; }

  /// What it keeps for the text, in caches.
  virtual std::size_t size_bytes() const { return 0; }

  /// What has been learned of how many of its drafts pay.
  DraftLength& length() { return length_; }

 private:
  DraftLength length_;
};

struct NgramOptions {
  int longest = 4;   // tokens of the text's end that are looked for, at most
  int shortest = 2;  // and at least
};

/// Prompt lookup: looks for the text's last tokens earlier in the text, the longest end first, and guesses that what
/// followed there follows again. After Saxena, github.com/apoorvumang/prompt-lookup-decoding; of several places it
/// takes the last. Where the place is so near that what followed runs into the end, it goes on with the draft itself.
/// Keeps an index of the text, so that a call costs what is new (and a comparison of the text with the indexed one).
class NgramDrafter final : public Drafter {
 public:
  /// Throws std::invalid_argument unless 1 <= shortest <= longest <= 8.
  explicit NgramDrafter(const NgramOptions& options = {});

  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) override;

 private:
  void index(std::span<const TokenId> tokens);
  std::uint64_t key(std::size_t end, int n) const;
  bool is_same(std::size_t a_end, std::size_t b_end, int n) const;

  NgramOptions options_;
  std::vector<TokenId> text_;
  // For each length, where what follows the n-gram begins, at its last place before the text's end.
  std::vector<std::unordered_map<std::uint64_t, std::size_t>> follows_;
};

/// Throws std::invalid_argument if a drafter proposed more than n_max tokens, or one outside the vocabulary.
void check_drafts(std::span<const TokenId> drafts, int n_max, int n_vocab);

struct Verdict {
  TokenId token;     // the next token, whatever the draft
  bool is_accepted;  // it is the draft
};

/// Judges a draft for the position that the logits are of, by the rule above. Takes Sampler::sample's draw, and its
/// errors; nothing is accepted into the sampler's history.
Verdict judge(Sampler& sampler, std::span<float> logits, TokenId draft);

}  // namespace memoir::engine
