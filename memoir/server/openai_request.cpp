#include "memoir/server/openai_request.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/engine/json_schema.h"
#include "memoir/server/tool_schemas.h"

namespace memoir::server {
namespace {

constexpr int kMaxTexts = 64;
constexpr int kMaxN = 16;
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 4096;
constexpr std::size_t kMaxBiases = 4096;
constexpr int kMaxLikeliest = 20;
constexpr int kMaxTokens = 1 << 30;
constexpr int kDefaultCompletionTokens = 16;  // as OpenAI's

std::map<TokenId, float> read_logit_bias(const Fields& body, const ServedModel& model) {
  std::map<TokenId, float> biases;
  const Json* object = body.object("logit_bias");
  if (!object) return biases;
  if (object->size() > kMaxBiases) throw bad_field("logit_bias", "has more than 4096 members");
  for (const auto& [name, value] : object->items()) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0 || token >= model.n_vocab()) {
      throw bad_field("logit_bias", "'" + name.substr(0, 40) + "' is no token of the model");
    }
    const double bias = value.is_number() ? value.get<double>() : std::nan("");
    if (!(bias >= -100 && bias <= 100)) throw bad_field("logit_bias", "a bias is no number from -100 to 100");
    biases[token] = bias <= -100 ? -std::numeric_limits<float>::infinity() : static_cast<float>(bias);
  }
  return biases;
}

void read_sampling(const Fields& body, const ServedModel& model, GenerationOptions& options) {
  engine::SamplerOptions& sampler = options.sampler;
  sampler.temperature = body.number("temperature", 0, 100).value_or(1);
  sampler.top_p = body.number("top_p", 0, 1).value_or(1);
  if (sampler.top_p == 0) {  // only the likeliest
    sampler.top_p = 1;
    sampler.top_k = 1;
  }
  sampler.min_p = body.number("min_p", 0, 1).value_or(0);
  if (const auto top_k = body.integer("top_k", -1, kMaxVocab); top_k && *top_k > 0) {
    sampler.top_k = static_cast<int>(*top_k);
  }
  sampler.presence_penalty = body.number("presence_penalty", -2, 2).value_or(0);
  sampler.frequency_penalty = body.number("frequency_penalty", -2, 2).value_or(0);
  sampler.repetition_penalty = body.number("repetition_penalty", 0.01, 100).value_or(1);
  sampler.penalty_window = -1;
  sampler.logit_bias = read_logit_bias(body, model);
  if (const auto seed =
          body.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) {
    sampler.seed = static_cast<std::uint64_t>(*seed);
  }
}

std::vector<std::string> read_stops(const Fields& body) {
  std::vector<std::string> stops = body.texts("stop", kMaxStops);
  for (const std::string& stop : stops) {
    if (stop.empty()) throw bad_field("stop", "has an empty text");
    if (stop.size() > kMaxStopBytes) throw bad_field("stop", "has a text longer than 4096 bytes");
  }
  return stops;
}

// What both interfaces have alike.
OpenAiRequest read_basics(const Fields& body, const ServedModel& model) {
  check_model_name(body, model);
  OpenAiRequest request;
  GenerationOptions& options = request.options;
  read_sampling(body, model, options);
  options.stops = read_stops(body);
  options.n = static_cast<int>(body.integer("n", 1, kMaxN).value_or(1));
  options.priority = static_cast<int>(body.integer("priority", -1000, 1000).value_or(0));
  if (const auto max_tokens = body.integer("max_tokens", 0, kMaxTokens)) {
    options.max_tokens = static_cast<int>(*max_tokens);
  }
  request.is_stream = body.flag("stream").value_or(false);
  if (const Json* stream_options = body.object("stream_options")) {
    if (!request.is_stream) throw bad_field("stream_options", "is only for streams");
    request.includes_usage = Fields(*stream_options, "stream_options").flag("include_usage").value_or(false);
  }
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                           "grammar", "json_schema"}) {
    body.refuse(name, nullptr, "not supported: use response_format");
  }
  return request;
}

// ---- Chat

