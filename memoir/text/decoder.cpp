#include "memoir/text/decoder.h"

#include <utility>

#include "memoir/text/bpe.h"
#include "memoir/text/byte_level.h"
#include "memoir/text/replace.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

using Kind = DecoderStep::Kind;

std::string replaced_by(const DecoderStep& step, std::string_view text, const GrowthLimit& limit) {
  return step.regex ? replace_all(text, *step.regex, step.content, limit)
                    : replace_all(text, step.pattern, step.content, limit);
}

// `content` as a space, or as nothing. Never longer than the text.
std::string without_mark(const DecoderStep& step, std::string_view text, bool as_nothing) {
  return replace_all(text, step.content, as_nothing ? "" : " ", {text.size(), step.origin});
}

std::string strip_ends(const DecoderStep& step, std::string_view text) {
  for (std::size_t i = 0; i < step.n_start && text.starts_with(step.content); ++i)
    text.remove_prefix(step.content.size());
  for (std::size_t i = 0; i < step.n_stop && text.ends_with(step.content); ++i) text.remove_suffix(step.content.size());
  return std::string(text);
}

// Steps that need the whole of a joined text before they can say anything.
bool waits_for_end(const DecoderStep& step) {
  return step.on_fused && (step.kind == Kind::kReplace || step.kind == Kind::kByteFallback ||
                           step.kind == Kind::kMetaspace || step.kind == Kind::kByteLevel);
}

}  // namespace

void Decoder::add(DecoderStep step) {
  step.on_fused = false;
  for (const DecoderStep& earlier : steps_) {
    step.on_fused = step.on_fused || earlier.kind == Kind::kFuse || earlier.kind == Kind::kByteLevel ||
                    earlier.kind == Kind::kJoinBytes || earlier.kind == Kind::kJoinSpaced;
  }
  steps_.push_back(std::move(step));
}

std::string Decoder::piece(std::string_view token) const {
  std::string text(token);
  for (const DecoderStep& step : steps_) {
    const GrowthLimit limit{max_grown_bytes(token.size()), step.origin};
    switch (step.kind) {
      case Kind::kReplace:
        if (utf8::valid(text)) text = replaced_by(step, text, limit);
        break;
      case Kind::kMetaspace:
        text = without_mark(step, text, false);
        break;
      case Kind::kByteFallback:
        if (const auto byte = byte_of_token_text(text)) text.assign(1, static_cast<char>(*byte));
        break;
      case Kind::kByteLevel:
        if (auto bytes = byte_level_bytes(text)) text = std::move(*bytes);
        break;
      case Kind::kStrip:
        if (!step.on_fused) text = strip_ends(step, text);
        break;
      case Kind::kFuse:
      case Kind::kJoinBytes:
      case Kind::kJoinSpaced:
        break;
    }
  }
  return text;
}

DecodeStream::DecodeStream(const Decoder& decoder, bool is_continuation)
    : decoder_(&decoder), is_continuation_(is_continuation) {
  begin();
}

void DecodeStream::begin() {
  out_.clear();
  n_bytes_in_ = 0;
  states_.assign(decoder_->steps().size(), {});
  if (!is_continuation_) return;
  // As if what only happens at the start of a text had happened.
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const DecoderStep& step = decoder_->steps()[i];
    states_[i].n_seen = step.kind == Kind::kStrip ? step.n_start : 1;
  }
}

std::string DecodeStream::push(std::string_view token) {
  n_bytes_in_ += token.size();
  try {
    feed(0, token);
  } catch (...) {
    begin();
    throw;
  }
  return std::exchange(out_, {});
}

std::string DecodeStream::finish() {
  try {
    for (std::size_t i = 0; i < states_.size(); ++i) end(i);
  } catch (...) {
    begin();
    throw;
  }
  std::string rest = std::exchange(out_, {});
  begin();
  return rest;
}

// What a kReplace makes of `text`.
std::string DecodeStream::replaced(std::size_t i, std::string_view text) {
  const DecoderStep& step = decoder_->steps()[i];
  State& state = states_[i];
  std::string result = replaced_by(step, text, {max_grown_bytes(n_bytes_in_) - state.n_made, step.origin});
  state.n_made += result.size();
  return result;
}

