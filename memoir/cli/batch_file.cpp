#include "memoir/cli/batch_file.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/cli/messages_file.h"
#include "memoir/cli/prompt_tokens.h"

namespace memoir::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxLineBytes = std::size_t{256} << 20;

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

// The keys of one line; each is taken once, what is left over is told.
class Keys {
 public:
  Keys(Json object, std::string place) : object_(std::move(object)), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw FormatError(place_, key, what);
  }

  /// The value, and the key is gone; nullopt if it is absent or null.
  std::optional<Json> take(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) return std::nullopt;
    Json value = std::move(*found);
    object_.erase(found);
    return value.is_null() ? std::nullopt : std::optional(std::move(value));
  }

  template <typename T>
  void whole(const char* key, T& value, std::int64_t low, std::uint64_t high) {
    const auto given = take(key);
    if (!given) return;
    const bool is_small = given->is_number_integer() && !given->is_number_unsigned();
    const bool fits = is_small ? given->get<std::int64_t>() >= low
                               : given->is_number_unsigned() && given->get<std::uint64_t>() <= high &&
                                     (low <= 0 || given->get<std::uint64_t>() >= static_cast<std::uint64_t>(low));
    if (!fits) fail(key, "is no whole number from " + std::to_string(low) + " to " + std::to_string(high));
    value = given->get<T>();
  }

  void real(const char* key, double& value) {
    const auto given = take(key);
    if (!given) return;
    if (!given->is_number()) fail(key, "is no number");
    value = given->get<double>();
  }

  Json& object() { return object_; }
  const std::string& place() const { return place_; }

 private:
  Json object_;
  std::string place_;
};

std::vector<std::string> read_stops(Keys& keys, std::vector<std::string> otherwise, bool has_texts) {
  const auto given = keys.take("stop");
  if (!given) return otherwise;
  if (!has_texts) keys.fail("stop", "is there, and the model has no tokenizer, so no texts");
  std::vector<std::string> stops;
  for (const Json& one : given->is_array() ? *given : Json::array({*given})) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      keys.fail("stop", "is neither a text nor a list of texts, none of them empty");
    }
    stops.push_back(one.get<std::string>());
  }
  return stops;
}

void read_sampling(Keys& keys, engine::Request& request, bool has_texts) {
  constexpr std::uint64_t kMaxInt = std::numeric_limits<int>::max();
  if (keys.object().contains("n") && keys.object().contains("max_tokens")) {
    keys.fail("max_tokens", "is there beside n, which means the same");
  }
  keys.whole("n", request.max_tokens, 0, kMaxInt);
  keys.whole("max_tokens", request.max_tokens, 0, kMaxInt);
  engine::SamplerOptions& sampler = request.sampler;
  keys.real("temperature", sampler.temperature);
  keys.real("top_p", sampler.top_p);
  keys.real("min_p", sampler.min_p);
  keys.whole("top_k", sampler.top_k, 0, kMaxInt);
  keys.real("repeat_penalty", sampler.repetition_penalty);
  keys.real("presence_penalty", sampler.presence_penalty);
  keys.real("frequency_penalty", sampler.frequency_penalty);
  keys.whole("repeat_last_n", sampler.penalty_window, -1, kMaxInt);
  std::uint64_t seed = 0;
  if (keys.object().contains("seed") && !keys.object()["seed"].is_null()) {
    keys.whole("seed", seed, 0, std::numeric_limits<std::uint64_t>::max());
    sampler.seed = seed;
  }
  request.stop_strings = read_stops(keys, std::move(request.stop_strings), has_texts);
}

std::vector<TokenId> read_ids(const Json& value, const Keys& keys) {
  if (!value.is_array()) keys.fail("tokens", "is no list of token ids");
  std::vector<TokenId> tokens;
  for (const Json& one : value) {
    const bool is_id = one.is_number_unsigned() && one.get<std::uint64_t>() <= std::numeric_limits<TokenId>::max();
    if (!is_id) keys.fail("tokens", "is no list of token ids");
    tokens.push_back(one.get<TokenId>());
  }
  return tokens;
}

const text::Tokenizer& need_tokenizer(const BatchDefaults& defaults) {
  if (defaults.tokenizer) return *defaults.tokenizer;
  throw UnsupportedError(defaults.model, "tokenizer.json", "there is none, so prompts must be given as \"tokens\"");
}

