#pragma once

// How the parts of the template interpreter report a failure to each other. ChatTemplate turns it into the public
// family of memoir/base/error.h and adds the path; nothing else catches it.

#include <stdexcept>
#include <string>

namespace memoir::text::jinja {

enum class ErrorKind {
  kTemplate,     // the template is wrong, or meets data it was not written for
  kUnsupported,  // valid Jinja that is outside our scope, or a limit of this interpreter
  kRefusal,      // the template itself called raise_exception
};

class Error : public std::runtime_error {
 public:
  /// line: from 1; 0 where the thrower does not know it (the interpreter then fills it in).
  Error(ErrorKind kind, const std::string& message, int line = 0)
      : std::runtime_error(message), kind_(kind), line_(line) {}

  ErrorKind kind() const { return kind_; }
  int line() const { return line_; }

 private:
  ErrorKind kind_;
  int line_;
};

[[noreturn]] inline void fail(const std::string& message, int line = 0) {
  throw Error(ErrorKind::kTemplate, message, line);
}

[[noreturn]] inline void fail_unsupported(const std::string& message, int line = 0) {
  throw Error(ErrorKind::kUnsupported, message, line);
}

}  // namespace memoir::text::jinja
