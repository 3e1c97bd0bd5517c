#pragma once

// What is done to a text before it is cut into words: the steps of tokenizer.json's "normalizer", in order.
//
// However many steps there are, they make at most max_grown_bytes(n) of a text of n bytes (replace.h).
// Threads: const use from any number of threads. A normalizer without steps leaves the text as it is.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/text/regex.h"

namespace memoir::text {

struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,  // removes combining marks
    kStrip,         // removes white space at the ends
    kReplace,       // pattern (or regex) -> content
    kPrepend,       // content in front, unless the text is empty
    kByteLevel,     // every byte as a character of GPT-2's alphabet
  };

  Kind kind;
  std::string pattern = {};
  std::optional<Regex> regex = std::nullopt;
  std::string content = {};
  bool strip_left = true;
  bool strip_right = true;
  Origin origin = {};  // for messages
};

struct NormalizedText {
  std::string text;
  bool lost_start = false;  // the first character was removed: the text no longer begins where the input did
};

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  std::size_t n_steps() const { return steps_.size(); }

  /// `text` must be valid UTF-8; so is the result. is_continuation: other text stands before it, so that nothing is put
  /// in front and no white space is taken there.
  /// Throws as Regex does, and UnsupportedError naming the step that makes the text too long.
  NormalizedText apply(std::string_view text, bool is_continuation = false) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace memoir::text
