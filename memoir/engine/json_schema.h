#pragma once

// A JSON schema in the form the grammar walks: a table of nodes, each a union of what a value may be.
//
// Taken: type (one or several), properties, required, enum, const, items, anyOf, additionalProperties, minItems,
// maxItems, local $ref ("#", "#/$defs/..", recursive too), and the annotations that constrain nothing (title,
// description, default, examples, $schema, $id, $comment, $defs, deprecated, readOnly, writeOnly, strict, nullable
// false). Every other keyword is refused by name: ignoring it would answer with JSON that the schema forbids.
// Narrower than JSON Schema: properties without a type means an object, items an array; where properties are named,
// others come only if additionalProperties is there and allows them; anyOf, enum, const and $ref
// stand alone, beside annotations (and enum and const beside type).
//
// A value is written within kMaxLevels lists and objects inside each other. How many a node needs at least is worked
// out beforehand, so that nothing is begun that could not be ended, and a schema without any such value is refused.
// Values, no ownership, read only after they were made: any thread.

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/error.h"

namespace memoir::engine {

/// No value keeps to the schema, or none that nests within JsonSchema::kMaxLevels.
class NoValueError : public UnsupportedError {
 public:
  using UnsupportedError::UnsupportedError;
};

/// What a local reference ("#", "#/$defs/a%20b") names in a document, null if it is not there.
const nlohmann::ordered_json* local_schema(const nlohmann::ordered_json& document, const std::string& reference);

struct JsonSchema {
  /// How deep lists and objects may nest in what is written.
  static constexpr int kMaxLevels = 64;
  /// How many alternatives may be open at once, those that one byte tells apart.
  static constexpr std::size_t kMaxAlternatives = 4096;
  /// min_levels of what no value keeps to.
  static constexpr int kNoValue = std::numeric_limits<int>::max();

  struct Property {
    int key;  // index in texts: the name as JSON writes it, quotes included
    int value;
    bool is_required;
  };
  struct ObjectRule {
    std::vector<Property> properties;  // in the order they are written
    std::optional<int> additional;     // node of values with other names; nullopt: there are none
    int names = -1;                    // root of the names in text_nodes
    int min_levels = kNoValue;         // the levels of its shallowest object, itself included
  };
  struct ArrayRule {
    int items;
    int min_items = 0;
    std::optional<int> max_items = {};
    int min_levels = kNoValue;
  };
  /// What a value may be: any of these.
  struct Node {
    bool takes_string = false;
    bool takes_integer = false;
    bool takes_number = false;
    int texts = -1;  // root in text_nodes of values spelled out (null, true, false, enum, const); -1: none
    std::vector<int> objects = {};
    std::vector<int> arrays = {};
    int min_levels = kNoValue;  // 0 for values that are neither list nor object
  };
  /// A trie over texts that are told apart byte by byte.
  struct TextNode {
    std::vector<std::pair<unsigned char, int>> next;
    bool is_end = false;
  };

  std::vector<Node> nodes;
  std::vector<ObjectRule> objects;
  std::vector<ArrayRule> arrays;
  std::vector<TextNode> text_nodes;
  std::vector<std::string> texts;
  int root = 0;

  /// The node behind `byte` in the trie, -1 if there is none.
  int next_text_node(int at, unsigned char byte) const {
    for (const auto& [edge, node] : text_nodes[static_cast<std::size_t>(at)].next) {
      if (edge == byte) return node;
    }
    return -1;
  }

  /// Throws FormatError for what is no schema, UnsupportedError for a keyword or a use of one that is not taken, and
  /// NoValueError, all with the place in the schema ("#/properties/name/pattern") as key.
  static JsonSchema parse(const nlohmann::ordered_json& schema);

  /// Any JSON object.
  static JsonSchema any_object();
};

}  // namespace memoir::engine
