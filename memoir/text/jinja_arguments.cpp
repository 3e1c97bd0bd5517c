#include "memoir/text/jinja_arguments.h"

#include <algorithm>
#include <string_view>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {

const Value BoundArguments::kNone;
const std::string BoundArguments::kEmpty;

BoundArguments::BoundArguments(const char* function, const Arguments& arguments,
                               std::initializer_list<const char*> names, std::size_t n_required)
    : function_(function), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    fail(std::string(function) + "() takes at most " + std::to_string(names.size()) + " arguments, got " +
         std::to_string(arguments.positional.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto* found = std::find(names.begin(), names.end(), std::string_view(name));
    if (found == names.end()) fail(std::string(function) + "() got an unexpected keyword argument '" + name + "'");
    const Value*& slot = values_[static_cast<std::size_t>(found - names.begin())];
    if (slot != nullptr) fail(std::string(function) + "() got multiple values for argument '" + name + "'");
    slot = &value;
  }
  for (std::size_t i = 0; i < n_required; ++i) {
    if (values_[i] == nullptr) {
      fail(std::string(function) + "() missing required argument '" + names.begin()[i] + "'");
    }
  }
}

std::int64_t BoundArguments::integer(std::size_t i, std::int64_t missing) const {
  if (!has(i)) return missing;
  values_[i]->require_defined();
  if (!values_[i]->is_integral()) {
    fail(std::string(function_) + "(): '" + values_[i]->type_name() + "' object cannot be interpreted as an integer");
  }
  return values_[i]->as_int();
}

const std::string& BoundArguments::string(std::size_t i, const std::string& missing) const {
  if (!has(i)) return missing;
  values_[i]->require_defined();
  if (!values_[i]->is_string()) {
    fail(std::string(function_) + "() argument must be str, not " + values_[i]->type_name());
  }
  return values_[i]->str();
}

Value soft_text(const Value& value) {
  return value.is_string() ? value : Value::string(to_text(value));
}

Value text_like(const Value& original, std::string text) {
  spend_text(text.size());
  return Value::string(std::move(text), original.is_string() && original.text().markup);
}

std::string padded(const std::string& text, std::int64_t n_left, std::int64_t n_right, const std::string& fill) {
  n_left = std::max<std::int64_t>(n_left, 0);
  n_right = std::max<std::int64_t>(n_right, 0);
  constexpr auto kMost = static_cast<std::int64_t>(Budget::kMaxLiveBytes / 8);
  if (n_left > kMost || n_right > kMost) spend_text(Budget::kMaxLiveBytes + 1);
  spend_text(text.size() + fill.size() * static_cast<std::size_t>(n_left + n_right));
  std::string out;
  for (std::int64_t i = 0; i < n_left; ++i) out += fill;
  out += text;
  for (std::int64_t i = 0; i < n_right; ++i) out += fill;
  return out;
}

std::string centered(const std::string& text, std::int64_t width, const std::string& fill) {
  const std::int64_t n_missing = width - static_cast<std::int64_t>(n_characters(text));
  if (n_missing <= 0) return text;
  const std::int64_t n_left = n_missing / 2 + (n_missing & width & 1);
  return padded(text, n_left, n_missing - n_left, fill);
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, std::int64_t max_count) {
  std::uint64_t n_most = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (max_count >= 0) n_most = std::min<std::uint64_t>(n_most, static_cast<std::uint64_t>(max_count));
  // Only a replacement that could explode is counted first; any other is bounded by what is there already.
  if (!to.empty() && n_most > (16U << 20) / to.size()) {
    std::uint64_t n_found = n_most;
    if (!from.empty()) {
      n_found = 0;
      const TextFinder finder(from);
      for (std::size_t at = finder.find(text); at != text.npos; at = finder.find(text, at + from.size())) ++n_found;
      n_found = std::min(n_found, n_most);
    }
    if (n_found > Budget::kMaxLiveBytes / to.size()) spend_text(Budget::kMaxLiveBytes + 1);
    spend_text(n_found * to.size());
  }
  spend_text(text.size());
  return replace_all(text, from, to, max_count);
}

}  // namespace memoir::text::jinja
