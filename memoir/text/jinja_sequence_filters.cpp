#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_filters.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_interpreter.h"
#include "memoir/text/jinja_objects.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

/// Looks up "a.b.0" step by step; no parts: the item itself.
class AttributePath {
 public:
  explicit AttributePath(const Value& attribute) {
    if (attribute.is_none()) return;
    if (!attribute.is_string()) {
      parts_.push_back(attribute);
      return;
    }
    std::string_view rest = attribute.str();
    while (true) {
      const std::size_t dot = std::min(rest.find('.'), rest.size());
      add(rest.substr(0, dot));
      if (dot == rest.size()) break;
      rest.remove_prefix(dot + 1);
    }
  }

  /// fallback: what an undefined step becomes; None for no fallback.
  Value of(Value item, const Value& fallback = Value()) const {
    for (const Value& part : parts_) {
      item = item_of(item, part);
      if (item.is_undefined() && !fallback.is_none()) item = fallback;
    }
    return item;
  }

 private:
  void add(std::string_view part) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    const auto index = number ? parse_int(part, 10) : std::nullopt;
    parts_.push_back(index ? Value::integer(*index) : Value::string(std::string(part)));
  }

  std::vector<Value> parts_;
};

Value folded(Value value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return Value::string(to_lower(value.str()));
}

// The items of a value that is looked at when the first one is asked for, as a Python generator does: what can't be
// iterated is an error only then.
class LazyItems {
 public:
  explicit LazyItems(Value source) : source_(std::move(source)) {}

  bool next(Value& item) {
    if (items_ == nullptr) items_ = iterate(std::exchange(source_, Value()));
    return items_->next(item);
  }

 private:
  Value source_;
  std::shared_ptr<Iterator> items_;
};

Value from_steps(StepIterator::Step step, const Value& source) {
  return Value::object(std::make_shared<StepIterator>(std::move(step), source));
}

// A generator whose items are all computed when the first one is asked for.
Value computed_later(const Value& source, std::function<std::vector<Value>()> compute) {
  return from_steps(
      [compute = std::move(compute), items = std::shared_ptr<Iterator>()](Value& item) mutable {
        if (items == nullptr) items = iterate(Value::list(compute()));
        return items->next(item);
      },
      source);
}

// The order of the keys, as indices; equal keys stay in their order, reversed too.
std::vector<std::size_t> sorted_order(const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    spend(1);
    return compare(keys[reverse ? b : a], keys[reverse ? a : b], "<") == -1;
  });
  return order;
}

// ---- lists of the same items ----

Value as_list(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("list", arguments, {});
  return Value::list(collect(input));
}

Value sort(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = collect(input);
  std::vector<AttributePath> paths;
  if (bound[2].is_string()) {
    std::string_view rest = bound[2].str();
    for (bool more = true; more;) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      paths.emplace_back(Value::string(std::string(rest.substr(0, comma))));
      more = comma < rest.size();
      if (more) rest.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(bound[2]);
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) key.push_back(folded(path.of(item), bound.flag(1)));
    keys.push_back(Value::list(std::move(key)));
  }
  std::vector<Value> sorted;
  for (const std::size_t i : sorted_order(keys, bound.flag(0))) sorted.push_back(items[i]);
  return Value::list(std::move(sorted));
}

Value dict_sort(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  static const std::string kKey = "key";
  const std::string& by = bound.string(1, kKey);
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  input.require_defined();
  if (!input.is(Kind::kDict)) fail("'" + input.type_name() + "' object has no attribute 'items'");
  std::vector<Value> keys;
  for (const auto& [key, value] : input.as_dict().entries()) {
    keys.push_back(folded(by == "key" ? key : value, bound.flag(0)));
  }
  std::vector<Value> sorted;
  for (const std::size_t i : sorted_order(keys, bound.flag(2))) {
    const auto& [key, value] = input.as_dict().entries()[i];
    sorted.push_back(Value::tuple({key, value}));
  }
  return Value::list(std::move(sorted));
}

Value reverse(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("reverse", arguments, {});
  if (input.is_string()) return slice_of(input, Value(), Value(), Value::integer(-1));
  std::vector<Value> items = collect(input);
  std::reverse(items.begin(), items.end());
  Value reversed = Value::list(std::move(items));
  if (input.as<Iterator>() != nullptr) return reversed;
  return Value::object(iterate(reversed));
}

Value unique(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound.flag(0);
  return from_steps(
      [items = LazyItems(input), seen = std::make_shared<Dict>(), path = AttributePath(bound[1]),
       case_sensitive](Value& item) mutable {
        while (items.next(item)) {
          const Value key = folded(path.of(item), case_sensitive);
          if (seen->find(key) != nullptr) continue;
          seen->set(key, Value());
          return true;
        }
        return false;
      },
      input);
}

