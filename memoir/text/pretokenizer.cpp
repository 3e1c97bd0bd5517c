#include "memoir/text/pretokenizer.h"

#include <algorithm>
#include <functional>

#include "memoir/text/byte_level.h"
#include "memoir/text/character.h"
#include "memoir/text/replace.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

// A stretch of a word, between or at delimiters. Together the stretches of a word cover it.
struct Stretch {
  Span span;
  bool is_match;
};

class StretchList {
 public:
  explicit StretchList(std::size_t n_bytes) : n_bytes_(n_bytes) {}

  void match(Span span) {
    if (done_ < span.begin) stretches_.push_back({{done_, span.begin}, false});
    stretches_.push_back({span, true});
    done_ = span.end;
  }

  std::vector<Stretch> finish(bool invert) {
    if (done_ < n_bytes_) stretches_.push_back({{done_, n_bytes_}, false});
    if (invert) {
      for (Stretch& stretch : stretches_) stretch.is_match = !stretch.is_match;
    }
    return std::move(stretches_);
  }

 private:
  std::size_t n_bytes_;
  std::size_t done_ = 0;
  std::vector<Stretch> stretches_;
};

std::vector<Stretch> stretches_of_chars(std::string_view word, bool (*is_match)(char32_t)) {
  StretchList list(word.size());
  for (std::size_t pos = 0; pos < word.size();) {
    const utf8::Char c = utf8::decode(word, pos);
    if (is_match(c.code)) list.match({pos, pos + c.n_bytes});
    pos += c.n_bytes;
  }
  return list.finish(false);
}

std::vector<Stretch> stretches_of_literal(std::string_view word, std::string_view literal, bool invert) {
  StretchList list(word.size());
  for (std::size_t at = word.find(literal); at != std::string_view::npos;
       at = word.find(literal, at + literal.size())) {
    list.match({at, at + literal.size()});
  }
  return list.finish(invert);
}

std::vector<Stretch> stretches_of_regex(std::string_view word, const Regex& regex, bool invert) {
  StretchList list(word.size());
  regex.for_each(word, [&](Span span) { list.match(span); });
  return list.finish(invert);
}

std::vector<Stretch> stretches_of_split(std::string_view word, const PreTokenizerStep& step) {
  if (step.finder == nullptr) {
    return step.regex ? stretches_of_regex(word, *step.regex, step.invert)
                      : stretches_of_literal(word, step.literal, step.invert);
  }
  StretchList list(word.size());
  for (const Span span : step.finder(word)) list.match(span);
  return list.finish(step.invert);
}

// Appends the words that the stretches of one word make, shifted by the word's place.
class WordList {
 public:
  WordList(std::vector<Span>& out, std::size_t base) : out_(out), base_(base) {}

  void add(const std::vector<Stretch>& stretches, Delimiter behavior) {
    switch (behavior) {
      case Delimiter::kRemoved:
        for (const Stretch& s : stretches) {
          if (!s.is_match) push(s.span);
        }
        return;
      case Delimiter::kIsolated:
        for (const Stretch& s : stretches) push(s.span);
        return;
      case Delimiter::kContiguous:
        merge(stretches, [](bool previous, bool current) { return previous == current; });
        return;
      case Delimiter::kMergedWithPrevious:
        merge(stretches, [](bool previous, bool current) { return current && !previous; });
        return;
      case Delimiter::kMergedWithNext:
        merge_with_next(stretches);
        return;
    }
  }

 private:
  void push(Span span) {
    if (span.begin < span.end) out_.push_back({base_ + span.begin, base_ + span.end});
  }

  // A stretch joins the one before it where `joins` says so; before the first stands a non-match.
  template <typename Joins>
  void merge(const std::vector<Stretch>& stretches, Joins joins) {
    bool previous = false;
    bool any = false;
    Span open{0, 0};
    for (const Stretch& s : stretches) {
      if (any && joins(previous, s.is_match)) {
        open.end = s.span.end;
      } else {
        push(open);
        open = s.span;
      }
      any = true;
      previous = s.is_match;
    }
    push(open);
  }

