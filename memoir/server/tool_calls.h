#pragma once

// What a model wrote, taken apart: thoughts, tool calls and the text for the reader, while it comes.
//
// Formats, by the markers that models' chat templates teach them:
//   Hermes   (Qwen 2.5, Qwen 3, Hermes, SmolLM2)  <tool_call>{"name": .., "arguments": {..}}</tool_call>, repeated; a
//            list of such objects between the tags too
//   Llama 3  {"name": .., "parameters": {..}} as the whole answer, with or without <|python_tag|> in front; several
//            separated by ;
//   Mistral  [TOOL_CALLS][{"name": .., "arguments": {..}}, ..], or [TOOL_CALLS]name[ARGS]{..} (and [CALL_ID]id),
//   repeated Harmony  (gpt-oss) <|channel|>analysis|commentary|final<|message|>text, with to=functions.NAME before the
//   message for
//            a call; ended by <|end|>, <|call|> or <|return|>
// Thoughts stand between <think> and </think>, where the template knows these, or in Harmony's analysis channel.
// White space around a thought or a call is left out. Text that looks like the beginning of a call and turns out to be
// none is given back as text: nothing is lost.
// No state but the parser's own; each belongs to one thread.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace memoir::server {

enum class ToolFormat { kHermes, kLlama3, kMistral, kHarmony };

/// By the markers in a chat template's source; Hermes if there are none.
ToolFormat tool_format_of(std::string_view template_source);

struct ContentPiece {
  std::string text;
};
struct ReasoningPiece {
  std::string text;
};
struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object as text
};
using OutputPiece = std::variant<ContentPiece, ReasoningPiece, ToolCall>;

class OutputParser {
 public:
  struct Options {
    ToolFormat format = ToolFormat::kHermes;
    bool finds_calls = false;         // tools were offered
    bool finds_thoughts = false;      // <think>
    bool begins_in_thoughts = false;  // the prompt ended with <think>
  };

  explicit OutputParser(const Options& options);

  /// What the text so far has made certain.
  std::vector<OutputPiece> push(std::string_view text);
  /// The rest.
  std::vector<OutputPiece> finish();

  /// Whether a special token's text is a marker that must be part of the text. (Special tokens leave no text of their
  /// own.)
  bool wants(std::string_view special_token) const;

 private:
  enum class Mode { kText, kThoughts, kHermesCall, kRest, kHarmonyHeader, kHarmonyBody };

  void run(bool is_end);
  bool run_text(bool is_end);
  bool run_thoughts(bool is_end);
  bool run_hermes_call(bool is_end);
  bool run_harmony_header(bool is_end);
  bool run_harmony_body(bool is_end);
  void finish_rest();
  void begin_harmony_message(std::string_view header);
  void emit_text(std::string text);
  void emit_thoughts(std::string text);
  std::string_view call_marker() const;
  bool begin_text(bool is_end);

  Options options_;
  Mode mode_;
  bool has_begun_ = false;    // it is known that the answer begins with text, or it began
  bool skips_space_ = false;  // behind a thought or a call
  std::string space_;         // before a call that is not yet known to be one
  std::string buffer_;
  std::size_t searched_ = 0;  // of a call, by then without its end
  int n_attempts_ = 0;
  std::string channel_;
  std::string recipient_;
  std::vector<OutputPiece> pieces_;
};

/// How an answer that is one forced call must begin, and what follows; for tool_choice.
struct ForcedCall {
  std::string prefix;
  const char* arguments_key;     // "arguments" or "parameters", beside the name; nullptr: the name stands behind the
                                 // prefix, and what follows are the arguments alone
  bool is_list;                  // the call stands in a list
  std::string behind_name = {};  // of a name behind the prefix
};
ForcedCall forced_call(ToolFormat format);

}  // namespace memoir::server
