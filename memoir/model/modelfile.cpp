#include "memoir/model/modelfile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/text/chat_template.h"
#include "memoir/text/utf8.h"

namespace memoir::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kTriple = "\"\"\"";
constexpr int kMostTokens = 1 << 30;

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string with_case(std::string text, int (*change)(int)) {
  for (char& c : text) c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return text;
}

int upper(int c) {
  return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
}

int lower(int c) {
  return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

// Reads words and values one after the other, and counts lines.
class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  // To the next command. False at the end.
  bool next_line() {
    while (pos_ < text_.size()) {
      if (text_[pos_] == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (text_[pos_] == '\n' || is_blank(text_[pos_])) {
        line_ += text_[pos_] == '\n' ? 1 : 0;
        ++pos_;
      } else {
        begin_line_ = line_;
        return true;
      }
    }
    return false;
  }

  // Up to a blank or the line's end, and what is blank behind it.
  std::string word() {
    const std::size_t end = std::min(text_.find_first_of(" \t\r\n", pos_), text_.size());
    std::string word(text_.substr(pos_, end - pos_));
    pos_ = end;
    skip_blanks();
    return word;
  }

  std::string value() {
    if (text_.substr(pos_).starts_with(kTriple)) return quoted(kTriple);
    if (text_.substr(pos_).starts_with('"')) return quoted("\"");
    std::string value(trimmed(rest_of_line()));
    if (value.empty()) fail("has no value");
    return value;
  }

  // About the command that next_line() came to.
  [[noreturn]] void fail(const std::string& reason) const {
    throw FormatError(path_, "line " + std::to_string(begin_line_), command + " " + reason);
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw UnsupportedError(path_, "line " + std::to_string(begin_line_), command + " " + reason);
  }

  int line() const { return begin_line_; }
  const std::string& path() const { return path_; }

  std::string command;  // for messages

 private:
  void skip_blanks() {
    while (pos_ < text_.size() && is_blank(text_[pos_])) ++pos_;
  }

  std::string_view rest_of_line() {
    const std::size_t end = std::min(text_.find('\n', pos_), text_.size());
    const std::string_view rest = text_.substr(pos_, end - pos_);
    pos_ = end;
    return rest;
  }

  std::string quoted(std::string_view mark) {
    pos_ += mark.size();
    const std::size_t end = text_.find(mark, pos_);
    if (end == std::string_view::npos) fail("has a quotation without end");
    std::string value(text_.substr(pos_, end - pos_));
    line_ += static_cast<int>(std::ranges::count(value, '\n'));
    pos_ = end + mark.size();
    if (!trimmed(rest_of_line()).empty()) fail("goes on behind its quotation");
    return value;
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t pos_ = 0;
  int line_ = 1;
  int begin_line_ = 1;
};

// ---- parameters

template <typename T>
T number(const Reader& reader, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) reader.fail("'" + text + "' is not such a number");
  return value;
}

double real(const Reader& reader, const std::string& text, double low, double high) {
  const auto value = number<double>(reader, text);
  if (!(value >= low && value <= high)) reader.fail("'" + text + "' is out of its range");
  return value;
}

int whole(const Reader& reader, const std::string& text, int low, int high) {
  const auto value = number<std::int64_t>(reader, text);
  if (value < low || value > high) reader.fail("'" + text + "' is out of its range");
  return static_cast<int>(value);
}

// A penalty, or a share of which 0 is none.
double above_zero(const Reader& reader, const std::string& text, double high) {
  const double value = real(reader, text, 0, high);
  if (value == 0) reader.fail("'" + text + "' is out of its range");
  return value;
}

using SetParameter = void (*)(ModelfileParameters&, const Reader&, const std::string&);

struct ParameterName {
  std::string_view name;
  SetParameter set;
};

constexpr std::array kParameters = {
    ParameterName{"temperature",
                  [](ModelfileParameters& p, const Reader& r, const std::string& t) { p.temperature = real(r, t, 0, 1e6); }},
    ParameterName{"top_p",
                  [](ModelfileParameters& p, const Reader& r, const std::string& t) { p.top_p = above_zero(r, t, 1); }},
    ParameterName{"min_p",
                  [](ModelfileParameters& p, const Reader& r, const std::string& t) { p.min_p = real(r, t, 0, 1); }},
    ParameterName{"top_k", [](ModelfileParameters& p, const Reader& r,
                              const std::string& t) { p.top_k = whole(r, t, 0, kMostTokens); }},
    ParameterName{"repeat_penalty", [](ModelfileParameters& p, const Reader& r,
                                       const std::string& t) { p.repeat_penalty = above_zero(r, t, 1e6); }},
    ParameterName{"presence_penalty", [](ModelfileParameters& p, const Reader& r,
                                         const std::string& t) { p.presence_penalty = real(r, t, -1e6, 1e6); }},
    ParameterName{"frequency_penalty", [](ModelfileParameters& p, const Reader& r,
                                          const std::string& t) { p.frequency_penalty = real(r, t, -1e6, 1e6); }},
    ParameterName{"repeat_last_n", [](ModelfileParameters& p, const Reader& r,
                                      const std::string& t) { p.repeat_last_n = whole(r, t, -1, kMostTokens); }},
    ParameterName{"seed", [](ModelfileParameters& p, const Reader& r,
                             const std::string& t) { p.seed = number<std::uint64_t>(r, t); }},
    ParameterName{"num_predict", [](ModelfileParameters& p, const Reader& r,
                                    const std::string& t) { p.num_predict = whole(r, t, -2, kMostTokens); }},
    ParameterName{"num_thread",
                  [](ModelfileParameters& p, const Reader& r, const std::string& t) { p.num_thread = whole(r, t, 1, 256); }},
    ParameterName{"draft_num_predict", [](ModelfileParameters& p, const Reader& r,
                                          const std::string& t) { p.draft_num_predict = whole(r, t, 0, 15); }},
    ParameterName{"stop", [](ModelfileParameters& p, const Reader& r,
                             const std::string& t) {
                    if (t.empty()) r.fail("is an empty text");
                    p.stop.push_back(t);
                  }},
};

// Of Ollama's runner, about memory and devices: what memoir sees to itself.
constexpr std::array<std::string_view, 12> kWithoutEffect = {"num_ctx",  "num_batch",  "num_gpu",  "main_gpu",
                                                             "num_keep", "low_vram",   "use_mmap", "use_mlock",
                                                             "f16_kv",   "logits_all", "numa",     "penalize_newline"};

// Samplers that memoir doesn't have, with the value that means none.
struct Absent {
  std::string_view name;
  double none;
};
constexpr std::array kAbsent = {Absent{"mirostat", 0}, Absent{"tfs_z", 1}, Absent{"typical_p", 1}};

bool sets_parameter(const Reader& reader, const std::string& name, const std::string& value,
                    ModelfileParameters& parameters) {
  const auto found = std::ranges::find(kParameters, name, &ParameterName::name);
  if (found == kParameters.end()) return false;
  found->set(parameters, reader, value);
  return true;
}

void check_is_none(const Reader& reader, const Absent& sampler, const std::string& value) {
  if (number<double>(reader, value) != sampler.none)
    reader.refuse("is a way to choose tokens that memoir doesn't have");
}

// ---- templates

// What Go's templates have in their braces, and Jinja's have not.
bool is_in_go(std::string_view source) {
  constexpr std::array<std::string_view, 12> kGo = {".",     "$",         "if ",     "else",   "end",     "range ",
                                                    "with ", "template ", "define ", "block ", "printf ", "/*"};
  for (std::size_t at = source.find("{{"); at != std::string_view::npos; at = source.find("{{", at + 2)) {
    std::string_view inside = source.substr(at + 2);
    if (inside.starts_with('-')) inside.remove_prefix(1);
    inside = inside.substr(std::min(inside.find_first_not_of(" \t\r\n"), inside.size()));
    if (std::ranges::any_of(kGo, [&](std::string_view begin) { return inside.starts_with(begin); })) return true;
  }
  return false;
}

void check_template(const Reader& reader, const std::string& source) {
  if (is_in_go(source)) {
    reader.refuse("is in the language of Go's templates, memoir's are Jinja: without it the model's own is used");
  }
  text::ChatTemplate parsed(source, reader.path() + ": TEMPLATE in line " + std::to_string(reader.line()));
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& path) : reader_(text, path) {}

  Modelfile parse() {
    while (reader_.next_line()) take_command();
    if (result_.from.empty())
      throw FormatError(reader_.path(), "", "has no FROM, which says what the model is made of");
    if (result_.chat_template) check_renders();
    return std::move(result_);
  }

  // 0 for one that isn't there.
  int line_of(const std::string& command) const {
    const auto found = lines_.find(command);
    return found == lines_.end() ? 0 : found->second;
  }

 private:
  void take_command() {
    const std::string word = reader_.word();
    reader_.command = with_case(word, upper);
    if (reader_.command == "PARAMETER") return take_parameter();
    if (reader_.command == "MESSAGE") return take_message();
    if (reader_.command == "LICENSE") {
      result_.licenses.push_back(reader_.value());
    } else if (reader_.command == "ADAPTER") {
      reader_.refuse("is not supported: merge the adapter into the weights, and name those with FROM");
    } else {
      take_single();
    }
  }

  void take_single() {
    const std::string& command = reader_.command;
    const bool is_known = command == "FROM" || command == "DRAFT" || command == "TEMPLATE" || command == "SYSTEM";
    if (!is_known) {
      reader_.fail("is no command: there are FROM, DRAFT, PARAMETER, TEMPLATE, SYSTEM, MESSAGE and LICENSE");
    }
    check_is_first(command);
    std::string value = reader_.value();
    if (command == "SYSTEM") {
      result_.system = std::move(value);
      return;
    }
    if (value.empty()) reader_.fail("has no value");
    if (command == "FROM")
      result_.from = std::move(value);
    else if (command == "DRAFT")
      result_.draft = std::move(value);
    else {
      check_template(reader_, value);
      result_.chat_template = std::move(value);
    }
  }

  void take_parameter() {
    const std::string name = with_case(reader_.word(), lower);
    reader_.command += " " + name;
    if (name != "stop") check_is_first(reader_.command);
    const std::string value = reader_.value();
    if (sets_parameter(reader_, name, value, result_.parameters)) return;
    if (std::ranges::find(kWithoutEffect, name) != kWithoutEffect.end()) {
      result_.notes.push_back("line " + std::to_string(reader_.line()) + ": " + reader_.command + " has no effect");
      return;
    }
    const auto absent = std::ranges::find(kAbsent, name, &Absent::name);
    if (absent == kAbsent.end()) reader_.fail("is no parameter that memoir knows");
    check_is_none(reader_, *absent, value);
  }

  void take_message() {
    const std::string role = with_case(reader_.word(), lower);
    if (role != "user" && role != "assistant" && role != "system") {
      reader_.fail("is of '" + role + "', expected user, assistant or system");
    }
    result_.messages.push_back({role, reader_.value()});
  }

  // A conversation may begin with what goes before every other, which stands behind the template.
  void check_renders() const {
    const text::ChatTemplate chat_template(*result_.chat_template, "the template");
    Json before = Json::array();
    if (result_.system) before.push_back({{"role", "system"}, {"content", *result_.system}});
    for (const auto& [role, content] : result_.messages) before.push_back({{"role", role}, {"content", content}});
    std::string reason = "nothing comes of it";
    for (const Json& messages : {Json::array(), before}) {
      try {
        if (!rendered(chat_template, messages).empty()) return;
      } catch (const InputError& error) {
        reason = error.what();
      }
    }
    throw FormatError(reader_.path(), "line " + std::to_string(lines_.at("TEMPLATE")),
                      "TEMPLATE fails for a user's message: " + reason);
  }

  static std::string rendered(const text::ChatTemplate& chat_template, Json messages) {
    text::ChatTemplate::Inputs inputs;
    messages.push_back({{"role", "user"}, {"content", "Hello"}});
    inputs.messages = std::move(messages);
    inputs.bos_token = "<s>";
    inputs.eos_token = "</s>";
    return chat_template.render(inputs);
  }

  void check_is_first(const std::string& what) {
    const auto [first, is_first] = lines_.emplace(what, reader_.line());
    if (!is_first) reader_.fail("is there already, in line " + std::to_string(first->second));
  }

  Reader reader_;
  Modelfile result_;
  std::map<std::string, int> lines_;  // of commands that may come once
};

