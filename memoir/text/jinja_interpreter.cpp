#include "memoir/text/jinja_interpreter.h"

#include <algorithm>
#include <utility>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_interpreter_scopes.h"
#include "memoir/text/jinja_operations.h"

namespace memoir::text::jinja {

const Value* Frame::find(NameId name) const {
  for (const auto& [known, value] : variables) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Frame::set(NameId name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const Program& program, const Variables& variables, std::chrono::system_clock::time_point now,
                         std::uint64_t max_steps)
    : program_(program), now_(now), budget_(max_steps), top_(program.names.size()) {
  for (NameId id = 0; id < program_.names.size(); ++id) {
    const std::string& name = program_.names[id];
    if (const auto given = variables.find(name); given != variables.end()) {
      top_[id] = given->second;
    } else if (const GlobalFunction function = find_global(name)) {
      top_[id] = Value::object(std::make_shared<Function>(name, function));
    }
    if (name == "loop" || name == "caller" || name == "varargs" || name == "kwargs") special_names_[name] = id;
  }
}

Interpreter::~Interpreter() = default;

std::string Interpreter::run() {
  const Budget::Scope scope(budget_);
  try {
    run_block(program_.body);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), error.line() != 0 ? error.line() : line_);
  }
  return std::move(text_);
}

Namespace* Interpreter::new_namespace() {
  spend(4);
  return namespaces_.emplace_back(std::make_unique<Namespace>()).get();
}

// ---- statements ----

Interpreter::Flow Interpreter::run_block(const Block& block) {
  for (const auto& stmt : block) {
    const Flow flow = run_statement(*stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Stmt& stmt) {
  const Nesting nesting(*this);
  line_ = stmt.line;
  spend(1);
  switch (stmt.kind) {
    case StmtKind::kOutput:
      run_output(stmt);
      break;
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor: {
      const Value iterable = evaluate(*stmt.value);
      if (stmt.recursive) {
        write(run_recursive_for(stmt, iterable, 0));
      } else {
        run_for(stmt, iterable, 0);
      }
      break;
    }
    case StmtKind::kSet:
      assign(*stmt.target, evaluate(*stmt.value));
      break;
    case StmtKind::kSetBlock:
      run_set_block(stmt);
      break;
    case StmtKind::kMacro:
      store(stmt.target->name, Value::object(std::make_shared<Macro>(*stmt.macro, frame_)));
      break;
    case StmtKind::kCallBlock:
      run_call_block(stmt);
      break;
    case StmtKind::kFilterBlock:
      run_filter_block(stmt);
      break;
    case StmtKind::kWith:
      run_with(stmt);
      break;
    case StmtKind::kGeneration: {
      const Scope scope(*this, frame_);
      run_block(stmt.body);
      break;
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::write(const Value& value) {
  if (value.is_string()) {
    *out_ += value.str();
  } else {
    *out_ += to_text(value);
  }
  if (out_->size() > Budget::kMaxOutputBytes) {
    fail_unsupported("the text is longer than the limit of " + std::to_string(Budget::kMaxOutputBytes >> 20) + " MiB");
  }
}

// A block's result is not turned into text by itself.
void Interpreter::write_text(const Value& value) {
  if (!value.is_string()) fail("expected str instance, " + value.type_name() + " found");
  write(value);
}

void Interpreter::run_output(const Stmt& stmt) {
  for (const ExprPtr& expr : stmt.expressions) {
    if (expr->kind == ExprKind::kConstant) {
      spend(1 + (expr->constant.is_string() ? expr->constant.str().size() / Budget::kBytesPerUnit : 0));
      write(expr->constant);
    } else {
      write(evaluate(*expr));
    }
  }
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (branch.condition == nullptr || truthy(evaluate(*branch.condition))) return run_block(branch.body);
  }
  return Flow::kNext;
}

// The items for which the loop's condition holds, asked for one by one as the loop goes on.
std::shared_ptr<Iterator> Interpreter::filtered(const Stmt& stmt, std::shared_ptr<Iterator> items) {
  const Value source = Value::object(items);
  return std::make_shared<StepIterator>(
      [this, &stmt, items, outer = frame_](Value& item) {
        while (items->next(item)) {
          const Scope scope(*this, outer);
          assign(*stmt.target, item);
          if (truthy(evaluate(*stmt.condition))) return true;
        }
        return false;
      },
      source);
}

void Interpreter::run_for(const Stmt& stmt, const Value& iterable, int depth0) {
  std::shared_ptr<Iterator> items = iterate(iterable);
  Value source = iterable;
  if (stmt.condition != nullptr) {
    items = filtered(stmt, std::move(items));
    source = Value::object(items);
  }
  bool any = false;  // an iteration came to its end; jinja2 takes the else part also where each broke off
  if (stmt.uses_loop || stmt.recursive) {
    spend(4);
    loops_.push_back(std::make_unique<LoopState>(stmt, frame_, std::move(source), std::move(items), depth0));
    LoopState& loop = *loops_.back();
    any = run_iterations(stmt, loop);
    loop.finish();
  } else {
    LoopState loop(stmt, frame_, std::move(source), std::move(items), depth0);
    any = run_iterations(stmt, loop);
  }
  if (!any && !stmt.otherwise.empty()) {
    const Scope scope(*this, frame_);
    run_block(stmt.otherwise);
  }
}

bool Interpreter::run_iterations(const Stmt& stmt, LoopState& loop) {
  const auto loop_name = special_names_.find("loop");
  const bool names_loop = (stmt.uses_loop || stmt.recursive) && loop_name != special_names_.end();
  bool any = false;
  const auto outer = frame_;
  const Scope scope(*this, outer);
  const auto inner = frame_;
  while (true) {
    frame_ = outer;  // a generator's next item is computed outside of the body's scope
    Value item;
    if (!loop.next(item)) break;
    frame_ = inner;
    inner->variables.clear();
    assign(*stmt.target, item);
    if (names_loop) inner->set(loop_name->second, Value::of(&loop));
    const Flow flow = run_block(stmt.body);
    if (flow == Flow::kBreak) break;
    any = any || flow == Flow::kNext;
  }
  return any;
}

Value Interpreter::run_recursive_for(const Stmt& stmt, const Value& iterable, int depth0) {
  Capture capture(*this);
  run_for(stmt, iterable, depth0);
  return capture.take();
}

void Interpreter::run_set_block(const Stmt& stmt) {
  Value text;
  {
    const Scope scope(*this, frame_);
    Capture capture(*this);
    run_block(stmt.body);
    text = capture.take();
    if (stmt.value != nullptr) {
      captured_ = text;
      text = evaluate(*stmt.value);
    }
  }
  assign(*stmt.target, text);
}

void Interpreter::run_filter_block(const Stmt& stmt) {
  const Scope scope(*this, frame_);
  Value text;
  {
    Capture capture(*this);
    run_block(stmt.body);
    text = capture.take();
  }
  captured_ = text;
  write_text(evaluate(*stmt.value));
}

void Interpreter::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, value] : stmt.assignments) values.push_back(evaluate(*value));
  const Scope scope(*this, frame_);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*stmt.assignments[i].first, values[i]);
  run_block(stmt.body);
}

