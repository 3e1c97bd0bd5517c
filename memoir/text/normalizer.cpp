#include "memoir/text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "memoir/text/byte_level.h"
#include "memoir/text/character.h"
#include "memoir/text/replace.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

std::string unicode_form(std::string_view text, int options) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t n_bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  // The text is valid UTF-8, so that only memory can run out.
  if (n_bytes < 0) throw std::bad_alloc();
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(n_bytes));
}

template <typename Function>
std::string map_chars(std::string_view text, Function append) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const utf8::Char c = utf8::decode(text, pos);
    append(result, c.code);
    pos += c.n_bytes;
  }
  return result;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  // Where the trailing white space begins is found in one pass, because UTF-8 reads forwards.
  std::size_t last_kept = 0;
  bool seen = false;
  for (std::size_t pos = 0; pos < text.size();) {
    const utf8::Char c = utf8::decode(text, pos);
    if (!is_space(c.code)) {
      if (!seen) begin = pos;
      seen = true;
      last_kept = pos + c.n_bytes;
    }
    pos += c.n_bytes;
  }
  if (!seen) begin = text.size();
  if (!left) begin = 0;
  if (right) end = std::max(begin, last_kept);
  return text.substr(begin, end - begin);
}

std::string step_result(const NormalizerStep& step, std::string_view text, const GrowthLimit& limit) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::kNfc:
      return unicode_form(text, UTF8PROC_COMPOSE);
    case Kind::kNfd:
      return unicode_form(text, UTF8PROC_DECOMPOSE);
    case Kind::kNfkc:
      return unicode_form(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Kind::kNfkd:
      return unicode_form(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case Kind::kLowercase:
      return map_chars(text, [](std::string& out, char32_t c) { append_lower(out, c); });
    case Kind::kStripAccents:
      return map_chars(text, [](std::string& out, char32_t c) {
        if (!is_mark(c)) utf8::append(out, c);
      });
    case Kind::kStrip:
      return std::string(strip(text, step.strip_left, step.strip_right));
    case Kind::kReplace:
      return step.regex ? replace_all(text, *step.regex, step.content, limit)
                        : replace_all(text, step.pattern, step.content, limit);
    case Kind::kPrepend:
      return text.empty() ? std::string() : step.content + std::string(text);
    case Kind::kByteLevel: {
      std::string result;
      append_byte_level(result, text);
      return result;
    }
  }
  return std::string(text);
}

bool drops_first(const NormalizerStep& step, std::string_view text) {
  if (text.empty()) return false;
  const char32_t first = utf8::decode(text, 0).code;
  return (step.kind == NormalizerStep::Kind::kStrip && step.strip_left && is_space(first)) ||
         (step.kind == NormalizerStep::Kind::kStripAccents && is_mark(first));
}

}  // namespace

NormalizedText Normalizer::apply(std::string_view text, bool is_continuation) const {
  NormalizedText result{std::string(text)};
  for (const NormalizerStep& step : steps_) {
    if (is_continuation && step.kind == NormalizerStep::Kind::kPrepend) continue;
    if (is_continuation && step.kind == NormalizerStep::Kind::kStrip) {
      result.text = std::string(strip(result.text, false, step.strip_right));
      continue;
    }
    const GrowthLimit limit{max_grown_bytes(text.size()), step.origin};
    result.lost_start = result.lost_start || drops_first(step, result.text);
    result.text = step_result(step, result.text, limit);
    limit.check(result.text.size());
  }
  return result;
}

}  // namespace memoir::text
