#pragma once

// From token texts back to text: the steps of tokenizer.json's "decoder", as a stream.
//
// A Decoder is the description; a DecodeStream runs it over tokens as they come. Decoding at once is running the stream
// over all tokens, so that both give the same text. Some steps must look ahead: a run of byte tokens is valid or not as
// a whole, and what rewrites the joined text waits for its end.
// However many steps there are, they make at most max_grown_bytes(n) of tokens with n bytes (replace.h).
// Threads: a Decoder may be used from any number of threads; a DecodeStream belongs to one.
// Ownership: a DecodeStream refers to its Decoder, which must outlive it.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/text/regex.h"

namespace memoir::text {

struct DecoderStep {
  enum class Kind {
    kReplace,       // pattern (or regex) -> content, in each token
    kByteFallback,  // runs of tokens <0xNN> become their bytes; one U+FFFD per byte where they are not UTF-8
    kFuse,          // joins all tokens: what follows sees one text
    kStrip,         // removes up to n_start and n_stop times `content` at the ends
    kMetaspace,     // `content` becomes a space, or nothing in the first token if drop_first
    kByteLevel,     // characters of GPT-2's alphabet become bytes; joins, errors become U+FFFD
    kJoinBytes,     // tokens are bytes: joins, errors become U+FFFD
    kJoinSpaced,    // joins with a space between tokens
  };

  Kind kind;
  std::string pattern = {};
  std::optional<Regex> regex = std::nullopt;
  std::string content = {};
  std::size_t n_start = 0;
  std::size_t n_stop = 0;
  bool drop_first = false;
  Origin origin = {};     // for messages
  bool on_fused = false;  // set by Decoder::add
};

class Decoder {
 public:
  void add(DecoderStep step);

  const std::vector<DecoderStep>& steps() const { return steps_; }
  std::size_t n_steps() const { return steps_.size(); }

  /// What one token stands for in the middle of a text: bytes, which may be part of a character.
  /// Throws UnsupportedError naming the step that makes it too long, or as Regex does.
  std::string piece(std::string_view token) const;

 private:
  std::vector<DecoderStep> steps_;
};

class DecodeStream {
 public:
  /// is_continuation: other tokens stand before the first one, so that no step treats it as the beginning of a text.
  explicit DecodeStream(const Decoder& decoder, bool is_continuation = false);

  /// Takes the next token's text. Returns what is certain now: whole UTF-8 characters, possibly none.
  /// Throws UnsupportedError naming the step that makes the text too long, or as Regex does; the stream then begins
  /// anew.
  std::string push(std::string_view token);

  /// Returns the rest. The stream begins anew afterwards. Throws as push().
  std::string finish();

 private:
  struct State {
    std::string held;        // not yet passed on
    std::size_t n_seen = 0;  // tokens seen, or characters stripped at the start
    std::size_t n_made = 0;  // bytes that a kReplace made
    bool started = false;    // something other than the stripped character was seen
  };

  void begin();
  std::string replaced(std::size_t i, std::string_view text);
  void feed(std::size_t i, std::string_view token);
  void feed_strip(std::size_t i, std::string_view text);
  void feed_bytes(std::size_t i, std::string_view bytes);
  void flush_byte_run(std::size_t i);
  void end(std::size_t i);

  const Decoder* decoder_;
  bool is_continuation_;
  std::size_t n_bytes_in_ = 0;
  std::vector<State> states_;
  std::string out_;
};

}  // namespace memoir::text
