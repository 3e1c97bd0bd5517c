#include "memoir/engine/json_grammar.h"

#include <algorithm>
#include <string>
#include <utility>

#include "memoir/engine/json_string.h"
#include "memoir/engine/request_fault.h"

namespace memoir::engine {
namespace {

constexpr int kMaxSpaces = 20;
constexpr int kMaxDigits = 18;
constexpr int kMaxExponentDigits = 2;

// Where an object or a list stands, in Frame::b above the count of spaces.
enum Phase { kOpen = 0, kColon = 1, kNext = 2, kComma = 3 };
constexpr int kPhaseUnit = 32;
Phase phase_of(int b) {
  return static_cast<Phase>(b / kPhaseUnit);
}
int at_phase(Phase phase) {
  return phase * kPhaseUnit;
}

bool is_space(std::uint8_t byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}
bool is_digit(std::uint8_t byte) {
  return byte >= '0' && byte <= '9';
}

constexpr int kInPlain = static_cast<int>(JsonStringState::kPlain);

enum NumberState { kMinus, kZero, kInteger, kPoint, kFraction, kExponent, kExponentSign, kExponentDigits };

bool is_number(int state) {
  return state == kZero || state == kInteger || state == kFraction || state == kExponentDigits;
}

// The state behind a byte of a number, and how many digits this part of it has by then; -1 if the byte is none.
std::pair<int, int> step_in_number(int state, int n_digits, bool is_integer, std::uint8_t byte) {
  constexpr std::pair<int, int> kNone = {-1, 0};
  const auto more = [&](int next, int limit) {
    return is_digit(byte) && n_digits < limit ? std::pair(next, n_digits + 1) : kNone;
  };
  if (!is_integer && byte == '.' && (state == kZero || state == kInteger)) return {kPoint, 0};
  if (!is_integer && (byte | 0x20) == 'e' && is_number(state) && state != kExponentDigits) return {kExponent, 0};
  switch (state) {
    case kMinus:
      return byte == '0' ? std::pair<int, int>(kZero, 1) : more(kInteger, kMaxDigits);
    case kInteger:
      return more(kInteger, kMaxDigits);
    case kPoint:
    case kFraction:
      return more(kFraction, kMaxDigits);
    case kExponent:
      if (byte == '+' || byte == '-') return {kExponentSign, 0};
      return more(kExponentDigits, kMaxExponentDigits);
    case kExponentSign:
    case kExponentDigits:
      return more(kExponentDigits, kMaxExponentDigits);
    default:
      return kNone;
  }
}

}  // namespace

JsonGrammar::JsonGrammar(std::shared_ptr<const JsonSchema> schema) : schema_(std::move(schema)) {
  const int done = intern({-1, Kind::kDone, 0, 0, 0});
  start_ = intern_state({intern({done, Kind::kValue, schema_->root, 0, 0})});
}

int JsonGrammar::intern(const Frame& frame) {
  const auto [known, is_new] = frame_ids_.try_emplace(frame, static_cast<int>(frames_.size()));
  if (is_new) {
    const bool holds_values = frame.kind == Kind::kObject || frame.kind == Kind::kArray;
    const int above = frame.parent < 0 ? 0 : depths_[static_cast<std::size_t>(frame.parent)];
    frames_.push_back(frame);
    depths_.push_back(above + (holds_values ? 1 : 0));
  }
  return known->second;
}

JsonGrammar::State JsonGrammar::intern_state(std::vector<int> frames) {
  std::sort(frames.begin(), frames.end());
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  if (frames.empty()) return kRefused;
  if (frames.size() > JsonSchema::kMaxAlternatives) {
    throw RequestFault("", "the JSON schema leaves more than " + std::to_string(JsonSchema::kMaxAlternatives) +
                               " alternatives open at once");
  }
  const auto [known, is_new] = state_ids_.try_emplace(frames, static_cast<State>(states_.size()));
  if (is_new) {
    const bool can_end = std::any_of(frames.begin(), frames.end(), [&](int frame) { return frame_can_end(frame); });
    states_.push_back({std::move(frames), can_end});
    next_.emplace_back().fill(kUnknown);
  }
  return known->second;
}

bool JsonGrammar::frame_can_end(int id) const {
  const Frame& frame = frames_[static_cast<std::size_t>(id)];
  if (frame.kind == Kind::kNumber && is_number(frame.a)) return frame_can_end(frame.parent);
  return frame.kind == Kind::kDone;
}

JsonGrammar::State JsonGrammar::make_step(State state, std::uint8_t byte) {
  out_.clear();
  const std::vector<int> frames = states_[static_cast<std::size_t>(state)].frames;
  for (const int frame : frames) step_frame(frame, byte);
  const State next = intern_state(out_);
  next_[static_cast<std::size_t>(state)][byte] = next;
  return next;
}

bool JsonGrammar::is_plain_string(State state) const {
  const std::vector<int>& frames = states_[static_cast<std::size_t>(state)].frames;
  if (frames.size() != 1) return false;
  const Frame& frame = frames_[static_cast<std::size_t>(frames[0])];
  if (frame.kind == Kind::kString) return frame.a == kInPlain;
  return frame.kind == Kind::kName && frame.b == kInPlain &&
         schema_->objects[static_cast<std::size_t>(frame.node)].properties.empty();
}

JsonGrammar::State JsonGrammar::adopt(const JsonGrammar& other, State state) {
  std::vector<int> frames;
  for (const int frame : other.states_[static_cast<std::size_t>(state)].frames) {
    frames.push_back(adopt_frame(other, frame));
  }
  return intern_state(std::move(frames));
}

int JsonGrammar::adopt_frame(const JsonGrammar& other, int id) {
  Frame frame = other.frames_[static_cast<std::size_t>(id)];
  if (frame.parent >= 0) frame.parent = adopt_frame(other, frame.parent);  // as deep as values nest
  return intern(frame);
}

void JsonGrammar::step_frame(int id, std::uint8_t byte) {
  const Frame frame = frames_[static_cast<std::size_t>(id)];  // a copy: the table grows
  switch (frame.kind) {
    case Kind::kDone:
      return;
    case Kind::kValue:
      if (!is_space(byte)) return begin_value(frame.node, frame.parent, byte);
      if (frame.b < kMaxSpaces) emit({frame.parent, frame.kind, frame.node, frame.a, frame.b + 1});
      return;
    case Kind::kText:
      return step_text(frame.parent, frame.node, byte);
    case Kind::kKey:
      return step_key(frame, byte);
    case Kind::kString:
      return step_string(frame, byte);
    case Kind::kNumber:
      return step_number(id, frame, byte);
    case Kind::kObject:
      return step_object(frame, byte);
    case Kind::kName:
      return step_name(frame, byte);
    case Kind::kArray:
      return step_array(frame, byte);
  }
}

// The first byte of a value of `node`; behind the value comes `parent`.
void JsonGrammar::begin_value(int node, int parent, std::uint8_t byte) {
  const JsonSchema::Node& rule = schema_->nodes[static_cast<std::size_t>(node)];
  if (rule.texts >= 0) step_text(parent, rule.texts, byte);
  if (rule.takes_string && byte == '"') emit({parent, Kind::kString, 0, kInPlain, 0});
  if (rule.takes_number || rule.takes_integer) {
    const int is_integer = rule.takes_number ? 0 : 1;
    if (byte == '-') emit({parent, Kind::kNumber, is_integer, kMinus, 0});
    if (is_digit(byte)) emit({parent, Kind::kNumber, is_integer, byte == '0' ? kZero : kInteger, 1});
  }
  const int levels = levels_left(parent);
  if (byte == '{') {
    for (const int object : rule.objects) {
      if (schema_->objects[static_cast<std::size_t>(object)].min_levels > levels) continue;
      emit({parent, Kind::kObject, object, 0, at_phase(kOpen)});
    }
  } else if (byte == '[') {
    for (const int array : rule.arrays) {
      if (schema_->arrays[static_cast<std::size_t>(array)].min_levels > levels) continue;
      emit({parent, Kind::kArray, array, 0, at_phase(kOpen)});
    }
  }
}

// A byte of a value that is spelled out, behind the node `at` of the trie.
void JsonGrammar::step_text(int parent, int at, std::uint8_t byte) {
  const int next = schema_->next_text_node(at, byte);
  if (next < 0) return;
  const JsonSchema::TextNode& node = schema_->text_nodes[static_cast<std::size_t>(next)];
  if (node.is_end) emit(parent);
  if (!node.next.empty()) emit({parent, Kind::kText, next, 0, 0});
}

// The name of one property; a: how much of it is behind.
void JsonGrammar::step_key(const Frame& frame, std::uint8_t byte) {
  const std::string& text = schema_->texts[static_cast<std::size_t>(frame.node)];
  const auto at = static_cast<std::size_t>(frame.a);
  if (static_cast<std::uint8_t>(text[at]) != byte) return;
  at + 1 == text.size() ? emit(frame.parent) : emit({frame.parent, frame.kind, frame.node, frame.a + 1, 0});
}

void JsonGrammar::step_string(const Frame& frame, std::uint8_t byte) {
  if (frame.a == kInPlain && byte == '"') return emit(frame.parent);
  const JsonStringState next = step_json_string(static_cast<JsonStringState>(frame.a), byte);
  if (next != JsonStringState::kBad) emit({frame.parent, frame.kind, frame.node, static_cast<int>(next), 0});
}

// A number ends where a byte that can't go on with it comes.
void JsonGrammar::step_number(int, const Frame& frame, std::uint8_t byte) {
  const auto [next, n_digits] = step_in_number(frame.a, frame.b, frame.node != 0, byte);
  if (next >= 0) return emit({frame.parent, frame.kind, frame.node, next, n_digits});
  if (is_number(frame.a)) step_frame(frame.parent, byte);
}

// An object's a: how many of the declared properties are behind (written or passed over); one more than there are once
// another name was written.
bool JsonGrammar::may_close(const Frame& object) const {
  const auto& properties = schema_->objects[static_cast<std::size_t>(object.node)].properties;
  const auto from = std::min(static_cast<std::size_t>(object.a), properties.size());
  return std::none_of(properties.begin() + static_cast<std::ptrdiff_t>(from), properties.end(),
                      [](const auto& property) { return property.is_required; });
}

// Those of which a value can be written in the levels that are left; the next that must come ends the choice.
JsonGrammar::NextNames JsonGrammar::next_names(const Frame& object) const {
  const auto& rule = schema_->objects[static_cast<std::size_t>(object.node)];
  const int levels = levels_left(object.parent) - 1;
  NextNames next;
  for (int i = object.a; i < static_cast<int>(rule.properties.size()); ++i) {
    const auto& property = rule.properties[static_cast<std::size_t>(i)];
    if (fits(property.value, levels)) next.declared.push_back(i);
    if (property.is_required) return next;
  }
  next.others = rule.additional && fits(*rule.additional, levels);
  return next;
}

bool JsonGrammar::may_name(const Frame& object) const {
  const NextNames next = next_names(object);
  return next.others || !next.declared.empty();
}

void JsonGrammar::begin_names(const Frame& object) {
  const auto& rule = schema_->objects[static_cast<std::size_t>(object.node)];
  const NextNames next = next_names(object);
  for (const int i : next.declared) {
    const int parent = intern({object.parent, Kind::kObject, object.node, i + 1, at_phase(kColon)});
    emit({parent, Kind::kKey, rule.properties[static_cast<std::size_t>(i)].key, 1, 0});
  }
  if (!next.others) return;
  const int n_properties = static_cast<int>(rule.properties.size());
  const int parent = intern({object.parent, Kind::kObject, object.node, n_properties + 1, at_phase(kColon)});
  emit({parent, Kind::kName, object.node, n_properties == 0 ? -1 : rule.names, kInPlain});
}

void JsonGrammar::step_object(const Frame& frame, std::uint8_t byte) {
  if (is_space(byte)) {
    if (frame.b % kPhaseUnit < kMaxSpaces) emit({frame.parent, frame.kind, frame.node, frame.a, frame.b + 1});
    return;
  }
  const Phase phase = phase_of(frame.b);
  if (phase == kColon && byte == ':') {
    const auto& rule = schema_->objects[static_cast<std::size_t>(frame.node)];
    const auto i = static_cast<std::size_t>(frame.a) - 1;
    const int value = i < rule.properties.size() ? rule.properties[i].value : *rule.additional;
    const int parent = intern({frame.parent, frame.kind, frame.node, frame.a, at_phase(kNext)});
    emit({parent, Kind::kValue, value, 0, 0});
  } else if ((phase == kOpen || phase == kComma) && byte == '"') {
    begin_names(frame);
  } else if (phase == kNext && byte == ',' && may_name(frame)) {
    emit({frame.parent, frame.kind, frame.node, frame.a, at_phase(kComma)});
  } else if ((phase == kOpen || phase == kNext) && byte == '}' && may_close(frame)) {
    emit(frame.parent);
  }
}

// A name that the schema does not declare. a: its place in the trie of those that are, -1 once it differs from all.
void JsonGrammar::step_name(const Frame& frame, std::uint8_t byte) {
  const bool has_declared = !schema_->objects[static_cast<std::size_t>(frame.node)].properties.empty();
  if (frame.b == kInPlain && byte == '"') {
    if (frame.a < 0 || !schema_->text_nodes[static_cast<std::size_t>(frame.a)].is_end) emit(frame.parent);
    return;
  }
  if (has_declared && byte == '\\') return;  // it could spell a declared name
  const JsonStringState next = step_json_string(static_cast<JsonStringState>(frame.b), byte);
  if (next == JsonStringState::kBad) return;
  const int at = frame.a < 0 ? -1 : schema_->next_text_node(frame.a, byte);
  emit({frame.parent, frame.kind, frame.node, at, static_cast<int>(next)});
}

// A list's a: how many values were begun, no more than it takes to know what may come.
void JsonGrammar::step_array(const Frame& frame, std::uint8_t byte) {
  if (is_space(byte)) {
    if (frame.b % kPhaseUnit < kMaxSpaces) emit({frame.parent, frame.kind, frame.node, frame.a, frame.b + 1});
    return;
  }
  const auto& rule = schema_->arrays[static_cast<std::size_t>(frame.node)];
  const Phase phase = phase_of(frame.b);
  if (byte == ']') {
    if (frame.a >= rule.min_items) emit(frame.parent);
    return;
  }
  if (rule.max_items && frame.a >= *rule.max_items) return;
  if (!fits(rule.items, levels_left(frame.parent) - 1)) return;
  const int count = rule.max_items ? frame.a + 1 : std::min(frame.a + 1, rule.min_items);
  const int parent = intern({frame.parent, frame.kind, frame.node, count, at_phase(kNext)});
  if (phase == kOpen) {
    begin_value(rule.items, parent, byte);
  } else if (phase == kNext && byte == ',') {
    emit({parent, Kind::kValue, rule.items, 0, 0});
  }
}

}  // namespace memoir::engine
