#pragma once

// Cuts a normalized text into words, which the model then encodes one by one: the steps of tokenizer.json's
// "pre_tokenizer", or of one of llama.cpp's named pre-tokenizers, in order.
//
// Invariants: each step cuts every word of the step before on its own, so that a pattern never sees beyond a word.
// However many steps there are, they make at most max_grown_bytes(n) of a text of n bytes (replace.h).
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

/// What stands before a text.
enum class TextPlace {
  kInputStart,    // nothing
  kSectionStart,  // an added token: the text is encoded on its own, but PrependScheme::kFirst does not mean it
  kMiddle,        // other text, so that no step puts a space in front
};

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
  Origin origin = {};  // for messages
};

/// Words of one buffer.
struct Words {
  std::string text;
  std::vector<Span> spans;  // in order; never empty ones
  TextPlace place;          // of the first word; of the others, kSectionStart
};

class PreTokenizer {
 public:
  void add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }

  std::size_t n_steps() const { return steps_.size(); }

  /// The words of a text, which must be valid UTF-8.
  /// Throws as Regex does, and UnsupportedError naming the step that makes the text too long.
  Words apply(std::string text, TextPlace place) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace memoir::text
