#pragma once

// The cache of a head for further tokens (model/mtp_head.h), level with a text that the model takes in: a slot for each
// token, but for the last ones, whose next token is not known or which wait to be computed together. The slots of
// guesses are taken back at the end of each call.
//
// Slot s is made of the hidden state of token s and of token s + 1. So for the prefix cache row i of the text is slot
// i - 1 (of zeros for i = 0), and the state after n tokens is the hidden state of the last: of a text that begins with
// the same n tokens slot n - 1 is made with its own next token.
//
// Where the model holds tokens that this was not told of, those of a cache from a file, it begins behind them, and
// nothing of it is kept.

#include <mlx/array.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/engine/speculate.h"
#include "memoir/model/mtp_head.h"
#include "memoir/prefix/companion.h"
#include "memoir/prefix/companion_caches.h"

namespace memoir::engine {

class MtpText final : public prefix::Companion {
 public:
  /// The model must outlive this.
  MtpText(std::shared_ptr<const model::MtpHead> head, const model::Model& target);

  /// As Drafter::taken_in and Drafter::propose.
  void taken_in(const TakenIn& taken);
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max);

  bool settle(std::span<const prefix::Key> keys) override;
  std::unique_ptr<cache::KVSnapshot> rows(int from, int to) const override;
  std::unique_ptr<cache::Snapshot> state_at(int offset) const override;
  void restore(std::span<const TokenId> tokens, const cache::ModelCache& kept) override;

  const cache::ModelCache& slots() const { return cache_; }

  /// Tokens that wait for their slots.
  int n_waiting() const { return static_cast<int>(tokens_.size()) - cache_.offset(); }

 private:
  void start_at(int offset);
  void go_back_to(const TakenIn& taken);
  void keep_waiting(int n_tokens);
  mlx::core::array hidden_waiting() const;
  mlx::core::array write_slots(std::span<const TokenId> next_tokens);
  void write_waiting();

  std::shared_ptr<const model::MtpHead> head_;
  const model::Model& target_;
  cache::ModelCache cache_;
  int begin_ = 0;                          // the position of the first token that this was told of
  std::vector<TokenId> tokens_;            // from there on
  std::vector<mlx::core::array> waiting_;  // hidden states of the last n_waiting() tokens, [1, n, hidden] each
  int told_from_ = 0;                      // of the tokens told of last,
  std::optional<mlx::core::array> told_;   // the hidden states
};

/// For the store. The head and the model must outlive what they make.
prefix::CompanionCaches companion_caches(std::shared_ptr<const model::MtpHead> head, const model::Model& target);

}  // namespace memoir::engine
