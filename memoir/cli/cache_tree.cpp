#include "memoir/cli/cache_tree.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "memoir/base/json_text.h"
#include "memoir/base/printable.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/model/fingerprint.h"
#include "memoir/model/load.h"
#include "memoir/prefix/stored_tree.h"

namespace memoir::cli {
namespace {

using Json = nlohmann::ordered_json;
using prefix::StoredNode;
using prefix::StoredTree;

constexpr std::size_t kShownIds = 12;
constexpr std::size_t kShownCharacters = 60;

/// How the tokens of one model are shown.
class TokenText {
 public:
  explicit TokenText(const std::string& model) {
    if (model.empty()) return;
    const std::filesystem::path path = resolve_model(model);
    fingerprint_ = model::fingerprint(path);
    tokenizer_ = model::load_tokenizer(path);
  }

  /// Nullopt for what is of another model.
  std::optional<std::string> text(const std::string& model, const std::vector<TokenId>& tokens) const {
    if (!tokenizer_ || model != fingerprint_) return std::nullopt;
    try {
      return tokenizer_->decode(tokens);
    } catch (const std::invalid_argument&) {
      return std::nullopt;
    }
  }

 private:
  std::string fingerprint_;
  std::optional<text::Tokenizer> tokenizer_;
};

Json json_of(const StoredNode& node, const std::string& model, const TokenText& tokens) {
  Json json;
  json["parent"] = node.parent ? Json(*node.parent) : Json();
  json["from"] = node.from;
  json["to"] = node.to;
  json["row_bytes"] = node.row_bytes;
  json["checkpoint_bytes"] = node.checkpoint_bytes;
  if (!node.rule.empty()) json["rule"] = node.rule;
  json["age_s"] = node.age ? Json(node.age->count()) : Json();
  const std::vector<TokenId> ids(node.keys.begin(), node.keys.end());
  json["tokens"] = ids;
  if (const auto text = tokens.text(model, ids)) json["text"] = *text;
  return json;
}

/// {"kind": how many layers}, of what the blocks say.
Json kinds_of(const Json& caches) {
  std::map<std::string, int> kinds;
  for (const Json& one : caches) {
    if (one.is_object() && one.contains("kind") && one["kind"].is_string()) ++kinds[one["kind"].get<std::string>()];
  }
  return kinds;
}

Json json_of(const StoredTree& tree, const TokenText& tokens) {
  const Json identity = Json::parse(tree.identity, nullptr, false);
  const auto said = [&](const char* key) {
    return identity.is_object() && identity.contains(key) && identity[key].is_string()
               ? identity[key].get<std::string>()
               : std::string();
  };
  Json json = {{"model", said("model")},   {"model_name", tree.model_name}, {"memoir", said("memoir")},
               {"device", said("device")}, {"files", tree.n_files},         {"bytes", tree.n_bytes}};
  json["kinds"] = kinds_of(identity.is_object() && identity.contains("caches") ? identity["caches"] : Json::array());
  json["nodes"] = Json::array();
  for (const StoredNode& node : tree.nodes) json["nodes"].push_back(json_of(node, json["model"], tokens));
  return json;
}

// ---- For people

std::string bytes_text(std::uint64_t n_bytes) {
  std::ostringstream out;
  out.precision(1);
  out << std::fixed;
  if (n_bytes < 1'000'000) {
    out << static_cast<double>(n_bytes) / 1e3 << " kB";
  } else if (n_bytes < 1'000'000'000) {
    out << static_cast<double>(n_bytes) / 1e6 << " MB";
  } else {
    out << static_cast<double>(n_bytes) / 1e9 << " GB";
  }
  return out.str();
}

std::string age_text(std::int64_t seconds) {
  if (seconds < 120) return std::to_string(seconds) + " s";
  if (seconds < 7200) return std::to_string(seconds / 60) + " min";
  if (seconds < 172'800) return std::to_string(seconds / 3600) + " h";
  return std::to_string(seconds / 86'400) + " days";
}

/// A run of nodes without a fork or a checkpoint inside.
struct Line {
  int depth;
  Json node;
};

std::string content_text(const Json& node) {
  if (node.contains("text")) return "\"" + printable(node["text"].get<std::string>(), kShownCharacters) + "\"";
  std::string text;
  for (std::size_t i = 0; i < node["tokens"].size(); ++i) {
    if (i == kShownIds) return text + " ...";
    text += (i > 0 ? " " : "") + node["tokens"][i].dump();
  }
  return text;
}

void write_line(std::ostream& out, const Line& line) {
  const Json& node = line.node;
  out << std::string(2 + 2 * static_cast<std::size_t>(line.depth), ' ') << node["from"] << ".." << node["to"];
  if (node["row_bytes"] > 0) out << ", rows " << bytes_text(node["row_bytes"]);
  if (node["checkpoint_bytes"] > 0) {
    out << ", checkpoint " << bytes_text(node["checkpoint_bytes"]);
    if (node.contains("rule")) out << " (" << printable(node["rule"].get<std::string>(), 20) << ")";
  }
  if (!node["age_s"].is_null()) out << ", " << age_text(node["age_s"]) << " ago";
  out << ": " << content_text(node) << '\n';
}

/// One node goes on in the next where nothing ends or forks between them.
bool goes_on(const Json& nodes, std::size_t index, const std::vector<int>& n_children) {
  return index + 1 < nodes.size() && n_children[index] == 1 && nodes[index + 1]["parent"] == index &&
         nodes[index]["checkpoint_bytes"] == 0 &&
         (nodes[index]["row_bytes"] > 0) == (nodes[index + 1]["row_bytes"] > 0);
}

std::string text_of(const Json& tree) {
  std::ostringstream out;
  out << "model " << printable(tree["model_name"].get<std::string>()) << " ("
      << printable(tree["model"].get<std::string>()) << "), " << printable(tree["device"].get<std::string>());
  for (const auto& [kind, n_layers] : tree["kinds"].items()) out << ", " << n_layers << " " << printable(kind);
  out << ": " << bytes_text(tree["bytes"]) << " in " << tree["files"] << " files\n";
  const Json& nodes = tree["nodes"];
  std::vector<int> n_children(nodes.size());
  int n_roots = 0;
  for (const Json& node : nodes) ++(node["parent"].is_null() ? n_roots : n_children[node["parent"].get<std::size_t>()]);
  std::vector<int> depths(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i]["parent"].is_null()) {
      const auto parent = nodes[i]["parent"].get<std::size_t>();
      depths[i] = depths[parent] + (n_children[parent] > 1 ? 1 : 0);
    }
    Line line{depths[i], nodes[i]};
    while (goes_on(nodes, i, n_children)) {
      depths[i + 1] = depths[i];
      const Json& next = nodes[++i];
      line.node["to"] = next["to"];
      line.node["row_bytes"] = line.node["row_bytes"].get<std::uint64_t>() + next["row_bytes"].get<std::uint64_t>();
      line.node["checkpoint_bytes"] = next["checkpoint_bytes"];
      if (next.contains("rule")) line.node["rule"] = next["rule"];
      if (line.node["age_s"].is_null() || next["age_s"] < line.node["age_s"]) line.node["age_s"] = next["age_s"];
    }
    write_line(out, line);
  }
  return out.str();
}

}  // namespace

int run_cache_tree(const CacheTreeArguments& arguments) {
  const TokenText tokens(arguments.model);
  for (const StoredTree& tree : prefix::stored_trees(arguments.directory)) {
    const Json json = json_of(tree, tokens);
    write_out(arguments.is_json ? json_text(json) + "\n" : text_of(json));
  }
  return kDone;
}

}  // namespace memoir::cli
