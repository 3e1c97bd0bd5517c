#include "memoir/text/tokenizer_components.h"

#include <algorithm>
#include <array>
#include <utility>

#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

// The pattern that ByteLevel cuts words with (GPT-2).
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// The Whitespace pre-tokenizer's words, \w+|[^\w\s]+ in the dialect of Rust, whose \w has the two zero-width joiners.
constexpr std::string_view kWordPattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";
constexpr std::size_t kMaxStrip = 1024;

template <typename Read>
void each_of_sequence(const JsonNode& node, std::string_view list, int depth, Read read) {
  if (depth >= kMaxComponentDepth) node.fail("nests deeper than " + std::to_string(kMaxComponentDepth));
  const JsonNode members = node.at(list);
  const std::size_t n = members.n_elements();
  for (std::size_t i = 0; i < n; ++i) read(members.element(i));
}

Origin origin_of(const JsonNode& node) {
  return {node.path(), node.key()};
}

Regex compile(const JsonNode& node, std::string_view pattern) {
  return Regex(pattern, origin_of(node));
}

// A component's steps run one after the other, those of its Sequences in one row.
template <typename Component>
void add_step(const JsonNode& node, Component& component, auto step) {
  if (component.n_steps() >= kMaxComponentSteps) {
    node.unsupported("is one step too many, " + std::to_string(kMaxComponentSteps) + " can be run");
  }
  step.origin = origin_of(node);
  component.add(std::move(step));
}

// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  std::string literal;
  std::optional<Regex> regex;
};

Pattern read_pattern(const JsonNode& node) {
  if (const auto text = node.find("String")) {
    if (text->text().empty()) text->fail("is an empty pattern");
    return {text->text(), std::nullopt};
  }
  const JsonNode regex = node.at("Regex");
  return {"", compile(regex, regex.text())};
}

Delimiter read_behavior(const JsonNode& node) {
  const std::string& name = node.text();
  if (name == "Removed") return Delimiter::kRemoved;
  if (name == "Isolated") return Delimiter::kIsolated;
  if (name == "MergedWithPrevious") return Delimiter::kMergedWithPrevious;
  if (name == "MergedWithNext") return Delimiter::kMergedWithNext;
  if (name == "Contiguous") return Delimiter::kContiguous;
  node.fail("is not a behavior: " + name);
}

// The replacement of a Metaspace and its scheme, in today's fields or the older add_prefix_space.
std::pair<std::string, PrependScheme> read_metaspace(const JsonNode& node) {
  const auto replacement = node.find("replacement");
  std::string text = replacement ? replacement->text() : "\xE2\x96\x81";
  if (text.empty() || utf8::decode(text, 0).n_bytes != text.size()) node.fail("has a replacement of not one character");
  PrependScheme scheme = PrependScheme::kAlways;
  if (const auto name = node.find("prepend_scheme")) {
    if (name->text() == "first") {
      scheme = PrependScheme::kFirst;
    } else if (name->text() == "never") {
      scheme = PrependScheme::kNever;
    } else if (name->text() != "always") {
      name->fail("is not a scheme: " + name->text());
    }
  }
  if (!node.flag("add_prefix_space", true)) scheme = PrependScheme::kNever;
  return {std::move(text), scheme};
}

std::size_t read_count(const JsonNode& node) {
  const std::int64_t n = node.integer();
  if (n < 0) node.fail("is negative");
  return static_cast<std::size_t>(std::min<std::int64_t>(n, kMaxStrip));
}

std::optional<NormalizerStep::Kind> plain_normalizer(std::string_view type) {
  using Kind = NormalizerStep::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 7> kKinds = {{{"NFC", Kind::kNfc},
                                                                               {"NFD", Kind::kNfd},
                                                                               {"NFKC", Kind::kNfkc},
                                                                               {"NFKD", Kind::kNfkd},
                                                                               {"Lowercase", Kind::kLowercase},
                                                                               {"StripAccents", Kind::kStripAccents},
                                                                               {"ByteLevel", Kind::kByteLevel}}};
  for (const auto& [name, kind] : kKinds) {
    if (name == type) return kind;
  }
  return std::nullopt;
}

PreTokenizerStep read_split(const JsonNode& node) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kSplit};
  step.behavior = read_behavior(node.at("behavior"));
  step.invert = node.flag("invert", false);
  if (const auto regex = node.at("pattern").find("Regex")) step.finder = linear_form(regex->text());
  Pattern pattern = read_pattern(node.at("pattern"));
  step.literal = std::move(pattern.literal);
  step.regex = std::move(pattern.regex);
  return step;
}

PreTokenizerStep read_byte_level(const JsonNode& node) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kByteLevel};
  step.add_prefix_space = node.flag("add_prefix_space", true);
  if (node.flag("use_regex", true)) step.regex = compile(node, kGpt2Pattern);
  return step;
}