void Interpreter::run_call_block(const Stmt& stmt) {
  Arguments arguments = evaluate_arguments(*stmt.value->arguments);
  arguments.keyword.emplace_back("caller", Value::object(std::make_shared<Macro>(*stmt.macro, frame_)));
  write_text(call_expression(*stmt.value, std::move(arguments)));
}

// ---- macros ----

namespace {

// Removes and returns a keyword argument.
std::optional<Value> take_keyword(Arguments& arguments, std::string_view name) {
  const auto found = std::find_if(arguments.keyword.begin(), arguments.keyword.end(),
                                  [name](const auto& argument) { return argument.first == name; });
  if (found == arguments.keyword.end()) return std::nullopt;
  Value value = std::move(found->second);
  arguments.keyword.erase(found);
  return value;
}

}  // namespace

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  const Nesting nesting(*this);
  const int line = line_;
  const Scope scope(*this, macro.frame());
  bind_special_parameters(macro.node(), arguments);
  bind_parameters(macro.node(), arguments);
  Capture capture(*this);
  run_block(macro.node().body);
  line_ = line;
  return capture.take();
}

void Interpreter::bind_parameters(const MacroNode& node, Arguments& arguments) {
  const std::size_t n_parameters = node.parameters.size();
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < n_parameters; ++i) {
    if (i < arguments.positional.size()) {
      frame_->set(node.parameters[i], arguments.positional[i]);
    } else if (auto value = take_keyword(arguments, node.parameter_names[i])) {
      frame_->set(node.parameters[i], *std::move(value));
    } else {
      missing.push_back(i);
    }
  }
  if (node.uses_kwargs) {
    Dict rest;
    for (const auto& [name, value] : arguments.keyword) rest.set(name, value);
    frame_->set(special_names_.at("kwargs"), Value::dict(std::move(rest)));
  } else if (!arguments.keyword.empty()) {
    fail("macro '" + node.name + "' takes no keyword argument '" + arguments.keyword.front().first + "'");
  }
  for (const std::size_t i : missing) {
    const std::size_t n_required = n_parameters - node.defaults.size();
    frame_->set(node.parameters[i],
                i >= n_required ? evaluate(*node.defaults[i - n_required])
                                : Value::undefined("parameter '" + node.parameter_names[i] + "' was not provided"));
  }
}

void Interpreter::bind_special_parameters(const MacroNode& node, Arguments& arguments) {
  const auto& names = node.parameter_names;
  const bool names_caller = std::find(names.begin(), names.end(), "caller") != names.end();
  if (node.uses_caller && !names_caller) {
    auto caller = take_keyword(arguments, "caller");
    frame_->set(special_names_.at("caller"), caller ? *std::move(caller) : Value::undefined("No caller defined"));
  }
  const std::size_t n_parameters = node.parameters.size();
  if (node.uses_varargs) {
    std::vector<Value> rest;
    for (std::size_t i = n_parameters; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    frame_->set(special_names_.at("varargs"), Value::tuple(std::move(rest)));
  } else if (arguments.positional.size() > n_parameters) {
    fail("macro '" + node.name + "' takes not more than " + std::to_string(n_parameters) + " argument(s)");
  }
}

// ---- variables ----

void Interpreter::store(NameId name, Value value) {
  if (frame_ == nullptr) {
    top_[name] = std::move(value);
  } else {
    frame_->set(name, std::move(value));
  }
}

void Interpreter::assign(const Expr& target, const Value& value) {
  switch (target.kind) {
    case ExprKind::kTuple:
      return assign_tuple(target, value);
    case ExprKind::kNamespaceRef: {
      const Value space = load(target);
      if (!space.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
      return space.as_namespace()->set(target.text, value);
    }
    default:
      store(target.name, value);
  }
}

void Interpreter::assign_tuple(const Expr& target, const Value& value) {
  value.require_defined();
  const std::vector<Value> items = collect(value);
  const std::size_t n_wanted = target.children.size();
  if (items.size() != n_wanted) {
    fail(std::string(items.size() < n_wanted ? "not enough" : "too many") + " values to unpack (expected " +
         std::to_string(n_wanted) + ", got " + std::to_string(items.size()) + ")");
  }
  for (std::size_t i = 0; i < n_wanted; ++i) assign(*target.children[i], items[i]);
}

}  // namespace memoir::text::jinja
