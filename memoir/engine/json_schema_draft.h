#pragma once

// A JSON schema as its text has it, nodes referring to other nodes as alternatives, and the way from there to what the
// grammar walks (json_schema.h): each node's alternatives gathered in it, texts as tries, the least levels of each.
// Values, no ownership.

#include <optional>
#include <string>
#include <vector>

#include "memoir/engine/json_schema.h"

namespace memoir::engine {

struct SchemaDraft {
  /// Without anything it takes no value.
  struct Node {
    bool takes_string = false;
    bool takes_integer = false;
    bool takes_number = false;
    std::vector<int> texts = {};  // indices in the draft's texts
    std::optional<int> object = {};
    std::optional<int> array = {};
    std::vector<int> any_of = {};  // other nodes
    std::string place = {};        // in the schema, for messages
  };

  std::vector<Node> nodes;
  std::vector<JsonSchema::ObjectRule> objects;  // without min_levels
  std::vector<JsonSchema::ArrayRule> arrays;    // without min_levels
  std::vector<JsonSchema::TextNode> text_nodes;
  std::vector<std::string> texts;
  int root = 0;
};

/// Throws UnsupportedError for a node that is its own alternative and for more alternatives than can be told apart,
/// NoValueError where the root takes no value of JsonSchema::kMaxLevels.
JsonSchema resolve(const SchemaDraft& draft);

/// An empty trie's root.
int add_trie(std::vector<JsonSchema::TextNode>& nodes);
void add_to_trie(std::vector<JsonSchema::TextNode>& nodes, int root, const std::string& text);

}  // namespace memoir::engine