PreTokenizerStep read_metaspace_step(const JsonNode& node) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kMetaspace};
  std::tie(step.literal, step.prepend) = read_metaspace(node);
  step.split = node.flag("split", true);
  return step;
}

}  // namespace

void read_normalizer(const JsonNode& node, Normalizer& normalizer, int depth) {
  using Kind = NormalizerStep::Kind;
  const std::string& type = node.at("type").text();
  if (type == "Sequence") {
    return each_of_sequence(node, "normalizers", depth,
                            [&](const JsonNode& member) { read_normalizer(member, normalizer, depth + 1); });
  }
  if (const auto kind = plain_normalizer(type)) return add_step(node, normalizer, NormalizerStep{.kind = *kind});
  if (type == "Strip") {
    return add_step(node, normalizer,
                    NormalizerStep{.kind = Kind::kStrip,
                                   .strip_left = node.flag("strip_left", true),
                                   .strip_right = node.flag("strip_right", true)});
  }
  if (type == "Prepend")
    return add_step(node, normalizer, NormalizerStep{.kind = Kind::kPrepend, .content = node.at("prepend").text()});
  if (type == "Replace") {
    Pattern pattern = read_pattern(node.at("pattern"));
    return add_step(node, normalizer,
                    NormalizerStep{.kind = Kind::kReplace,
                                   .pattern = std::move(pattern.literal),
                                   .regex = std::move(pattern.regex),
                                   .content = node.at("content").text()});
  }
  node.unsupported("the normalizer \"" + type + "\" is not known");
}

void read_pre_tokenizer(const JsonNode& node, PreTokenizer& pre_tokenizer, int depth) {
  using Kind = PreTokenizerStep::Kind;
  const std::string& type = node.at("type").text();
  if (type == "Sequence") {
    return each_of_sequence(node, "pretokenizers", depth,
                            [&](const JsonNode& member) { read_pre_tokenizer(member, pre_tokenizer, depth + 1); });
  }
  if (type == "ByteLevel") return add_step(node, pre_tokenizer, read_byte_level(node));
  if (type == "Split") return add_step(node, pre_tokenizer, read_split(node));
  if (type == "Metaspace") return add_step(node, pre_tokenizer, read_metaspace_step(node));
  if (type == "Digits") {
    const bool single = node.flag("individual_digits", false);
    return add_step(
        node, pre_tokenizer,
        PreTokenizerStep{.kind = Kind::kDigits, .behavior = single ? Delimiter::kIsolated : Delimiter::kContiguous});
  }
  if (type == "Punctuation") {
    const auto behavior = node.find("behavior");
    return add_step(node, pre_tokenizer,
                    PreTokenizerStep{.kind = Kind::kPunctuation,
                                     .behavior = behavior ? read_behavior(*behavior) : Delimiter::kIsolated});
  }
  if (type == "WhitespaceSplit") return add_step(node, pre_tokenizer, PreTokenizerStep{.kind = Kind::kWhitespaceSplit});
  if (type == "Whitespace") {
    return add_step(node, pre_tokenizer,
                    PreTokenizerStep{.kind = Kind::kSplit,
                                     .regex = compile(node, kWordPattern),
                                     .behavior = Delimiter::kRemoved,
                                     .invert = true});
  }
  node.unsupported("the pre-tokenizer \"" + type + "\" is not known");
}

void read_decoder(const JsonNode& node, Decoder& decoder, int depth) {
  using Kind = DecoderStep::Kind;
  const std::string& type = node.at("type").text();
  if (type == "Sequence") {
    return each_of_sequence(node, "decoders", depth,
                            [&](const JsonNode& member) { read_decoder(member, decoder, depth + 1); });
  }
  if (type == "ByteLevel") return add_step(node, decoder, DecoderStep{.kind = Kind::kByteLevel});
  if (type == "ByteFallback") return add_step(node, decoder, DecoderStep{.kind = Kind::kByteFallback});
  if (type == "Fuse") return add_step(node, decoder, DecoderStep{.kind = Kind::kFuse});
  if (type == "Metaspace") {
    auto [replacement, scheme] = read_metaspace(node);
    return add_step(node, decoder,
                    DecoderStep{.kind = Kind::kMetaspace,
                                .content = std::move(replacement),
                                .drop_first = scheme != PrependScheme::kNever});
  }
  if (type == "Strip") {
    const std::string& content = node.at("content").text();
    if (content.empty()) node.fail("strips an empty text");
    return add_step(node, decoder,
                    DecoderStep{.kind = Kind::kStrip,
                                .content = content,
                                .n_start = read_count(node.at("start")),
                                .n_stop = read_count(node.at("stop"))});
  }
  if (type == "Replace") {
    Pattern pattern = read_pattern(node.at("pattern"));
    return add_step(node, decoder,
                    DecoderStep{.kind = Kind::kReplace,
                                .pattern = std::move(pattern.literal),
                                .regex = std::move(pattern.regex),
                                .content = node.at("content").text()});
  }
  node.unsupported("the decoder \"" + type + "\" is not known");
}

}  // namespace memoir::text
