#include "memoir/engine/draft_model.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>

#include "memoir/cache/transaction.h"

namespace mx = mlx::core;

namespace memoir::engine {

DraftModel::DraftModel(const model::Model& model, int n_vocab, std::optional<int> n_at_once)
    : session_(model), n_vocab_(std::min(n_vocab, model.config().vocab_size)), n_at_once_(n_at_once) {
  if (n_at_once_ && *n_at_once_ < 1) {
    throw std::invalid_argument("[draft_model] n_at_once is " + std::to_string(*n_at_once_) + ", expected at least 1");
  }
  const auto refusal = cache::Transaction::refusal(session_.cache(), DraftLength::kMax + 1);
  if (refusal) {
    throw std::invalid_argument("[draft_model] layer " + std::to_string(refusal->layer) + " of the draft model has a " +
                                refusal->kind + ", which can't take drafts back");
  }
}

TokenId DraftModel::likeliest(const mx::array& logits) {
  const mx::array row = mx::reshape(logits, {-1});
  mx::array token = mx::argmax(mx::slice(row, {0}, {n_vocab_}));
  mx::async_eval(token);
  session_.let_go_of_drafts();  // while that is computed
  return static_cast<TokenId>(token.item<std::uint32_t>());
}

// Of the drafts of the last call, those that the text went on with stay.
void DraftModel::keep_what_came(std::span<const TokenId> tokens) {
  if (!session_.has_draft()) return;
  const std::vector<TokenId>& mine = session_.tokens();
  const auto same = std::mismatch(mine.begin(), mine.end(), tokens.begin(), tokens.end()).first;
  const auto n_before = static_cast<std::ptrdiff_t>(mine.size()) - session_.n_drafted();
  session_.commit_draft(static_cast<int>(std::max<std::ptrdiff_t>(0, same - mine.begin() - n_before)));
}

mx::array DraftModel::take_in(std::span<const TokenId> tokens) {
  constexpr std::size_t kChunk = 512;
  for (; tokens.size() > kChunk; tokens = tokens.subspan(kChunk)) {
    session_.forward(tokens.first(kChunk), model::LogitRows::kLast);
    session_.cache().materialize();
  }
  return session_.forward(tokens, model::LogitRows::kLast);
}

std::vector<TokenId> DraftModel::propose(std::span<const TokenId> tokens, int n_max) {
  keep_what_came(tokens);
  const auto context = static_cast<std::size_t>(session_.model().context());
  if (n_max < 1 || tokens.empty() || tokens.size() + static_cast<std::size_t>(n_max) > context) return {};
  const auto n_cached = static_cast<std::size_t>(session_.reuse(tokens));
  const std::span<const TokenId> rest = tokens.subspan(n_cached);
  if (n_at_once_ && rest.size() > static_cast<std::size_t>(*n_at_once_)) {
    take_in(rest.first(static_cast<std::size_t>(*n_at_once_)));
    session_.cache().materialize();
    return {};
  }
  std::vector<TokenId> drafts = {likeliest(take_in(rest))};
  if (n_max > 1) session_.begin_draft(n_max - 1);
  while (drafts.size() < static_cast<std::size_t>(n_max)) {
    const TokenId last = drafts.back();
    drafts.push_back(likeliest(session_.forward(std::span(&last, 1), model::LogitRows::kLast)));
  }
  return drafts;
}

std::string vocabulary_difference(const text::Tokenizer& target, const text::Tokenizer& draft) {
  if (target.n_vocab() != draft.n_vocab()) {
    return "it has " + std::to_string(draft.n_vocab()) + " tokens, the model " + std::to_string(target.n_vocab());
  }
  for (TokenId id = 0; id < target.n_vocab(); ++id) {
    if (target.token_text(id) == draft.token_text(id)) continue;
    return "its token " + std::to_string(id) + " is \"" + draft.token_text(id) + "\", the model's \"" +
           target.token_text(id) + "\"";
  }
  return "";
}

}  // namespace memoir::engine
