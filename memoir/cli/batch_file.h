#pragma once

// A file of requests, one JSON object a line: what `memoir generate --batch` reads.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "memoir/cli/prompt_tokens.h"
#include "memoir/engine/service.h"
#include "memoir/text/tokenizer.h"

namespace memoir::cli {

/// What requests have where a line says nothing, and what they are made for.
struct BatchDefaults {
  std::string model;                 // for messages
  const text::Tokenizer* tokenizer;  // may be null: then only token ids are taken
  bool is_raw = false;               // prompts are continued as they are, without the chat template
  engine::Request request;           // without a prompt, processor and on_event
  Preface preface = {};              // of every conversation
};

/// Lines of any length up to 256 MiB, read as they are asked for. Blank ones are passed over.
class BatchFile {
 public:
  struct Line {
    std::size_t number;  // from 1 on
    std::string text;
  };

  /// path: a file, a FIFO or the like, or - for stdin. Throws FileError if it can't be opened.
  explicit BatchFile(const std::string& path);

  /// The next line; nullopt at the end. Throws FileError if it can't be read, FormatError if it is too long.
  std::optional<Line> next();

  /// Whether next() would not wait for a line that nobody has written yet. Throws what it does.
  bool is_ready();

  /// As messages call it.
  const std::string& name() const { return name_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const;
  };

  std::optional<Line> take_line();
  void read_some();

  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string rest_;           // read, not yet handed out
  std::size_t searched_ = 0;   // bytes of it that have no line's end
  std::optional<Line> ready_;  // found by is_ready()
  std::size_t n_lines_ = 0;
  bool is_at_end_ = false;
};

/// A line as a request. The object has
///   one of "prompt" (text), "messages" (with "tools" and variables of the template, as messages_file.h has it) and
///   "tokens" (ids), and any of "n" (or "max_tokens"), "temperature", "top_p", "min_p", "top_k", "repeat_penalty",
///   "presence_penalty", "frequency_penalty", "repeat_last_n", "seed", "stop" (a text or a list), "raw", "id".
/// Throws FormatError naming `place` and the key: for what is no such object, has another key beside a prompt or
/// tokens, or a value out of its range; UnsupportedError where the model has no tokenizer or no template.
/// `id` is the object's, null if it has none, and is set also where a FormatError tells what else is wrong with it.
engine::Request read_batch_request(const std::string& line, const std::string& place, const BatchDefaults& defaults,
                                   nlohmann::ordered_json& id);

}  // namespace memoir::cli
