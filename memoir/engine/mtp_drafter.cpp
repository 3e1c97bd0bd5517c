#include "memoir/engine/mtp_drafter.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <utility>

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

// With so many the slots are written, drafts or not: one pass of the head is cheaper than many.
constexpr int kMaxWaiting = 256;

mx::array first_rows(const mx::array& hidden, int n) {
  return mx::slice(hidden, {0, 0, 0}, {1, n, hidden.shape(2)});
}

mx::array last_row(const mx::array& hidden) {
  return mx::slice(hidden, {0, hidden.shape(1) - 1, 0}, {1, hidden.shape(1), hidden.shape(2)});
}

struct SlotsGoBack {
  cache::ModelCache& cache;
  int n_slots;

  ~SlotsGoBack() {
    if (cache.offset() > n_slots) cache.rewind(n_slots);
  }
};

}  // namespace

MtpDrafter::MtpDrafter(std::shared_ptr<const model::MtpHead> head, const model::Model& target)
    : head_(std::move(head)), target_(target), cache_(head_->make_cache()) {}

void MtpDrafter::start_at(int offset) {
  cache_.free();
  tokens_.clear();
  waiting_.clear();
  begin_ = offset;
}

// The hidden states of the first n_tokens alone.
void MtpDrafter::keep_waiting(int n_tokens) {
  std::vector<mx::array> kept;
  for (const mx::array& hidden : waiting_) {
    const int n = std::min(n_tokens, hidden.shape(1));
    if (n > 0) kept.push_back(first_rows(hidden, n));
    n_tokens -= n;
  }
  waiting_ = std::move(kept);
}

void MtpDrafter::go_back_to(const TakenIn& taken) {
  const int n_kept = taken.offset - begin_;
  const int n_slots = cache_.offset();
  // The last slot that stays was made with the token behind it.
  const bool is_stale =
      n_kept > 0 && n_kept <= n_slots && tokens_[static_cast<std::size_t>(n_kept)] != taken.tokens.front();
  if (is_stale || !cache_.rewind(std::min(n_kept, n_slots))) return start_at(taken.offset);
  keep_waiting(std::max(0, n_kept - n_slots));
  tokens_.resize(static_cast<std::size_t>(n_kept));
}

void MtpDrafter::taken_in(const TakenIn& taken) {
  if (taken.tokens.empty()) return;
  const int end = begin_ + static_cast<int>(tokens_.size());
  if (taken.offset < begin_ || taken.offset > end) {
    start_at(taken.offset);
  } else if (taken.offset < end) {
    go_back_to(taken);
  }
  tokens_.insert(tokens_.end(), taken.tokens.begin(), taken.tokens.end());
  waiting_.push_back(taken.hidden);
  // Not left to be computed later: what is not computed holds on to the model's cache.
  mx::async_eval(waiting_.back());
  if (n_waiting() <= kMaxWaiting) return;
  const auto next = std::span(tokens_).subspan(static_cast<std::size_t>(cache_.offset()) + 1);
  write_slots(next);
  cache_.materialize();
}

mx::array MtpDrafter::hidden_waiting() const {
  return waiting_.size() == 1 ? waiting_.front() : mx::concatenate(waiting_, 1);
}

// A slot for each of the tokens, which stand behind those that wait first. Of these the last one goes on waiting: its
// slot may have to be made with another token. Returns what comes out of the last slot.
mx::array MtpDrafter::write_slots(std::span<const TokenId> next_tokens) {
  const auto n = static_cast<int>(next_tokens.size());
  const mx::array hidden = hidden_waiting();
  const mx::array ids(next_tokens.data(), {1, n}, mx::int32);
  const mx::array out = head_->forward(target_.embed(ids), first_rows(hidden, n), cache_);
  waiting_ = {mx::contiguous(last_row(hidden))};
  mx::async_eval(waiting_.front());
  return last_row(out);
}

std::vector<TokenId> MtpDrafter::propose(std::span<const TokenId> tokens, int n_max) {
  const std::size_t n_told = tokens_.size();
  const auto begin = static_cast<std::size_t>(begin_);
  if (n_max < 1 || n_told == 0 || tokens.size() != begin + n_told + 1) return {};
  const auto told = tokens.subspan(begin, n_told);
  if (!std::equal(tokens_.begin(), tokens_.end(), told.begin())) return {};
  // However this ends: the last token told of waits for its slot again, and drafts have none.
  const SlotsGoBack goes_back{cache_, static_cast<int>(n_told) - 1};
  mx::array hidden = write_slots(tokens.subspan(begin + static_cast<std::size_t>(cache_.offset()) + 1));
  std::vector<mx::array> drafts;
  for (int i = 0; i < n_max; ++i) {
    if (i > 0) hidden = head_->forward(target_.embed(drafts.back()), hidden, cache_);
    const mx::array likeliest = mx::argmax(mx::reshape(target_.logits_of(hidden), {-1}));
    drafts.push_back(mx::astype(mx::reshape(likeliest, {1, 1}), mx::int32));
  }
  // All of them at once: the guesses follow each other without a look at any.
  mx::array all = mx::reshape(mx::concatenate(drafts, 1), {-1});
  mx::eval(all);
  cache_.materialize();
  return {all.data<TokenId>(), all.data<TokenId>() + n_max};
}

}  // namespace memoir::engine
