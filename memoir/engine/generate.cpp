#include "memoir/engine/generate.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "memoir/cache/transaction.h"
#include "memoir/engine/drafting.h"
#include "memoir/engine/text_stream.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void check_options(const GenerateOptions& options) {
  if (options.max_tokens < 0) {
    throw std::invalid_argument("[engine.generate] max_tokens is " + std::to_string(options.max_tokens) +
                                ", expected at least 0");
  }
  if (options.prefill_chunk < 1) {
    throw std::invalid_argument("[engine.generate] prefill_chunk is " + std::to_string(options.prefill_chunk) +
                                ", expected at least 1");
  }
  if (options.max_drafts < 1 || options.max_drafts > DraftLength::kMax) {
    throw std::invalid_argument("[engine.generate] max_drafts is " + std::to_string(options.max_drafts) +
                                ", expected 1 to " + std::to_string(DraftLength::kMax));
  }
}

void check_prompt(std::span<const TokenId> prompt, const Session& session) {
  const model::Model& model = session.model();
  if (prompt.empty()) throw std::invalid_argument("[engine.generate] the prompt is empty, expected at least one token");
  if (!session.shifts() && prompt.size() > static_cast<std::size_t>(model.context())) {
    throw std::invalid_argument("[engine.generate] the prompt has " + std::to_string(prompt.size()) +
                                " tokens, more than the model's context of " + std::to_string(model.context()));
  }
  const int n_vocab = model.config().vocab_size;
  for (const TokenId token : prompt) {
    if (token >= 0 && token < n_vocab) continue;
    throw std::invalid_argument("[engine.generate] token " + std::to_string(token) + " is outside the vocabulary of " +
                                std::to_string(n_vocab));
  }
}

// Without the tokens that the tokenizer has no text for; those that end the text need none.
GenerateOptions with_text_only(GenerateOptions options, const text::Tokenizer& tokenizer) {
  options.sampler = choosing_below(std::move(options.sampler), tokenizer.n_vocab(), options.stop_tokens);
  return options;
}

}  // namespace

Generation::Generation(Session& session, GenerateOptions options)
    : session_(session), options_(std::move(options)), sampler_(options_.sampler, session.model().config().vocab_size) {
  check_options(options_);
  if (options_.drafter) check_takes_drafts_back(session_.cache(), options_.max_drafts);
}

Generation::~Generation() {
  try {
    end_round(false);
  } catch (...) {
    session_.roll_back_draft();  // a copy of a state found no memory
  }
  session_.let_go_of_drafts();
}

void Generation::start(std::span<const TokenId> prompt) {
  check_prompt(prompt, session_);
  const std::vector<TokenId> fitted = session_.fitted(prompt);
  Drafter* const drafter = options_.drafter;
  cached_tokens_ = session_.reuse(fitted, options_.turn_ends, drafter ? drafter->lookahead() : 0,
                                  drafter ? drafter->companion() : nullptr);
  // An answer may end long before its limit: memory is set aside for a step of the caches' growth.
  const int n_reserved = static_cast<int>(fitted.size()) + std::min(options_.max_tokens, cache::Layout::kStep);
  session_.reserve(std::min(n_reserved, session_.context()));
  sampler_.prime(prompt);
  if (options_.drafter) text_.assign(prompt.begin(), prompt.end());
  prefill(std::span(fitted).subspan(static_cast<std::size_t>(cached_tokens_)), static_cast<int>(fitted.size()));
}

bool Generation::is_cancelled() {
  if (!options_.should_cancel || !options_.should_cancel()) return false;
  finish_reason_ = FinishReason::kCancelled;
  return true;
}

void Generation::prefill(std::span<const TokenId> rest, int n_total) {
  const auto n_chunk = static_cast<std::size_t>(options_.prefill_chunk);
  while (!rest.empty() && !is_cancelled()) {
    const std::span<const TokenId> chunk = session_.first_chunk(rest, n_chunk);
    rest = rest.subspan(chunk.size());
    const Scheduled scheduled = forward(chunk, model::LogitRows::kLast, rest.empty());
    if (rest.empty()) {
      logits_ = mx::astype(scheduled.logits, mx::float32);
      mx::async_eval(*logits_);
    } else {
      // The chunk's logits are not needed, so they are never computed.
      session_.cache().materialize();
    }
    if (scheduled.hidden) tell_drafter(chunk, *scheduled.hidden);
    if (options_.on_prefill) options_.on_prefill(n_total - static_cast<int>(rest.size()), n_total);
  }
}

