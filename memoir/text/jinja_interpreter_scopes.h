#pragma once

// What the interpreter does for the length of a C++ block. Private to its two source files.

#include <memory>
#include <string>
#include <utility>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_interpreter.h"

namespace memoir::text::jinja {

/// One level of nesting; throws Error (kUnsupported) above the limit.
class Interpreter::Nesting {
 public:
  explicit Nesting(Interpreter& interpreter) : interpreter_(interpreter) {
    if (interpreter_.nesting_ >= kMaxNesting) {
      fail_unsupported("more than " + std::to_string(kMaxNesting) + " nested calls, blocks and expressions");
    }
    ++interpreter_.nesting_;
  }
  ~Nesting() { --interpreter_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Interpreter& interpreter_;
};

/// A new scope below `parent`; the scope before is the current one again afterwards.
class Interpreter::Scope {
 public:
  Scope(Interpreter& interpreter, std::shared_ptr<Frame> parent)
      : interpreter_(interpreter), outer_(std::move(interpreter.frame_)) {
    interpreter_.frame_ = std::make_shared<Frame>();
    interpreter_.frame_->parent = std::move(parent);
  }
  ~Scope() { interpreter_.frame_ = std::move(outer_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Frame> outer_;
};

/// Output goes to a text of its own.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter) : interpreter_(interpreter), outer_(interpreter.out_) {
    interpreter_.out_ = &text_;
  }
  ~Capture() { interpreter_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Value take() { return Value::string(std::move(text_)); }

 private:
  Interpreter& interpreter_;
  std::string* outer_;
  std::string text_;
};

}  // namespace memoir::text::jinja
