#pragma once

// What templates can call by name: filters, tests, global functions, and the methods of strings, lists and dicts.
//
// All take their arguments as Python would (by position or name, with defaults) and throw Error for wrong ones.
// In scope: the built-in filters and tests of jinja2 but random, urlize, wordwrap and pprint; the methods that
// ImmutableSandboxedEnvironment lets through, but encode, translate and maketrans.

#include <string>
#include <string_view>

#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

class Interpreter;

using FilterFunction = Value (*)(Interpreter&, const Value& input, Arguments&);
using TestFunction = bool (*)(Interpreter&, const Value& input, Arguments&);
using MethodFunction = Value (*)(Interpreter&, const Value& self, Arguments&);
using GlobalFunction = Value (*)(Interpreter&, Arguments&);

/// nullptr where there is no such name.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
GlobalFunction find_global(std::string_view name);

/// A filter that jinja2 has and memoir has not.
bool is_unsupported_filter(std::string_view name);

/// What `value.name` means for Python where `name` is an attribute of the value's type.
struct Method {
  enum class Access {
    kNone,         // no such attribute
    kCallable,     // function is set
    kForbidden,    // changes the value: the sandbox gives an undefined value that fails when used
    kUnsupported,  // Python has it, memoir has not
  };
  Access access = Access::kNone;
  MethodFunction function = nullptr;
};
Method find_method(const Value& value, std::string_view name);

}  // namespace memoir::text::jinja
