// The second half of the expression parser: what follows a value (subscripts, calls, filters, tests), and targets of
// assignments.

#include <algorithm>
#include <utility>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_expression_parser.h"

namespace memoir::text::jinja {

// ---- what follows a value ----

ExprPtr ExpressionParser::parse_postfix(ExprPtr value) {
  while (true) {
    if (current().is_operator(".") || current().is_operator("[")) {
      value = parse_subscript(std::move(value));
    } else if (current().is_operator("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_filter_expression(ExprPtr value) {
  while (true) {
    if (current().is_operator("|")) {
      value = parse_filters(std::move(value));
    } else if (current().is_name("is")) {
      value = parse_test(std::move(value));
    } else if (current().is_operator("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr value) {
  const int line = current().line;
  if (!skip_operator(".")) return parse_index(std::move(value));
  const Token& token = current();
  skip();
  if (token.is(TokenKind::kName)) {
    ExprPtr expr = make(ExprKind::kAttribute, line);
    add_child(*expr, std::move(value));
    expr->text = token.text;
    return expr;
  }
  if (!token.is(TokenKind::kInteger)) fail("expected name or number", token.line);
  return make_binary(ExprKind::kItem, std::move(value), constant(Value::integer(token.integer), line), "", line);
}

// "[index]" or "[start:stop:step]". Several between commas make a tuple, which no value of ours takes as an index.
ExprPtr ExpressionParser::parse_index(ExprPtr value) {
  const int line = current().line;
  expect_operator("[");
  ExprPtr parts[3];
  int n_colons = 0;
  while (!current().is_operator("]")) {
    if (current().is_operator(",")) fail_unsupported("several indices in one pair of brackets", line);
    if (current().is_operator(":") && n_colons < 2) {
      skip();
      ++n_colons;
    } else if (parts[n_colons] == nullptr && !current().is_operator(":")) {
      parts[n_colons] = parse_expression();
    } else {
      fail_expected("]");
    }
  }
  skip();
  if (n_colons == 0) {
    if (parts[0] == nullptr) fail("expected subscript expression", line);
    return make_binary(ExprKind::kItem, std::move(value), std::move(parts[0]), "", line);
  }
  ExprPtr slice = make(ExprKind::kSlice, line);
  add_child(*slice, std::move(value));
  for (ExprPtr& part : parts) add_child(*slice, std::move(part));
  return slice;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr expr = make(ExprKind::kCall, current().line);
  add_child(*expr, std::move(callee));
  expr->arguments = parse_arguments();
  return finish(std::move(expr));
}

std::unique_ptr<CallArguments> ExpressionParser::parse_arguments() {
  auto arguments = std::make_unique<CallArguments>();
  expect_operator("(");
  bool first = true;
  while (!current().is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    first = false;
    parse_argument(*arguments);
  }
  expect_operator(")");
  return arguments;
}

void ExpressionParser::parse_argument(CallArguments& arguments) {
  const int line = current().line;
  const auto ensure = [line](bool allowed) {
    if (!allowed) fail("invalid syntax for function call expression", line);
  };
  if (current().is_operator("*")) {
    ensure(arguments.star == nullptr && arguments.double_star == nullptr);
    skip();
    arguments.star = parse_expression();
  } else if (current().is_operator("**")) {
    ensure(arguments.double_star == nullptr);
    skip();
    arguments.double_star = parse_expression();
  } else if (current().is(TokenKind::kName) && next().is_operator("=")) {
    ensure(arguments.double_star == nullptr);
    const std::string name = current().text;
    for (const auto& [known, value] : arguments.keyword) ensure(known != name);
    skip();
    skip();
    arguments.keyword.emplace_back(name, parse_expression());
  } else {
    ensure(arguments.star == nullptr && arguments.double_star == nullptr && arguments.keyword.empty());
    arguments.positional.push_back(parse_expression());
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr value, bool started) {
  while (started || current().is_operator("|")) {
    if (!started) skip();
    started = false;
    const int line = current().line;
    if (!current().is(TokenKind::kName)) fail_expected("name");
    ExprPtr expr = make(ExprKind::kFilter, line);
    expr->text = current().text;
    for (skip(); skip_operator("."); skip()) {
      if (!current().is(TokenKind::kName)) fail_expected("name");
      expr->text += "." + current().text;
    }
    expr->filter = find_filter(expr->text);
    if (expr->filter == nullptr && conditional_depth_ == 0) unknown_names_.push_back(unknown_filter(expr->text, line));
    add_child(*expr, std::move(value));
    expr->arguments = current().is_operator("(") ? parse_arguments() : std::make_unique<CallArguments>();
    value = finish(std::move(expr));
  }
  return value;
}

ExprPtr ExpressionParser::parse_test(ExprPtr value) {
  const int line = current().line;
  skip();
  const bool negated = skip_name("not");
  if (!current().is(TokenKind::kName)) fail_expected("name");
  ExprPtr test = make(ExprKind::kTest, line);
  test->text = current().text;
  for (skip(); skip_operator("."); skip()) {
    if (!current().is(TokenKind::kName)) fail_expected("name");
    test->text += "." + current().text;
  }
  test->test = find_test(test->text);
  if (test->test == nullptr && conditional_depth_ == 0) unknown_names_.push_back(unknown_test(test->text, line));
  add_child(*test, std::move(value));
  const Token& token = current();
  const bool ends = token.is_name("else") || token.is_name("or") || token.is_name("and");
  const bool argument = token.is(TokenKind::kName) || token.is(TokenKind::kString) || token.is(TokenKind::kInteger) ||
                        token.is(TokenKind::kFloat) || token.is_operator("[") || token.is_operator("{");
  if (token.is_operator("(")) {
    test->arguments = parse_arguments();
  } else {
    test->arguments = std::make_unique<CallArguments>();
    if (token.is_name("is")) fail("You cannot chain multiple tests with is", token.line);
    if (argument && !ends) {
      const Nesting nesting(expression_depth_, kMaxExpressionDepth, "an expression", line);
      test->arguments->positional.push_back(parse_postfix(parse_primary()));
    }
  }
  test = finish(std::move(test));
  if (!negated) return test;
  ExprPtr expr = make(ExprKind::kNot, line);
  add_child(*expr, std::move(test));
  return expr;
}

// ---- targets ----

void ExpressionParser::check_store(const Token& token, bool parameter) const {
  static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (!token.is(TokenKind::kName)) fail_expected("name");
  for (const std::string_view name : kConstants) {
    if (token.text == name) fail("can't assign to '" + token.text + "'", token.line);
  }
  if (token.text == "loop" && for_depth_ > 0 && !parameter) {
    fail("Can't assign to special loop variable in for-loop target", token.line);
  }
}

ExprPtr ExpressionParser::parse_name_target(bool parameter) {
  const Token& token = current();
  check_store(token, parameter);
  ExprPtr expr = make(ExprKind::kName, token.line);
  expr->text = token.text;
  expr->name = name_id(token.text);
  skip();
  return expr;
}

ExprPtr ExpressionParser::parse_target_part(bool with_namespace, bool parameter) {
  if (skip_operator("(")) {
    const Nesting nesting(expression_depth_, kMaxExpressionDepth, "an expression", current().line);
    ExprPtr inner = parse_target(false, parameter);
    expect_operator(")");
    return inner;
  }
  if (!with_namespace || !next().is_operator(".")) return parse_name_target(parameter);
  const Token& token = current();
  if (!token.is(TokenKind::kName)) fail("can't assign to '" + describe(token) + "'", token.line);
  ExprPtr expr = make(ExprKind::kNamespaceRef, token.line);
  expr->name = name_id(token.text);
  if (token.text == "loop" && !loops_.empty()) loops_.back()->uses_loop = true;
  skip();
  skip();
  expr->text = current().text;
  expect(TokenKind::kName, "name");
  return expr;
}

ExprPtr ExpressionParser::parse_target(bool with_namespace, bool parameter) {
  ExprPtr tuple = make(ExprKind::kTuple, current().line);
  bool has_comma = false;
  while (true) {
    if (!tuple->children.empty()) expect_operator(",");
    if (at_tuple_end()) break;
    add_child(*tuple, parse_target_part(with_namespace, parameter));
    if (!current().is_operator(",")) break;
    has_comma = true;
  }
  if (has_comma) return tuple;
  if (tuple->children.empty()) fail("Expected an expression, got '" + describe(current()) + "'", current().line);
  return std::move(tuple->children.front());
}

}  // namespace memoir::text::jinja
