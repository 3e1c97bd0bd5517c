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
// Values, no ownership, read only after they were made: any thread.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace memoir::engine {

struct JsonSchema {
  struct Property {
    int key;  // index in texts: the name as JSON writes it, quotes included
    int value;
    bool is_required;
  };
  struct ObjectRule {
    std::vector<Property> properties;  // in the order they are written
    std::optional<int> additional;     // node of values with other names; nullopt: there are none
    int names = -1;                    // root of the names in name_nodes
  };
  struct ArrayRule {
    int items;
    int min_items = 0;
    std::optional<int> max_items = {};
  };
  struct Node {
    bool takes_string = false;
    bool takes_integer = false;
    bool takes_number = false;
    std::vector<int> texts = {};  // values spelled out: null, true, false, enum, const
    std::optional<int> object = {};
    std::optional<int> array = {};
    std::vector<int> any_of = {};  // other nodes
  };
  /// A trie over the names an object declares, so that another name can be told from them byte by byte.
  struct NameNode {
    std::vector<std::pair<unsigned char, int>> next;
    bool is_name = false;
  };

  std::vector<Node> nodes;
  std::vector<ObjectRule> objects;
  std::vector<ArrayRule> arrays;
  std::vector<NameNode> name_nodes;
  std::vector<std::string> texts;
  int root = 0;

  /// Throws FormatError for what is no schema and UnsupportedError for a keyword or a use of one that is not taken,
  /// both with the place in the schema ("#/properties/name/pattern") as key.
  static JsonSchema parse(const nlohmann::ordered_json& schema);

  /// Any JSON object.
  static JsonSchema any_object();
};

}  // namespace memoir::engine
