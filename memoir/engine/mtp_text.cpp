#include "memoir/engine/mtp_text.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <utility>

#include "memoir/cache/kv.h"
#include "memoir/cache/recurrent.h"
#include "memoir/cache/state_snapshot.h"

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

cache::RecurrentCache state_cache(const model::Model& target) {
  return cache::RecurrentCache({.tail_tokens = 1, .tail_channels = target.config().hidden_size});
}

mx::array rows_from_second(const mx::array& rows) {
  return mx::slice(rows, {0, 0, 1, 0}, rows.shape());
}

// With a row of zeros in front.
kernels::KvBuffer one_behind(const kernels::KvBuffer& slots) {
  mx::Shape shape = slots.data.shape();
  shape[2] = 1;
  return {mx::concatenate({mx::zeros(shape, slots.data.dtype()), slots.data}, 2)};
}

struct SlotsGoBack {
  cache::ModelCache& cache;
  int n_slots;

  ~SlotsGoBack() {
    if (cache.offset() > n_slots) cache.rewind(n_slots);
  }
};

}  // namespace

MtpText::MtpText(std::shared_ptr<const model::MtpHead> head, const model::Model& target)
    : head_(std::move(head)), target_(target), cache_(head_->make_cache()) {}

void MtpText::start_at(int offset) {
  cache_.free();
  tokens_.clear();
  waiting_.clear();
  told_.reset();
  begin_ = offset;
}

// The hidden states of the first n_tokens alone.
void MtpText::keep_waiting(int n_tokens) {
  std::vector<mx::array> kept;
  for (const mx::array& hidden : waiting_) {
    const int n = std::min(n_tokens, hidden.shape(1));
    if (n > 0) kept.push_back(first_rows(hidden, n));
    n_tokens -= n;
  }
  waiting_ = std::move(kept);
}

void MtpText::go_back_to(const TakenIn& taken) {
  const int n_kept = taken.offset - begin_;
  const int n_slots = cache_.offset();
  // The last slot that stays was made with the token behind it.
  const bool is_stale =
      n_kept > 0 && n_kept <= n_slots && tokens_[static_cast<std::size_t>(n_kept)] != taken.tokens.front();
  if (is_stale || !cache_.rewind(std::min(n_kept, n_slots))) return start_at(taken.offset);
  keep_waiting(std::max(0, n_kept - n_slots));
  tokens_.resize(static_cast<std::size_t>(n_kept));
}

void MtpText::taken_in(const TakenIn& taken) {
  if (taken.tokens.empty()) return;
  const int end = begin_ + static_cast<int>(tokens_.size());
  if (taken.offset < begin_ || taken.offset > end) {
    start_at(taken.offset);
  } else if (taken.offset < end) {
    go_back_to(taken);
  }
  tokens_.insert(tokens_.end(), taken.tokens.begin(), taken.tokens.end());
  waiting_.push_back(taken.hidden);
  told_from_ = taken.offset;
  told_ = taken.hidden;
  // Not left to be computed later: what is not computed holds on to the model's cache.
  mx::async_eval(waiting_.back());
  if (n_waiting() > kMaxWaiting) write_waiting();
}

mx::array MtpText::hidden_waiting() const {
  return waiting_.size() == 1 ? waiting_.front() : mx::concatenate(waiting_, 1);
}

// A slot for each of the tokens, which stand behind those that wait first. Of these the last one goes on waiting: its
// slot may have to be made with another token. Returns what comes out of the last slot.
mx::array MtpText::write_slots(std::span<const TokenId> next_tokens) {
  const auto n = static_cast<int>(next_tokens.size());
  const mx::array hidden = hidden_waiting();
  const mx::array ids(next_tokens.data(), {1, n}, mx::int32);
  const mx::array out = head_->forward(target_.embed(ids), first_rows(hidden, n), cache_);
  waiting_ = {mx::contiguous(last_row(hidden))};
  mx::async_eval(waiting_.front());
  return last_row(out);
}

void MtpText::write_waiting() {
  write_slots(std::span(tokens_).subspan(static_cast<std::size_t>(cache_.offset()) + 1));
  cache_.materialize();
}

std::vector<TokenId> MtpText::propose(std::span<const TokenId> tokens, int n_max) {
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

// ---- For the prefix cache

bool MtpText::settle(std::span<const prefix::Key> keys) {
  const auto is_same = [](TokenId token, prefix::Key key) { return static_cast<prefix::Key>(token) == key; };
  // Of one token there is no slot that would tell what rows are like.
  if (begin_ != 0 || keys.size() < 2 || keys.size() > tokens_.size()) return false;
  if (!std::equal(keys.begin(), keys.end(), tokens_.begin(), [&](auto key, auto token) { return is_same(token, key); }))
    return false;
  if (n_waiting() > 1) write_waiting();
  return true;
}

std::unique_ptr<cache::KVSnapshot> MtpText::rows(int from, int to) const {
  const std::unique_ptr<cache::Snapshot> all = cache_.layer(0).snapshot(0);
  const auto slots = dynamic_cast<const cache::KVSnapshot&>(*all).part(std::max(0, from - 1), to - 1);
  const auto aligned = [from](const kernels::KvBuffer& rows) { return from == 0 ? one_behind(rows) : rows; };
  return std::make_unique<cache::KVSnapshot>(slots->layout(), from, cache::Positions{0, from, to},
                                             aligned(slots->keys()), aligned(slots->values()));
}

std::unique_ptr<cache::Snapshot> MtpText::state_at(int offset) const {
  const int row = offset - 1 - told_from_;
  if (!told_ || row < 0 || row >= told_->shape(1)) return nullptr;
  const mx::array hidden = mx::slice(*told_, {0, row, 0}, {1, row + 1, told_->shape(2)});
  return std::make_unique<cache::StateSnapshot>(state_cache(target_).kind(), 0, offset,
                                                cache::StateArrays{hidden, std::nullopt});
}

void MtpText::restore(std::span<const TokenId> tokens, const cache::ModelCache& kept) {
  const std::vector<mx::array> rows = kept.layer(0).state();
  start_at(0);
  try {
    tokens_.assign(tokens.begin(), tokens.end());
    if (tokens.size() > 1) cache_.attention(0).update(rows_from_second(rows[0]), rows_from_second(rows[1]));
    cache_.materialize();
    told_ = kept.recurrent(1).state().front();
    told_from_ = static_cast<int>(tokens.size()) - 1;
    waiting_ = {*told_};
  } catch (...) {
    start_at(0);
    throw;
  }
}

prefix::CompanionCaches companion_caches(std::shared_ptr<const model::MtpHead> head, const model::Model& target) {
  const auto made = [head, &target](int n_tokens) {
    cache::ModelCache slots = head->make_cache();
    auto state = std::make_unique<cache::RecurrentCache>(state_cache(target).shape());
    if (n_tokens > 0) {
      const mx::array embeddings = target.embed(mx::zeros({1, n_tokens}, mx::int32));
      head->forward(embeddings, embeddings, slots);
      state->put({mx::zeros({1, 1, target.config().hidden_size}, embeddings.dtype())}, n_tokens);
    }
    std::vector<std::unique_ptr<cache::LayerCache>> layers = std::move(slots).release();
    layers.push_back(std::move(state));
    return cache::ModelCache(std::move(layers));
  };
  return {[made] { return made(0); }, [made] { return made(1); }};
}

}  // namespace memoir::engine
