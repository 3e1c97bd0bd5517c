#pragma once

// The GPT-2 byte alphabet: every byte as one printable character, so that a BPE over characters is one over bytes.
// Source: bytes_to_unicode() of https://github.com/openai/gpt-2/blob/master/src/encoder.py
// Threads: free functions over constant tables.

#include <optional>
#include <string>
#include <string_view>

namespace memoir::text {

/// Appends the characters that stand for `bytes`.
void append_byte_level(std::string& out, std::string_view bytes);

/// The bytes that `text` stands for, or nullopt where it holds a character outside the alphabet (or is not UTF-8).
std::optional<std::string> byte_level_bytes(std::string_view text);

}  // namespace memoir::text
