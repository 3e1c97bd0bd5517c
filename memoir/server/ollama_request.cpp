#include "memoir/server/ollama_request.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace memoir::server {
namespace {

constexpr int kMaxTokens = 1 << 30;
constexpr std::size_t kMaxStops = 16;
constexpr int kMaxLikeliest = 20;

// Beyond, a model stays for ever.
constexpr double kForeverSeconds = 1e9;

// Numbers with units, as Go writes durations: "5m", "1h30m", "-1s", "1.5h". NaN for anything else.
double duration_s(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kUnits = {{{"ns", 1e-9},
                                                                          {"us", 1e-6},
                                                                          {"\xC2\xB5s", 1e-6},
                                                                          {"\xCE\xBCs", 1e-6},
                                                                          {"ms", 1e-3},
                                                                          {"s", 1},
                                                                          {"m", 60},
                                                                          {"h", 3600}}};
  const double sign = text.starts_with('-') ? -1 : 1;
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (text == "0") return 0;
  double sum = text.empty() || text.size() > 64 ? std::nan("") : 0;
  while (!text.empty() && !std::isnan(sum)) {
    double number = 0;
    double place = 0;  // of the next digit behind the point
    std::size_t n_digits = 0;
    for (; !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.');
         text.remove_prefix(1)) {
      if (text[0] == '.') {
        if (place != 0) return std::nan("");
        place = 0.1;
        continue;
      }
      ++n_digits;
      number = place == 0 ? number * 10 + (text[0] - '0') : number + place * (text[0] - '0');
      place *= 0.1;
    }
    if (n_digits == 0) return std::nan("");
    const auto unit =
        std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& one) { return text.starts_with(one.first); });
    if (unit == kUnits.end()) return std::nan("");
    text.remove_prefix(unit->first.size());
    sum += number * unit->second;
  }
  return sign * sum;
}

void read_sampling(const Fields& options, GenerationOptions& made) {
  engine::SamplerOptions& sampler = made.sampler;  // the defaults that Ollama documents
  sampler.temperature = options.number("temperature", 0, 100).value_or(0.8);
  sampler.top_k = static_cast<int>(options.integer("top_k", 0, kMaxVocab).value_or(40));
  sampler.top_p = options.number("top_p", 0, 1).value_or(0.9);
  if (sampler.top_p == 0) {
    sampler.top_p = 1;
    sampler.top_k = 1;
  }
  sampler.min_p = options.number("min_p", 0, 1).value_or(0);
  sampler.repetition_penalty = options.number("repeat_penalty", 0.01, 100).value_or(1.1);
  sampler.presence_penalty = options.number("presence_penalty", -100, 100).value_or(0);
  sampler.frequency_penalty = options.number("frequency_penalty", -100, 100).value_or(0);
  sampler.penalty_window = static_cast<int>(options.integer("repeat_last_n", -1, 1 << 30).value_or(64));
  if (const auto seed =
          options.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) {
    sampler.seed = static_cast<std::uint64_t>(*seed);
  }
  options.refuse("mirostat", 0);
  options.refuse("tfs_z", 1);
  options.refuse("typical_p", 1);
}

void read_format(const Fields& body, const Backend& backend, GenerationOptions& options) {
  const Json* format = body.find("format");
  if (!format || *format == "") return;
  if (*format == "json") {
    options.branches = {{backend.constraints.of(backend.model, nullptr, "format")}};
  } else if (format->is_object()) {
    options.branches = {{backend.constraints.of(backend.model, *format, "format")}};
  } else {
    throw bad_field("format", "is neither \"json\" nor a schema");
  }
}

OllamaRequest read_basics(const Fields& body, const Backend& backend) {
  static const Json kNoOptions = Json::object();
  OllamaRequest request;
  request.model = ollama_model_name(body, backend.model);
  request.is_stream = body.flag("stream").value_or(true);
  const Json* object = body.object("options");
  const Fields options(object ? *object : kNoOptions, "options");
  GenerationOptions& made = request.options;
  read_sampling(options, made);
  if (const auto n = options.integer("num_predict", -2, kMaxTokens); n && *n >= 0)
    made.max_tokens = static_cast<int>(*n);
  made.stops = options.texts("stop", kMaxStops);
  for (const std::string& stop : made.stops) {
    if (stop.empty()) throw bad_field("options.stop", "has an empty text");
  }
  read_format(body, backend, made);
  const auto n_likeliest = body.integer("top_logprobs", 0, kMaxLikeliest);
  if (body.flag("logprobs").value_or(false)) made.n_likeliest = static_cast<int>(n_likeliest.value_or(0));
  made.output.format = backend.model.tool_format();
  made.output.finds_thoughts = backend.model.may_think();
  return request;
}