Generation::Scheduled Generation::forward(std::span<const TokenId> tokens, model::LogitRows rows, bool is_prompts_end) {
  using Reads = Drafter::Reads;
  const Reads reads = options_.drafter ? options_.drafter->reads() : Reads::kNothing;
  if (reads == Reads::kNothing || (reads == Reads::kLastToken && !is_prompts_end)) {
    return {session_.forward(tokens, rows), std::nullopt};
  }
  const bool wants_all = reads == Reads::kAllTokens || rows == model::LogitRows::kAll;
  const model::Pass pass =
      session_.forward_with_hidden(tokens, rows, wants_all ? model::LogitRows::kAll : model::LogitRows::kLast);
  return {pass.logits, pass.hidden};
}

// Of tokens that the session has taken in last, and keeps.
void Generation::tell_drafter(std::span<const TokenId> tokens, const mx::array& hidden) {
  const auto offset = static_cast<int>(session_.tokens().size() - tokens.size());
  options_.drafter->taken_in({tokens, offset, hidden, session_.cache()});
}

std::optional<TokenId> Generation::finish(FinishReason reason) {
  finish_reason_ = reason;
  logits_.reset();
  end_round(false);
  session_.let_go_of_drafts();
  return std::nullopt;
}

// The logits of the first position that nothing is known of yet.
std::span<float> Generation::next_row() {
  mx::eval(*logits_);
  if (round_ && !round_->is_evaluated) {
    round_->seconds = seconds(round_->begin, Clock::now());
    round_->is_evaluated = true;
  }
  const auto n_vocab = static_cast<std::size_t>(logits_->shape(2));
  const float* row = logits_->data<float>() + (round_ ? round_->n_accepted * n_vocab : 0);
  row_.assign(row, row + n_vocab);
  return row_;
}

// Few enough that the last token asked for, and any behind the context's end, need no place.
std::vector<TokenId> Generation::drafts_after(TokenId token) {
  text_.push_back(token);
  const int n_room = session_.context() - static_cast<int>(session_.tokens().size()) - 1;
  const int limit =
      std::min({options_.max_drafts, options_.max_tokens - n_generated_ - 1, n_room, session_.n_until_quantized() - 1});
  if (limit < 1) return {};
  const int n_max = options_.adapts_drafts ? options_.drafter->length().choose(limit) : limit;
  if (n_max < 1) return {};
  std::vector<TokenId> drafts = options_.drafter->propose(text_, n_max);
  check_drafts(drafts, n_max, session_.model().config().vocab_size);
  return drafts;
}

// The forward pass over a token that was chosen, and over what may follow it.
void Generation::schedule(TokenId token) {
  session_.make_room(1);
  Round round;
  round.begin = Clock::now();
  if (options_.drafter) round.drafts = drafts_after(token);
  round.tokens = {token};
  round.tokens.insert(round.tokens.end(), round.drafts.begin(), round.drafts.end());
  if (!round.drafts.empty()) session_.begin_draft(static_cast<int>(round.tokens.size()));
  try {
    Scheduled scheduled = forward(round.tokens, model::LogitRows::kAll, true);
    logits_ = mx::contiguous(mx::astype(scheduled.logits, mx::float32));
    std::vector<mx::array> outputs = {*logits_};
    if (scheduled.hidden) outputs.push_back(*scheduled.hidden);
    mx::async_eval(outputs);
    session_.let_go_of_drafts();  // while that is computed
    round.hidden = std::move(scheduled.hidden);
  } catch (...) {
    session_.roll_back_draft();
    throw;
  }
  if (options_.drafter) round_ = std::move(round);
}

