#include "memoir/server/log.h"

#include <array>
#include <cstdio>
#include <ctime>

namespace memoir::server {
namespace {

using Json = nlohmann::ordered_json;

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_plain(const std::string& text) {
  return !text.empty() && text.find_first_of(" \"=\\") == std::string::npos &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-.:,;()[]{}*+?!@%&|~") ==
             std::string::npos;
}

}  // namespace

std::string utc_time(std::chrono::system_clock::time_point time, int n_digits) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const std::time_t whole = std::chrono::system_clock::to_time_t(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (n_digits <= 0) return std::string(text.data()) + "Z";
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time - seconds).count();
  std::array<char, 16> fraction{};
  std::snprintf(fraction.data(), fraction.size(), "%09lld", static_cast<long long>(nanoseconds));
  return std::string(text.data()) + "." + std::string(fraction.data()).substr(0, static_cast<std::size_t>(n_digits)) +
         "Z";
}

void Log::write(const std::string& level, const std::string& message, const Json& fields) {
  const std::string time = utc_time(std::chrono::system_clock::now(), 3);
  std::string line;
  if (format_ == LogFormat::kJson) {
    Json object = {{"time", time}, {"level", level}, {"message", message}};
    object.update(fields);
    line = json_text(object);
  } else {
    line = time + " " + level + " " + message;
    for (const auto& [name, value] : fields.items()) {
      const bool is_bare = value.is_string() && is_plain(value.get_ref<const std::string&>());
      line += " " + name + "=" + (is_bare ? value.get<std::string>() : json_text(value));
    }
  }
  const std::lock_guard lock(mutex_);
  out_ << line << '\n';
  out_.flush();
}

}  // namespace memoir::server
