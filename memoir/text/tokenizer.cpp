#include "memoir/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "memoir/text/character.h"
#include "memoir/text/tokenizer_parts.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

// The texts that llama.cpp takes for the end of a generation (its llama-vocab.cpp, the list of special_eog_ids).
constexpr std::array<std::string_view, 23> kWellKnownEnds = {"<|eot_id|>",
                                                             "<|im_end|>",
                                                             "<|end|>",
                                                             "<|return|>",
                                                             "<|call|>",
                                                             "<|flush|>",
                                                             "<|calls|>",
                                                             "<end_of_turn>",
                                                             "<|endoftext|>",
                                                             "</s>",
                                                             "<|eom_id|>",
                                                             "<EOT>",
                                                             "_<EOT>",
                                                             "[EOT]",
                                                             "[EOS]",
                                                             "<|end_of_text|>",
                                                             "<end_of_utterance>",
                                                             "<eos>",
                                                             "<turn|>",
                                                             "<|tool_response>",
                                                             "<\xEF\xBD\x9C"
                                                             "end\xE2\x96\x81"
                                                             "of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                                             "[e~[",
                                                             "<|END_OF_TURN_TOKEN|>"};

void encode_words(const TokenizerParts& parts, const Words& words, std::vector<TokenId>& ids) {
  const std::string_view text = words.text;
  MergeBpe::Scratch scratch;
  for (const Span span : words.spans) {
    const std::string_view word = text.substr(span.begin, span.end - span.begin);
    if (parts.merge_bpe) {
      parts.merge_bpe->encode(word, ids, scratch);
    } else {
      parts.score_bpe->encode(word, ids);
    }
  }
}

std::string_view without_space_in_front(std::string_view text) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const utf8::Char c = utf8::decode(text, begin);
    if (!is_space(c.code)) break;
    begin += c.n_bytes;
  }
  return text.substr(begin);
}

// One stretch of text between raw added tokens.
void encode_section(const TokenizerParts& parts, std::string_view section, TextPlace place, bool parse_special,
                    std::vector<TokenId>& ids) {
  const NormalizedText normalized = parts.normalizer.apply(section, place == TextPlace::kMiddle);
  if (place == TextPlace::kInputStart && normalized.lost_start) place = TextPlace::kSectionStart;
  const std::string_view text = normalized.text;
  for (const Section& inner : parts.added_normalized.split(text, parse_special)) {
    if (inner.token) {
      ids.push_back(*inner.token);
      continue;
    }
    const TextPlace inner_place = inner.span.begin == 0 ? place : TextPlace::kSectionStart;
    std::string piece(text.substr(inner.span.begin, inner.span.end - inner.span.begin));
    encode_words(parts, parts.pre_tokenizer.apply(std::move(piece), inner_place), ids);
  }
}

}  // namespace

bool is_well_known_end(std::string_view token_text) {
  return std::find(kWellKnownEnds.begin(), kWellKnownEnds.end(), token_text) != kWellKnownEnds.end();
}

void collect_end_tokens(TokenizerParts& parts, const std::vector<bool>& may_end) {
  std::vector<TokenId>& ends = parts.end_tokens;
  if (parts.eos) ends.push_back(*parts.eos);
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
    if (may_end[static_cast<std::size_t>(id)] && is_well_known_end(parts.vocabulary.text(id))) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());

  const auto has = [&](std::string_view text) {
    return std::any_of(ends.begin(), ends.end(), [&](TokenId id) { return parts.vocabulary.text(id) == text; });
  };
  const auto drop = [&](std::string_view text) {
    std::erase_if(ends, [&](TokenId id) { return parts.vocabulary.text(id) == text; });
  };
  const bool calls = has("<|call|>") || has("<|calls|>");
  if (calls && (has("<|return|>") || has("<|flush|>"))) drop("<|end|>");
  if (has("<|tool_response>")) drop("</s>");
}

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, std::string path_for_messages) {
  std::shared_ptr<TokenizerParts> parts = read_tokenizer_json(tokenizer_json, std::move(path_for_messages));
  collect_end_tokens(*parts, parts->special);
  return Tokenizer(std::move(parts));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!utf8::valid(text)) {
    repaired = utf8::replace_errors(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  TextPlace start = TextPlace::kInputStart;
  if (options.previous) {
    check(*options.previous, "encode");
    const AddedToken* added = parts_->added_raw.find(*options.previous);
    start = added != nullptr ? TextPlace::kSectionStart : TextPlace::kMiddle;
    if (added != nullptr && added->rstrip) text = without_space_in_front(text);
  } else if (options.add_special) {
    ids = parts_->prefix;
  }
  for (const Section& section : parts_->added_raw.split(text, options.parse_special)) {
    if (section.token) {
      ids.push_back(*section.token);
    } else {
      encode_section(*parts_, text.substr(section.span.begin, section.span.end - section.span.begin),
                     section.span.begin == 0 ? start : TextPlace::kSectionStart, options.parse_special, ids);
    }
  }
  if (options.add_special) ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  DecodeStream stream(parts_->decoder, options.is_continuation);
  std::string text;
  for (const TokenId id : ids) {
    check(id, "decode");
    if (!parts_->vocabulary.has(id) || (options.skip_special && is_special(id))) continue;
    text += stream.push(decoder_input(id));
  }
  return text + stream.finish();
}

const Decoder& Tokenizer::decoder() const {
  return parts_->decoder;
}

std::string_view Tokenizer::decoder_input(TokenId id) const {
  if (parts_->decoder_inputs.empty()) return parts_->vocabulary.text(id);
  return parts_->decoder_inputs[static_cast<std::size_t>(id)];
}

std::string Tokenizer::piece(TokenId id) const {
  check(id, "piece");
  if (is_special(id)) return parts_->vocabulary.text(id);
  return parts_->decoder.piece(decoder_input(id));
}

const std::string& Tokenizer::token_text(TokenId id) const {
  check(id, "token_text");
  return parts_->vocabulary.text(id);
}

std::optional<TokenId> Tokenizer::id(std::string_view token_text) const {
  return parts_->vocabulary.id(token_text);
}

int Tokenizer::n_vocab() const {
  return parts_->vocabulary.size();
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < n_vocab() && parts_->special[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::bos() const {
  return parts_->bos;
}
std::optional<TokenId> Tokenizer::eos() const {
  return parts_->eos;
}

std::string Tokenizer::bos_text() const {
  return parts_->bos ? parts_->vocabulary.text(*parts_->bos) : std::string();
}
std::string Tokenizer::eos_text() const {
  return parts_->eos ? parts_->vocabulary.text(*parts_->eos) : std::string();
}

bool Tokenizer::adds_bos() const {
  return parts_->bos && !parts_->prefix.empty() && parts_->prefix.front() == *parts_->bos;
}

const std::vector<TokenId>& Tokenizer::end_tokens() const {
  return parts_->end_tokens;
}

const std::optional<std::string>& Tokenizer::chat_template() const {
  return other_template_ ? other_template_ : parts_->chat_template;
}

const std::vector<std::string>& Tokenizer::warnings() const {
  return parts_->warnings;
}

void Tokenizer::check(TokenId id, const char* function) const {
  if (id >= 0 && id < n_vocab()) return;
  throw std::invalid_argument("[tokenizer." + std::string(function) + "] token " + std::to_string(id) +
                              " is outside the vocabulary of " + std::to_string(n_vocab()));
}

}  // namespace memoir::text
