#include "memoir/text/jinja_lexer.h"

#include <algorithm>
#include <utility>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_of(char byte, int base) {
  if (base == 16) return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
  return byte >= '0' && byte < '0' + base;
}

/// Reads the escapes of a string literal as Python's "unicode-escape".
class StringLiteral {
 public:
  StringLiteral(std::string_view body, int line) : body_(body), line_(line) {}

  std::string read() {
    std::string out;
    while (at_ < body_.size()) {
      if (body_[at_] != '\\' || at_ + 1 >= body_.size()) {
        out += body_[at_++];
      } else {
        ++at_;
        append_escape(out);
      }
    }
    return out;
  }

 private:
  void append_escape(std::string& out) {
    const char byte = body_[at_++];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    if (byte == '\n') return;
    if (const std::size_t found = kFrom.find(byte); found != std::string_view::npos) {
      out += kTo[found];
    } else if (byte >= '0' && byte <= '7') {
      --at_;
      append_character(out, static_cast<std::int32_t>(digits(8, 1, 3)));
    } else if (byte == 'x') {
      append_character(out, static_cast<std::int32_t>(digits(16, 2, 2)));
    } else if (byte == 'u' || byte == 'U') {
      append_code(out, digits(16, byte == 'u' ? 4 : 8, byte == 'u' ? 4 : 8));
    } else if (byte == 'N') {
      fail_unsupported("\\N{...} in a string", line_);
    } else {
      (out += '\\') += byte;
    }
  }

  std::uint32_t digits(int base, int n_least, int n_most) {
    std::uint32_t value = 0;
    int n = 0;
    while (n < n_most && at_ < body_.size() && is_digit_of(body_[at_], base)) {
      const char byte = body_[at_++];
      const int digit = byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10;
      value = value * static_cast<std::uint32_t>(base) + static_cast<std::uint32_t>(digit);
      ++n;
    }
    if (n < n_least) fail("truncated escape in a string", line_);
    return value;
  }

  void append_code(std::string& out, std::uint32_t code) {
    if (code > 0x10FFFF) fail("illegal Unicode character in a string", line_);
    if (code >= 0xD800 && code < 0xE000) fail_unsupported("a lone surrogate in a string", line_);
    append_character(out, static_cast<std::int32_t>(code));
  }

