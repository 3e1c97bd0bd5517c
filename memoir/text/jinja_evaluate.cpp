#include <algorithm>
#include <utility>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_expression_parser.h"
#include "memoir/text/jinja_interpreter.h"
#include "memoir/text/jinja_interpreter_scopes.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

bool apply_comparison(const std::string& op, const Value& left, const Value& right) {
  if (op == "==") return equal(left, right);
  if (op == "!=") return !equal(left, right);
  if (op == "in") return contains(right, left);
  if (op == "not in") return !contains(right, left);
  const int order = compare(left, right, op.c_str());
  if (order == 2) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

}  // namespace

Value Interpreter::evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::kConstant) return expr.constant;
  const Nesting nesting(*this);
  spend(1);
  return evaluate_any(expr);
}

// Each case that needs room of its own is a function, which keeps this one's stack frame small: it is the one that
// recurses.
Value Interpreter::evaluate_any(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
    case ExprKind::kNamespaceRef:
      return load(expr);
    case ExprKind::kList:
      return Value::list(evaluate_all(expr.children));
    case ExprKind::kTuple:
      return Value::tuple(evaluate_all(expr.children));
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kAttribute: {
      const Value object = evaluate(*expr.children[0]);
      line_ = expr.line;
      return attribute_of(object, expr.text);
    }
    case ExprKind::kItem: {
      const Value object = evaluate(*expr.children[0]);
      const Value key = evaluate(*expr.children[1]);
      line_ = expr.line;
      return item_of(object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr);
    case ExprKind::kCall:
      return evaluate_call(expr);
    case ExprKind::kFilter:
      return evaluate_filter(expr);
    case ExprKind::kTest:
      return Value::boolean(evaluate_test(expr));
    case ExprKind::kNot:
      return Value::boolean(!truthy(evaluate(*expr.children[0])));
    case ExprKind::kNegative:
      return negative(evaluate(*expr.children[0]));
    case ExprKind::kPositive:
      return negative(negative(evaluate(*expr.children[0])));
    case ExprKind::kAnd: {
      Value left = evaluate(*expr.children[0]);
      return truthy(left) ? evaluate(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*expr.children[0]);
      return truthy(left) ? left : evaluate(*expr.children[1]);
    }
    case ExprKind::kConditional:
      return evaluate_conditional(expr);
    case ExprKind::kCompare:
      return Value::boolean(evaluate_compare(expr));
    case ExprKind::kBinary: {
      const Value left = evaluate(*expr.children[0]);
      const Value right = evaluate(*expr.children[1]);
      line_ = expr.line;
      return binary(expr.operators[0], left, right);
    }
    case ExprKind::kConcat:
      return evaluate_concat(expr);
  }
  return Value();
}

Value Interpreter::load(const Expr& expr) const {
  for (const Frame* frame = frame_.get(); frame != nullptr; frame = frame->parent.get()) {
    if (const Value* found = frame->find(expr.name)) return *found;
  }
  if (const auto& value = top_[expr.name]) return *value;
  return Value::undefined("'" + program_.names[expr.name] + "' is undefined");
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(evaluate(*expr));
  return values;
}

Value Interpreter::evaluate_dict(const Expr& expr) {
  Dict dict;
  for (std::size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    Value key = evaluate(*expr.children[i]);
    dict.set(std::move(key), evaluate(*expr.children[i + 1]));
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::evaluate_slice(const Expr& expr) {
  const Value object = evaluate(*expr.children[0]);
  Value bounds[3];
  for (std::size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] != nullptr) bounds[i] = evaluate(*expr.children[i + 1]);
  }
  line_ = expr.line;
  return slice_of(object, bounds[0], bounds[1], bounds[2]);
}

Value Interpreter::evaluate_conditional(const Expr& expr) {
  if (truthy(evaluate(*expr.children[0]))) return evaluate(*expr.children[1]);
  if (expr.children[2] != nullptr) return evaluate(*expr.children[2]);
  return Value::undefined("the inline if-expression on line " + std::to_string(expr.line) +
                          " evaluated to false and no else section was defined.");
}

