#pragma once

// Cuts a normalized text into words, which the model then encodes one by one: the steps of tokenizer.json's
// "pre_tokenizer", or of one of llama.cpp's named pre-tokenizers, in order.
//
// Invariants: each step cuts every word of the step before on its own, so that a pattern never sees beyond a word.
// Threads: const use from any number of threads.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memoir/text/linear_patterns.h"
#include "memoir/text/regex.h"

namespace memoir::text {

/// What becomes of a delimiter (tokenizers' SplitDelimiterBehavior).
enum class Delimiter { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kFirst, kNever, kAlways };

struct PreTokenizerStep {
  enum class Kind {
    kByteLevel,        // characters of GPT-2's alphabet; add_prefix_space; cuts by `regex` where there is one
    kSplit,            // cuts at what `finder`, else `regex`, else `literal` finds
    kDigits,           // cuts at numbers
    kPunctuation,      // cuts at punctuation
    kWhitespaceSplit,  // cuts at white space and drops it
    kMetaspace,        // spaces become `literal`, one in front by `prepend`, cuts before it if `split`
  };

  Kind kind;
  MatchFinder finder = nullptr;
  std::optional<Regex> regex = std::nullopt;
  std::string literal = {};
  Delimiter behavior = Delimiter::kIsolated;
  bool invert = false;  // what does not match is the delimiter
  bool add_prefix_space = false;
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};

/// Words of one buffer.
struct Words {
  std::string text;
  std::vector<Span> spans;      // in order; never empty ones
  bool first_is_start = false;  // the first word begins where the input text began
};

class PreTokenizer {
 public:
  void add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }

  /// The words of a text. `is_start` says that the text is the beginning of the input (for PrependScheme::kFirst).
  /// `text` must be valid UTF-8. Throws as Regex does.
  Words apply(std::string text, bool is_start) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace memoir::text
