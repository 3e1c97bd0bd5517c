#pragma once

// The values that are neither text, number nor container: ranges, iterators, functions and the state of a loop.
// Owned by the values that refer to them; a LoopState by the interpreter.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/text/jinja_ast.h"
#include "memoir/text/jinja_builtins.h"
#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

struct Frame;

/// range(start, stop, step); step is not 0.
class Range : public Object {
 public:
  Range(std::int64_t start, std::int64_t stop, std::int64_t step);

  std::string type_name() const override { return "range"; }
  bool truthy() const override { return length_ != 0; }
  bool equals(const Object& other) const override;
  std::string repr() const override;

  std::int64_t length() const { return length_; }
  /// 0 <= index < length().
  std::int64_t at(std::int64_t index) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(start_) +
                                     static_cast<std::uint64_t>(index) * static_cast<std::uint64_t>(step_));
  }
  bool contains(std::int64_t value) const;
  std::int64_t start() const { return start_; }
  std::int64_t step() const { return step_; }

 private:
  std::int64_t start_;
  std::int64_t stop_;
  std::int64_t step_;
  std::int64_t length_;
};

/// dict.keys(), .values() and .items().
class DictView : public Object {
 public:
  enum class Part { kKeys, kValues, kItems };
  DictView(std::shared_ptr<const Dict> dict, Part part) : dict_(std::move(dict)), part_(part) {}

  std::string type_name() const override;
  bool truthy() const override { return size() != 0; }
  std::string repr() const override;
  int depth() const override { return dict_->depth(); }

  Part part() const { return part_; }
  const Dict& dict() const { return *dict_; }
  std::size_t size() const { return dict_->size(); }
  Value at(std::size_t index) const;

 private:
  std::shared_ptr<const Dict> dict_;
  Part part_;
};

/// What can be gone through once: Python's generators.
class Iterator : public Object {
 public:
  /// Sets `item` and returns true, or returns false at the end.
  virtual bool next(Value& item) = 0;
  std::string type_name() const override { return "generator"; }
};

/// An iterator over `source` (any iterable value) that a function steps.
class StepIterator : public Iterator {
 public:
  using Step = std::function<bool(Value& item)>;
  /// source: what the step reads from; only its depth counts. Throws Error (kUnsupported) for too long a chain.
  StepIterator(Step step, const Value& source);

  bool next(Value& item) override;
  int depth() const override { return depth_; }

 private:
  Step step_;
  int depth_;
  int n_chained_;
};

class Function : public Object {
 public:
  Function(std::string name, GlobalFunction function) : name_(std::move(name)), function_(function) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  std::string repr() const override { return "<function " + name_ + ">"; }
  bool equals(const Object& other) const override {
    const auto* function = dynamic_cast<const Function*>(&other);
    return function != nullptr && function->function_ == function_;
  }
  Value call(Interpreter& interpreter, Arguments& arguments) const { return function_(interpreter, arguments); }

 private:
  std::string name_;
  GlobalFunction function_;
};

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, std::string name, MethodFunction function);
  std::string type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  std::string repr() const override { return "<built-in method " + name_ + ">"; }
  int depth() const override { return self_.depth() + 1; }
  Value call(Interpreter& interpreter, Arguments& arguments) const { return function_(interpreter, self_, arguments); }

 private:
  Value self_;
  std::string name_;
  MethodFunction function_;
};

class Macro : public Object {
 public:
  /// frame: where it was defined; null is the template's top.
  Macro(const MacroNode& node, const std::shared_ptr<Frame>& frame) : node_(node), frame_(frame) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  std::string repr() const override { return "<Macro '" + node_.name + "'>"; }
  const MacroNode& node() const { return node_; }
  /// Null at the top, and where the defining scope has ended.
  std::shared_ptr<Frame> frame() const { return frame_.lock(); }

 private:
  const MacroNode& node_;
  std::weak_ptr<Frame> frame_;
};

class Cycler : public Object {
 public:
  explicit Cycler(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  int depth() const override { return items_.depth() + 1; }
  const Value& current() const { return items_.items()[position_]; }
  void advance() { position_ = (position_ + 1) % items_.items().size(); }
  void reset() { position_ = 0; }

 private:
  Value items_;  // a tuple, not empty
  std::size_t position_ = 0;
};

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  int depth() const override { return separator_.depth() + 1; }
  Value call() {
    if (std::exchange(used_, true)) return separator_;
    return Value::string("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

/// The `loop` of a for statement, and the iteration itself.
class LoopState {
 public:
  LoopState(const Stmt& stmt, std::shared_ptr<Frame> outer, Value iterable, std::shared_ptr<Iterator> iterator,
            int depth0);

  /// Goes one item on.
  bool next(Value& item);
  /// The loop is over: lets go of the items.
  void finish();

  /// loop.<name>, or nullopt where there is no such attribute.
  std::optional<Value> attribute(std::string_view name);
  /// loop.changed(...)
  bool changed(Value values);
  std::int64_t index0() const { return index0_; }
  const Stmt& stmt() const { return stmt_; }
  std::shared_ptr<Frame> outer() const { return outer_.lock(); }
  int depth0() const { return depth0_; }

 private:
  std::int64_t length();
  bool peek();

  const Stmt& stmt_;
  std::weak_ptr<Frame> outer_;
  Value iterable_;
  std::shared_ptr<Iterator> iterator_;
  int depth0_;
  std::int64_t index0_ = -1;
  std::optional<std::int64_t> length_;
  std::optional<Value> after_;
  std::optional<Value> current_;
  std::optional<Value> before_;
  std::optional<Value> last_changed_;
};

}  // namespace memoir::text::jinja
