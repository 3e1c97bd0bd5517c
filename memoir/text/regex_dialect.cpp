#include "memoir/text/regex_dialect.h"

#include <cctype>
#include <optional>
#include <stdexcept>
#include <vector>

#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

constexpr std::string_view kSpace =
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside a class Oniguruma asks an older table below U+0100, which has the superscripts and fractions too.
constexpr std::string_view kOldWord = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kHex = "0-9a-fA-F";
constexpr int kMaxClassDepth = 16;

std::string in_class(std::string_view items, bool negated = false) {
  std::string text = negated ? "[^" : "[";
  return text.append(items).append("]");
}

// The items of a shorthand class letter (s, w, h in either case), empty for any other.
std::string_view shorthand(char letter) {
  switch (std::tolower(static_cast<unsigned char>(letter))) {
    case 's':
      return kSpace;
    case 'w':
      return kWord;
    case 'h':
      return kHex;
    default:
      return {};
  }
}

bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

// One operand of an intersection: items that fit in one class, and fragments that need their own.
struct ClassOperand {
  std::string items;
  std::vector<std::string> parts;

  std::string text() const {
    if (parts.empty()) return in_class(items);
    std::string result = "(?:";
    if (!items.empty()) result += in_class(items) + "|";
    for (std::size_t i = 0; i < parts.size(); ++i) result += (i == 0 ? "" : "|") + parts[i];
    return result + ")";
  }
};

struct ClassExpression {
  bool negated = false;
  std::vector<ClassOperand> operands{1};

  bool is_plain() const { return operands.size() == 1 && operands[0].parts.empty(); }

