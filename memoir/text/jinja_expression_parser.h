#pragma once

// The expression half of the parser: Jinja's grammar, its precedence and its quirks (a filter applies to the
// unary minus before it, a test takes one bare argument, tuples need no brackets). The statement half derives from it.
// Throws Error with the line.

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memoir/text/jinja_ast.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_lexer.h"

namespace memoir::text::jinja {

/// The error of a filter or test that does not exist, or that memoir leaves out.
Error unknown_filter(const std::string& name, int line);
Error unknown_test(const std::string& name, int line);

/// A token as error messages name it.
std::string describe(const Token& token);

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  /// Counts one level of nesting while it lives; throws Error (kUnsupported) above the limit.
  class Nesting {
   public:
    Nesting(int& depth, int limit, const char* what, int line);
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  /// While it lives, `break` and `continue` mean this loop, and a use of `loop` is noted in it.
  class LoopBody {
   public:
    LoopBody(ExpressionParser& parser, Stmt& loop);
    ~LoopBody();

   private:
    ExpressionParser& parser_;
    int outer_conditional_depth_;
  };

  /// While it lives, there is no loop to break, and uses of varargs, kwargs and caller are noted in `macro` (may be
  /// null).
  class FunctionBody {
   public:
    FunctionBody(ExpressionParser& parser, MacroNode* macro);
    ~FunctionBody();

   private:
    ExpressionParser& parser_;
    int outer_loop_depth_;
    int outer_conditional_depth_;
    bool is_macro_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void skip();
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  void expect(TokenKind kind, std::string_view description);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);

  ExprPtr parse_expression(bool with_conditional = true);
  /// Expressions between commas: one alone is itself, else a tuple.
  ExprPtr parse_tuple(bool with_conditional = true, bool in_brackets = false);
  /// What may be assigned to: a name, a tuple of such, or (where allowed) an attribute of a namespace. parameter: its
  /// names may also be called `loop`.
  ExprPtr parse_target(bool with_namespace, bool parameter = false);
  ExprPtr parse_name_target(bool parameter);
  /// "| name(arguments)" as often as it stands there; `value` null is the captured text of a block. started: the first
  /// bar is left out. Returns `value` where there is none.
  ExprPtr parse_filters(ExprPtr value, bool started = false);

  ExprPtr constant(Value value, int line) const;
  std::vector<std::string> take_names() { return std::move(names_); }

  int block_depth_ = 0;
  int loop_depth_ = 0;         // of loops that break can leave
  int for_depth_ = 0;          // of for statements, their else parts included
  int conditional_depth_ = 0;  // of if statements
  /// Unknown filters and tests that stand outside of every condition; inside, they fail only if they run.
  std::vector<Error> unknown_names_;

 private:
  [[noreturn]] void fail_expected(std::string_view description) const;
  NameId name_id(const std::string& name);
  ExprPtr make(ExprKind kind, int line) const;
  void add_child(Expr& expr, ExprPtr child) const;
  ExprPtr finish(ExprPtr expr) const;
  ExprPtr make_binary(ExprKind kind, ExprPtr left, ExprPtr right, const std::string& op, int line) const;
  ExprPtr load_name(const Token& token);
  void check_store(const Token& token, bool parameter) const;

  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr value);
  ExprPtr parse_filter_expression(ExprPtr value);
  ExprPtr parse_subscript(ExprPtr value);
  ExprPtr parse_index(ExprPtr value);
  ExprPtr parse_test(ExprPtr value);
  ExprPtr parse_call(ExprPtr callee);
  std::unique_ptr<CallArguments> parse_arguments();
  void parse_argument(CallArguments& arguments);
  ExprPtr parse_target_part(bool with_namespace, bool parameter);
  bool at_tuple_end() const;
  bool at_compare_operator() const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int expression_depth_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId> name_ids_;
  std::vector<Stmt*> loops_;
  std::vector<MacroNode*> macros_;
};

}  // namespace memoir::text::jinja
