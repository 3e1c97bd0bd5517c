#include "memoir/text/jinja_expression_parser.h"

#include <algorithm>
#include <utility>

#include "memoir/text/jinja_error.h"

namespace memoir::text::jinja {
std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

Error unknown_filter(const std::string& name, int line) {
  if (!is_unsupported_filter(name)) return Error(ErrorKind::kTemplate, "No filter named '" + name + "'.", line);
  return Error(ErrorKind::kUnsupported, "the filter '" + name + "' is not supported", line);
}

Error unknown_test(const std::string& name, int line) {
  return Error(ErrorKind::kTemplate, "No test named '" + name + "'.", line);
}

// ---- scopes ----

ExpressionParser::Nesting::Nesting(int& depth, int limit, const char* what, int line) : depth_(depth) {
  if (depth_ >= limit) {
    fail_unsupported(std::string(what) + " nested deeper than the limit of " + std::to_string(limit), line);
  }
  ++depth_;
}

ExpressionParser::LoopBody::LoopBody(ExpressionParser& parser, Stmt& loop)
    : parser_(parser), outer_conditional_depth_(std::exchange(parser.conditional_depth_, 0)) {
  parser_.loops_.push_back(&loop);
  ++parser_.loop_depth_;
}

ExpressionParser::LoopBody::~LoopBody() {
  parser_.loops_.pop_back();
  --parser_.loop_depth_;
  parser_.conditional_depth_ = outer_conditional_depth_;
}

ExpressionParser::FunctionBody::FunctionBody(ExpressionParser& parser, MacroNode* macro)
    : parser_(parser),
      outer_loop_depth_(std::exchange(parser.loop_depth_, 0)),
      outer_conditional_depth_(std::exchange(parser.conditional_depth_, 0)),
      is_macro_(macro != nullptr) {
  if (is_macro_) parser_.macros_.push_back(macro);
}

ExpressionParser::FunctionBody::~FunctionBody() {
  parser_.loop_depth_ = outer_loop_depth_;
  parser_.conditional_depth_ = outer_conditional_depth_;
  if (is_macro_) parser_.macros_.pop_back();
}

// ---- tokens ----

void ExpressionParser::skip() {
  if (at_ + 1 < tokens_.size()) ++at_;
}

bool ExpressionParser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  skip();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  skip();
  return true;
}

void ExpressionParser::fail_expected(std::string_view description) const {
  fail("expected '" + std::string(description) + "', got '" + describe(current()) + "'", current().line);
}

void ExpressionParser::expect(TokenKind kind, std::string_view description) {
  if (!current().is(kind)) fail_expected(description);
  skip();
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_expected(op);
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}

// ---- nodes ----

NameId ExpressionParser::name_id(const std::string& name) {
  const auto [at, added] = name_ids_.emplace(name, static_cast<NameId>(names_.size()));
  if (added) names_.push_back(name);
  return at->second;
}