  void merge_with_next(const std::vector<Stretch>& stretches) {
    std::vector<Span> reversed;
    bool previous = false;
    for (auto s = stretches.rbegin(); s != stretches.rend(); ++s) {
      if (s->is_match && !previous && !reversed.empty()) {
        reversed.back().begin = s->span.begin;
      } else {
        reversed.push_back(s->span);
      }
      previous = s->is_match;
    }
    for (auto span = reversed.rbegin(); span != reversed.rend(); ++span) push(*span);
  }

  std::vector<Span>& out_;
  std::size_t base_;
};

std::string_view word_of(const Words& words, Span span) {
  return std::string_view(words.text).substr(span.begin, span.end - span.begin);
}

using Cutter = std::function<std::vector<Stretch>(std::string_view)>;

void cut(Words& words, Delimiter behavior, const Cutter& cutter) {
  if (words.spans.empty()) return;
  const std::size_t start = words.spans.front().begin;
  std::vector<Span> spans;
  spans.reserve(words.spans.size());
  for (const Span span : words.spans) WordList(spans, span.begin).add(cutter(word_of(words, span)), behavior);
  words.spans = std::move(spans);
  if (words.spans.empty() || words.spans.front().begin != start) words.place = TextPlace::kSectionStart;
}

// Rewrites each word by `append(out, word, index)`.
template <typename Append>
void rewrite(Words& words, Append append) {
  std::string text;
  text.reserve(words.text.size());
  for (std::size_t i = 0; i < words.spans.size(); ++i) {
    const std::size_t begin = text.size();
    append(text, word_of(words, words.spans[i]), i);
    words.spans[i] = {begin, text.size()};
  }
  words.text = std::move(text);
}

void byte_level(Words& words, const PreTokenizerStep& step) {
  if (step.add_prefix_space) {
    rewrite(words, [&](std::string& out, std::string_view word, std::size_t index) {
      const bool goes_on = index == 0 && words.place == TextPlace::kMiddle;
      if (!goes_on && !word.starts_with(' ')) out += ' ';
      out += word;
    });
  }
  if (step.regex) {
    cut(words, Delimiter::kIsolated,
        [&](std::string_view word) { return stretches_of_regex(word, *step.regex, false); });
  }
  rewrite(words, [](std::string& out, std::string_view word, std::size_t) { append_byte_level(out, word); });
}

void metaspace(Words& words, const PreTokenizerStep& step) {
  rewrite(words, [&](std::string& out, std::string_view word, std::size_t index) {
    const bool has_one = word.starts_with(' ') || word.starts_with(step.literal);
    const TextPlace place = index == 0 ? words.place : TextPlace::kSectionStart;
    const bool wanted = (step.prepend == PrependScheme::kAlways && place != TextPlace::kMiddle) ||
                        (step.prepend == PrependScheme::kFirst && place == TextPlace::kInputStart);
    if (wanted && !has_one) out += step.literal;
    for (const char c : word) {
      if (c == ' ') {
        out += step.literal;
      } else {
        out += c;
      }
    }
  });
  if (!step.split) return;
  cut(words, Delimiter::kMergedWithNext,
      [&](std::string_view word) { return stretches_of_literal(word, step.literal, false); });
}

void apply_step(Words& words, const PreTokenizerStep& step) {
  using Kind = PreTokenizerStep::Kind;
  switch (step.kind) {
    case Kind::kByteLevel:
      return byte_level(words, step);
    case Kind::kMetaspace:
      return metaspace(words, step);
    case Kind::kSplit:
      return cut(words, step.behavior, [&](std::string_view word) { return stretches_of_split(word, step); });
    case Kind::kDigits:
      return cut(words, step.behavior, [](std::string_view word) { return stretches_of_chars(word, is_number); });
    case Kind::kPunctuation:
      return cut(words, step.behavior, [](std::string_view word) { return stretches_of_chars(word, is_punctuation); });
    case Kind::kWhitespaceSplit:
      return cut(words, Delimiter::kRemoved, [](std::string_view word) { return stretches_of_chars(word, is_space); });
  }
}

}  // namespace

Words PreTokenizer::apply(std::string text, TextPlace place) const {
  const std::size_t max_bytes = max_grown_bytes(text.size());
  Words words{std::move(text), {}, place};
  if (!words.text.empty()) words.spans.push_back({0, words.text.size()});
  for (const PreTokenizerStep& step : steps_) {
    apply_step(words, step);
    GrowthLimit{max_bytes, step.origin}.check(words.text.size());
  }
  return words;
}

}  // namespace memoir::text
