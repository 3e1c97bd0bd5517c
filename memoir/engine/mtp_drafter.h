#pragma once

// Drafts from the head that a model carries for further tokens (model/mtp_head.h). It has a cache of its own, level
// with the model's (mtp_text.h), and kept by a prefix store beside what the model computes.
//
// A slot depends on the token behind it, so that of a text that goes another way the model takes in one token more
// (lookahead).

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "memoir/engine/mtp_text.h"
#include "memoir/engine/speculate.h"
#include "memoir/model/mtp_head.h"

namespace memoir::engine {

class MtpDrafter final : public Drafter {
 public:
  /// The model must outlive this, and what companion() gave.
  MtpDrafter(std::shared_ptr<const model::MtpHead> head, const model::Model& target)
      : text_(std::make_shared<MtpText>(std::move(head), target)) {}

  /// None where `tokens` does not end with what was taken in, and one more.
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) override {
    return text_->propose(tokens, n_max);
  }

  Reads reads() const override { return Reads::kAllTokens; }
  void taken_in(const TakenIn& taken) override { text_->taken_in(taken); }
  int lookahead() const override { return 1; }
  std::size_t size_bytes() const override { return text_->slots().size_bytes(); }
  std::shared_ptr<prefix::Companion> companion() override { return text_; }

  /// Slots in the head's cache, and tokens that wait for theirs.
  int n_slots() const { return text_->slots().offset(); }
  int n_waiting() const { return text_->n_waiting(); }

 private:
  std::shared_ptr<MtpText> text_;
};

}  // namespace memoir::engine
