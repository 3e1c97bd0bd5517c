#pragma once

// Reads the components of a tokenizer.json: "normalizer", "pre_tokenizer", "decoder". Internal to text/.
// Each throws FormatError for what is wrong and UnsupportedError for a type that is not known (path and key).

#include "memoir/text/json_node.h"
#include "memoir/text/tokenizer_parts.h"

namespace memoir::text {

/// Components nest by Sequence; deeper than this is refused.
inline constexpr int kMaxComponentDepth = 16;

/// Steps of one component; published files have ten at most.
inline constexpr std::size_t kMaxComponentSteps = 256;

void read_normalizer(const JsonNode& node, Normalizer& normalizer, int depth = 0);
void read_pre_tokenizer(const JsonNode& node, PreTokenizer& pre_tokenizer, int depth = 0);
void read_decoder(const JsonNode& node, Decoder& decoder, int depth = 0);

}  // namespace memoir::text
