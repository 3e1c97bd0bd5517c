#include "memoir/engine/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/engine/json_schema_draft.h"

namespace memoir::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhere = "json schema";
constexpr std::size_t kMaxPlaceBytes = 300;  // kept of each, for messages
constexpr std::size_t kMaxNodes = 20'000;
constexpr std::size_t kMaxTextBytes = 1U << 20;
constexpr int kMaxDepth = 100;

constexpr std::array<std::string_view, 14> kAnnotations = {
    "title", "description", "default",    "examples", "$schema",   "$id",    "$comment",
    "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "strict", "$anchor"};
constexpr std::array<std::string_view, 11> kConstraints = {
    "type",     "properties",          "required", "enum", "const", "items", "anyOf", "$ref", "minItems",
    "maxItems", "additionalProperties"};

bool is_annotation(std::string_view name) {
  return std::find(kAnnotations.begin(), kAnnotations.end(), name) != kAnnotations.end();
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// JSON Schema's integers: 1.0 is one.
bool is_whole(const Json& value) {
  if (!value.is_number_float()) return value.is_number_integer();
  const double number = value.get<double>();
  return std::trunc(number) == number;
}

// A reference is a URI, in which any byte may be written as % and two hexadecimal digits (RFC 3986, 2.1).
std::string percent_decoded(const std::string& text) {
  std::string made;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool is_escape = text[i] == '%' && i + 2 < text.size();
    if (is_escape && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      made += static_cast<char>(byte);
      i += 2;
    } else {
      made += text[i];
    }
  }
  return made;
}

class Compiler {
 public:
  explicit Compiler(const Json& document) : document_(document) {}

  JsonSchema compile() {
    draft_.root = node(document_, "#", 0);
    return resolve(draft_);
  }

  JsonSchema compile_any_object() {
    draft_.nodes.emplace_back().place = "#";
    const int object = add_object({{}, any()}, {});
    draft_.nodes[0].object = object;
    return resolve(draft_);
  }

 private:
  // A schema's node; the same place gives the same node, so that a schema may refer to itself.
  int node(const Json& schema, const std::string& place, int depth) {
    if (const auto known = nodes_.find(&schema); known != nodes_.end()) return known->second;
    if (schema == Json(true)) return any();
    if (!schema.is_object() && schema != Json(false))
      throw FormatError(kWhere, place, "is neither an object nor a boolean");
    if (depth > kMaxDepth || draft_.nodes.size() >= kMaxNodes) {
      throw UnsupportedError(kWhere, place, "the schema is too large");
    }
    const int id = static_cast<int>(draft_.nodes.size());
    draft_.nodes.emplace_back();
    nodes_[&schema] = id;
    SchemaDraft::Node made;  // as it is, it takes no value
    if (schema.is_object()) {
      check_keywords(schema, place);
      made = make_node(schema, place, depth);
    }
    made.place = place.substr(0, kMaxPlaceBytes);
    draft_.nodes[static_cast<std::size_t>(id)] = std::move(made);
    return id;
  }

  static void check_keywords(const Json& schema, const std::string& place) {
    std::vector<std::string> constraints;
    for (const auto& [name, value] : schema.items()) {
      if (is_annotation(name) || (name == "nullable" && value == Json(false))) continue;
      if (std::find(kConstraints.begin(), kConstraints.end(), name) == kConstraints.end()) {
        throw UnsupportedError(kWhere, place + "/" + name, "this keyword is not supported");
      }
      constraints.push_back(name);
    }
    for (const char* alone : {"anyOf", "$ref", "enum", "const"}) {
      if (!schema.contains(alone)) continue;
      const bool takes_type = std::string_view(alone) == "enum" || std::string_view(alone) == "const";
      for (const std::string& other : constraints) {
        if (other == alone || (takes_type && other == "type")) continue;
        throw UnsupportedError(kWhere, place + "/" + other, std::string("beside ") + alone + " it is not supported");
      }
    }
  }

  SchemaDraft::Node make_node(const Json& schema, const std::string& place, int depth) {
    if (schema.contains("$ref")) return {.any_of = {reference(schema["$ref"], place + "/$ref", depth)}};
    if (schema.contains("anyOf")) return alternatives(schema["anyOf"], place + "/anyOf", depth);
    if (schema.contains("enum")) return spelled_out(schema, schema["enum"], place + "/enum");
    if (schema.contains("const")) return spelled_out(schema, Json::array({schema["const"]}), place + "/const");
    SchemaDraft::Node made;
    for (const std::string& type : types_of(schema, place)) add_type(made, type, schema, place, depth);
    return made;
  }

  int reference(const Json& target, const std::string& place, int depth) {
    if (!target.is_string()) throw FormatError(kWhere, place, "is not a string");
    const std::string& name = target.get_ref<const std::string&>();
    if (name != "#" && !name.starts_with("#/")) throw UnsupportedError(kWhere, place, "only local references (#/...)");
    const Json* there = local_schema(document_, name);
    if (!there) throw FormatError(kWhere, place, "refers to " + name.substr(0, 200) + ", which is not there");
    return node(*there, name, depth + 1);
  }

  SchemaDraft::Node alternatives(const Json& list, const std::string& place, int depth) {
    if (!list.is_array() || list.empty()) throw FormatError(kWhere, place, "is not a list with members");
    SchemaDraft::Node made;
    for (std::size_t i = 0; i < list.size(); ++i) {
      made.any_of.push_back(node(list[i], place + "/" + std::to_string(i), depth + 1));
    }
    return made;
  }

  // Enumerated values, those of another type than the schema's left out.
  SchemaDraft::Node spelled_out(const Json& schema, const Json& values, const std::string& place) {
    if (!values.is_array()) throw FormatError(kWhere, place, "is not a list");
    SchemaDraft::Node made;
    std::set<std::string> types;
    if (schema.contains("type")) {
      for (const std::string& type : types_of(schema, place)) types.insert(type);
    }
    for (const Json& value : values) {
      if (types.empty() || has_type(value, types)) made.texts.push_back(text(json_text(value)));
    }
    if (made.texts.empty()) throw UnsupportedError(kWhere, place, "no value is possible");
    return made;
  }

  static bool has_type(const Json& value, const std::set<std::string>& types) {
    if (is_whole(value) && types.contains("integer")) return true;
    if (value.is_number()) return types.contains("number");
    return types.contains(value.type_name());
  }

  static std::vector<std::string> types_of(const Json& schema, const std::string& place) {
    if (!schema.contains("type")) {
      for (const char* name : {"properties", "required", "additionalProperties"}) {
        if (schema.contains(name)) return {"object"};
      }
      for (const char* name : {"items", "minItems", "maxItems"}) {
        if (schema.contains(name)) return {"array"};
      }
      return {"string", "number", "boolean", "null", "object", "array"};
    }
    const Json& type = schema["type"];
    if (type.is_string()) return {type.get<std::string>()};
    std::vector<std::string> types;
    if (!type.is_array() || type.empty()) throw FormatError(kWhere, place + "/type", "is neither a string nor a list");
    for (const Json& one : type) {
      if (!one.is_string()) throw FormatError(kWhere, place + "/type", "is no list of strings");
      types.push_back(one.get<std::string>());
    }
    return types;
  }

  void add_type(SchemaDraft::Node& made, const std::string& type, const Json& schema, const std::string& place,
                int depth) {
    if (type == "string") {
      made.takes_string = true;
    } else if (type == "integer") {
      made.takes_integer = true;
    } else if (type == "number") {
      made.takes_number = true;
    } else if (type == "null") {
      made.texts.push_back(text("null"));
    } else if (type == "boolean") {
      made.texts.push_back(text("true"));
      made.texts.push_back(text("false"));
    } else if (type == "object") {
      made.object = object(schema, place, depth);
    } else if (type == "array") {
      made.array = array(schema, place, depth);
    } else {
      throw FormatError(kWhere, place + "/type", "names an unknown type, " + type.substr(0, 100));
    }
  }

  int object(const Json& schema, const std::string& place, int depth) {
    std::set<std::string> required;
    if (schema.contains("required")) {
      const Json& list = schema["required"];
      if (!list.is_array()) throw FormatError(kWhere, place + "/required", "is not a list");
      for (const Json& name : list) {
        if (!name.is_string()) throw FormatError(kWhere, place + "/required", "is no list of strings");
        required.insert(name.get<std::string>());
      }
    }
    JsonSchema::ObjectRule rule;
    const bool is_open = !schema.contains("additionalProperties");
    if (is_open) {
      // A small model that may add properties adds some without end; only where none are named must there be any.
      if (!schema.contains("properties") || schema["properties"].empty()) rule.additional = any();
    } else if (const Json& additional = schema["additionalProperties"]; additional != Json(false)) {
      rule.additional = node(additional, place + "/additionalProperties", depth + 1);
    }
    std::vector<std::string> names;
    if (schema.contains("properties")) {
      const Json& properties = schema["properties"];
      if (!properties.is_object()) throw FormatError(kWhere, place + "/properties", "is not an object");
      for (const auto& [name, value] : properties.items()) {
        const int value_node = node(value, place + "/properties/" + name, depth + 1);
        rule.properties.push_back({text(json_text(Json(name))), value_node, required.erase(name) > 0});
        names.push_back(name);
      }
    }
    for (const std::string& name : required) {  // required, and not among the properties
      if (!rule.additional && !is_open) {
        throw UnsupportedError(kWhere, place + "/required", "names " + name + ", which is forbidden");
      }
      rule.properties.push_back({text(json_text(Json(name))), rule.additional ? *rule.additional : any(), true});
      names.push_back(name);
    }
    check_alternatives(rule, place);
    return add_object(std::move(rule), names);
  }

  // Names that may come next are told apart while they are written.
  static void check_alternatives(const JsonSchema::ObjectRule& rule, const std::string& place) {
    std::size_t n_open = 0;
    std::size_t n_most = 0;
    for (const JsonSchema::Property& property : rule.properties) {
      n_most = std::max(n_most, ++n_open);
      if (property.is_required) n_open = 0;
    }
    n_most = std::max(n_most, n_open + (rule.additional ? 1 : 0));
    if (n_most <= JsonSchema::kMaxAlternatives) return;
    throw UnsupportedError(kWhere, place + "/properties",
                           "of " + std::to_string(n_most) + " names any may come next, more than " +
                               std::to_string(JsonSchema::kMaxAlternatives));
  }

  int add_object(JsonSchema::ObjectRule rule, const std::vector<std::string>& names) {
    rule.names = add_trie(draft_.text_nodes);
    for (const std::string& name : names) add_to_trie(draft_.text_nodes, rule.names, name);
    draft_.objects.push_back(std::move(rule));
    return static_cast<int>(draft_.objects.size()) - 1;
  }

  int array(const Json& schema, const std::string& place, int depth) {
    JsonSchema::ArrayRule rule{.items = schema.contains("items") ? node(schema["items"], place + "/items", depth + 1)
                                                                 : any()};
    rule.min_items = count(schema, "minItems", place).value_or(0);
    rule.max_items = count(schema, "maxItems", place);
    if (rule.max_items && *rule.max_items < rule.min_items) {
      throw UnsupportedError(kWhere, place + "/maxItems", "is less than minItems");
    }
    draft_.arrays.push_back(rule);
    return static_cast<int>(draft_.arrays.size()) - 1;
  }

  static std::optional<int> count(const Json& schema, const char* name, const std::string& place) {
    if (!schema.contains(name)) return std::nullopt;
    const Json& value = schema[name];
    if (!is_whole(value) || value < 0 || value > 1'000'000) {
      throw FormatError(kWhere, place + "/" + name, "is no whole number from 0 to 1000000");
    }
    return value.get<int>();
  }

  int any() {
    if (any_ >= 0) return any_;
    any_ = static_cast<int>(draft_.nodes.size());
    draft_.nodes.emplace_back();
    SchemaDraft::Node made{.takes_string = true, .takes_number = true};
    for (const char* value : {"null", "true", "false"}) made.texts.push_back(text(value));
    made.object = add_object({{}, any_}, {});
    draft_.arrays.push_back({.items = any_});
    made.array = static_cast<int>(draft_.arrays.size()) - 1;
    draft_.nodes[static_cast<std::size_t>(any_)] = std::move(made);
    return any_;
  }

  int text(const std::string& value) {
    const auto [known, is_new] = texts_.try_emplace(value, static_cast<int>(draft_.texts.size()));
    if (is_new) {
      n_text_bytes_ += value.size();
      if (n_text_bytes_ > kMaxTextBytes) throw UnsupportedError(kWhere, "", "names and values are too long");
      draft_.texts.push_back(value);
    }
    return known->second;
  }

  const Json& document_;
  SchemaDraft draft_;
  std::map<const Json*, int> nodes_;
  std::map<std::string, int> texts_;
  std::size_t n_text_bytes_ = 0;
  int any_ = -1;
};

}  // namespace

const Json* local_schema(const Json& document, const std::string& reference) {
  if (!reference.starts_with('#')) return nullptr;
  try {
    return &document.at(Json::json_pointer(percent_decoded(reference.substr(1))));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

JsonSchema JsonSchema::parse(const nlohmann::ordered_json& schema) {
  return Compiler(schema).compile();
}

JsonSchema JsonSchema::any_object() {
  const Json none;
  return Compiler(none).compile_any_object();
}

}  // namespace memoir::engine
