#pragma once

// The pre-tokenizers that GGUF files name in "tokenizer.ggml.pre", as llama.cpp reads them.
// Source: llama_vocab::impl::load and llm_tokenizer_bpe in llama.cpp's src/llama-vocab.cpp (2026).
// Threads: a free function over constant tables.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memoir::text {

struct GgufPreTokenizer {
  // Each cuts every word of the one before at its matches; what lies between stays a word.
  std::vector<std::string> patterns;
  bool digit_groups = false;    // first of all, numbers in threes from their end
  bool ignore_merges = false;   // a word that is a token is that token
  bool add_bos = false;         // where the file does not say
  bool escape_spaces = false;   // spaces become U+2581, and words are plain text with <0xNN> for unknown bytes
  bool whole_newlines = false;  // a word of newlines that is a token is that token
};

/// nullopt for a name that is not known here.
std::optional<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view name);

}  // namespace memoir::text