void read_response_format(const Fields& body, const Backend& backend, GenerationOptions& options) {
  const Json* object = body.object("response_format");
  if (!object) return;
  const Fields format(*object, "response_format");
  const std::string type = format.need_text("type");
  if (type == "text") return;
  if (type == "json_object") {
    options.branches = {{backend.constraints.of(backend.model, nullptr, "response_format")}};
  } else if (type == "json_schema") {
    const Json* outer = format.object("json_schema");
    if (!outer) throw bad_field("response_format.json_schema", "is missing");
    const Json* schema = Fields(*outer, "response_format.json_schema").object("schema");
    if (!schema) throw bad_field("response_format.json_schema.schema", "is missing");
    options.branches = {{backend.constraints.of(backend.model, *schema, "response_format.json_schema.schema")}};
  } else {
    throw unsupported_field("response_format.type", "is none of text, json_object, json_schema");
  }
}

// The tools among which a call must be made; null if none must.
Json tools_of_choice(const Fields& body, const Json& tools, bool& is_off) {
  const Json* choice = body.find("tool_choice");
  if (!choice || *choice == "auto") return nullptr;
  if (*choice == "none") {
    is_off = true;
    return nullptr;
  }
  if (tools.is_null()) throw bad_field("tool_choice", "is only for requests with tools");
  if (*choice == "required") return tools;
  if (!choice->is_object()) throw bad_field("tool_choice", "is none of none, auto, required or an object");
  const Fields fields(*choice, "tool_choice");
  if (fields.need_text("type") != "function") throw unsupported_field("tool_choice.type", "only function is supported");
  const Json* function = fields.object("function");
  if (!function) throw bad_field("tool_choice.function", "is missing");
  const std::string name = Fields(*function, "tool_choice.function").need_text("name");
  for (const Json& tool : tools) {
    if (tool_name(tool) == name) return Json::array({tool});
  }
  throw bad_field("tool_choice.function.name", "is none of the tools");
}

Json call_schema(const Json& tools, const ForcedCall& form) {
  return form.arguments_key ? forced_call_schema(tools, form) : arguments_schema(tools[0]);
}