  std::string_view body_;
  int line_;
  std::size_t at_ = 0;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) lex_root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  struct Tag {
    std::size_t begin = std::string::npos;  // of the opening brace
    char kind = 0;                          // '%', '{', '#', or 'r' for a raw block
    char sign = 0;                          // '-', '+' or 0
    std::size_t end = 0;                    // after the opening and, for raw, its whole tag
  };

  bool at_text(std::string_view wanted) const { return text_.compare(at_, wanted.size(), wanted) == 0; }

  std::size_t skip_space(std::size_t at) const {
    while (at < text_.size()) {
      const Character character = character_at(text_, at);
      if (!is_space(character.code)) break;
      at += character.n_bytes;
    }
    return at;
  }

  void add(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  // Everything up to `end` is done with. The last character decides whether the next text begins a line.
  void advance(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    if (end > at_) line_starting_ = text_[end - 1] == '\n';
    at_ = end;
  }

  // The end of a tag that holds only `word` ("raw" or "endraw") and whose opening ends at `after_sign`, or npos.
  std::size_t raw_end(std::size_t after_sign, std::string_view word) const {
    std::size_t at = skip_space(after_sign);
    if (text_.compare(at, word.size(), word) != 0) return std::string::npos;
    at = skip_space(at + word.size());
    const bool closes_raw = word == "endraw";
    if (text_.compare(at, 3, "-%}") == 0) return skip_space(at + 3);
    if (closes_raw && text_.compare(at, 3, "+%}") == 0) return at + 3;
    if (text_.compare(at, 2, "%}") != 0) return std::string::npos;
    at += 2;
    return closes_raw && at < text_.size() && text_[at] == '\n' ? at + 1 : at;
  }

  Tag find_tag(std::size_t from) const {
    Tag tag;
    for (std::size_t at = text_.find('{', from); at != std::string::npos; at = text_.find('{', at + 1)) {
      if (at + 1 >= text_.size()) break;
      const char kind = text_[at + 1];
      if (kind != '%' && kind != '{' && kind != '#') continue;
      tag.begin = at;
      tag.kind = kind;
      tag.end = at + 2;
      if (tag.end < text_.size() && (text_[tag.end] == '-' || text_[tag.end] == '+')) tag.sign = text_[tag.end++];
      if (kind == '%') {
        const std::size_t raw = raw_end(tag.end, "raw");
        if (raw != std::string::npos) {
          tag.kind = 'r';
          tag.end = raw;
        }
      }
      break;
    }
    return tag;
  }

  // The data between `begin` and a tag, stripped as the tag and its sign ask for.
  std::string_view data_before(std::size_t begin, std::size_t end, char sign, bool variable) const {
    const std::string_view data = std::string_view(text_).substr(begin, end - begin);
    if (sign == '-') return strip(data, nullptr, false, true);
    if (sign == '+' || variable) return data;
    const std::size_t line = data.rfind('\n') + 1;  // npos + 1 is 0: no newline
    if (line == 0 && !line_starting_) return data;
    return strip(data.substr(line), nullptr, true, false).empty() ? data.substr(0, line) : data;
  }

  void add_data(std::string_view data) {
    if (!data.empty()) add(TokenKind::kData, std::string(data));
  }

  void lex_root() {
    const Tag tag = find_tag(at_);
    if (tag.begin == std::string::npos) {
      add_data(std::string_view(text_).substr(at_));
      return advance(text_.size());
    }
    add_data(data_before(at_, tag.begin, tag.sign, tag.kind == '{'));
    advance(tag.begin);
    const int tag_line = line_;
    advance(tag.end);
    switch (tag.kind) {
      case '#':
        return lex_comment(tag_line);
      case 'r':
        return lex_raw(tag_line);
      case '{':
        add(TokenKind::kVariableBegin, "");
        return lex_code(true);
      default:
        add(TokenKind::kBlockBegin, "");
        return lex_code(false);
    }
  }

  void lex_comment(int tag_line) {
    const std::size_t close = text_.find("#}", at_);
    if (close == std::string::npos && at_ == text_.size()) return;
    if (close == std::string::npos) fail("Missing end of comment tag", tag_line);
    std::size_t end = close + 2;
    const char before = close > at_ ? text_[close - 1] : 0;
    if (before == '-') {
      end = skip_space(end);
    } else if (before != '+' && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    advance(end);
  }

  void lex_raw(int tag_line) {
    for (std::size_t at = text_.find("{%", at_); at != std::string::npos; at = text_.find("{%", at + 1)) {
      std::size_t after = at + 2;
      char sign = 0;
      if (after < text_.size() && (text_[after] == '-' || text_[after] == '+')) sign = text_[after++];
      const std::size_t end = raw_end(after, "endraw");
      if (end == std::string::npos) continue;
      add_data(data_before(at_, at, sign, false));
      return advance(end);
    }
    if (at_ < text_.size()) fail("Missing end of raw directive", tag_line);
  }

  // The inside of {{ }} or {% %}, up to and with its end.
  void lex_code(bool variable) {
    const int tag_line = line_;
    while (at_ < text_.size()) {
      if (open_brackets_.empty() && lex_tag_end(variable)) return;
      lex_code_token();
    }
    if (!open_brackets_.empty()) fail("a bracket is not closed", tag_line);
    // The parser meets the end of the template where it wants the tag's end.
  }

  bool lex_tag_end(bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    std::size_t end = at_;
    char sign = 0;
    if (text_[end] == '-' || (text_[end] == '+' && !variable)) sign = text_[end++];
    if (text_.compare(end, 2, close) != 0) return false;
    end += 2;
    if (sign == '-') {
      end = skip_space(end);
    } else if (sign == 0 && !variable && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
    advance(end);
    return true;
  }

  void lex_code_token() {
    const Character character = character_at(text_, at_);
    if (is_space(character.code)) return advance(skip_space(at_));
    const char byte = text_[at_];
    if (byte >= '0' && byte <= '9') return lex_number();
    if (is_word(character.code)) return lex_name();
    if (byte == '\'' || byte == '"') return lex_string(byte);
    lex_operator();
  }

  std::size_t digits_end(std::size_t at, int base) const {
    while (at < text_.size()) {
      if (text_[at] == '_' && at + 1 < text_.size() && is_digit_of(text_[at + 1], base)) ++at;
      if (!is_digit_of(text_[at], base)) break;
      ++at;
    }
    return at;
  }

  // The end of a float literal at at_, or at_ where there is none: it needs a fraction or an exponent.
  std::size_t float_end() const {
    if (at_ > 0 && text_[at_ - 1] == '.') return at_;
    std::size_t at = digits_end(at_, 10);
    bool is_float = false;
    if (at + 1 < text_.size() && text_[at] == '.' && is_digit_of(text_[at + 1], 10)) {
      at = digits_end(at + 1, 10);
      is_float = true;
    }
    if (at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
      std::size_t exponent = at + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && is_digit_of(text_[exponent], 10)) return digits_end(exponent, 10);
    }
    return is_float ? at : at_;
  }

  std::size_t integer_end() const {
    if (text_[at_] != '0') return digits_end(at_, 10);
    if (at_ + 1 < text_.size()) {
      const char letter = static_cast<char>(text_[at_ + 1] | 0x20);
      const int base = letter == 'x' ? 16 : (letter == 'o' ? 8 : (letter == 'b' ? 2 : 0));
      if (base != 0) {
        const std::size_t end = digits_end(at_ + 2, base);
        if (end > at_ + 2) return end;
      }
    }
    std::size_t at = at_ + 1;
    while (at < text_.size()) {
      if (text_[at] == '_' && at + 1 < text_.size() && text_[at + 1] == '0') ++at;
      if (text_[at] != '0') break;
      ++at;
    }
    return at;
  }

  void lex_number() {
    if (const std::size_t end = float_end(); end != at_) {
      add(TokenKind::kFloat, "");
      tokens_.back().real = parse_float(std::string_view(text_).substr(at_, end - at_)).value_or(0);
      return advance(end);
    }
    const std::size_t end = integer_end();
    add(TokenKind::kInteger, "");
    try {
      const auto value = parse_int(std::string_view(text_).substr(at_, end - at_), 0);
      if (!value) fail("invalid number", line_);
      tokens_.back().integer = *value;
    } catch (const Error& error) {
      throw Error(error.kind(), error.what(), line_);
    }
    advance(end);
  }

  void lex_name() {
    std::size_t end = at_;
    while (end < text_.size()) {
      const Character character = character_at(text_, end);
      if (!is_word(character.code)) break;
      end += character.n_bytes;
    }
    add(TokenKind::kName, text_.substr(at_, end - at_));
    advance(end);
  }

  void lex_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail(std::string("unexpected char ") + quote + ": the string is not closed", line_);
    add(TokenKind::kString, StringLiteral(std::string_view(text_).substr(at_ + 1, end - at_ - 1), line_).read());
    advance(end + 1);
  }

  void lex_operator() {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!at_text(op)) continue;
      balance(op[0]);
      add(TokenKind::kOperator, std::string(op));
      return advance(at_ + op.size());
    }
    fail("unexpected char '" + text_.substr(at_, character_at(text_, at_).n_bytes) + "'", line_);
  }

  void balance(char byte) {
    if (byte == '(') open_brackets_ += ')';
    if (byte == '[') open_brackets_ += ']';
    if (byte == '{') open_brackets_ += '}';
    if (byte != ')' && byte != ']' && byte != '}') return;
    if (open_brackets_.empty()) fail(std::string("unexpected '") + byte + "'", line_);
    if (open_brackets_.back() != byte) {
      fail(std::string("unexpected '") + byte + "', expected '" + open_brackets_.back() + "'", line_);
    }
    open_brackets_.pop_back();
  }

  const std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string open_brackets_;  // the closing brackets that are due
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace memoir::text::jinja
