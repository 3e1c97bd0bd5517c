#pragma once

// Template source -> tokens, as jinja2's lexer set to trim_blocks and lstrip_blocks:
//   - a newline directly after a block or comment tag goes; white space before a block or comment tag that stands
//     first on its line goes; a `-` in the tag strips all white space on its side, a `+` keeps it;
//   - \r\n and \r become \n, and one newline at the very end of the source goes;
//   - comments, and the marks of raw blocks, leave no token.
// Throws Error with the line; never fails otherwise, on any bytes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memoir::text::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, operator, or the string's contents
  std::int64_t integer = 0;
  double real = 0;

  bool is(TokenKind wanted) const { return kind == wanted; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

/// Always ends with a kEnd token.
std::vector<Token> tokenize(std::string_view source);

}  // namespace memoir::text::jinja
