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

// Of a text, what the session holds or will hold.
std::span<const TokenId> DraftModel::read_part(std::span<const TokenId> tokens) const {
  return tokens.subspan(std::min(begin_, tokens.size()));
}

std::size_t DraftModel::n_held(std::span<const TokenId> text) const {
  const std::vector<TokenId>& mine = session_.tokens();
  return static_cast<std::size_t>(std::mismatch(mine.begin(), mine.end(), text.begin(), text.end()).first -
                                  mine.begin());
}

// Of the drafts of the last call, those that the text went on with stay.
void DraftModel::keep_what_came(std::span<const TokenId> tokens) {
  const std::span<const TokenId> came = tokens.subspan(std::min(n_before_, tokens.size()));
  const auto right = std::mismatch(drafts_.begin(), drafts_.end(), came.begin(), came.end()).first;
  n_paid_for_ += kPerRight * static_cast<std::size_t>(right - drafts_.begin());
  drafts_.clear();
  if (!session_.has_draft()) return;
  const std::size_t n_before = session_.tokens().size() - static_cast<std::size_t>(session_.n_drafted());
  const std::size_t n_same = n_held(read_part(tokens));
  session_.commit_draft(static_cast<int>(n_same - std::min(n_same, n_before)));
}

void DraftModel::choose_begin(std::span<const TokenId> tokens, std::size_t n_max) {
  const std::size_t n_known = n_held(read_part(tokens));
  const std::size_t n_unread = tokens.size() - (begin_ == 0 ? n_known : 0);  // of the whole
  const bool fits = tokens.size() + n_max <= static_cast<std::size_t>(session_.model().context());
  if (fits && n_unread <= std::max(kFirst, n_paid_for_)) {
    begin_ = 0;
    return;
  }
  const bool goes_on = begin_ > 0 && n_known > 0 && read_part(tokens).size() - n_known <= kFirst;
  const bool has_room = read_part(tokens).size() + n_max <= static_cast<std::size_t>(session_.model().context());
  if (!goes_on || !has_room) begin_ = tokens.size() - std::min(kFirst, tokens.size());
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
  if (n_max < 1 || tokens.empty()) return {};
  choose_begin(tokens, static_cast<std::size_t>(n_max));
  const std::span<const TokenId> text = read_part(tokens);
  if (text.size() + static_cast<std::size_t>(n_max) > static_cast<std::size_t>(session_.model().context())) return {};
  std::span<const TokenId> rest = text.subspan(static_cast<std::size_t>(session_.reuse(text)));
  const bool is_part = n_at_once_ && rest.size() > static_cast<std::size_t>(*n_at_once_);
  if (is_part) rest = rest.first(static_cast<std::size_t>(*n_at_once_));
  if (rest.size() > kFirst) n_paid_for_ -= std::min(n_paid_for_, rest.size());
  const mx::array logits = take_in(rest);
  if (is_part) {
    session_.cache().materialize();
    return {};
  }
  drafts_ = {likeliest(logits)};
  if (n_max > 1) session_.begin_draft(n_max - 1);
  while (drafts_.size() < static_cast<std::size_t>(n_max)) {
    const TokenId last = drafts_.back();
    drafts_.push_back(likeliest(session_.forward(std::span(&last, 1), model::LogitRows::kLast)));
  }
  n_before_ = tokens.size();
  return drafts_;
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
