#pragma once

// What is done to a text before it is cut into words: the steps of tokenizer.json's "normalizer", in order.
//
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
};

struct NormalizedText {
  std::string text;
  bool lost_start = false;  // the first character was removed: the text no longer begins where the input did
};

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  /// `text` must be valid UTF-8; so is the result. Throws as Regex does.
  NormalizedText apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace memoir::text
