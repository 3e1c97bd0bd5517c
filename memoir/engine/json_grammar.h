#pragma once

// JSON that follows a schema, as an automaton over bytes: which byte may come next, and whether the text may end.
//
// A state is a set of stacks (several alternatives may be open at once), made when it is first reached and kept, so
// that a step over a known byte is one look-up. States are numbers of this grammar alone.
// The JSON it takes is narrower than the standard: between tokens at most 20 spaces, tabs or line ends; numbers of at
// most 18 digits before and after the point and two in the exponent (integers 18); properties in the schema's order,
// others after them, and their names without escapes where the schema names some; values nested 64 deep; surrogates in
// pairs; valid UTF-8. All of it is what a parser takes, and none of it can go on for ever but strings, lists and
// objects without a limit.
// Threads: one at a time, const members too. Ownership: shares the schema.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "memoir/engine/json_schema.h"

namespace memoir::engine {

class JsonGrammar {
 public:
  using State = int;
  static constexpr State kRefused = -1;

  explicit JsonGrammar(std::shared_ptr<const JsonSchema> schema);

  State start() const { return start_; }

  /// The state behind `byte`, or kRefused: what is taken can always be ended. Throws RequestFault if too many
  /// alternatives are open at once.
  State step(State state, std::uint8_t byte) {
    const int next = next_[static_cast<std::size_t>(state)][byte];
    return next == kUnknown ? make_step(state, byte) : next;
  }

  /// Whether the text so far is a whole value.
  bool can_end(State state) const { return states_[static_cast<std::size_t>(state)].can_end; }

  /// Whether the text is inside a string that may be any, between two of its characters, and nothing else is open.
  bool is_plain_string(State state) const;

  /// How many states were made: memory grows with them, about a kilobyte each.
  std::size_t n_states() const { return states_.size(); }

  /// The state of another grammar over the same schema, here.
  State adopt(const JsonGrammar& other, State state);

  const std::shared_ptr<const JsonSchema>& schema() const { return schema_; }

 private:
  static constexpr int kUnknown = -2;

  enum class Kind : std::uint8_t { kDone, kValue, kText, kKey, kString, kNumber, kObject, kName, kArray };
  /// One element of a stack. What a and b mean is the kind's own affair.
  struct Frame {
    int parent;
    Kind kind;
    int node;
    int a;
    int b;
    auto operator<=>(const Frame&) const = default;
  };
  struct StateData {
    std::vector<int> frames;  // the tops of the stacks, ascending
    bool can_end;
  };

  int intern(const Frame& frame);
  State intern_state(std::vector<int> frames);
  State make_step(State state, std::uint8_t byte);
  bool frame_can_end(int frame) const;
  int adopt_frame(const JsonGrammar& other, int frame);

  void step_frame(int frame, std::uint8_t byte);
  void begin_value(int node, int parent, std::uint8_t byte);
  void step_text(int parent, int at, std::uint8_t byte);
  void step_key(const Frame& frame, std::uint8_t byte);
  void step_string(const Frame& frame, std::uint8_t byte);
  void step_number(int id, const Frame& frame, std::uint8_t byte);
  void step_object(const Frame& frame, std::uint8_t byte);
  void step_name(const Frame& frame, std::uint8_t byte);
  void step_array(const Frame& frame, std::uint8_t byte);
  /// The properties that may come next in an object.
  struct NextNames {
    std::vector<int> declared;
    bool others = false;
  };
  NextNames next_names(const Frame& object) const;
  void begin_names(const Frame& object);
  bool may_close(const Frame& object) const;
  bool may_name(const Frame& object) const;
  int levels_left(int parent) const { return JsonSchema::kMaxLevels - depths_[static_cast<std::size_t>(parent)]; }
  bool fits(int node, int levels) const { return schema_->nodes[static_cast<std::size_t>(node)].min_levels <= levels; }
  void emit(const Frame& frame) { out_.push_back(intern(frame)); }
  void emit(int frame) { out_.push_back(frame); }

  std::shared_ptr<const JsonSchema> schema_;
  std::vector<Frame> frames_;
  std::vector<int> depths_;  // of values, for each frame
  std::map<Frame, int> frame_ids_;
  std::vector<StateData> states_;
  std::map<std::vector<int>, State> state_ids_;
  std::vector<std::array<int, 256>> next_;
  std::vector<int> out_;
  State start_ = 0;
};

}  // namespace memoir::engine