// ---- writing

std::string quoted(const std::string& value) {
  const bool is_plain =
      !value.empty() && value.find('\n') == std::string::npos && value.front() != '"' && trimmed(value) == value;
  if (is_plain) return value;
  // What stands between single marks has none inside, and what stands between triple ones ends with none.
  return value.find('"') == std::string::npos ? "\"" + value + "\""
                                              : std::string(kTriple) + value + std::string(kTriple);
}

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end};
}

std::string parameters_text(const ModelfileParameters& p) {
  std::string text;
  const auto add = [&](const char* name, const auto& value) {
    if (!value) return;
    using Value = std::decay_t<decltype(*value)>;
    text += std::string("PARAMETER ") + name + " ";
    if constexpr (std::is_same_v<Value, double>)
      text += number_text(*value) + "\n";
    else
      text += std::to_string(*value) + "\n";
  };
  add("temperature", p.temperature);
  add("top_p", p.top_p);
  add("min_p", p.min_p);
  add("top_k", p.top_k);
  add("repeat_penalty", p.repeat_penalty);
  add("presence_penalty", p.presence_penalty);
  add("frequency_penalty", p.frequency_penalty);
  add("repeat_last_n", p.repeat_last_n);
  add("seed", p.seed);
  add("num_predict", p.num_predict);
  add("num_thread", p.num_thread);
  add("draft_num_predict", p.draft_num_predict);
  for (const std::string& stop : p.stop) text += "PARAMETER stop " + quoted(stop) + "\n";
  return text;
}

}  // namespace

Modelfile parse_modelfile(std::string_view text, const std::string& path, ModelfileLines* lines) {
  if (!text::utf8::valid(text)) throw FormatError(path, "", "is not UTF-8");
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  Parser parser(text, path);
  Modelfile parsed = parser.parse();
  if (lines) *lines = {parser.line_of("FROM"), parser.line_of("DRAFT")};
  return parsed;
}

std::string modelfile_text(const Modelfile& modelfile) {
  std::string text = "FROM " + quoted(modelfile.from) + "\n";
  if (modelfile.draft) text += "DRAFT " + quoted(*modelfile.draft) + "\n";
  text += parameters_text(modelfile.parameters);
  if (modelfile.chat_template) text += "TEMPLATE " + quoted(*modelfile.chat_template) + "\n";
  if (modelfile.system) text += "SYSTEM " + quoted(*modelfile.system) + "\n";
  for (const ModelfileMessage& message : modelfile.messages) {
    text += "MESSAGE " + message.role + " " + quoted(message.content) + "\n";
  }
  for (const std::string& license : modelfile.licenses) text += "LICENSE " + quoted(license) + "\n";
  return text;
}

}  // namespace memoir::model