void DecodeStream::feed(std::size_t i, std::string_view token) {
  if (i == states_.size()) {
    out_ += token;
    return;
  }
  const DecoderStep& step = decoder_->steps()[i];
  State& state = states_[i];
  if (waits_for_end(step)) {
    state.held += token;
    return;
  }
  switch (step.kind) {
    case Kind::kReplace:
      return feed(i + 1, replaced(i, token));
    case Kind::kByteFallback:
      if (const auto byte = byte_of_token_text(token)) {
        state.held.push_back(static_cast<char>(*byte));
        return;
      }
      flush_byte_run(i);
      return feed(i + 1, token);
    case Kind::kFuse:
      return feed(i + 1, token);
    case Kind::kStrip:
      return step.on_fused ? feed_strip(i, token) : feed(i + 1, strip_ends(step, token));
    case Kind::kMetaspace:
      return feed(i + 1, without_mark(step, token, state.n_seen++ == 0 && step.drop_first));
    case Kind::kByteLevel: {
      const std::optional<std::string> bytes = byte_level_bytes(token);
      return feed_bytes(i, bytes ? std::string_view(*bytes) : token);
    }
    case Kind::kJoinBytes:
      return feed_bytes(i, token);
    case Kind::kJoinSpaced:
      if (state.n_seen++ > 0) feed(i + 1, " ");
      return feed(i + 1, token);
  }
}

void DecodeStream::feed_bytes(std::size_t i, std::string_view bytes) {
  State& state = states_[i];
  state.held += bytes;
  const std::size_t n_whole = state.held.size() - utf8::incomplete_tail(state.held);
  if (n_whole == 0) return;
  const std::string text = utf8::replace_errors(std::string_view(state.held).substr(0, n_whole));
  state.held.erase(0, n_whole);
  feed(i + 1, text);
}

void DecodeStream::feed_strip(std::size_t i, std::string_view text) {
  const DecoderStep& step = decoder_->steps()[i];
  State& state = states_[i];
  while (!state.started && state.n_seen < step.n_start && text.starts_with(step.content)) {
    text.remove_prefix(step.content.size());
    ++state.n_seen;
  }
  if (text.empty()) return;
  state.started = true;
  state.held += text;
  std::size_t n_kept = state.held.size();
  for (std::size_t n = 0; n < step.n_stop && std::string_view(state.held).substr(0, n_kept).ends_with(step.content);
       ++n) {
    n_kept -= step.content.size();
  }
  const std::string certain = state.held.substr(0, n_kept);
  state.held.erase(0, n_kept);
  if (!certain.empty()) feed(i + 1, certain);
}

void DecodeStream::flush_byte_run(std::size_t i) {
  const std::string run = std::exchange(states_[i].held, {});
  if (run.empty()) return;
  if (utf8::valid(run)) return feed(i + 1, run);
  for (std::size_t n = 0; n < run.size(); ++n) feed(i + 1, "\xEF\xBF\xBD");
}

void DecodeStream::end(std::size_t i) {
  const DecoderStep& step = decoder_->steps()[i];
  State& state = states_[i];
  if (state.held.empty()) return;
  if (waits_for_end(step)) {
    const std::string text = std::exchange(state.held, {});
    switch (step.kind) {
      case Kind::kReplace:
        return feed(i + 1, replaced(i, text));
      case Kind::kMetaspace:
        return feed(i + 1, without_mark(step, text, state.n_seen == 0 && step.drop_first));
      case Kind::kByteFallback: {
        const auto byte = byte_of_token_text(text);
        if (!byte) return feed(i + 1, text);
        state.held.assign(1, static_cast<char>(*byte));
        return flush_byte_run(i);
      }
      default:
        return feed(i + 1, utf8::replace_errors(byte_level_bytes(text).value_or(text)));
    }
  }
  if (step.kind == Kind::kByteFallback) return flush_byte_run(i);
  if (step.kind == Kind::kByteLevel || step.kind == Kind::kJoinBytes) {
    return feed(i + 1, utf8::replace_errors(std::exchange(state.held, {})));
  }
  // kStrip: what is held is what is stripped.
  state.held.clear();
}

}  // namespace memoir::text