// The drafts that were right stay. is_last_judged: the one behind them was judged too, and wrong.
void Generation::end_round(bool is_last_judged) {
  if (!round_) return;
  const Round round = *std::exchange(round_, std::nullopt);
  const auto n_drafted = static_cast<int>(round.drafts.size());
  const auto n_accepted = static_cast<int>(round.n_accepted);
  if (n_drafted > 0) {
    session_.commit_draft(1 + n_accepted);
    counts_.n_drafted += n_drafted;
    counts_.n_accepted += n_accepted;
    ++counts_.n_rounds;
  }
  if (round.is_evaluated) {
    const int n_judged = std::min(n_drafted, n_accepted + (is_last_judged ? 1 : 0));
    options_.drafter->length().observe(n_drafted, n_judged, n_accepted, round.seconds);
  }
  if (!round.hidden) return;
  const int n_kept = 1 + n_accepted;
  const int first = options_.drafter->reads() == Drafter::Reads::kAllTokens ? 0 : n_accepted;
  tell_drafter(std::span(round.tokens).first(static_cast<std::size_t>(n_kept)),
               mx::slice(*round.hidden, {0, first, 0}, {1, n_kept, round.hidden->shape(2)}));
}

std::optional<TokenId> Generation::next() {
  if (!logits_) return std::nullopt;
  if (is_cancelled()) return finish(FinishReason::kCancelled);
  if (n_generated_ >= options_.max_tokens) return finish(FinishReason::kLength);
  const std::span<float> row = next_row();
  const bool has_draft = round_ && round_->n_accepted < round_->drafts.size();
  const Verdict verdict =
      has_draft ? judge(sampler_, row, round_->drafts[round_->n_accepted]) : Verdict{sampler_.sample(row), false};
  const TokenId token = verdict.token;
  const auto& stops = options_.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return finish(FinishReason::kStop);
  if (verdict.is_accepted) {
    sampler_.accept(token);
    text_.push_back(token);
    ++n_generated_;
    ++round_->n_accepted;
    return token;  // its forward pass is done
  }
  logits_.reset();
  end_round(true);
  sampler_.accept(token);
  ++n_generated_;
  const bool is_last = n_generated_ == options_.max_tokens;
  const bool is_full = session_.tokens().size() >= static_cast<std::size_t>(session_.context());
  if (!is_last && (!is_full || session_.shifts())) schedule(token);
  return token;
}

DraftCounts Generation::draft_counts() const {
  DraftCounts counts = counts_;
  if (round_ && !round_->drafts.empty()) {
    counts.n_drafted += static_cast<int>(round_->drafts.size());
    counts.n_accepted += static_cast<int>(round_->n_accepted);
    ++counts.n_rounds;
  }
  return counts;
}

Completion generate(Session& session, std::span<const TokenId> prompt, const GenerateOptions& options,
                    const text::Tokenizer* tokenizer, const std::function<void(std::string_view)>& on_text) {
  Completion completion;
  completion.prompt_tokens = static_cast<int>(prompt.size());
  std::optional<TextStream> stream;
  if (tokenizer) stream.emplace(*tokenizer, options.stop_strings);
  // Returns true if the text ends with the piece.
  const auto show = [&](const TextStream::Piece& piece) {
    completion.text += piece.text;
    if (on_text && !piece.text.empty()) on_text(piece.text);
    return piece.is_stopped;
  };
  const Clock::time_point start = Clock::now();
  Generation generation(session, tokenizer ? with_text_only(options, *tokenizer) : options);
  generation.start(prompt);
  std::optional<TokenId> token = generation.next();
  const Clock::time_point first = Clock::now();
  bool is_stopped = false;
  for (; token && !is_stopped; token = is_stopped ? std::nullopt : generation.next()) {
    completion.tokens.push_back(*token);
    is_stopped = stream && show(stream->push(*token));
  }
  if (stream) is_stopped = show(stream->finish()) || is_stopped;
  completion.cached_tokens = generation.cached_tokens();
  completion.drafts = generation.draft_counts();
  completion.prefill_s = seconds(start, first);
  completion.decode_s = seconds(first, Clock::now());
  completion.finish_reason = is_stopped ? FinishReason::kStop : generation.finish_reason();
  return completion;
}

}  // namespace memoir::engine
