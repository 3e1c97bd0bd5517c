#include "memoir/text/linear_patterns.h"

#include <array>
#include <utility>

#include "memoir/text/character.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

// A run of characters of one kind: where each begins, and the end.
using Run = std::vector<std::size_t>;

// Calls on_run(run, next) for each longest run; next is the character behind it, 0 at the end of the text.
template <typename OnRun>
void each_run(std::string_view text, bool (*belongs)(char32_t), OnRun on_run) {
  Run run;
  for (std::size_t pos = 0; pos <= text.size();) {
    const bool at_end = pos == text.size();
    const utf8::Char c = at_end ? utf8::Char{0, 1, true, false} : utf8::decode(text, pos);
    if (!at_end && belongs(c.code)) {
      run.push_back(pos);
    } else if (!run.empty()) {
      run.push_back(pos);
      on_run(std::as_const(run), c.code);
      run.clear();
    }
    pos += c.n_bytes;
  }
}

void add_threes(const Run& run, std::vector<Span>& spans) {
  const std::size_t n_digits = run.size() - 1;
  for (std::size_t first = 0; first < n_digits;) {
    const std::size_t n_group = first == 0 && n_digits % 3 != 0 ? n_digits % 3 : 3;
    spans.push_back({run[first], run[first + n_group]});
    first += n_group;
  }
}

// What \b takes for a part of a word: Oniguruma counts the numbers below U+0100 (superscripts, fractions) too.
bool continues_word(char32_t c) {
  return is_word(c) || (c < 0x100 && is_number(c));
}

// \d{1,3}(?=(?:\d{3})*\b)
std::vector<Span> threes_at_boundary(std::string_view text) {
  std::vector<Span> spans;
  each_run(text, is_decimal, [&](const Run& run, char32_t next) {
    if (next == 0 || !continues_word(next)) add_threes(run, spans);
  });
  return spans;
}

// (?=(\d{3})+(?!\d)): empty matches before each group of three but a shorter first one.
std::vector<Span> cuts_in_threes(std::string_view text) {
  std::vector<Span> spans;
  each_run(text, is_decimal, [&](const Run& run, char32_t) {
    for (std::size_t i = (run.size() - 1) % 3; i + 1 < run.size(); i += 3) spans.push_back({run[i], run[i]});
  });
  return spans;
}

// \s+$, where $ is any end of a line.
std::vector<Span> space_at_line_end(std::string_view text) {
  std::vector<Span> spans;
  each_run(text, is_space, [&](const Run& run, char32_t) {
    for (std::size_t i = run.size() - 1; i > 0; --i) {
      if (run[i] == text.size() || text[run[i]] == '\n') {
        spans.push_back({run[0], run[i]});
        return;
      }
    }
  });
  return spans;
}

}  // namespace

std::vector<Span> numbers_in_threes(std::string_view text) {
  std::vector<Span> spans;
  each_run(text, is_number, [&](const Run& run, char32_t) { add_threes(run, spans); });
  return spans;
}

MatchFinder linear_form(std::string_view pattern) {
  static constexpr std::array<std::pair<std::string_view, MatchFinder>, 3> kForms = {{
      {R"(\d{1,3}(?=(?:\d{3})*\b))", threes_at_boundary},
      {R"((?=(\d{3})+(?!\d)))", cuts_in_threes},
      {R"(\s+$)", space_at_line_end},
  }};
  for (const auto& [form, finder] : kForms) {
    if (form == pattern) return finder;
  }
  return nullptr;
}

}  // namespace memoir::text
