#include <ctime>
#include <string_view>
#include <unordered_map>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_builtins.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_interpreter.h"
#include "memoir/text/jinja_objects.h"
#include "memoir/text/jinja_operations.h"

namespace memoir::text::jinja {
namespace {

Value make_range(Interpreter&, Arguments& arguments) {
  const std::size_t n_given = arguments.positional.size();
  const BoundArguments bound("range", arguments, {"start", "stop", "step"}, 1);
  if (!arguments.keyword.empty()) fail("range() takes no keyword arguments");
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  const Range range = n_given == 1 ? Range(0, bound.integer(0), 1) : Range(bound.integer(0), bound.integer(1), step);
  if (range.length() > Interpreter::kMaxRange) {
    fail("Range too big. The sandbox blocks ranges larger than " + std::to_string(Interpreter::kMaxRange) + ".");
  }
  return Value::object(std::make_shared<Range>(range));
}

// dict(mapping or pairs, **more)
Dict dict_of(const char* function, const Arguments& arguments) {
  if (arguments.positional.size() > 1) fail(std::string(function) + " expected at most 1 argument");
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    given.require_defined();
    if (given.is(Kind::kDict)) {
      for (const auto& [key, value] : given.as_dict().entries()) dict.set(key, value);
    } else {
      for (const Value& pair : collect(given)) {
        const std::vector<Value> both = collect(pair);
        if (both.size() != 2) fail("dictionary update sequence element has length other than 2");
        dict.set(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keyword) dict.set(name, value);
  return dict;
}

Value make_dict(Interpreter&, Arguments& arguments) {
  return Value::dict(dict_of("dict", arguments));
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  Namespace* space = interpreter.new_namespace();
  const Dict attributes = dict_of("namespace", arguments);
  for (const auto& [name, value] : attributes.entries()) {
    if (!name.is_string()) fail_unsupported("a namespace attribute whose name is not a string");
    space->set(name.str(), value);
  }
  return Value::of(space);
}

Value make_cycler(Interpreter&, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.keyword.empty()) fail("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(Value::tuple(arguments.positional)));
}

Value make_joiner(Interpreter&, Arguments& arguments) {
  const BoundArguments bound("joiner", arguments, {"sep"});
  return Value::object(std::make_shared<Joiner>(bound.has(0) ? bound[0] : Value::string(", ")));
}

Value raise_exception(Interpreter&, Arguments& arguments) {
  const BoundArguments bound("raise_exception", arguments, {"message"}, 1);
  throw Error(ErrorKind::kRefusal, to_text(bound[0]));
}

std::string six_digits(std::int64_t number) {
  std::string digits = std::to_string(number);
  return std::string(6 - std::min<std::size_t>(6, digits.size()), '0') + digits;
}

bool is_directive(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z' && byte != 'E' && byte != 'O') || byte == '%';
}

// One directive of strftime. %f, %z and %Z are Python's for a time without a zone.
std::string format_directive(const std::string& directive, const std::tm& time, std::int64_t microseconds) {
  if (directive == "%f") return six_digits(microseconds);
  if (directive == "%z" || directive == "%Z") return "";
  char buffer[256];
  return std::string(buffer, std::strftime(buffer, sizeof buffer, directive.c_str(), &time));
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const BoundArguments bound("strftime_now", arguments, {"format"}, 1);
  const std::string& format = bound.string(0);
  const auto now = interpreter.now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  std::tm time{};
  localtime_r(&seconds, &time);
  spend_text(format.size() * 64);
  std::string out;
  for (std::size_t at = 0; at < format.size();) {
    std::size_t n_bytes = 2;
    if (format.compare(at, 2, "%-") == 0) n_bytes = 3;  // %-d, %-m: without the leading zero
    const std::size_t last = at + n_bytes - 1;
    if (format[at] != '%' || last >= format.size() || !is_directive(format[last])) {
      out += format[at++];
      continue;
    }
    out += format_directive(format.substr(at, n_bytes), time, ((since % 1'000'000) + 1'000'000) % 1'000'000);
    at += n_bytes;
  }
  return Value::string(std::move(out));
}

Value lipsum(Interpreter&, Arguments&) {
  fail_unsupported("the function lipsum is not supported");
}

}  // namespace

GlobalFunction find_global(std::string_view name) {
  static const std::unordered_map<std::string_view, GlobalFunction> kGlobals = {
      {"range", make_range},          {"dict", make_dict},     {"namespace", make_namespace},
      {"cycler", make_cycler},        {"joiner", make_joiner}, {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}, {"lipsum", lipsum},
  };
  const auto found = kGlobals.find(name);
  return found != kGlobals.end() ? found->second : nullptr;
}

}  // namespace memoir::text::jinja
