#define PCRE2_CODE_UNIT_WIDTH 8
#include "memoir/text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/text/regex_dialect.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 16;
// A run of spaces is walked back once per character by patterns such as \s*[\r\n]+, so the limit grows with the text.
constexpr std::uint64_t kMatchLimit = 10'000'000;
constexpr std::uint64_t kMatchLimitPerByte = 16;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

using CodePointer = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;
using MatchPointer = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using ContextPointer = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

CodePointer compile(std::string_view pattern, const Origin& origin) {
  if (pattern.size() > kMaxPatternBytes) {
    throw FormatError(origin.path, origin.key, "the pattern has more than 65536 bytes");
  }
  std::string translated;
  try {
    translated = to_pcre2(utf8::replace_errors(pattern));
  } catch (const std::length_error& error) {
    throw FormatError(origin.path, origin.key, error.what());
  }
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  CodePointer compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &code,
                                     &offset, context.get()),
                       &pcre2_code_free);
  if (!compiled) {
    throw FormatError(origin.path, origin.key,
                      "the pattern " + std::string(pattern) + " can't be used: " + message_of(code));
  }
  // Where it can't be compiled to machine code, matching falls back to the interpreter.
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  return compiled;
}

}  // namespace

struct Regex::Compiled {
  Origin origin;
  std::string pattern;
  CodePointer code;
};

namespace {

// One pass over one text.
class Scan {
 public:
  Scan(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        match_(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
        context_(pcre2_match_context_create(nullptr), &pcre2_match_context_free) {
    if (!match_ || !context_) throw std::bad_alloc();
    const std::uint64_t limit = kMatchLimit + kMatchLimitPerByte * text.size();
    pcre2_set_match_limit(context_.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, 0xFFFF'FFFFU)));
  }

  // The first match at or after `from`; nullopt where there is none. A failure is left in error().
  std::optional<Span> next(std::size_t from) {
    int count = match(from, PCRE2_NO_UTF_CHECK);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter keeps its frames on the heap.
      count = match(from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    }
    if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (count < 0) {
      error_ = count;
      return std::nullopt;
    }
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match_.get());
    return Span{found[0], std::max(found[0], found[1])};
  }

  int error() const { return error_; }

 private:
  int match(std::size_t from, std::uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from, options, match_.get(),
                       context_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  MatchPointer match_;
  ContextPointer context_;
  int error_ = 0;
};

}  // namespace

Regex::Regex(std::string_view pattern, Origin origin) {
  CodePointer code = compile(pattern, origin);
  compiled_ = std::make_shared<Compiled>(Compiled{std::move(origin), std::string(pattern), std::move(code)});
}

void Regex::for_each(std::string_view text, const std::function<void(Span)>& found) const {
  if (text.empty()) return;
  Scan scan(compiled_->code.get(), text);
  std::size_t from = 0;
  std::size_t last_end = std::numeric_limits<std::size_t>::max();
  while (from <= text.size()) {
    const std::optional<Span> span = scan.next(from);
    if (!span) break;
    if (span->begin == span->end && span->end == last_end) {
      if (from == text.size()) break;
      from = std::max(from, span->end);
      if (from == text.size()) break;
      from += utf8::decode(text, from).n_bytes;
      continue;
    }
    found(*span);
    from = last_end = span->end;
  }
  if (scan.error() != 0) {
    throw UnsupportedError(
        compiled_->origin.path, compiled_->origin.key,
        "the pattern " + compiled_->pattern + " can't be matched against this text: " + message_of(scan.error()));
  }
}

}  // namespace memoir::text