ExprPtr ExpressionParser::make(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void ExpressionParser::add_child(Expr& expr, ExprPtr child) const {
  if (child != nullptr) expr.depth = std::max(expr.depth, child->depth + 1);
  if (expr.depth > kMaxExpressionDepth) {
    fail_unsupported("an expression nested deeper than the limit of " + std::to_string(kMaxExpressionDepth), expr.line);
  }
  expr.children.push_back(std::move(child));
}

// Counts the arguments, which are not children, into the depth.
ExprPtr ExpressionParser::finish(ExprPtr expr) const {
  int deepest = 0;
  const auto note = [&deepest](const ExprPtr& argument) {
    if (argument != nullptr) deepest = std::max(deepest, argument->depth);
  };
  if (expr->arguments != nullptr) {
    for (const auto& argument : expr->arguments->positional) note(argument);
    for (const auto& [name, argument] : expr->arguments->keyword) note(argument);
    note(expr->arguments->star);
    note(expr->arguments->double_star);
  }
  expr->depth = std::max(expr->depth, deepest + 1);
  if (expr->depth > kMaxExpressionDepth) {
    fail_unsupported("an expression nested deeper than the limit of " + std::to_string(kMaxExpressionDepth),
                     expr->line);
  }
  return expr;
}

ExprPtr ExpressionParser::make_binary(ExprKind kind, ExprPtr left, ExprPtr right, const std::string& op,
                                      int line) const {
  ExprPtr expr = make(kind, line);
  add_child(*expr, std::move(left));
  add_child(*expr, std::move(right));
  if (!op.empty()) expr->operators.push_back(op);
  return expr;
}

ExprPtr ExpressionParser::constant(Value value, int line) const {
  ExprPtr expr = make(ExprKind::kConstant, line);
  expr->constant = std::move(value);
  return expr;
}

ExprPtr ExpressionParser::load_name(const Token& token) {
  if (token.text == "loop" && !loops_.empty()) loops_.back()->uses_loop = true;
  for (MacroNode* macro : macros_) {
    if (token.text == "varargs") macro->uses_varargs = true;
    if (token.text == "kwargs") macro->uses_kwargs = true;
    if (token.text == "caller") macro->uses_caller = true;
  }
  ExprPtr expr = make(ExprKind::kName, token.line);
  expr->text = token.text;
  expr->name = name_id(token.text);
  return expr;
}

// ---- expressions ----

ExprPtr ExpressionParser::parse_expression(bool with_conditional) {
  const Nesting nesting(expression_depth_, kMaxExpressionDepth, "an expression", current().line);
  if (!with_conditional) return parse_or();
  int line = current().line;
  const std::size_t n_unknown = unknown_names_.size();
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr condition = parse_or();
    ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    ExprPtr expr = make(ExprKind::kConditional, line);
    add_child(*expr, std::move(condition));
    add_child(*expr, std::move(value));
    add_child(*expr, std::move(otherwise));
    value = std::move(expr);
    line = current().line;
    if (unknown_names_.size() > n_unknown) {
      unknown_names_.erase(unknown_names_.begin() + static_cast<std::ptrdiff_t>(n_unknown), unknown_names_.end());
    }
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  const int line = current().line;
  ExprPtr left = parse_and();
  while (skip_name("or")) left = make_binary(ExprKind::kOr, std::move(left), parse_and(), "", line);
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  const int line = current().line;
  ExprPtr left = parse_not();
  while (skip_name("and")) left = make_binary(ExprKind::kAnd, std::move(left), parse_not(), "", line);
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(expression_depth_, kMaxExpressionDepth, "an expression", current().line);
  ExprPtr expr = make(ExprKind::kNot, current().line);
  skip();
  add_child(*expr, parse_not());
  return expr;
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = current().line;
  ExprPtr first = parse_sum();
  ExprPtr comparison;
  while (true) {
    std::string op;
    if (current().is(TokenKind::kOperator)) {
      static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
      for (const std::string_view known : kOperators) {
        if (current().text == known) op = known;
      }
    } else if (current().is_name("in")) {
      op = "in";
    } else if (current().is_name("not") && next().is_name("in")) {
      skip();
      op = "not in";
    }
    if (op.empty()) break;
    skip();
    if (comparison == nullptr) {
      comparison = make(ExprKind::kCompare, line);
      add_child(*comparison, std::move(first));
    }
    comparison->operators.push_back(op);
    add_child(*comparison, parse_sum());
  }
  return comparison != nullptr ? std::move(comparison) : std::move(first);
}

ExprPtr ExpressionParser::parse_sum() {
  const int line = current().line;
  ExprPtr left = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const std::string op = current().text;
    skip();
    left = make_binary(ExprKind::kBinary, std::move(left), parse_concat(), op, line);
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  ExprPtr first = parse_product();
  if (!current().is_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, line);
  add_child(*expr, std::move(first));
  while (skip_operator("~")) add_child(*expr, parse_product());
  return expr;
}

ExprPtr ExpressionParser::parse_product() {
  const int line = current().line;
  ExprPtr left = parse_power();
  while (current().is_operator("*") || current().is_operator("/") || current().is_operator("//") ||
         current().is_operator("%")) {
    const std::string op = current().text;
    skip();
    left = make_binary(ExprKind::kBinary, std::move(left), parse_power(), op, line);
  }
  return left;
}

ExprPtr ExpressionParser::parse_power() {
  const int line = current().line;
  ExprPtr left = parse_unary(true);
  while (skip_operator("**")) left = make_binary(ExprKind::kBinary, std::move(left), parse_unary(true), "**", line);
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Token& token = current();
  ExprPtr value;
  if (token.is_operator("-") || token.is_operator("+")) {
    const Nesting nesting(expression_depth_, kMaxExpressionDepth, "an expression", token.line);
    value = make(token.text == "-" ? ExprKind::kNegative : ExprKind::kPositive, token.line);
    skip();
    add_child(*value, parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filter_expression(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kName:
      skip();
      if (token.text == "true" || token.text == "True") return constant(Value::boolean(true), token.line);
      if (token.text == "false" || token.text == "False") return constant(Value::boolean(false), token.line);
      if (token.text == "none" || token.text == "None") return constant(Value(), token.line);
      return load_name(token);
    case TokenKind::kString: {
      std::string text;
      for (; current().is(TokenKind::kString); skip()) text += current().text;
      return constant(Value::string(std::move(text)), token.line);
    }
    case TokenKind::kInteger:
      skip();
      return constant(Value::integer(token.integer), token.line);
    case TokenKind::kFloat:
      skip();
      return constant(Value::real(token.real), token.line);
    default:
      break;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  if (!token.is_operator("(")) fail("unexpected '" + describe(token) + "'", token.line);
  skip();
  ExprPtr value = parse_tuple(true, true);
  expect_operator(")");
  return value;
}

bool ExpressionParser::at_tuple_end() const {
  const Token& token = current();
  return token.is(TokenKind::kVariableEnd) || token.is(TokenKind::kBlockEnd) || token.is_operator(")");
}

ExprPtr ExpressionParser::parse_tuple(bool with_conditional, bool in_brackets) {
  ExprPtr tuple = make(ExprKind::kTuple, current().line);
  bool has_comma = false;
  while (true) {
    if (!tuple->children.empty()) expect_operator(",");
    if (at_tuple_end()) break;
    add_child(*tuple, parse_expression(with_conditional));
    if (!current().is_operator(",")) break;
    has_comma = true;
  }
  if (has_comma) return tuple;
  if (!tuple->children.empty()) return std::move(tuple->children.front());
  if (!in_brackets) fail("Expected an expression, got '" + describe(current()) + "'", current().line);
  return tuple;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::kList, current().line);
  expect_operator("[");
  while (!current().is_operator("]")) {
    if (!list->children.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    add_child(*list, parse_expression());
  }
  expect_operator("]");
  return list;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, current().line);
  expect_operator("{");
  while (!current().is_operator("}")) {
    if (!dict->children.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    add_child(*dict, parse_expression());
    expect_operator(":");
    add_child(*dict, parse_expression());
  }
  expect_operator("}");
  return dict;
}

}  // namespace memoir::text::jinja