// ---- one of the items ----

Value first(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("first", arguments, {});
  Value item;
  if (iterate(input)->next(item)) return item;
  return Value::undefined("No first item, sequence was empty.");
}

Value last(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("last", arguments, {});
  if (!length_of(input) || !is_iterable(input)) fail("'" + input.type_name() + "' object is not reversible");
  if (input.is_string() || input.is_sequence() || input.as<Range>() != nullptr) {
    Value item = item_of(input, Value::integer(-1));
    if (!item.is_undefined()) return item;
  } else {
    const std::vector<Value> items = collect(input);
    if (!items.empty()) return items.back();
  }
  return Value::undefined("No last item, sequence was empty.");
}

Value extreme(const char* name, const Value& input, const Arguments& arguments, int wanted) {
  const BoundArguments bound(name, arguments, {"case_sensitive", "attribute"});
  const AttributePath path(bound[1]);
  const auto items = iterate(input);
  Value best;
  if (!items->next(best)) return Value::undefined("No aggregated item, sequence was empty.");
  Value best_key = folded(path.of(best), bound.flag(0));
  for (Value item; items->next(item);) {
    Value key = folded(path.of(item), bound.flag(0));
    if (compare(key, best_key, wanted < 0 ? "<" : ">") != wanted) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value smallest(Interpreter&, const Value& input, Arguments& arguments) {
  return extreme("min", input, arguments, -1);
}
Value largest(Interpreter&, const Value& input, Arguments& arguments) {
  return extreme("max", input, arguments, 1);
}

// ---- one value of all items ----

Value count(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("length", arguments, {});
  const auto length = length_of(input);
  if (!length) fail("object of type '" + input.type_name() + "' has no len()");
  return Value::integer(*length);
}

Value sum(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  const AttributePath path(bound[0]);
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  const auto items = iterate(input);
  for (Value item; items->next(item);) total = binary("+", total, path.of(item));
  return total;
}

Value join(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const AttributePath path(bound[1]);
  const std::string separator = bound.has(0) ? to_text(bound[0]) : "";
  std::string out;
  bool is_first = true;
  const auto items = iterate(input);
  for (Value item; items->next(item);) {
    if (!is_first) out += separator;
    is_first = false;
    const Value part = path.of(item);
    out += to_text(part);
    if (out.size() > Budget::kMaxLiveBytes) spend_text(out.size());
  }
  spend_text(out.size());
  return Value::string(std::move(out));
}

// ---- a value for each item ----

Value pairs(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("items", arguments, {});
  return computed_later(input, [input]() {
    if (input.is_undefined()) return std::vector<Value>();
    if (!input.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
    return collect(Value::object(std::make_shared<DictView>(input.dict_ref(), DictView::Part::kItems)));
  });
}

// Removes the named argument; None where it was not given.
Value take(Arguments& arguments, std::string_view name) {
  for (auto at = arguments.keyword.begin(); at != arguments.keyword.end(); ++at) {
    if (at->first != name) continue;
    Value value = std::move(at->second);
    arguments.keyword.erase(at);
    return value;
  }
  return Value();
}

// Takes the name of a filter or test off the front.
std::string take_name(const char* filter, Arguments& arguments) {
  if (arguments.positional.empty()) fail(std::string(filter) + " requires a filter argument");
  const Value name = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  if (!name.is_string()) fail(std::string(filter) + ": a filter is named by a string, not " + name.type_name());
  return name.str();
}

Value map(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  if (!truthy(input)) return from_steps([](Value&) { return false; }, input);
  const bool has_attribute = std::any_of(arguments.keyword.begin(), arguments.keyword.end(),
                                         [](const auto& argument) { return argument.first == "attribute"; });
  if (arguments.positional.empty() && has_attribute) {
    const AttributePath path(take(arguments, "attribute"));
    const Value fallback = take(arguments, "default");
    if (!arguments.keyword.empty()) fail("Unexpected keyword argument '" + arguments.keyword.front().first + "'");
    return from_steps(
        [items = LazyItems(input), path, fallback](Value& item) mutable {
          if (!items.next(item)) return false;
          item = path.of(item, fallback);
          return true;
        },
        input);
  }
  const std::string name = take_name("map", arguments);
  return from_steps(
      [&interpreter, items = LazyItems(input), name, arguments](Value& item) mutable {
        if (!items.next(item)) return false;
        Arguments copy = arguments;
        item = interpreter.call_filter(name, item, copy);
        return true;
      },
      input);
}

Value chosen(Interpreter& interpreter, const Value& input, Arguments& arguments, bool by_attribute, bool keep) {
  if (!truthy(input)) return from_steps([](Value&) { return false; }, input);
  AttributePath path{Value()};
  if (by_attribute) {
    if (arguments.positional.empty()) fail("Missing parameter for attribute name");
    path = AttributePath(arguments.positional.front());
    arguments.positional.erase(arguments.positional.begin());
  }
  const std::string test = arguments.positional.empty() ? "" : take_name("select", arguments);
  return from_steps(
      [&interpreter, items = LazyItems(input), path, test, arguments, keep](Value& item) mutable {
        while (items.next(item)) {
          const Value tested = path.of(item);
          Arguments copy = arguments;
          const bool holds = test.empty() ? truthy(tested) : interpreter.call_test(test, tested, copy);
          if (holds == keep) return true;
        }
        return false;
      },
      input);
}

Value select(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return chosen(interpreter, input, arguments, false, true);
}
Value reject(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return chosen(interpreter, input, arguments, false, false);
}
Value select_attribute(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return chosen(interpreter, input, arguments, true, true);
}
Value reject_attribute(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return chosen(interpreter, input, arguments, true, false);
}

// ---- groups ----

Value group_by(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(bound[0]);
  const std::vector<Value> items = collect(input);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(folded(path.of(item, bound[1]), bound.flag(2)));
  std::vector<Value> groups;
  std::vector<Value> group;
  const std::vector<std::size_t> order = sorted_order(keys, false);
  for (std::size_t i = 0; i < order.size(); ++i) {
    group.push_back(items[order[i]]);
    if (i + 1 < order.size() && equal(keys[order[i]], keys[order[i + 1]])) continue;
    // The group is named as its first item spells it.
    Value name = path.of(group.front(), bound[1]);
    groups.push_back(Value::tuple({std::move(name), Value::list(std::exchange(group, {}))}));
  }
  return Value::list(std::move(groups));
}

void require_room(std::int64_t n_items) {
  if (n_items > 10'000'000) fail_unsupported("a list of more than 10000000 items");
  spend(static_cast<std::uint64_t>(std::max<std::int64_t>(n_items, 0)));
}

std::vector<Value> batches_of(const Value& input, std::int64_t n, const Value& fill) {
  std::vector<Value> lines;
  std::vector<Value> line;
  for (const Value& item : collect(input)) {
    if (static_cast<std::int64_t>(line.size()) == n) lines.push_back(Value::list(std::exchange(line, {})));
    line.push_back(item);
  }
  if (line.empty()) return lines;
  const std::int64_t n_missing = n - static_cast<std::int64_t>(line.size());
  if (!fill.is_none() && n_missing > 0) {
    require_room(n_missing);
    line.insert(line.end(), static_cast<std::size_t>(n_missing), fill);
  }
  lines.push_back(Value::list(std::move(line)));
  return lines;
}

std::vector<Value> slices_of(const Value& input, std::int64_t n_slices, const Value& fill) {
  const std::vector<Value> items = collect(input);
  if (n_slices == 0) fail("integer division or modulo by zero");
  require_room(n_slices);
  const auto n = static_cast<std::int64_t>(items.size());
  std::vector<Value> slices;
  auto begin = items.begin();
  for (std::int64_t i = 0; i < n_slices; ++i) {
    const bool longer = i < n % n_slices;
    const auto end = begin + static_cast<std::ptrdiff_t>(n / n_slices + (longer ? 1 : 0));
    std::vector<Value> part(begin, end);
    begin = end;
    if (!fill.is_none() && !longer) part.push_back(fill);
    slices.push_back(Value::list(std::move(part)));
  }
  return slices;
}

Value batch(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("batch", arguments, {"linecount", "fill_with"}, 1);
  return computed_later(input, [input, n = bound.integer(0), fill = bound[1]]() { return batches_of(input, n, fill); });
}

Value slice(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("slice", arguments, {"slices", "fill_with"}, 1);
  return computed_later(input, [input, n = bound.integer(0), fill = bound[1]]() { return slices_of(input, n, fill); });
}

}  // namespace

FilterFunction find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"batch", batch},     {"count", count},      {"dictsort", dict_sort},
      {"first", first},     {"groupby", group_by}, {"items", pairs},
      {"join", join},       {"last", last},        {"length", count},
      {"list", as_list},    {"map", map},          {"max", largest},
      {"min", smallest},    {"reject", reject},    {"rejectattr", reject_attribute},
      {"reverse", reverse}, {"select", select},    {"selectattr", select_attribute},
      {"slice", slice},     {"sort", sort},        {"sum", sum},
      {"unique", unique},
  };
  const auto found = kFilters.find(name);
  return found != kFilters.end() ? found->second : nullptr;
}

}  // namespace memoir::text::jinja
