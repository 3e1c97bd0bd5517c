// Reads a Hugging Face model directory: tokenizer.json and what stands beside it.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/json_text.h"
#include "memoir/text/json_node.h"
#include "memoir/text/tokenizer.h"
#include "memoir/text/tokenizer_parts.h"

namespace memoir::text {
namespace {

namespace fs = std::filesystem;

struct JsonFile {
  std::string path;
  nlohmann::json document;

  JsonNode root() const { return JsonNode(document, path, ""); }
};

// nullopt where there is no such file; FormatError where it is not JSON.
std::optional<JsonFile> read_json(const fs::path& path) {
  if (!entry_exists(path)) return std::nullopt;
  return JsonFile{path.string(), parse_json(read_text_file(path), path.string())};
}

// "bos_token": "<s>", or {"content": "<s>", ...}.
std::optional<std::string> token_name(const JsonNode& root, std::string_view key) {
  const std::optional<JsonNode> node = root.find(key);
  if (!node) return std::nullopt;
  return node->value().is_object() ? node->at("content").text() : node->text();
}

std::optional<std::string> template_in(const JsonNode& root) {
  const std::optional<JsonNode> node = root.find("chat_template");
  if (!node) return std::nullopt;
  if (!node->value().is_array()) return node->text();
  std::optional<std::string> first;
  for (std::size_t i = 0; i < node->n_elements(); ++i) {
    const JsonNode item = node->element(i);
    const std::string& text = item.at("template").text();
    if (item.at("name").text() == "default") return text;
    if (!first) first = text;
  }
  return first;
}

class DirectoryReader {
 public:
  explicit DirectoryReader(fs::path directory) : directory_(std::move(directory)) {}

  std::shared_ptr<TokenizerParts> read() {
    const fs::path path = directory_ / "tokenizer.json";
    parts_ = read_tokenizer_json(read_text_file(path), path.string());
    config_ = read_json(directory_ / "tokenizer_config.json");
    map_ = read_json(directory_ / "special_tokens_map.json");
    parts_->bos = special("bos_token");
    parts_->eos = special("eos_token");
    if (config_) {
      adjust(parts_->prefix, config_->root().find("add_bos_token"), parts_->bos, true);
      adjust(parts_->suffix, config_->root().find("add_eos_token"), parts_->eos, false);
    }
    parts_->chat_template = chat_template();
    collect_end_tokens(*parts_, parts_->special);
    return parts_;
  }

 private:
  std::optional<TokenId> special(std::string_view key) {
    for (const std::optional<JsonFile>* file : {&config_, &map_}) {
      if (!*file) continue;
      const std::optional<std::string> name = token_name((*file)->root(), key);
      if (!name) continue;
      const std::optional<TokenId> id = parts_->vocabulary.id(*name);
      if (!id && !name->empty()) {
        parts_->warnings.push_back(std::string(key) + ": \"" + *name + "\" is not in the vocabulary");
      }
      return id;
    }
    return std::nullopt;
  }

  // An explicit true or false in tokenizer_config.json decides about the outermost token.
  static void adjust(std::vector<TokenId>& side, const std::optional<JsonNode>& wish, std::optional<TokenId> token,
                     bool in_front) {
    if (!wish || !token) return;
    const auto place = in_front ? side.begin() : (side.empty() ? side.end() : side.end() - 1);
    const bool has = !side.empty() && *place == *token;
    if (wish->boolean() && !has) {
      side.insert(in_front ? side.begin() : side.end(), *token);
    } else if (!wish->boolean() && has) {
      side.erase(place);
    }
  }

  std::optional<std::string> chat_template() const {
    const fs::path jinja = directory_ / "chat_template.jinja";
    if (entry_exists(jinja)) return read_text_file(jinja);
    if (const std::optional<JsonFile> file = read_json(directory_ / "chat_template.json")) {
      if (auto text = template_in(file->root())) return text;
    }
    return config_ ? template_in(config_->root()) : std::nullopt;
  }

  fs::path directory_;
  std::shared_ptr<TokenizerParts> parts_;
  std::optional<JsonFile> config_;
  std::optional<JsonFile> map_;
};

}  // namespace

Tokenizer Tokenizer::from_directory(const fs::path& directory) {
  return Tokenizer(DirectoryReader(directory).read());
}

}  // namespace memoir::text