// "think": true, false, or how much.
Json think_variables(const Fields& body, const Backend& backend, OllamaRequest& request) {
  const Json* think = body.find("think");
  if (!think) return nullptr;
  const bool can_think = backend.model.may_think() || backend.model.tool_format() == ToolFormat::kHarmony;
  if (*think == false) {
    request.hides_thoughts = true;
    return {{"enable_thinking", false}};
  }
  if (*think != true && !think->is_string()) throw bad_field("think", "is neither a boolean nor a text");
  if (!can_think) throw unsupported_field("think", "the model does not think");
  Json extra = {{"enable_thinking", true}};
  if (think->is_string()) extra["reasoning_effort"] = *think;
  return extra;
}

bool is_zero_time(const std::optional<KeepAlive>& keep_alive) {
  return keep_alive && keep_alive->time && keep_alive->time->count() == 0;
}

void need_work(const Fields& body, bool is_zero) {
  if (is_zero)
    throw unsupported_field(body.name_of("keep_alive"), "the model can't be unloaded: the server serves it alone");
}

void refuse_media(const Fields& body) {
  body.refuse("images", Json::array(), "only text is supported");
}

}  // namespace

std::optional<KeepAlive> read_keep_alive(const Fields& body) {
  const Json* value = body.find("keep_alive");
  if (!value) return std::nullopt;
  const double seconds = value->is_number()   ? value->get<double>()
                         : value->is_string() ? duration_s(value->get_ref<const std::string&>())
                                              : std::nan("");
  if (std::isnan(seconds)) throw bad_field("keep_alive", "is neither a number of seconds nor a duration like \"5m\"");
  if (seconds < 0 || seconds > kForeverSeconds) return KeepAlive{};
  return KeepAlive{std::chrono::milliseconds(std::llround(seconds * 1000))};
}

std::string requested_model(const Fields& body) {
  std::optional<std::string> name = body.text("model");
  if (!name) name = body.text("name");
  if (!name || name->empty()) throw bad_field("model", "is missing");
  return *name;
}

std::string ollama_model_name(const Fields& body, const ServedModel& model) {
  const std::string name = requested_model(body);
  if (model.is_named(name)) return name;
  throw ApiError(404, "model '" + name.substr(0, 200) + "' not found", "model", "model_not_found");
}

OllamaRequest read_ollama_generate(const Json& json, const Backend& backend) {
  const Fields body(json);
  OllamaRequest request = read_basics(body, backend);
  refuse_media(body);
  body.refuse("suffix", "");
  body.refuse("template", "");
  body.refuse("context", Json::array(), "not supported: use /api/chat");
  const bool is_zero = is_zero_time(read_keep_alive(body));
  const std::string prompt = body.text("prompt").value_or("");
  const std::string system = body.text("system").value_or("");
  const bool is_raw = body.flag("raw").value_or(false) || !backend.model.chat_template();
  if (!system.empty() && body.flag("raw").value_or(false)) throw bad_field("system", "is not used with raw");
  Json variables = think_variables(body, backend, request);
  if (prompt.empty()) {
    need_work(body, is_zero);
    return request;
  }
  if (is_raw) {
    request.options.parses_output = false;
    request.prompt = text_prompt(backend.model, prompt);
    return request;
  }
  ChatInput input;
  if (!system.empty()) input.messages.push_back({{"role", "system"}, {"content", system}});
  input.messages.push_back({{"role", "user"}, {"content", prompt}});
  input.extra = std::move(variables);
  request.prompt = chat_prompt(backend.model, std::move(input));
  return request;
}

OllamaRequest read_ollama_chat(const Json& json, const Backend& backend) {
  const Fields body(json);
  OllamaRequest request = read_basics(body, backend);
  const bool is_zero = is_zero_time(read_keep_alive(body));
  ChatInput input;
  if (const Json* tools = body.list("tools"); tools && !tools->empty()) {
    check_tools(*tools);
    if (!request.options.branches.empty()) throw unsupported_field("format", "beside tools it is not supported");
    input.tools = *tools;
    request.options.output.finds_calls = true;
  }
  input.extra = think_variables(body, backend, request);
  const Json* messages = body.list("messages");
  if (!messages || messages->empty()) {
    need_work(body, is_zero);
    return request;
  }
  input.messages = template_messages(*messages, "messages");
  request.prompt = chat_prompt(backend.model, std::move(input));
  return request;
}

}  // namespace memoir::server
