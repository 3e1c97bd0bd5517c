#pragma once

// Drafts from the head that a model carries for further tokens (model/mtp_head.h). It has a cache of its own, level
// with the model's: a slot for each token that the model has taken in, but for the last ones, whose next token is not
// known or which wait to be computed together. The slots of drafts are taken back at the end of each proposal.
//
// A slot depends on the token behind it, so that a reused prefix counts for one token less (lookahead). Where the model
// holds tokens that the drafter was not told of, those of a cache from a file, the head begins behind them.

#include <mlx/array.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "memoir/engine/speculate.h"
#include "memoir/model/mtp_head.h"

namespace memoir::engine {

class MtpDrafter final : public Drafter {
 public:
  /// The model must outlive this.
  MtpDrafter(std::shared_ptr<const model::MtpHead> head, const model::Model& target);

  /// None where `tokens` does not end with what was taken in, and one more.
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) override;

  Reads reads() const override { return Reads::kAllTokens; }
  void taken_in(const TakenIn& taken) override;
  int lookahead() const override { return 1; }
  std::size_t size_bytes() const override { return cache_.size_bytes(); }

  /// Slots in the head's cache, and tokens that wait for theirs.
  int n_slots() const { return cache_.offset(); }
  int n_waiting() const { return static_cast<int>(tokens_.size()) - cache_.offset(); }

 private:
  void start_at(int offset);
  void go_back_to(const TakenIn& taken);
  void keep_waiting(int n_tokens);
  mlx::core::array hidden_waiting() const;
  mlx::core::array write_slots(std::span<const TokenId> next_tokens);

  std::shared_ptr<const model::MtpHead> head_;
  const model::Model& target_;
  cache::ModelCache cache_;
  int begin_ = 0;                          // the position of the first token that the drafter was told of
  std::vector<TokenId> tokens_;            // from there on
  std::vector<mlx::core::array> waiting_;  // hidden states of the last n_waiting() tokens, [1, n, hidden] each
};

}  // namespace memoir::engine
