#pragma once

// Chat templates: the Jinja that model files carry to turn a conversation into a prompt.
//
// Behaves as transformers' apply_chat_template: jinja2's ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks,
// break and continue, {% generation %}, its tojson filter (plain json.dumps), raise_exception and strftime_now.
// A missing variable prints nothing, is false, and is an error when something is taken from it.
// Invariant: the source was parsed; rendering depends on the inputs alone (and on the clock and zone where the template
// asks for the time and no time is given).
// Threads: a ChatTemplate is read only; any number of threads may render at once. Copies share the parsed template.
//
// Scope: for (else, if, recursive, break, continue, all of `loop`), if, set and set blocks, namespace attributes,
// macro (defaults, varargs, kwargs, caller), call, filter, with, raw, print, generation, comments, white-space control;
// all operators, slices, chained comparisons; the methods of str, dict, list that the sandbox lets through; the
// built-in filters and tests of jinja2; range, dict, namespace, cycler, joiner.
// Left out, and reported as UnsupportedError with the line: block, extends, include, import, autoescape; the filters
// pprint, random, striptags, urlize and wordwrap; lipsum; str.encode, translate and maketrans; integers beyond 64 bits.
// A template is a stranger's program, so a rendering is bounded: max_steps of work, 512 MiB of values, 256 MiB of text,
// 500 nested calls, blocks and expressions, values nested 500 deep, 100,000 items of a range.

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "memoir/base/error.h"

namespace memoir::text {

/// The template itself refused the conversation: it called raise_exception.
class TemplateRefusal : public FormatError {
 public:
  TemplateRefusal(std::string path, std::string key, const std::string& message)
      : FormatError(std::move(path), std::move(key), message), message_(message) {}

  /// The template's own words ("Conversation roles must alternate user/assistant").
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

class ChatTemplate {
 public:
  /// What a template sees, besides the functions.
  struct Inputs {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    nlohmann::ordered_json tools;  // null: the variable is there and is None, as in transformers
    bool add_generation_prompt = true;
    std::optional<std::string> bos_token;  // nullopt: the variable is undefined
    std::optional<std::string> eos_token;
    /// Further variables, an object (or null for none): enable_thinking, documents (None unless given), unk_token, ...
    /// They replace those above.
    nlohmann::ordered_json extra;
    std::optional<std::chrono::system_clock::time_point> now;  // for strftime_now, in local time; nullopt: the clock
    /// How much work the rendering may be: about one step per node evaluated or item or 256 bytes copied. A turn of a
    /// conversation takes a few hundred; the default is a few seconds.
    std::uint64_t max_steps = 100'000'000;
  };

  /// Parses. path_for_messages: what errors call the template, usually the file it came from.
  /// Throws FormatError (path, "line N") for wrong syntax and UnsupportedError for a construct that is left out.
  explicit ChatTemplate(const std::string& source, std::string path_for_messages = "chat template");

  /// The text of the conversation. Linear in the conversation, as far as the template is.
  /// Throws TemplateRefusal where the template calls raise_exception, FormatError (path, "line N") where it fails on
  /// these inputs, UnsupportedError for what is left out and for the limits, and std::invalid_argument if `extra` is
  /// neither an object nor null.
  std::string render(const Inputs& inputs) const;

 private:
  struct Parsed;

  std::shared_ptr<const Parsed> parsed_;
  std::string path_;
};

}  // namespace memoir::text
