#pragma once

// Python's operators on values: arithmetic, membership, subscripts, slices and iteration.
// All throw Error for operands that Python refuses, and Error (kUnsupported) where an integer leaves 64 bits.

#include <memory>
#include <string>
#include <vector>

#include "memoir/text/jinja_objects.h"
#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

/// op: one of + - * / // % **.
Value binary(const std::string& op, const Value& left, const Value& right);
Value negative(const Value& value);

/// item in container.
bool contains(const Value& container, const Value& item);

/// len(value), or nullopt where it has none (a number, a generator).
std::optional<std::int64_t> length_of(const Value& value);

/// iter(value).
bool is_iterable(const Value& value);
std::shared_ptr<Iterator> iterate(const Value& value);
/// list(value): all the items that are left.
std::vector<Value> collect(const Value& value);

/// object.name and object[key] as the environment looks them up: an attribute falls back to an item and the other way
/// round; undefined where there is neither. Throws Error if the object is undefined itself.
Value attribute_of(const Value& object, const std::string& name);
Value item_of(const Value& object, const Value& key);
/// The attribute alone.
std::optional<Value> own_attribute(const Value& object, const std::string& name);

/// object[start:stop:step]; None for what is left out.
Value slice_of(const Value& object, const Value& start, const Value& stop, const Value& step);

/// The characters [start, stop) of a string, in bounds.
std::string characters_between(const Text& text, std::int64_t start, std::int64_t stop);

}  // namespace memoir::text::jinja