std::vector<TokenId> read_prompt(Keys& keys, const BatchDefaults& defaults) {
  bool is_raw = defaults.is_raw;
  const auto raw = keys.take("raw");
  if (raw) {
    if (!raw->is_boolean()) keys.fail("raw", "is neither true nor false");
    is_raw = raw->get<bool>();
  }
  const Json& object = keys.object();
  if (raw && !object.contains("prompt")) keys.fail("raw", "is only for \"prompt\"");
  const int n_prompts =
      static_cast<int>(object.contains("prompt") + object.contains("messages") + object.contains("tokens"));
  if (n_prompts != 1) keys.fail("prompt", "expected exactly one of prompt, messages and tokens");
  if (object.contains("messages")) {
    const text::Tokenizer& tokenizer = need_tokenizer(defaults);
    text::ChatTemplate::Inputs inputs =
        read_messages(std::exchange(keys.object(), Json::object()), keys.place(), tokenizer);
    inputs.messages = with_preface(defaults.preface, inputs.messages);
    return chat_tokens(tokenizer, inputs, defaults.model);
  }
  if (const auto text = keys.take("prompt")) {
    if (!text->is_string()) keys.fail("prompt", "is no text");
    return text_tokens(need_tokenizer(defaults), text->get<std::string>(), is_raw, defaults.preface);
  }
  const auto ids = keys.take("tokens");
  return read_ids(ids.value_or(Json()), keys);
}

}  // namespace

void BatchFile::Close::operator()(std::FILE* file) const {
  if (file != stdin) std::fclose(file);
}

BatchFile::BatchFile(const std::string& path) : name_(path == "-" ? "stdin" : path) {
  if (path == "-") {
    file_.reset(stdin);
    return;
  }
  if (is_directory(existing_status(path))) throw FileError(path, "", "is a directory");
  file_.reset(std::fopen(path.c_str(), "rb"));
  if (!file_) throw FileError(path, "", std::string("can't open: ") + std::strerror(errno));
}

// A line that has been read, blank ones passed over; the last may have no end.
std::optional<BatchFile::Line> BatchFile::take_line() {
  for (;;) {
    const std::size_t end = rest_.find('\n', searched_);
    searched_ = end == std::string::npos ? rest_.size() : 0;
    if (end == std::string::npos && (!is_at_end_ || rest_.empty())) return std::nullopt;
    Line line{++n_lines_, rest_.substr(0, end)};
    rest_.erase(0, end == std::string::npos ? rest_.size() : end + 1);
    searched_ = 0;
    if (!is_blank(line.text)) return line;
  }
}

// What is there. Not fread, which waits until it has all that was asked for.
void BatchFile::read_some() {
  if (rest_.size() > kMaxLineBytes) {
    throw FormatError(name_, "line " + std::to_string(n_lines_ + 1), "is longer than 256 MiB");
  }
  std::array<char, 1 << 16> bytes;
  const ssize_t n_read = ::read(fileno(file_.get()), bytes.data(), bytes.size());
  if (n_read < 0 && errno == EINTR) return;
  if (n_read < 0) throw FileError(name_, "", std::string("can't read: ") + std::strerror(errno));
  rest_.append(bytes.data(), static_cast<std::size_t>(n_read));
  is_at_end_ = n_read == 0;
}

bool BatchFile::is_ready() {
  while (!ready_ && !is_at_end_) {
    ready_ = take_line();
    if (ready_) return true;
    pollfd readable = {fileno(file_.get()), POLLIN, 0};
    if (::poll(&readable, 1, 0) <= 0) return false;
    read_some();
  }
  return true;
}

std::optional<BatchFile::Line> BatchFile::next() {
  if (ready_) return std::exchange(ready_, std::nullopt);
  for (;;) {
    if (std::optional<Line> line = take_line(); line || is_at_end_) return line;
    read_some();
  }
}

engine::Request read_batch_request(const std::string& line, const std::string& place, const BatchDefaults& defaults,
                                   nlohmann::ordered_json& id) {
  Json json = parse_ordered_json(line, place);
  if (!json.is_object()) throw FormatError(place, "", "is no JSON object");
  Keys keys(std::move(json), place);
  id = keys.take("id").value_or(Json());
  engine::Request request;
  request.max_tokens = defaults.request.max_tokens;
  request.sampler = defaults.request.sampler;
  request.stop_tokens = defaults.request.stop_tokens;
  request.stop_strings = defaults.request.stop_strings;
  read_sampling(keys, request, defaults.tokenizer != nullptr);
  request.prompt = read_prompt(keys, defaults);
  if (!keys.object().empty()) keys.fail(keys.object().begin().key(), "is a key that memoir does not know");
  return request;
}

}  // namespace memoir::cli
