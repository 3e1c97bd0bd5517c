#pragma once

// The tree the parser makes and the interpreter walks. Read only once made, so threads share it.
//
// Invariants: no expression is deeper than kMaxExpressionDepth and no statement deeper than kMaxStatementDepth, which
// bounds the recursion of everything that walks the tree, destructors included. A variable is a number: its index in
// Program::names.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memoir/text/jinja_builtins.h"
#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

inline constexpr int kMaxExpressionDepth = 150;
inline constexpr int kMaxStatementDepth = 60;

using NameId = std::uint32_t;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star;         // *args, may be null
  ExprPtr double_star;  // **kwargs, may be null
};

enum class ExprKind {
  kConstant,      // constant
  kName,          // name
  kNamespaceRef,  // name, text: the target of {% set ns.attr = ... %}
  kList,          // children
  kTuple,         // children
  kDict,          // children: key, value, key, value, ...
  kAttribute,     // children[0], text
  kItem,          // children[0], children[1]
  kSlice,         // children[0]; children[1..3] start, stop, step, each may be null
  kCall,          // children[0], arguments
  kFilter,        // children[0] (null: the captured text), text, arguments
  kTest,          // children[0], text, arguments
  kNot,           // children[0]
  kNegative,      // children[0]
  kPositive,      // children[0]
  kAnd,           // children[0], children[1]
  kOr,            // children[0], children[1]
  kConditional,   // children: condition, value, else value (may be null)
  kCompare,       // children[0], then one child per operator in operators
  kBinary,        // children[0], children[1], operators[0] in + - * / // % **
  kConcat         // children
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;
  NameId name = 0;
  std::string text;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  std::unique_ptr<CallArguments> arguments;
  FilterFunction filter = nullptr;  // of kFilter; null where the name is unknown (an error once it runs)
  TestFunction test = nullptr;      // of kTest; likewise
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

/// A macro, or the body of a call block (which is the anonymous macro `caller`).
struct MacroNode {
  std::string name;
  std::vector<NameId> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  // Whether the body asks for them; only then does the macro take such arguments.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

enum class StmtKind {
  kOutput,       // expressions, each printed
  kIf,           // branches; a branch without a condition is the else
  kFor,          // target, iterable, condition (may be null), body, otherwise, recursive
  kSet,          // target, value
  kSetBlock,     // target, value (the filter chain over the captured text, may be null), body
  kMacro,        // target name, macro
  kCallBlock,    // value (the call), macro (the body)
  kFilterBlock,  // value (the filter chain), body
  kWith,         // assignments, body
  kGeneration,   // body
  kBreak,
  kContinue
};

struct Branch {
  ExprPtr condition;
  Block body;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::vector<ExprPtr> expressions;
  std::vector<Branch> branches;
  ExprPtr target;
  ExprPtr value;
  ExprPtr condition;
  Block body;
  Block otherwise;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  std::unique_ptr<MacroNode> macro;
  bool recursive = false;
  bool uses_loop = false;  // the body names `loop`
};

struct Program {
  Block body;
  std::vector<std::string> names;
};

/// Parses a template. Throws Error (kTemplate for bad syntax, kUnsupported for constructs out of scope) with its line.
Program parse_program(const std::string& source);

}  // namespace memoir::text::jinja
