#include "memoir/server/tool_schemas.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/json_schema.h"
#include "memoir/server/api_error.h"
#include "memoir/server/prompt.h"

namespace memoir::server {
namespace {

constexpr int kMaxSteps = 256;

struct Walk {
  const Json& document;
  int n_steps = 0;
};

std::optional<Json> objects_of(const Json& schema, Walk& walk);

Json objects_among(const Json& values) {
  Json objects = Json::array();
  for (const Json& value : values) {
    if (value.is_object()) objects.push_back(value);
  }
  return objects;
}

// false: none may be an object.
bool keep_alternatives(Json& schema, const char* keyword, Walk& walk) {
  if (!schema.contains(keyword) || !schema[keyword].is_array()) return true;
  Json kept = Json::array();
  for (const Json& alternative : schema[keyword]) {
    if (auto objects = objects_of(alternative, walk)) kept.push_back(std::move(*objects));
  }
  schema[keyword] = std::move(kept);
  return !schema[keyword].empty();
}

bool keep_type(Json& schema) {
  if (!schema.contains("type")) return true;
  const Json& type = schema["type"];
  if (type.is_string()) return type == "object";
  if (!type.is_array()) return true;
  for (const Json& one : type) {
    if (one != "object") continue;
    schema["type"] = "object";
    return true;
  }
  return false;
}

// Follows a reference; false: there is no object behind it.
bool keep_reference(Json& schema, Walk& walk) {
  const Json& reference = schema["$ref"];
  if (!reference.is_string()) return true;
  const Json* target = engine::local_schema(walk.document, reference.get_ref<const std::string&>());
  if (!target) return true;
  std::optional<Json> objects = objects_of(*target, walk);
  if (!objects) return false;
  if (*objects == *target) return true;
  schema.erase("$ref");
  schema["anyOf"] = Json::array({std::move(*objects)});
  return true;
}

// A schema without what it allows beside objects; nullopt if nothing is left. What can't be told is left as it is, and
// references inside go on meaning the document's own schemas.
std::optional<Json> objects_of(const Json& schema, Walk& walk) {
  if (schema == Json(false)) return std::nullopt;
  if (schema == Json(true)) return Json{{"type", "object"}};
  if (!schema.is_object() || ++walk.n_steps > kMaxSteps) return schema;
  Json made = schema;
  if (!keep_type(made)) return std::nullopt;
  if (made.contains("const") && !made["const"].is_object()) return std::nullopt;
  if (made.contains("enum") && made["enum"].is_array()) {
    made["enum"] = objects_among(made["enum"]);
    if (made["enum"].empty()) return std::nullopt;
  }
  if (made.contains("allOf") && made["allOf"].is_array()) {
    for (const Json& part : made["allOf"]) {
      if (!objects_of(part, walk)) return std::nullopt;
    }
  }
  if (made.contains("$ref") && !keep_reference(made, walk)) return std::nullopt;
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!keep_alternatives(made, keyword, walk)) return std::nullopt;
  }
  for (const char* keyword :
       {"type", "const", "enum", "allOf", "$ref", "anyOf", "oneOf", "properties", "required", "additionalProperties"}) {
    if (made.contains(keyword)) return made;
  }
  made["type"] = "object";
  return made;
}

// References inside parameters begin at their own root, which now stands at `place`.
void move_references(Json& parameters, const std::string& place) {
  std::vector<Json*> open = {&parameters};
  while (!open.empty()) {
    Json& value = *open.back();
    open.pop_back();
    if (value.is_object() && value.contains("$ref") && value["$ref"].is_string()) {
      std::string& target = value["$ref"].get_ref<std::string&>();
      if (target.starts_with('#')) target = place + target.substr(1);
    }
    if (!value.is_structured()) continue;
    for (Json& member : value) open.push_back(&member);
  }
}

// The objects that keep to `parameters`, which are kept whole among the definitions: they may refer to themselves.
// nullopt if there is none.
std::optional<Json> define(Json parameters, const std::string& key, Json& definitions) {
  const std::string place = "#/$defs/" + key;
  Walk walk{parameters};
  std::optional<Json> objects = objects_of(parameters, walk);
  if (!objects) return std::nullopt;
  const bool is_same = *objects == parameters;
  move_references(parameters, place);
  move_references(*objects, place);
  definitions[key] = std::move(parameters);
  return is_same ? Json{{"$ref", place}} : std::move(*objects);
}

Json define_arguments(const Json& tool, const std::string& key, Json& definitions) {
  return define(tool_parameters(tool), key, definitions).value_or(Json{{"type", "object"}});
}

Json with_definitions(Json schema, Json definitions) {
  Json whole = {{"anyOf", Json::array({std::move(schema)})}};
  whole["$defs"] = std::move(definitions);
  return whole;
}

}  // namespace

void check_parameters(const Json& parameters, const std::string& field) {
  Json definitions = Json::object();
  const auto refuse = [&] { return bad_field(field, "no object keeps to this schema"); };
  std::optional<Json> objects = define(parameters, "tool", definitions);
  if (!objects) throw refuse();
  try {
    engine::JsonSchema::parse(with_definitions(std::move(*objects), std::move(definitions)));
  } catch (const engine::NoValueError&) {
    throw refuse();
  } catch (const InputError&) {  // of keywords that no call is held to nothing can be told
  }
}

Json arguments_schema(const Json& tool) {
  Json definitions = Json::object();
  Json schema = define_arguments(tool, "tool", definitions);
  return with_definitions(std::move(schema), std::move(definitions));
}

Json forced_call_schema(const Json& tools, const ForcedCall& form) {
  Json definitions = Json::object();
  Json calls = Json::array();
  for (const Json& tool : tools) {
    const std::string key = "tool" + std::to_string(calls.size());
    Json arguments = define_arguments(tool, key, definitions);
    calls.push_back(
        {{"type", "object"},
         {"properties", {{"name", {{"const", tool_name(tool)}}}, {form.arguments_key, std::move(arguments)}}},
         {"required", Json::array({"name", form.arguments_key})},
         {"additionalProperties", false}});
  }
  Json schema = {{"anyOf", std::move(calls)}};
  if (form.is_list) schema = {{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}, {"maxItems", 1}};
  schema["$defs"] = std::move(definitions);
  return schema;
}

}  // namespace memoir::server
