#pragma once

// What a Tokenizer is made of. Internal to text/: the readers fill it, Tokenizer runs it.
//
// Invariants once it is read: every id named here is in [0, vocabulary.size()); exactly one of the two models is set
// and refers to `vocabulary`, so that a TokenizerParts is never moved or copied.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/text/added_tokens.h"
#include "memoir/text/bpe.h"
#include "memoir/text/decoder.h"
#include "memoir/text/normalizer.h"
#include "memoir/text/pretokenizer.h"
#include "memoir/text/vocabulary.h"

namespace memoir::text {

struct TokenizerParts {
  explicit TokenizerParts(std::string file, Overlap overlap = Overlap::kLeftmostLongest)
      : path(std::move(file)), added_raw(overlap) {}
  TokenizerParts(const TokenizerParts&) = delete;
  TokenizerParts& operator=(const TokenizerParts&) = delete;

  std::string path;
  Vocabulary vocabulary;
  std::vector<bool> special;                // by id
  std::vector<std::string> decoder_inputs;  // by id: what the decoder is given; empty: vocabulary.text(id) for all

  AddedTokens added_raw;         // looked for in the text as it comes
  AddedTokens added_normalized;  // looked for after normalizing
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<MergeBpe> merge_bpe;
  std::optional<ScoreBpe> score_bpe;
  Decoder decoder;

  std::vector<TokenId> prefix;  // what add_special puts in front
  std::vector<TokenId> suffix;  // and behind

  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::vector<TokenId> end_tokens;
  std::optional<std::string> chat_template;
  std::vector<std::string> warnings;
};

/// Whether a token with this text ends a turn or a text, whatever the model.
bool is_well_known_end(std::string_view token_text);

/// Adds to end_tokens: eos, and every token that `may_end` accepts and whose text is well known; sorts, drops what a
/// vocabulary with <|return|> and <|call|> (or Gemma 4's <|tool_response>) uses inside a turn.
void collect_end_tokens(TokenizerParts& parts, const std::vector<bool>& may_end);

/// Fills a new TokenizerParts from the text of a tokenizer.json.
std::shared_ptr<TokenizerParts> read_tokenizer_json(std::string_view text, std::string path);

}  // namespace memoir::text