bool is_grammatical(const Json& schema) {
  try {
    engine::JsonSchema::parse(schema);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// One of these calls, with the name in the JSON or in the prefix. The arguments of a tool whose parameters have
// keywords that a grammar does not take are any object, unless it is strict.
engine::GrammarProcessor::Branch call_branch(const Json& tools, const ForcedCall& form, const Backend& backend) {
  engine::GrammarProcessor::Branch branch;
  try {
    branch.constraint = backend.constraints.of(backend.model, call_schema(tools, form), "tools");
  } catch (const ApiError&) {
    Json freed = tools;
    for (Json& tool : freed) {
      if (is_grammatical(call_schema(Json::array({tool}), form))) continue;
      if (tool["function"].contains("strict") && tool["function"]["strict"] == true) throw;
      tool["function"]["parameters"] = {{"type", "object"}};
    }
    branch.constraint = backend.constraints.of(backend.model, call_schema(freed, form), "tools");
  }
  const std::string name = form.arguments_key ? "" : tool_name(tools[0]);
  if (name.find_first_of(" \t\r\n<") != std::string::npos) {
    throw bad_field("tools", "the name '" + name + "' has a character that this model's calls can't have");
  }
  const std::string prefix = form.prefix + name + form.behind_name;
  branch.prefix =
      backend.model.tokenizer().encode(prefix, {.add_special = false, .parse_special = true, .previous = {}});
  return branch;
}

void force_call(const Json& tools, const Backend& backend, GenerationOptions& options) {
  const ForcedCall form = forced_call(backend.model.tool_format());
  if (form.arguments_key) {
    options.branches = {call_branch(tools, form, backend)};
    return;
  }
  std::set<std::string> names;
  for (const Json& tool : tools) {
    if (names.insert(tool_name(tool)).second)
      options.branches.push_back(call_branch(Json::array({tool}), form, backend));
  }
}

void read_tools(const Fields& body, const Backend& backend, ChatInput& input, OpenAiRequest& request) {
  const Json* list = body.list("tools");
  if (list && !list->empty()) {
    check_tools(*list);
    input.tools = *list;
  }
  bool is_off = false;
  const Json forced = tools_of_choice(body, input.tools, is_off);
  if (is_off) input.tools = nullptr;
  request.allows_several_calls = body.flag("parallel_tool_calls").value_or(true);
  request.options.output.finds_calls = !input.tools.is_null();
  if (request.options.output.finds_calls && !request.options.branches.empty()) {
    throw unsupported_field("response_format", "beside tools it is not supported");
  }
  if (!forced.is_null()) force_call(forced, backend, request.options);
}

void refuse_in_chat(const Fields& body) {
  body.refuse("functions", Json::array(), "not supported: use tools");
  body.refuse("function_call", "none", "not supported: use tool_choice");
  body.refuse("modalities", Json::array({"text"}), "only text is supported");
  for (const char* name : {"audio", "web_search_options", "chat_template"}) body.refuse(name, nullptr);
  body.refuse("add_generation_prompt", true);
  body.refuse("continue_final_message", false);
}

Json template_variables(const Fields& body) {
  Json extra;
  if (const Json* variables = body.object("chat_template_kwargs")) extra = *variables;
  if (const auto effort = body.text("reasoning_effort")) extra["reasoning_effort"] = *effort;
  if (extra.is_object()) {
    for (const char* name : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) {
      if (extra.contains(name)) throw bad_field("chat_template_kwargs", std::string("must not set ") + name);
    }
  }
  return extra;
}

}  // namespace

void check_model_name(const Fields& body, const ServedModel& model) {
  const std::string name = body.text("model").value_or("");
  if (model.is_named(name)) return;
  throw ApiError(404, "the model '" + name.substr(0, 200) + "' does not exist: this server has '" + model.name() + "'",
                 "model", "model_not_found");
}

OpenAiRequest read_chat_request(const Json& json, const Backend& backend) {
  const Fields body(json);
  OpenAiRequest request = read_basics(body, backend.model);
  GenerationOptions& options = request.options;
  refuse_in_chat(body);
  if (const auto max_tokens = body.integer("max_completion_tokens", 0, kMaxTokens)) {
    options.max_tokens = static_cast<int>(*max_tokens);
  }
  const auto n_likeliest = body.integer("top_logprobs", 0, kMaxLikeliest);
  if (body.flag("logprobs").value_or(false)) {
    options.n_likeliest = static_cast<int>(n_likeliest.value_or(0));
  } else if (n_likeliest && *n_likeliest > 0) {
    throw bad_field("top_logprobs", "is only for requests with logprobs");
  }
  const Json* messages = body.find("messages");
  if (!messages) throw bad_field("messages", "is missing");
  ChatInput input;
  input.messages = template_messages(*messages, "messages");
  input.extra = template_variables(body);
  options.output.format = backend.model.tool_format();
  options.output.finds_thoughts = backend.model.may_think();
  read_response_format(body, backend, options);
  read_tools(body, backend, input, request);
  request.prompts.push_back(chat_prompt(backend.model, std::move(input)));
  return request;
}

OpenAiRequest read_completion_request(const Json& json, const Backend& backend) {
  const Fields body(json);
  OpenAiRequest request = read_basics(body, backend.model);
  GenerationOptions& options = request.options;
  options.parses_output = false;
  if (!options.max_tokens) options.max_tokens = kDefaultCompletionTokens;
  body.refuse("echo", false);
  body.refuse("suffix", "");
  if (const auto best_of = body.integer("best_of", 1, kMaxN); best_of && *best_of != options.n) {
    throw unsupported_field("best_of", "other than n is not supported");
  }
  if (const Json* logprobs = body.find("logprobs"); logprobs && !logprobs->is_boolean()) {
    options.n_likeliest = static_cast<int>(*body.integer("logprobs", 0, kMaxLikeliest));
  } else if (logprobs && logprobs->get<bool>()) {
    options.n_likeliest = 0;
  }
  read_response_format(body, backend, options);
  request.prompts = read_prompts(body, "prompt", backend.model, static_cast<std::size_t>(kMaxTexts / options.n),
                                 std::to_string(kMaxTexts) + " / n, where n is " + std::to_string(options.n));
  return request;
}

}  // namespace memoir::server
