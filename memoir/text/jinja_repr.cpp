#include <algorithm>
#include <cstdio>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_text.h"
#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {
namespace {

void append_hex(std::string& out, const char* prefix, std::uint32_t code, int n_digits) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%0*x", n_digits, static_cast<unsigned>(code));
  out.append(prefix).append(buffer);
}

void append_escaped(std::string& out, std::uint32_t code) {
  if (code < 0x100) return append_hex(out, "\\x", code, 2);
  if (code < 0x10000) return append_hex(out, "\\u", code, 4);
  append_hex(out, "\\U", code, 8);
}

std::string quote_text(std::string_view text) {
  const bool prefer_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = prefer_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const std::string_view bytes = text.substr(at, character.n_bytes);
    at += character.n_bytes;
    if (character.code == quote || character.code == '\\') {
      out.append("\\").append(bytes);
    } else if (character.code == '\n') {
      out += "\\n";
    } else if (character.code == '\r') {
      out += "\\r";
    } else if (character.code == '\t') {
      out += "\\t";
    } else if (character.code >= 0 && !is_printable(character.code)) {
      append_escaped(out, static_cast<std::uint32_t>(character.code));
    } else {
      out += bytes;
    }
  }
  return out += quote;
}

class ReprWriter {
 public:
  std::string write(const Value& value) {
    append(value);
    return std::move(out_);
  }

 private:
  void append(const Value& value) {
    const std::size_t before = out_.size();
    append_any(value);
    spend(1 + (out_.size() - before) / Budget::kBytesPerUnit);
    if (out_.size() > Budget::kMaxOutputBytes) spend_text(Budget::kMaxLiveBytes + 1);
  }

  void append_any(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "None";
        return;
      case Kind::kUndefined:
        out_ += "Undefined";
        return;
      case Kind::kBool:
        out_ += value.as_bool() ? "True" : "False";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.as_int());
        return;
      case Kind::kFloat:
        out_ += format_float(value.as_float());
        return;
      case Kind::kString:
        out_ += value.text().markup ? "Markup(" + quote_text(value.str()) + ")" : quote_text(value.str());
        return;
      case Kind::kList:
        return append_items(value.items(), "[", "]");
      case Kind::kTuple:
        return append_items(value.items(), "(", value.items().size() == 1 ? ",)" : ")");
      case Kind::kDict:
        return append_dict(value.as_dict());
      case Kind::kObject:
        out_ += value.object_ref()->repr();
        return;
      case Kind::kNamespace:
        return append_namespace(*value.as_namespace());
      case Kind::kLoop:
        out_ += "<LoopContext>";
    }
  }

  void append_items(const std::vector<Value>& items, const char* open, const char* close) {
    out_ += open;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += ", ";
      append(items[i]);
    }
    out_ += close;
  }

  void append_dict(const Dict& dict) {
    out_ += "{";
    for (std::size_t i = 0; i < dict.entries().size(); ++i) {
      if (i != 0) out_ += ", ";
      append(dict.entries()[i].first);
      out_ += ": ";
      append(dict.entries()[i].second);
    }
    out_ += "}";
  }

  // Namespaces can hold themselves, so their nesting is counted here.
  void append_namespace(const Namespace& space) {
    if (++n_open_namespaces_ > 20) fail("a namespace is nested too deeply to be printed");
    out_ += "<Namespace {";
    bool first = true;
    for (const auto& [name, value] : space.entries()) {
      if (!first) out_ += ", ";
      first = false;
      out_.append(quote_text(name)).append(": ");
      append(value);
    }
    out_ += "}>";
    --n_open_namespaces_;
  }

  std::string out_;
  int n_open_namespaces_ = 0;
};

class JsonWriter {
 public:
  explicit JsonWriter(const JsonOptions& options) : options_(options) {}

  std::string write(const Value& value) {
    append(value, 0);
    return std::move(out_);
  }

 private:
  void append(const Value& value, int level) {
    spend(1);
    if (out_.size() > Budget::kMaxOutputBytes) spend_text(Budget::kMaxLiveBytes + 1);
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.as_int());
        return;
      case Kind::kFloat:
        out_ += number(value.as_float());
        return;
      case Kind::kString:
        return append_string(value.str());
      case Kind::kList:
      case Kind::kTuple:
        return append_list(value.items(), level);
      case Kind::kDict:
        return append_dict(value.as_dict(), level);
      default:
        fail("Object of type " + value.type_name() + " is not JSON serializable");
    }
  }

  static std::string number(double value) {
    const std::string text = format_float(value);
    if (text == "nan") return "NaN";
    if (text == "inf") return "Infinity";
    return text == "-inf" ? "-Infinity" : text;
  }

  void append_string(std::string_view text) {
    spend_text(text.size());
    out_ += '"';
    for (std::size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      append_character_of(character.code, text.substr(at, character.n_bytes));
      at += character.n_bytes;
    }
    out_ += '"';
  }

  void append_character_of(std::int32_t code, std::string_view bytes) {
    switch (code) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      default:
        break;
    }
    const bool escape_wide = options_.ensure_ascii && code > 0x7E;
    if (code < 0 || (code >= 0x20 && !escape_wide)) {
      out_ += bytes;
    } else if (code < 0x10000) {
      append_hex(out_, "\\u", static_cast<std::uint32_t>(code), 4);
    } else {
      const auto above = static_cast<std::uint32_t>(code) - 0x10000;
      append_hex(out_, "\\u", 0xD800 + (above >> 10), 4);
      append_hex(out_, "\\u", 0xDC00 + (above & 0x3FF), 4);
    }
  }

  void new_line(int level) {
    if (!options_.indent) return;
    out_ += '\n';
    spend_text(options_.indent->size() * static_cast<std::size_t>(level));
    for (int i = 0; i < level; ++i) out_ += *options_.indent;
  }

  void append_list(const std::vector<Value>& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += options_.item_separator;
      new_line(level + 1);
      append(items[i], level + 1);
    }
    new_line(level);
    out_ += ']';
  }

  void append_dict(const Dict& dict, int level) {
    if (dict.size() == 0) {
      out_ += "{}";
      return;
    }
    out_ += '{';
    bool first = true;
    for (const Dict::Entry* entry : ordered(dict)) {
      if (!first) out_ += options_.item_separator;
      first = false;
      new_line(level + 1);
      append_key(entry->first);
      out_ += options_.key_separator;
      append(entry->second, level + 1);
    }
    new_line(level);
    out_ += '}';
  }

  std::vector<const Dict::Entry*> ordered(const Dict& dict) const {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (options_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const Dict::Entry* left, const Dict::Entry* right) {
        return compare(left->first, right->first, "<") == -1;
      });
    }
    return entries;
  }

  void append_key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return append_string(key.str());
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out_ += '"';
        append(key, 0);
        out_ += '"';
        return;
      default:
        fail("keys must be str, int, float, bool or None, not " + key.type_name());
    }
  }

  const JsonOptions& options_;
  std::string out_;
};

}  // namespace

std::string to_repr(const Value& value) {
  return ReprWriter().write(value);
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.str();
  if (value.is_undefined()) return "";
  return to_repr(value);
}

std::string to_json(const Value& value, const JsonOptions& options) {
  return JsonWriter(options).write(value);
}

}  // namespace memoir::text::jinja
