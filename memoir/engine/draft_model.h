#pragma once

// Drafts from a smaller model with the same vocabulary: its likeliest tokens. It keeps a session of its own on the
// text, in which drafts that were wrong are taken back.

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
  /// n_vocab: of the model that is drafted for; only ids below it are proposed. The model must outlive this.
  /// n_at_once: of a text that goes on by more tokens than that, one proposal takes in so many and proposes nothing, so
  /// that it lasts no longer; nullopt: any number.
  /// Throws std::invalid_argument if the draft model's cache can't take drafts back, or n_at_once < 1.
  DraftModel(const model::Model& model, int n_vocab, std::optional<int> n_at_once = std::nullopt);

  /// None where the draft model's context is full.
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) override;

  std::size_t size_bytes() const override { return session_.cache().size_bytes(); }

 private:
  TokenId likeliest(const mlx::core::array& logits);
  void keep_what_came(std::span<const TokenId> tokens);
  mlx::core::array take_in(std::span<const TokenId> tokens);

  Session session_;
  int n_vocab_;
  std::optional<int> n_at_once_;
};

/// Why tokens of one can't stand for tokens of the other: the first id whose text differs, or the numbers of tokens.
/// Empty if they are the same.
std::string vocabulary_difference(const text::Tokenizer& target, const text::Tokenizer& draft);

}  // namespace memoir::engine
