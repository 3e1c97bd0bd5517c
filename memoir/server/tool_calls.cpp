#include "memoir/server/tool_calls.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "memoir/base/json_text.h"
#include "memoir/server/request_json.h"

namespace memoir::server {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kHermes = "<tool_call>";
constexpr std::string_view kEndHermes = "</tool_call>";
constexpr std::string_view kMistral = "[TOOL_CALLS]";
constexpr std::string_view kMistralArgs = "[ARGS]";
constexpr std::string_view kMistralId = "[CALL_ID]";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::array<std::string_view, 4> kHarmonyEnds = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};
constexpr std::array<std::string_view, 3> kHarmonyOthers = {kChannel, kMessage, "<|constrain|>"};

// A call whose end was looked for in vain so often is text: reading it anew each time must not go on for ever.
constexpr int kMaxAttempts = 8;

constexpr const char* kSpaces = " \t\r\n";

// How much of a text is left without the white space at its end.
std::size_t trimmed_size(std::string_view text) {
  return text.find_last_not_of(kSpaces) + 1;  // npos + 1 is 0
}

std::string_view trimmed(std::string_view text) {
  text = text.substr(0, trimmed_size(text));
  return text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
}

// JSON that a model wrote: nullopt where it is none, or nests too deep to be walked.
std::optional<Json> parse_loose(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if ((c == '{' || c == '[') && ++depth > kMaxJsonDepth) return std::nullopt;
    if (c == '}' || c == ']') --depth;
  }
  Json value = Json::parse(text, nullptr, /* allow_exceptions = */ false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

std::optional<ToolCall> call_of(const Json& value) {
  if (!value.is_object() || !value.contains("name") || !value["name"].is_string()) return std::nullopt;
  for (const char* key : {"arguments", "parameters"}) {
    if (!value.contains(key)) continue;
    const Json& arguments = value[key];
    if (arguments.is_object()) return ToolCall{value["name"], dump(arguments)};
    if (!arguments.is_string()) return std::nullopt;
    const auto parsed = parse_loose(arguments.get_ref<const std::string&>());  // JSON within JSON
    if (!parsed || !parsed->is_object()) return std::nullopt;
    return ToolCall{value["name"], dump(*parsed)};
  }
  return std::nullopt;
}

// One call or a list of them; nullopt if anything is none.
std::optional<std::vector<ToolCall>> calls_of(std::string_view text) {
  const auto value = parse_loose(text);
  if (!value) return std::nullopt;
  std::vector<ToolCall> calls;
  for (const Json& one : value->is_array() ? *value : Json::array({*value})) {
    std::optional<ToolCall> call = call_of(one);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

// Where the JSON value that begins a text ends, by its brackets; nullopt if it does not.
std::optional<std::size_t> end_of_json(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth <= 0) return i + 1;
  }
  return std::nullopt;
}

std::optional<std::vector<ToolCall>> llama_calls(std::string_view text) {
  if (text.starts_with(kPythonTag)) text.remove_prefix(kPythonTag.size());
  std::vector<ToolCall> calls;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    const std::size_t end = end_of_json(text).value_or(text.size());
    const auto found = calls_of(text.substr(0, end));
    if (!found) return std::nullopt;
    calls.insert(calls.end(), found->begin(), found->end());
    text = trimmed(text.substr(end));
    if (text.starts_with(';') || text.starts_with(',')) text.remove_prefix(1);
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

// name[ARGS]{..}, name[CALL_ID]id[ARGS]{..}
std::optional<std::vector<ToolCall>> named_mistral_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  while (!(text = trimmed(text)).empty()) {
    if (text.starts_with(kMistral)) {
      text.remove_prefix(kMistral.size());
      continue;
    }
    const std::size_t args = text.find(kMistralArgs);
    if (args == std::string_view::npos) return std::nullopt;
    const std::string_view name = trimmed(text.substr(0, std::min(args, text.find(kMistralId))));
    text = trimmed(text.substr(args + kMistralArgs.size()));
    const std::size_t end = end_of_json(text).value_or(text.size());
    const auto arguments = parse_loose(text.substr(0, end));
    if (name.empty() || !arguments || !arguments->is_object()) return std::nullopt;
    calls.push_back({std::string(name), dump(*arguments)});
    text.remove_prefix(end);
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

std::optional<std::vector<ToolCall>> mistral_calls(std::string_view text) {
  if (text.starts_with(kMistral)) text.remove_prefix(kMistral.size());
  text = trimmed(text);
  if (!text.starts_with('[')) return named_mistral_calls(text);
  return calls_of(text.substr(0, end_of_json(text).value_or(text.size())));
}

// How many bytes at the end of a text may be the beginning of a marker.
template <typename Markers>
std::size_t held_back(std::string_view text, const Markers& markers) {
  std::size_t longest = 0;
  for (const std::string_view marker : markers) {
    for (std::size_t n = std::min(marker.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(marker.substr(0, n))) longest = n;
    }
  }
  return longest;
}

// The earliest marker: where, and which.
template <typename Markers>
std::pair<std::size_t, std::string_view> earliest(std::string_view text, const Markers& markers) {
  std::pair<std::size_t, std::string_view> found{std::string_view::npos, {}};
  for (const std::string_view marker : markers) {
    const std::size_t at = text.find(marker);
    if (at < found.first) found = {at, marker};
  }
  return found;
}

}  // namespace

ToolFormat tool_format_of(std::string_view source) {
  const auto has = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  if (has(kChannel)) return ToolFormat::kHarmony;
  if (has(kHermes)) return ToolFormat::kHermes;
  if (has(kMistral)) return ToolFormat::kMistral;
  if (has(kPythonTag) || (has("\"parameters\"") && has("ipython"))) return ToolFormat::kLlama3;
  return ToolFormat::kHermes;
}

ForcedCall forced_call(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {"<tool_call>\n", "arguments", false};
    case ToolFormat::kLlama3:
      return {"", "parameters", false};
    case ToolFormat::kMistral:
      return {std::string(kMistral), "arguments", true};
    case ToolFormat::kHarmony:
      break;
  }
  return {std::string(kChannel) + "commentary to=functions.", nullptr, false,
          " <|constrain|>json" + std::string(kMessage)};
}

OutputParser::OutputParser(const Options& options) : options_(options) {
  mode_ = options_.begins_in_thoughts ? Mode::kThoughts : Mode::kText;
  if (options_.format == ToolFormat::kHarmony) mode_ = Mode::kHarmonyHeader;
}

bool OutputParser::wants(std::string_view token) const {
  const auto is_one_of = [&](const auto& markers) {
    return std::find(markers.begin(), markers.end(), token) != markers.end();
  };
  if (options_.format == ToolFormat::kHarmony) return is_one_of(kHarmonyEnds) || is_one_of(kHarmonyOthers);
  if (options_.finds_thoughts && (token == kThink || token == kEndThink)) return true;
  if (!options_.finds_calls) return false;
  constexpr std::array kCallMarkers = {kHermes, kEndHermes, kMistral, kMistralArgs, kMistralId, kPythonTag};
  return is_one_of(kCallMarkers);
}

std::vector<OutputPiece> OutputParser::push(std::string_view text) {
  buffer_ += text;
  run(false);
  return std::exchange(pieces_, {});
}

std::vector<OutputPiece> OutputParser::finish() {
  run(true);
  return std::exchange(pieces_, {});
}

void OutputParser::run(bool is_end) {
  bool goes_on = true;
  while (goes_on) {
    switch (mode_) {
      case Mode::kText:
        goes_on = run_text(is_end);
        break;
      case Mode::kThoughts:
        goes_on = run_thoughts(is_end);
        break;
      case Mode::kHermesCall:
        goes_on = run_hermes_call(is_end);
        break;
      case Mode::kRest:
        if (is_end) finish_rest();
        goes_on = false;
        break;
      case Mode::kHarmonyHeader:
        goes_on = run_harmony_header(is_end);
        break;
      case Mode::kHarmonyBody:
        goes_on = run_harmony_body(is_end);
        break;
    }
  }
}

std::string_view OutputParser::call_marker() const {
  if (!options_.finds_calls) return {};
  switch (options_.format) {
    case ToolFormat::kHermes:
      return kHermes;
    case ToolFormat::kMistral:
      return kMistral;
    case ToolFormat::kLlama3:
      return kPythonTag;
    case ToolFormat::kHarmony:
      break;
  }
  return {};
}

// At the beginning of an answer: whether more must come before it is known what it begins with.
bool OutputParser::begin_text(bool is_end) {
  const std::string_view rest =
      std::string_view(buffer_).substr(std::min(buffer_.find_first_not_of(kSpaces), buffer_.size()));
  const bool may_be_call = options_.finds_calls && options_.format == ToolFormat::kLlama3;
  if (!options_.finds_thoughts && !may_be_call) {
    has_begun_ = true;
    return false;
  }
  if (options_.finds_thoughts && rest.starts_with(kThink)) {
    buffer_ = std::string(rest.substr(kThink.size()));
    has_begun_ = true;
    mode_ = Mode::kThoughts;
    return false;
  }
  if (!is_end && (rest.empty() || (options_.finds_thoughts && kThink.starts_with(rest)))) return true;
  if (may_be_call && (rest.starts_with('{') || rest.starts_with('['))) mode_ = Mode::kRest;
  has_begun_ = true;
  return false;
}

// White space before a call or a thought, and behind one, belongs to nobody.
bool OutputParser::run_text(bool is_end) {
  if (skips_space_) {
    buffer_.erase(0, buffer_.find_first_not_of(kSpaces));  // npos: all of it
    if (buffer_.empty()) return false;
    skips_space_ = false;
  }
  if (!has_begun_) {
    if (begin_text(is_end)) return false;
    if (mode_ != Mode::kText) return true;
  }
  const std::string_view marker = call_marker();
  const std::size_t at = marker.empty() ? std::string::npos : buffer_.find(marker);
  const bool is_found = at != std::string::npos;
  std::size_t n_ready = is_found ? at : buffer_.size();
  if (!is_found && !is_end && !marker.empty()) n_ready -= held_back(buffer_, std::array{marker});
  std::size_t n_text = n_ready;
  if (is_found || (!is_end && !marker.empty())) n_text = trimmed_size(std::string_view(buffer_).substr(0, n_ready));
  emit_text(buffer_.substr(0, n_text));
  buffer_.erase(0, n_text);
  if (!is_found) return false;
  space_ = buffer_.substr(0, at - n_text);
  buffer_.erase(0, at - n_text);  // the marker stays: what turns out to be no call is given back with it
  mode_ = options_.format == ToolFormat::kHermes ? Mode::kHermesCall : Mode::kRest;
  searched_ = 0;
  n_attempts_ = 0;
  return true;
}

bool OutputParser::run_thoughts(bool is_end) {
  constexpr std::array kEnd = {kEndThink};
  has_begun_ = true;
  const auto [at, marker] = earliest(buffer_, kEnd);
  if (at == std::string::npos) {
    const std::size_t n_kept = is_end ? 0 : held_back(buffer_, kEnd);
    emit_thoughts(buffer_.substr(0, buffer_.size() - n_kept));
    buffer_.erase(0, buffer_.size() - n_kept);
    return false;
  }
  emit_thoughts(buffer_.substr(0, at));
  buffer_.erase(0, at + marker.size());
  skips_space_ = true;
  mode_ = Mode::kText;
  return true;
}

bool OutputParser::run_hermes_call(bool is_end) {
  const std::size_t from = std::max(searched_, kHermes.size());
  const std::size_t at = buffer_.find(kEndHermes, from);
  if (at == std::string::npos) {
    searched_ = std::max(from, buffer_.size() - std::min(buffer_.size(), kEndHermes.size() - 1));
    if (!is_end) return false;
  }
  const std::size_t end = std::min(at, buffer_.size());
  if (const auto calls = calls_of(trimmed(std::string_view(buffer_).substr(kHermes.size(), end - kHermes.size())))) {
    pieces_.insert(pieces_.end(), calls->begin(), calls->end());
    buffer_.erase(0, at == std::string::npos ? buffer_.size() : at + kEndHermes.size());
    skips_space_ = true;
    mode_ = Mode::kText;
    return true;
  }
  if (at != std::string::npos && ++n_attempts_ < kMaxAttempts) {
    searched_ = at + kEndHermes.size();  // perhaps the tag stands inside a string
    return true;
  }
  emit_text(space_ + std::exchange(buffer_, {}));
  mode_ = Mode::kText;
  return !is_end;
}

void OutputParser::finish_rest() {
  const auto calls = options_.format == ToolFormat::kMistral ? mistral_calls(buffer_) : llama_calls(trimmed(buffer_));
  if (calls) {
    pieces_.insert(pieces_.end(), calls->begin(), calls->end());
    buffer_.clear();
    return;
  }
  emit_text(space_ + std::exchange(buffer_, {}));
}

// What stands between two messages: "<|start|>assistant<|channel|>commentary to=functions.f
// <|constrain|>json<|message|>".
bool OutputParser::run_harmony_header(bool is_end) {
  const std::size_t at = buffer_.find(kMessage);
  if (at == std::string::npos) {
    const bool has_marker = buffer_.find("<|") != std::string::npos;
    if (is_end && !has_marker) emit_text(std::exchange(buffer_, {}));  // a model that does not keep to the format
    return false;
  }
  begin_harmony_message(std::string_view(buffer_).substr(0, at));
  buffer_.erase(0, at + kMessage.size());
  mode_ = Mode::kHarmonyBody;
  return true;
}

void OutputParser::begin_harmony_message(std::string_view header) {
  const auto word_after = [&](std::string_view marker) {
    const std::size_t begin = header.find(marker);
    if (begin == std::string_view::npos) return std::string();
    const std::string_view rest = header.substr(begin + marker.size());
    return std::string(rest.substr(0, std::min(rest.find_first_of(" <\n"), rest.size())));
  };
  channel_ = word_after(kChannel);
  recipient_ = word_after("to=");
  if (recipient_.starts_with("functions.")) recipient_.erase(0, std::string_view("functions.").size());
}

bool OutputParser::run_harmony_body(bool is_end) {
  const auto [at, marker] = earliest(buffer_, kHarmonyEnds);
  const bool has_end = at != std::string::npos;
  if (!has_end && !is_end && !recipient_.empty()) return false;  // a call's arguments: all at once
  const std::size_t n_ready = has_end ? at : buffer_.size() - (is_end ? 0 : held_back(buffer_, kHarmonyEnds));
  std::string text = buffer_.substr(0, n_ready);
  buffer_.erase(0, has_end ? at + marker.size() : n_ready);
  if (!recipient_.empty()) {
    const auto arguments = parse_loose(text);
    if (arguments && arguments->is_object()) {
      pieces_.emplace_back(ToolCall{recipient_, dump(*arguments)});
    } else {
      emit_text(std::move(text));
    }
  } else {
    channel_ == "analysis" ? emit_thoughts(std::move(text)) : emit_text(std::move(text));
  }
  if (has_end) mode_ = Mode::kHarmonyHeader;
  return has_end;
}

void OutputParser::emit_text(std::string text) {
  if (text.empty()) return;
  pieces_.emplace_back(ContentPiece{std::move(text)});
}

void OutputParser::emit_thoughts(std::string text) {
  if (!text.empty()) pieces_.emplace_back(ReasoningPiece{std::move(text)});
}

}  // namespace memoir::server
