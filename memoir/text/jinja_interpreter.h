#pragma once

// Walks a parsed template and writes its text.
//
// One Interpreter is one rendering: made, run once, thrown away. It owns the scopes, namespaces and loop states, and
// counts what the rendering costs (jinja_budget.h).
// Scopes are jinja2's: for, with, macro, call, filter, set and generation bodies have a scope of their own that sees
// the outer ones and does not write to them; if bodies have none.
// Threads: one. Many interpreters may run the same Program at once.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/text/jinja_ast.h"
#include "memoir/text/jinja_budget.h"
#include "memoir/text/jinja_objects.h"
#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

/// The variables of one scope below the template's top.
struct Frame {
  std::shared_ptr<Frame> parent;  // null where the parent is the top
  std::vector<std::pair<NameId, Value>> variables;

  const Value* find(NameId name) const;
  void set(NameId name, Value value);
};

class Interpreter {
 public:
  /// Nested evaluations, statements and calls. Bounds the native stack: with 500 no template measured needed more than
  /// 400 KiB, and a thread of macOS has 512.
  static constexpr int kMaxNesting = 500;
  static constexpr std::int64_t kMaxRange = 100'000;

  using Variables = std::map<std::string, Value, std::less<>>;

  /// program must outlive the interpreter. now: what strftime_now tells. max_steps: the budget's units.
  Interpreter(const Program& program, const Variables& variables, std::chrono::system_clock::time_point now,
              std::uint64_t max_steps);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// The template's text. Throws Error with a line.
  std::string run();

  // For the builtins:

  /// Calls a function, method or macro. Throws Error where the value is none of these.
  Value call(const Value& callee, Arguments& arguments);
  Value call_filter(const std::string& name, const Value& input, Arguments& arguments);
  bool call_test(const std::string& name, const Value& input, Arguments& arguments);
  Namespace* new_namespace();
  std::chrono::system_clock::time_point now() const { return now_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Nesting;
  class Capture;
  class Scope;

  // Statements (jinja_interpreter.cpp).
  Flow run_block(const Block& block);
  Flow run_statement(const Stmt& stmt);
  void run_output(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  void run_for(const Stmt& stmt, const Value& iterable, int depth0);
  Value run_recursive_for(const Stmt& stmt, const Value& iterable, int depth0);
  bool run_iterations(const Stmt& stmt, LoopState& loop);
  std::shared_ptr<Iterator> filtered(const Stmt& stmt, std::shared_ptr<Iterator> items);
  void run_set_block(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  void run_filter_block(const Stmt& stmt);
  void run_with(const Stmt& stmt);
  Value call_macro(const Macro& macro, Arguments& arguments);
  void bind_parameters(const MacroNode& node, Arguments& arguments);
  void bind_special_parameters(const MacroNode& node, Arguments& arguments);
  void assign(const Expr& target, const Value& value);
  void assign_tuple(const Expr& target, const Value& value);
  void store(NameId name, Value value);
  void write(const Value& value);
  void write_text(const Value& value);

  // Expressions (jinja_evaluate.cpp).
  Value evaluate(const Expr& expr);
  Value evaluate_any(const Expr& expr);
  Value load(const Expr& expr) const;
  Value evaluate_dict(const Expr& expr);
  Value evaluate_slice(const Expr& expr);
  Value evaluate_call(const Expr& expr);
  Value call_expression(const Expr& expr, Arguments arguments);
  Value evaluate_filter(const Expr& expr);
  bool evaluate_test(const Expr& expr);
  bool evaluate_compare(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_conditional(const Expr& expr);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs);
  Arguments evaluate_arguments(const CallArguments& arguments);

  const Program& program_;
  std::chrono::system_clock::time_point now_;
  Budget budget_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<LoopState>> loops_;
  std::vector<std::optional<Value>> top_;  // the variables of the top scope, by name
  std::shared_ptr<Frame> frame_;           // the innermost scope; null is the top
  std::map<std::string, NameId, std::less<>>
      special_names_;  // loop, caller, varargs, kwargs where the template names them
  Value captured_;     // what the filters of a block apply to
  std::string text_;
  std::string* out_ = &text_;
  int nesting_ = 0;
  int line_ = 1;
};

}  // namespace memoir::text::jinja
