#include "memoir/engine/assistant_drafter.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <utility>

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

const model::Model& checked(const model::Gemma4Assistant& assistant, const model::Model& target) {
  assistant.check_fits(target);
  return target;
}

}  // namespace

AssistantDrafter::AssistantDrafter(std::shared_ptr<const model::Gemma4Assistant> assistant, const model::Model& target)
    : assistant_(std::move(assistant)), target_(checked(*assistant_, target)), layers_(model::shared_layers(target)) {}

void AssistantDrafter::taken_in(const TakenIn& taken) {
  cache_ = &taken.cache;
  n_taken_in_ = taken.offset + static_cast<int>(taken.tokens.size());
  hidden_ = taken.hidden;
}

std::vector<TokenId> AssistantDrafter::propose(std::span<const TokenId> tokens, int n_max) {
  if (n_max < 1 || !hidden_ || tokens.size() != static_cast<std::size_t>(n_taken_in_) + 1) return {};
  const auto sliding = cache_->attention(layers_.sliding).view();
  const auto full = cache_->attention(layers_.full).view();
  if (!sliding || !full) return {};
  const model::SharedHistories shared{*sliding, *full};
  mx::array token(tokens.data() + n_taken_in_, {1, 1}, mx::int32);
  mx::array hidden = *hidden_;
  std::vector<mx::array> drafts;
  for (int i = 0; i < n_max; ++i) {
    const auto [logits, next] = assistant_->guess(target_.embed(token), hidden, shared, n_taken_in_);
    token = mx::astype(mx::reshape(mx::argmax(logits), {1, 1}), mx::int32);
    hidden = next;
    drafts.push_back(token);
  }
  // All of them at once: the guesses follow each other without a look at any.
  mx::array all = mx::reshape(mx::concatenate(drafts, 1), {-1});
  mx::eval(all);
  return {all.data<TokenId>(), all.data<TokenId>() + n_max};
}

}  // namespace memoir::engine
