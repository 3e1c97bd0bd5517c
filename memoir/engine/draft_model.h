#pragma once

// Drafts from a smaller model with the same vocabulary: its likeliest tokens. It keeps a session of its own on the
// text, in which drafts that were wrong are taken back.
//
// A long prompt takes a draft model time too, which is lost where little can be guessed. So of a text it hasn't read it
// takes in the last kFirst tokens alone, and the whole once its guesses have been right so often that this is paid for:
// a right one saves a pass of the larger model, in which a smaller one takes in some kPerRight tokens. A text beyond
// its context it reads from such an end too.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memoir/engine/session.h"
#include "memoir/engine/speculate.h"
#include "memoir/text/tokenizer.h"

namespace memoir::engine {

class DraftModel final : public Drafter {
 public:
  static constexpr std::size_t kFirst = 64;
  static constexpr std::size_t kPerRight = 32;

  /// n_vocab: of the model that is drafted for; only ids below it are proposed. The model must outlive this.
  /// n_at_once: of a text that goes on by more tokens than that, one proposal takes in so many and proposes nothing, so
  /// that it lasts no longer; nullopt: any number.
  /// Throws std::invalid_argument if the draft model's cache can't take drafts back, or n_at_once < 1.
  DraftModel(const model::Model& model, int n_vocab, std::optional<int> n_at_once = std::nullopt);

  /// None where the draft model's context is shorter than kFirst tokens and the drafts.
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) override;

  std::size_t size_bytes() const override { return session_.cache().size_bytes(); }

 private:
  TokenId likeliest(const mlx::core::array& logits);
  std::span<const TokenId> read_part(std::span<const TokenId> tokens) const;
  void keep_what_came(std::span<const TokenId> tokens);
  std::size_t n_held(std::span<const TokenId> text) const;
  void choose_begin(std::span<const TokenId> tokens, std::size_t n_max);
  mlx::core::array take_in(std::span<const TokenId> tokens);

  Session session_;
  int n_vocab_;
  std::optional<int> n_at_once_;
  std::size_t begin_ = 0;        // the session holds the text from this token on
  std::size_t n_paid_for_ = 0;   // tokens that right drafts have paid for
  std::size_t n_before_ = 0;     // tokens of the text before the last drafts
  std::vector<TokenId> drafts_;  // the last ones
};

/// Why tokens of one can't stand for tokens of the other: the first id whose text differs, or the numbers of tokens.
/// Empty if they are the same.
std::string vocabulary_difference(const text::Tokenizer& target, const text::Tokenizer& draft);

}  // namespace memoir::engine