  std::string text() const {
    if (is_plain()) return in_class(operands[0].items, negated);
    std::string both;
    for (std::size_t i = 1; i < operands.size(); ++i) both += "(?=" + operands[i].text() + ")";
    both += operands[0].text();
    return negated ? "(?:(?!" + both + ")(?s:.))" : "(?:" + both + ")";
  }
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (pos_ < in_.size()) step();
    // A class that never ends is left for PCRE2 to complain about.
    return is_broken_ ? std::string(in_) : std::move(out_);
  }

 private:
  char peek(std::size_t ahead = 0) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }

  void step() {
    switch (peek()) {
      case '\\':
        atom_ = out_.size();
        out_ += escape();
        break;
      case '[':
        atom_ = out_.size();
        out_ += char_class(0).text();
        break;
      case '(':
        open_group();
        break;
      case ')':
        atom_ = groups_.empty() ? out_.size() : groups_.back();
        if (!groups_.empty()) groups_.pop_back();
        out_ += in_[pos_++];
        break;
      case '{':
        interval();
        break;
      case '+':
      case '*':
      case '?':
        out_ += in_[pos_++];
        break;
      default:
        atom_ = out_.size();
        out_ += whole_char();
    }
  }

  std::string whole_char() {
    const std::size_t n = utf8::decode(in_, pos_).n_bytes;
    std::string text(in_.substr(pos_, n));
    pos_ += n;
    return text;
  }

  // Copies "(" and what says its kind, so that the "?" is not taken for a quantifier.
  void open_group() {
    groups_.push_back(out_.size());
    out_ += in_[pos_++];
    if (peek() != '?') return;
    if (peek(1) == '#') {
      const std::size_t end = in_.find(')', pos_);
      out_ += in_.substr(pos_, end == std::string_view::npos ? end : end - pos_);
      pos_ = end == std::string_view::npos ? in_.size() : end;
      return;
    }
    while (pos_ < in_.size() && std::string_view(":=!>)").find(peek()) == std::string_view::npos) {
      out_ += in_[pos_++];
    }
    if (pos_ < in_.size() && peek() != ')') out_ += in_[pos_++];
  }

  void interval() {
    std::size_t end = pos_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < in_.size() && in_[end] >= '0' && in_[end] <= '9') ++end;
      return std::string(in_.substr(begin, end - begin));
    };
    const std::string low = digits();
    std::string text = low.empty() ? "0" : low;
    if (end < in_.size() && in_[end] == ',') {
      ++end;
      const std::string high = digits();
      if (low.empty() && high.empty()) return literal_brace();
      text += "," + high;
    } else if (low.empty()) {
      return literal_brace();
    }
    if (end >= in_.size() || in_[end] != '}') return literal_brace();
    pos_ = end + 1;
    if (peek() == '+') {
      out_.insert(atom_, "(?:");
      out_ += "{" + text + "})";
    } else {
      out_ += "{" + text + "}";
    }
  }

  void literal_brace() {
    atom_ = out_.size();
    out_ += "\\{";
    ++pos_;
  }

  std::string escape() {
    const char letter = peek(1);
    if (const std::string_view items = shorthand(letter); !items.empty()) {
      pos_ += 2;
      std::string all(items);
      if (items == kWord) all += kOldWord;
      return in_class(all, is_upper(letter));
    }
    if (letter == 'b' || letter == 'B') {
      pos_ += 2;
      const std::string w = in_class(std::string(kWord).append(kOldWord));
      return letter == 'b' ? "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))"
                           : "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))";
    }
    return plain_escape();
  }

  // An escape that PCRE2 reads the same way, with its braces; \uHHHH becomes \x{HHHH}.
  std::string plain_escape() {
    const char letter = peek(1);
    std::string text = "\\";
    ++pos_;
    if (pos_ >= in_.size()) return text;
    if (letter == 'u' && pos_ + 5 <= in_.size()) {
      text += "x{" + std::string(in_.substr(pos_ + 1, 4)) + "}";
      pos_ += 5;
      return text;
    }
    text += whole_char();
    if (std::string_view("pPxXkgN").find(letter) != std::string_view::npos && peek() == '{') {
      const std::size_t end = in_.find('}', pos_);
      if (end == std::string_view::npos) return text;
      text += in_.substr(pos_, end + 1 - pos_);
      pos_ = end + 1;
    }
    return text;
  }

  ClassExpression char_class(int depth) {
    if (depth >= kMaxClassDepth) throw std::length_error("character classes nest too deep");
    ClassExpression expression;
    ++pos_;
    if (peek() == '^') {
      expression.negated = true;
      ++pos_;
    }
    if (peek() == ']') {
      expression.operands.back().items += "\\]";
      ++pos_;
    }
    while (pos_ < in_.size() && peek() != ']') class_item(expression, depth);
    is_broken_ = is_broken_ || pos_ >= in_.size();
    ++pos_;
    return expression;
  }

  void class_item(ClassExpression& expression, int depth) {
    ClassOperand& operand = expression.operands.back();
    if (peek() == '[' && peek(1) == ':') {
      const std::size_t end = in_.find(":]", pos_);
      if (end != std::string_view::npos) {
        operand.items += in_.substr(pos_, end + 2 - pos_);
        pos_ = end + 2;
        return;
      }
    }
    if (peek() == '[') {
      const ClassExpression inner = char_class(depth + 1);
      if (inner.is_plain() && !inner.negated) {
        operand.items += inner.operands[0].items;
      } else {
        operand.parts.push_back(inner.text());
      }
    } else if (peek() == '&' && peek(1) == '&') {
      pos_ += 2;
      expression.operands.emplace_back();
    } else if (peek() == '\\') {
      class_escape(operand);
    } else if (peek() == '^') {
      operand.items += "\\^";
      ++pos_;
    } else {
      operand.items += whole_char();
    }
  }

  void class_escape(ClassOperand& operand) {
    const char letter = peek(1);
    const std::string_view items = shorthand(letter);
    if (items.empty()) {
      operand.items += plain_escape();
      return;
    }
    pos_ += 2;
    if (is_upper(letter)) {
      operand.parts.push_back(in_class(items, true));
    } else {
      operand.items += items;
    }
  }

  std::string_view in_;
  std::size_t pos_ = 0;
  bool is_broken_ = false;
  std::string out_;
  std::size_t atom_ = 0;             // where the last atom begins in out_
  std::vector<std::size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace memoir::text