bool Interpreter::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1]);
    line_ = expr.line;
    if (!apply_comparison(expr.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_concat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& child : expr.children) {
    const Value part = evaluate(*child);
    if (part.is_string()) {
      spend_text(part.str().size());
      text += part.str();
    } else {
      text += to_text(part);
    }
    if (text.size() > Budget::kMaxLiveBytes) spend_text(text.size());
  }
  return Value::string(std::move(text));
}

// ---- calls ----

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments values;
  values.positional = evaluate_all(arguments.positional);
  for (const auto& [name, expr] : arguments.keyword) values.keyword.emplace_back(name, evaluate(*expr));
  if (arguments.star != nullptr) {
    for (Value& item : collect(evaluate(*arguments.star))) values.positional.push_back(std::move(item));
  }
  if (arguments.double_star != nullptr) {
    const Value given = evaluate(*arguments.double_star);
    if (!given.is(Kind::kDict)) fail("argument after ** must be a mapping, not " + given.type_name());
    for (const auto& [key, value] : given.as_dict().entries()) {
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& known : values.keyword) {
        if (known.first == key.str()) fail("got multiple values for keyword argument '" + key.str() + "'");
      }
      values.keyword.emplace_back(key.str(), value);
    }
  }
  return values;
}

Value Interpreter::evaluate_call(const Expr& expr) {
  return call_expression(expr, evaluate_arguments(*expr.arguments));
}

// A method is called without making a value of it first.
Value Interpreter::call_expression(const Expr& expr, Arguments arguments) {
  const Expr& callee = *expr.children[0];
  if (callee.kind == ExprKind::kAttribute) {
    const Value object = evaluate(*callee.children[0]);
    line_ = expr.line;
    const Method method = object.is_undefined() ? Method() : find_method(object, callee.text);
    if (method.access == Method::Access::kCallable) return method.function(*this, object, arguments);
    return call(attribute_of(object, callee.text), arguments);
  }
  const Value function = evaluate(callee);
  line_ = expr.line;
  return call(function, arguments);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  callee.require_defined();
  if (callee.is(Kind::kLoop)) {
    LoopState& loop = *callee.as_loop();
    if (!loop.stmt().recursive) fail("The loop must have the 'recursive' marker to be called recursively.");
    if (arguments.positional.size() != 1 || !arguments.keyword.empty()) fail("loop() takes one argument");
    const Nesting nesting(*this);
    auto outer = loop.outer();
    std::swap(frame_, outer);
    Value text;
    try {
      text = run_recursive_for(loop.stmt(), arguments.positional[0], loop.depth0() + 1);
    } catch (...) {
      std::swap(frame_, outer);
      throw;
    }
    std::swap(frame_, outer);
    return text;
  }
  if (const auto* macro = callee.as<Macro>()) return call_macro(*macro, arguments);
  if (const auto* function = callee.as<Function>()) return function->call(*this, arguments);
  if (const auto* method = callee.as<BoundMethod>()) return method->call(*this, arguments);
  if (auto* joiner = callee.as<Joiner>()) return joiner->call();
  fail("'" + callee.type_name() + "' object is not callable");
}

Value Interpreter::evaluate_filter(const Expr& expr) {
  if (expr.filter == nullptr) throw unknown_filter(expr.text, expr.line);
  const Value input = expr.children[0] != nullptr ? evaluate(*expr.children[0]) : captured_;
  Arguments arguments = evaluate_arguments(*expr.arguments);
  line_ = expr.line;
  return expr.filter(*this, input, arguments);
}

bool Interpreter::evaluate_test(const Expr& expr) {
  if (expr.test == nullptr) throw unknown_test(expr.text, expr.line);
  const Value input = evaluate(*expr.children[0]);
  Arguments arguments = evaluate_arguments(*expr.arguments);
  line_ = expr.line;
  return expr.test(*this, input, arguments);
}

Value Interpreter::call_filter(const std::string& name, const Value& input, Arguments& arguments) {
  const FilterFunction filter = find_filter(name);
  if (filter == nullptr) throw unknown_filter(name, line_);
  return filter(*this, input, arguments);
}

bool Interpreter::call_test(const std::string& name, const Value& input, Arguments& arguments) {
  const TestFunction test = find_test(name);
  if (test == nullptr) throw unknown_test(name, line_);
  return test(*this, input, arguments);
}

}  // namespace memoir::text::jinja
