#pragma once

// The text of a run: tokens in, pieces that may be shown out. Pieces are whole characters, and never a part of a stop
// string. Ownership: refers to the tokenizer, which must outlive it. Threads: one at a time. No MLX.

#include <string>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/stop.h"
#include "memoir/text/detokenizer.h"

namespace memoir::engine {

class TextStream {
 public:
  struct Piece {
    std::string text;
    bool is_stopped;  // a stop string was completed: nothing follows
  };

  /// Throws as StopMatcher.
  TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stop_strings);

  /// Throws as StreamingDetokenizer::push.
  Piece push(TokenId token);

  /// The text ended: what was held back. The last characters may complete a stop string.
  Piece finish();

 private:
  Piece match(const std::string& text);

  text::StreamingDetokenizer detokenizer_;
  StopMatcher matcher_;
};

}  // namespace memoir::engine
