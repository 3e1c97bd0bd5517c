// Reads a tokenizer.json (the `tokenizers` library's format, version 1.0) with a BPE model.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "memoir/base/json_text.h"
#include "memoir/text/json_node.h"
#include "memoir/text/tokenizer_components.h"
#include "memoir/text/tokenizer_parts.h"

namespace memoir::text {
namespace {

// What a template puts around a text; published files have two.
constexpr std::size_t kMaxTemplateIds = 1024;

TokenId read_id(const JsonNode& node, std::int64_t max_id) {
  const std::int64_t id = node.integer();
  if (id < 0 || id > max_id) {
    node.fail("the id " + std::to_string(id) + " is outside 0.." + std::to_string(max_id) +
              ", what a vocabulary of this size may use");
  }
  return static_cast<TokenId>(id);
}

std::size_t n_added_tokens(const JsonNode& root) {
  const auto added = root.find("added_tokens");
  return added ? added->n_elements() : 0;
}

void read_vocabulary(const JsonNode& root, TokenizerParts& parts) {
  const JsonNode vocabulary = root.at("model").at("vocab");
  if (!vocabulary.value().is_object()) vocabulary.fail("is not an object");
  const std::size_t n_entries = vocabulary.value().size() + n_added_tokens(root);
  const std::int64_t max_id = Vocabulary::max_id(n_entries);
  parts.vocabulary.reserve(n_entries);
  for (const auto& [text, value] : vocabulary.value().items()) {
    const TokenId id = read_id(JsonNode(value, root.path(), vocabulary.key() + "." + text), max_id);
    if (parts.vocabulary.has(id)) {
      vocabulary.fail("gives the id " + std::to_string(id) + " to \"" + parts.vocabulary.text(id) + "\" and \"" + text +
                      "\"");
    }
    parts.vocabulary.add(text, id);
  }
}

// "a b", or ["a", "b"] (which may contain spaces).
std::pair<std::string_view, std::string_view> read_pair(const JsonNode& merge) {
  if (merge.value().is_string()) {
    const std::string_view text = merge.text();
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      merge.fail("is not two tokens with a space between");
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (merge.n_elements() != 2) merge.fail("is not a pair");
  return {merge.element(0).text(), merge.element(1).text()};
}

void read_merges(const JsonNode& model, const Vocabulary& vocabulary, std::string_view prefix, MergeBpe& bpe) {
  const JsonNode merges = model.at("merges");
  const std::size_t n_merges = merges.n_elements();
  bpe.reserve_merges(n_merges);
  for (std::size_t i = 0; i < n_merges; ++i) {
    const JsonNode merge = merges.element(i);
    const auto [left, right] = read_pair(merge);
    if (right.size() < prefix.size()) merge.fail("has a second part shorter than continuing_subword_prefix");
    const std::string merged = std::string(left).append(right.substr(prefix.size()));
    const auto id_of = [&](std::string_view text) {
      const std::optional<TokenId> id = vocabulary.id(text);
      if (!id) merge.fail("names \"" + std::string(text) + "\", which is not in the vocabulary");
      return *id;
    };
    bpe.add_merge(id_of(left), id_of(right), id_of(merged), true);
  }
}

void read_model(const JsonNode& root, TokenizerParts& parts) {
  const JsonNode model = root.at("model");
  if (const auto type = model.find("type"); type && type->text() != "BPE") {
    type->unsupported("the model \"" + type->text() + "\" is not known, only BPE is");
  }
  if (!model.find("merges")) model.unsupported("has no merges: only BPE models are known");
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0.0) {
    dropout->unsupported("dropout makes encoding random");
  }
  read_vocabulary(root, parts);

  MergeBpeOptions options;
  options.ignore_merges = model.flag("ignore_merges", false);
  options.byte_fallback = model.flag("byte_fallback", false);
  options.fuse_unk = model.flag("fuse_unk", false);
  if (const auto prefix = model.find("continuing_subword_prefix")) options.continuing_prefix = prefix->text();
  if (const auto suffix = model.find("end_of_word_suffix")) options.end_suffix = suffix->text();
  if (const auto unk = model.find("unk_token")) {
    // A name that is not in the vocabulary does no harm until a character is unknown, which it then can't stand for.
    options.unk = parts.vocabulary.id(unk->text());
    if (!options.unk) parts.warnings.push_back(unk->key() + ": \"" + unk->text() + "\" is not in the vocabulary");
  }
  const std::string prefix = options.continuing_prefix;
  parts.merge_bpe.emplace(parts.vocabulary, std::move(options));
  read_merges(model, parts.vocabulary, prefix, *parts.merge_bpe);
}

// Returns the texts that the decoder sees for added tokens that the normalizer rewrites.
std::vector<std::pair<TokenId, std::string>> read_added_tokens(const JsonNode& root, TokenizerParts& parts) {
  std::vector<std::pair<TokenId, std::string>> rewritten;
  const auto list = root.find("added_tokens");
  if (!list) return rewritten;
  const std::int64_t max_id =
      Vocabulary::max_id(static_cast<std::size_t>(parts.vocabulary.size()) + list->n_elements());
  std::vector<TokenId> specials;
  for (std::size_t i = 0; i < list->n_elements(); ++i) {
    const JsonNode node = list->element(i);
    AddedToken token;
    token.id = read_id(node.at("id"), max_id);
    token.single_word = node.flag("single_word", false);
    token.lstrip = node.flag("lstrip", false);
    token.rstrip = node.flag("rstrip", false);
    token.special = node.flag("special", false);
    const std::string& content = node.at("content").text();
    if (content.empty()) continue;
    if (content.size() > AddedTokens::kMaxPatternBytes) node.at("content").unsupported("has more than 1024 bytes");
    const bool is_new = parts.vocabulary.id(content) != token.id;
    parts.vocabulary.add(content, token.id);
    if (is_new) parts.vocabulary.hide(token.id);  // the model does not know it
    if (token.special) specials.push_back(token.id);
    const bool normalized = node.flag("normalized", !token.special);
    token.pattern = normalized ? parts.normalizer.apply(content).text : content;
    if (token.pattern.size() > AddedTokens::kMaxPatternBytes)
      node.at("content").unsupported("normalizes to more than 1024 bytes");
    if (token.pattern != content) rewritten.emplace_back(token.id, token.pattern);
    (normalized ? parts.added_normalized : parts.added_raw).add(std::move(token));
  }
  parts.special.resize(static_cast<std::size_t>(parts.vocabulary.size()));
  for (const TokenId id : specials) parts.special[static_cast<std::size_t>(id)] = true;
  return rewritten;
}

void set_decoder_inputs(TokenizerParts& parts, std::vector<std::pair<TokenId, std::string>> rewritten) {
  if (rewritten.empty()) return;
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) parts.decoder_inputs.push_back(parts.vocabulary.text(id));
  for (auto& [id, text] : rewritten) parts.decoder_inputs[static_cast<std::size_t>(id)] = std::move(text);
}

// The ids that a template's special token stands for.
std::vector<TokenId> template_ids(const JsonNode& processor, const JsonNode& special, const Vocabulary& vocabulary) {
  const JsonNode ids = processor.at("special_tokens").at(special.at("id").text()).at("ids");
  std::vector<TokenId> result;
  for (std::size_t i = 0; i < ids.n_elements(); ++i) {
    const std::int64_t id = ids.element(i).integer();
    if (id < 0 || id >= vocabulary.size()) ids.fail("the id " + std::to_string(id) + " is outside the vocabulary");
    result.push_back(static_cast<TokenId>(id));
  }
  return result;
}

void read_template(const JsonNode& processor, TokenizerParts& parts) {
  const JsonNode single = processor.at("single");
  bool seen_text = false;
  for (std::size_t i = 0; i < single.n_elements(); ++i) {
    const JsonNode item = single.element(i);
    if (const auto special = item.find("SpecialToken")) {
      std::vector<TokenId>& side = seen_text ? parts.suffix : parts.prefix;
      const std::vector<TokenId> ids = template_ids(processor, *special, parts.vocabulary);
      side.insert(side.end(), ids.begin(), ids.end());
      if (side.size() > kMaxTemplateIds)
        single.unsupported("has more than " + std::to_string(kMaxTemplateIds) + " special tokens");
    } else {
      if (seen_text || !item.find("Sequence")) single.unsupported("is not one text with special tokens around it");
      seen_text = true;
    }
  }
  if (!seen_text) single.unsupported("leaves out the text");
}

// ["</s>", 2]
TokenId template_pair_id(const JsonNode& pair, const Vocabulary& vocabulary) {
  if (pair.n_elements() != 2) pair.fail("is not a token and its id");
  const std::int64_t id = pair.element(1).integer();
  if (id < 0 || id >= vocabulary.size()) pair.fail("the id " + std::to_string(id) + " is outside the vocabulary");
  return static_cast<TokenId>(id);
}

void read_post_processor(const JsonNode& node, TokenizerParts& parts, int depth = 0) {
  const std::string& type = node.at("type").text();
  if (depth >= kMaxComponentDepth) node.fail("nests deeper than " + std::to_string(kMaxComponentDepth));
  if (type == "ByteLevel") return;  // only trims offsets
  if (type == "TemplateProcessing") return read_template(node, parts);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    parts.prefix.push_back(template_pair_id(node.at("cls"), parts.vocabulary));
    parts.suffix.push_back(template_pair_id(node.at("sep"), parts.vocabulary));
    return;
  }
  if (type != "Sequence") node.unsupported("the post-processor \"" + type + "\" is not known");
  const JsonNode list = node.at("processors");
  for (std::size_t i = 0; i < list.n_elements(); ++i) read_post_processor(list.element(i), parts, depth + 1);
}

}  // namespace

std::shared_ptr<TokenizerParts> read_tokenizer_json(std::string_view text, std::string path) {
  auto parts = std::make_shared<TokenizerParts>(std::move(path));
  const nlohmann::json document = parse_json(text, parts->path);
  const JsonNode root(document, parts->path, "");
  read_model(root, *parts);
  if (const auto node = root.find("normalizer")) read_normalizer(*node, parts->normalizer);
  if (const auto node = root.find("pre_tokenizer")) read_pre_tokenizer(*node, parts->pre_tokenizer);
  if (const auto node = root.find("decoder")) {
    read_decoder(*node, parts->decoder);
  } else {
    parts->decoder.add({.kind = DecoderStep::Kind::kJoinSpaced});
  }
  parts->special.resize(static_cast<std::size_t>(parts->vocabulary.size()));
  set_decoder_inputs(*parts, read_added_tokens(root, *parts));
  if (const auto node = root.find("post_processor")) read_post_processor(*node, *parts);
  return parts;
}

}  // namespace memoir::text
