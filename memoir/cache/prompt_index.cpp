#include "memoir/cache/prompt_index.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/cache/kind.h"
#include "memoir/cache/layout.h"
#include "memoir/cache/prompt_batch.h"
#include "memoir/cache/prompt_leaves.h"
#include "memoir/cache/prompt_tree.h"

namespace memoir::cache {
namespace {

// A layer as its format has it, before the two are brought together.
struct RawLayer {
  std::string key;
  std::string kind;
  const PromptNode* state = nullptr;    // null: nothing was written
  const PromptNode* numbers = nullptr;  // v1
  int depth = 0;
};

// The numbers of every kind.
struct Numbers {
  std::optional<int> offset, keep, max_size, next_row, chunk, start, group_size, bits;
};

using Field = std::pair<const char*, std::optional<int> Numbers::*>;

constexpr Field kOffset{"offset", &Numbers::offset};
constexpr Field kKeep{"keep", &Numbers::keep};
constexpr Field kMaxSize{"max_size", &Numbers::max_size};
constexpr Field kNextRow{"_idx", &Numbers::next_row};
constexpr Field kChunk{"chunk_size", &Numbers::chunk};
constexpr Field kStart{"start_position", &Numbers::start};
constexpr Field kGroupSize{"group_size", &Numbers::group_size};
constexpr Field kBits{"bits", &Numbers::bits};

bool is_ring(CacheKind kind) {
  return kind == CacheKind::kRotating || kind == CacheKind::kQuantizedRotating;
}

bool is_chunked(CacheKind kind) {
  return kind == CacheKind::kChunked || kind == CacheKind::kQuantizedChunked;
}

bool is_quantized(CacheKind kind) {
  return kind == CacheKind::kQuantized || kind == CacheKind::kQuantizedRotating || kind == CacheKind::kQuantizedChunked;
}

std::vector<Field> fields_v1(CacheKind kind) {
  std::vector<Field> fields;
  if (is_ring(kind)) fields = {kKeep, kMaxSize, kOffset, kNextRow};
  if (is_chunked(kind)) fields = {kChunk, kStart};
  if (kind == CacheKind::kQuantized) fields = {kOffset};
  if (is_quantized(kind)) fields.insert(fields.end(), {kGroupSize, kBits});
  return fields;
}

std::vector<Field> fields_v2(CacheKind kind) {
  std::vector<Field> fields = {kOffset};
  if (is_ring(kind)) fields.insert(fields.end(), {kKeep, kMaxSize, kNextRow});
  if (is_chunked(kind)) fields.insert(fields.end(), {kChunk, kStart});
  if (is_quantized(kind)) fields.insert(fields.end(), {kGroupSize, kBits});
  return fields;
}

// What memoir's own key says of single layers.
struct Note {
  std::optional<int> offset;
  std::map<std::string, std::string> kinds;         // of layers that mlx-lm has under another name
  std::map<std::string, int> unfilled;              // rows of rings
  std::map<std::string, std::vector<int>> offsets;  // of slots' sequences
};

class Reader : private PromptLeaves {
 public:
  explicit Reader(const SafetensorsFile& file) : PromptLeaves(file) {}

  PromptIndex read() {
    PromptIndex index;
    index.format = format();
    read_metadata(index);
    read_tensors(index.format);
    index.layers = read_layers(index.format);
    if (!offset_) {  // once more, with what the layers that have one say
      for (const PromptLayer& layer : index.layers) {
        if (!offset_) offset_ = some_offset(layer);
      }
      index.layers = read_layers(index.format);
    }
    for (const PromptLayer& layer : index.layers) check_offset(layer);
    tell_offsets(index.layers);
    if (!offset_) fail("", "no layer has a cache");
    index.offset = *offset_;
    if (index.metadata.tokens && index.metadata.tokens->size() != static_cast<std::size_t>(index.offset)) {
      fail(std::string(kNoteKey), std::to_string(index.metadata.tokens->size()) + " tokens, but the caches are at " +
                                      std::to_string(index.offset));
    }
    return index;
  }

 private:
  PromptFormat format() const {
    const auto found = file_.metadata().find("2.0");
    if (found == file_.metadata().end()) fail("", "not a prompt cache: the metadata has no key \"2.0\"");
    return found->second.empty() ? PromptFormat::kV2 : PromptFormat::kV1;
  }

  // ---- Trees

  PromptNode& place(PromptNode& root, const std::vector<int>& path, const std::string& name) const {
    PromptNode* node = &root;
    for (const int item : path) {
      if (node->is_leaf) fail(name, "stands below what is no list");
      node = &node->items[item];
    }
    if (node->is_leaf || !node->items.empty()) fail(name, "stands where there is something else already");
    node->is_leaf = true;
    return *node;
  }

  // Lists are without gaps. (Names are short, so this ends soon.)
  void check_dense(const PromptNode& node, const std::string& key) const {
    int expected = 0;
    for (const auto& [item, child] : node.items) {
      const std::string child_key = key.empty() ? std::to_string(item) : key + "." + std::to_string(item);
      if (item != expected) fail(child_key, "item " + std::to_string(expected) + " before it is missing");
      check_dense(child, child_key);
      ++expected;
    }
  }

  void add_text(PromptNode& root, const std::string& key, const std::string& text) const {
    const std::optional<std::vector<int>> path = parse_item_path(key);
    if (!path) fail(key, "is no key of a prompt cache");
    PromptNode& node = place(root, *path, key);
    node.mark = PromptNode::Mark::kText;
    node.text = text;
  }

  // Divides the metadata: v2 has user, classes, scalars, v1 numbers, user, classes.
  void read_metadata(PromptIndex& index) {
    const bool is_v1 = index.format == PromptFormat::kV1;
    const std::string user = is_v1 ? "1." : "0.";
    for (const auto& [key, text] : file_.metadata()) {
      if (key.starts_with(user)) {
        index.metadata.user[key.substr(user.size())] = text;
      } else if (key != "format" || text != "mlx") {  // which mlx's own writers may add
        add_text(metadata_, key, text);
      }
    }
    check_dense_from(metadata_, is_v1);
    read_note(index);
  }

  void check_dense_from(const PromptNode& root, bool is_v1) const {
    for (const auto& [item, child] : root.items) {
      const bool is_known = is_v1 ? item == 0 || item == 2 : item == 1 || item == 2;
      if (!is_known) fail(std::to_string(item), "is no key of a prompt cache");
      check_dense(child, std::to_string(item));
    }
  }

  const PromptNode* metadata_part(int part) const {
    const auto found = metadata_.items.find(part);
    return found == metadata_.items.end() ? nullptr : &found->second;
  }

  void read_tensors(PromptFormat format) {
    std::map<std::string, PromptNode::Mark> marks;
    if (format == PromptFormat::kV2) marks = read_marks();
    for (std::size_t i = 0; i < file_.tensors().size(); ++i) {
      const std::string& name = tensor(i).name;
      const std::optional<std::vector<int>> path = parse_item_path(name);
      if (!path) fail(name, "is no tensor of a prompt cache");
      PromptNode& node = place(tensors_, *path, name);
      node.tensor = i;
      node.mark = PromptNode::Mark::kArray;
      if (const auto mark = marks.find(name); mark != marks.end()) {
        node.mark = mark->second;
        marks.erase(mark);
      }
    }
    if (!marks.empty()) fail(marks.begin()->first, "is a scalar without a tensor");
    // A layer of v1 may have none; items inside of one may not.
    for (const auto& [layer, node] : tensors_.items) {
      if (format == PromptFormat::kV2) break;
      check_dense(node, std::to_string(layer));
    }
    if (format == PromptFormat::kV2) check_dense(tensors_, "");
  }

  // v2: "2.n" = [name of a tensor, "scalar" | "string" | "none"], n from 1; "2.0" = "".
  std::map<std::string, PromptNode::Mark> read_marks() const {
    static const std::map<std::string, PromptNode::Mark> kMarks = {{"scalar", PromptNode::Mark::kScalar},
                                                                   {"string", PromptNode::Mark::kString},
                                                                   {"none", PromptNode::Mark::kNone}};
    std::map<std::string, PromptNode::Mark> marks;
    for (const auto& [item, entry] : metadata_part(2)->items) {
      if (item == 0) continue;
      const std::string key = "2." + std::to_string(item);
      const bool is_pair = entry.items.size() == 2 && entry.items.at(0).is_leaf && entry.items.at(1).is_leaf;
      if (!is_pair) fail(key, "is no pair of a tensor's name and what it stands for");
      const auto mark = kMarks.find(entry.items.at(1).text);
      if (mark == kMarks.end()) fail(key, "\"" + entry.items.at(1).text + "\", expected scalar, string or none");
      if (!marks.emplace(entry.items.at(0).text, mark->second).second) fail(key, "is there twice");
    }
    return marks;
  }

  // ---- memoir's own keys

  void read_note(PromptIndex& index) {
    auto& user = index.metadata.user;
    const auto note = user.find(std::string(kNoteKey));
    const auto checksum = user.find(std::string(kChecksumKey));
    if (note == user.end() && checksum == user.end()) return;
    if (note == user.end() || checksum == user.end()) {
      fail(std::string(note == user.end() ? kNoteKey : kChecksumKey), "is missing: the file was changed");
    }
    index.checksum = checksum->second;
    try {
      take_note(parse_ordered_json(note->second, file_.path()), index.metadata);
    } catch (const nlohmann::json::exception&) {
      fail(std::string(kNoteKey), "has a value of the wrong type");
    }
    user.erase(note);
    user.erase(checksum);
  }

  void take_note(const nlohmann::ordered_json& note, PromptMetadata& metadata) {
    metadata.model = note.value("model", "");
    metadata.model_name = note.value("model_name", "");
    if (note.contains("tokens")) metadata.tokens = integers_in(note.at("tokens"));
    note_.offset = integer_in(note.at("offset"));
    if (*note_.offset < 0 || *note_.offset > Layout::kMaxRows)
      fail(std::string(kNoteKey), "the offset is out of range");
    if (note.contains("kinds")) note_.kinds = note.at("kinds").get<std::map<std::string, std::string>>();
    for (const auto& [layer, row] : object_in(note, "unfilled")) note_.unfilled[layer] = integer_in(row);
    for (const auto& [layer, offsets] : object_in(note, "offsets")) note_.offsets[layer] = integers_in(offsets);
    offset_ = note_.offset;
  }

  // json would cut other numbers to fit.
  int integer_in(const nlohmann::ordered_json& value) const {
    constexpr int kMost = std::numeric_limits<int>::max();
    const bool is_int = value.is_number_unsigned()  ? value.get<std::uint64_t>() <= std::uint64_t{kMost}
                        : value.is_number_integer() ? value.get<std::int64_t>() >= std::numeric_limits<int>::min()
                                                    : false;
    if (!is_int) fail(std::string(kNoteKey), "has " + value.dump().substr(0, 32) + ", expected a whole number");
    return value.get<int>();
  }

  std::vector<int> integers_in(const nlohmann::ordered_json& list) const {
    std::vector<int> result;
    for (const auto& one : list.get_ref<const nlohmann::ordered_json::array_t&>()) result.push_back(integer_in(one));
    return result;
  }

  static nlohmann::ordered_json::object_t object_in(const nlohmann::ordered_json& note, const char* key) {
    return note.contains(key) ? note.at(key).get_ref<const nlohmann::ordered_json::object_t&>()
                              : nlohmann::ordered_json::object_t{};
  }

  // ---- Layers

  std::vector<PromptLayer> read_layers(PromptFormat format) const {
    const bool is_v1 = format == PromptFormat::kV1;
    const PromptNode* kinds = metadata_part(is_v1 ? 2 : 1);
    const PromptNode* numbers = is_v1 ? metadata_part(0) : nullptr;
    if (!kinds || kinds->is_leaf) fail("", "not a prompt cache: it names no classes");
    if (is_v1 && (!numbers || numbers->items.size() != kinds->items.size())) {
      fail("0", "is not the numbers of " + std::to_string(kinds->items.size()) + " layers");
    }
    if (!tensors_.items.empty() && tensors_.items.rbegin()->first >= static_cast<int>(kinds->items.size())) {
      fail(std::to_string(tensors_.items.rbegin()->first), "is a layer without a class");
    }
    std::vector<PromptLayer> layers;
    for (const auto& [item, kind] : kinds->items) {
      const auto state = tensors_.items.find(item);
      if (!kind.is_leaf) fail("layer " + std::to_string(item), "has no class");
      layers.push_back(
          read_layer({std::to_string(item), kind.text, state == tensors_.items.end() ? nullptr : &state->second,
                      numbers ? &numbers->items.at(item) : nullptr, 0}));
    }
    return layers;
  }

  PromptLayer read_layer(const RawLayer& raw) const {
    const bool is_v1 = raw.numbers != nullptr;
    if (!is_v1 && !raw.state) fail(raw.key, "has a class and no tensors");
    if (raw.kind == kNoCache) {
      if (raw.state && !raw.state->is_none()) fail(raw.key, "has tensors, expected none");
      return {.key = raw.key, .kind = kNoCache};
    }
    if (raw.kind == "CacheList") return is_v1 ? read_list_v1(raw) : read_list_v2(raw);
    if (raw.kind == "ArraysCache" || raw.kind == "MambaCache") return is_v1 ? read_slots_v1(raw) : read_slots_v2(raw);
    if (const std::optional<CacheKind> kind = parse_kind(raw.kind)) return read_attention(raw, *kind);
    if (is_batch_kind(raw.kind)) {
      return read_batch(*this, {raw.key, raw.kind, raw.state, raw.numbers, note_.unfilled.contains(raw.key)});
    }
    throw UnsupportedError(file_.path(), raw.key, "memoir has no cache of the class \"" + raw.kind + "\"");
  }

  // ---- CacheList

  void check_nesting(const RawLayer& raw) const {
    if (raw.depth >= kMaxNesting)
      fail(raw.key, "has more than " + std::to_string(kMaxNesting) + " lists in each other");
  }

  PromptLayer read_list_v2(const RawLayer& raw) const {
    check_nesting(raw);
    if (raw.state->is_leaf) fail(raw.key, "is no list");
    PromptLayer list{.key = raw.key, .kind = raw.kind};
    for (const auto& [item, pair] : raw.state->items) {
      const std::string key = raw.key + "." + std::to_string(item);
      if (pair.items.size() != 2) fail(key, "is no pair of a state and a class");
      list.children.push_back(
          read_layer({key + ".0", string_of(pair.items.at(1), key + ".1"), &pair.items.at(0), nullptr, raw.depth + 1}));
    }
    return list;
  }

  PromptLayer read_list_v1(const RawLayer& raw) const {
    check_nesting(raw);
    const auto& parts = raw.numbers->items;
    if (parts.size() != 2 || parts.at(0).items.size() != parts.at(1).items.size()) {
      fail(raw.key, "the metadata of a CacheList is not its children's classes and numbers");
    }
    PromptLayer list{.key = raw.key, .kind = raw.kind};
    for (const auto& [item, kind] : parts.at(0).items) {
      const PromptNode* state = nullptr;
      if (raw.state) {
        const auto found = raw.state->items.find(item);
        if (found != raw.state->items.end()) state = &found->second;
      }
      const std::string key = raw.key + "." + std::to_string(item);
      if (!kind.is_leaf) fail(key, "has no class");
      list.children.push_back(read_layer({key, kind.text, state, &parts.at(1).items.at(item), raw.depth + 1}));
    }
    if (raw.state && raw.state->items.size() > list.children.size()) fail(raw.key, "has more states than classes");
    return list;
  }

  // ---- Slots

  PromptLayer read_slots_v2(const RawLayer& raw) const {
    if (raw.state->items.size() != 3) fail(raw.key, "is not slots, left_padding and lengths");
    PromptLayer layer{.key = raw.key, .kind = raw.kind};
    add_slots(raw.state->items.at(0), raw.key + ".0", layer);
    layer.tensors.push_back(array_of(raw.state->items.at(1), raw.key + ".1"));
    layer.tensors.push_back(array_of(raw.state->items.at(2), raw.key + ".2"));
    return finish_slots(std::move(layer));
  }

  PromptLayer read_slots_v1(const RawLayer& raw) const {
    check_no_numbers(raw);
    if (!raw.state) fail(raw.key, "has no slots");
    PromptLayer layer{.key = raw.key, .kind = raw.kind};
    add_slots(*raw.state, raw.key, layer);
    layer.tensors.insert(layer.tensors.end(), 2, std::nullopt);
    return finish_slots(std::move(layer));
  }

  void add_slots(const PromptNode& slots, const std::string& key, PromptLayer& layer) const {
    if (slots.items.empty()) fail(key, "is no list of slots");
    for (const auto& [item, slot] : slots.items) {
      layer.tensors.push_back(array_of(slot, key + "." + std::to_string(item)));
    }
  }

  PromptLayer finish_slots(PromptLayer layer) const {
    const std::size_t n_slots = layer.tensors.size() - 2;
    const auto n_set =
        std::count_if(layer.tensors.begin(), layer.tensors.end() - 2, [](auto t) { return t.has_value(); });
    layer.offset = n_set == 0 && !note_.offset ? std::optional(0) : offset_;
    layer.numbers = {std::to_string(layer.offset.value_or(0))};
    if (const auto found = note_.offsets.find(layer.key); found != note_.offsets.end()) layer.offsets = found->second;
    if (const auto found = note_.kinds.find(layer.key); found != note_.kinds.end())
      rename(found->second, n_slots, layer);
    if (layer.kind == "MambaCache" && n_slots != 2) fail(layer.key, "a MambaCache has two slots");
    return layer;
  }

  // Slots that are a MambaCache's or a RecurrentCache's.
  void rename(const std::string& kind, std::size_t n_slots, PromptLayer& layer) const {
    if (kind == "MambaCache") {
      layer.kind = kind;
      return;
    }
    const bool has_tail = kind == "tail" || kind == "tail,state";
    const std::size_t n_arrays = kind == "tail,state" ? 2 : 1;
    if (!has_tail && kind != "state") fail(layer.key, "memoir has no cache of the class \"" + kind + "\"");
    for (std::size_t i = 0; i < layer.tensors.size(); ++i) {
      const bool is_there = layer.tensors[i].has_value();
      if (n_slots != n_arrays || is_there != (i < n_arrays)) fail(layer.key, "is not the " + kind + " of a recurrence");
    }
    layer.tensors.resize(n_arrays);
    layer.kind = "RecurrentCache";
    layer.has_tail = has_tail;
  }

  void check_no_numbers(const RawLayer& raw) const {
    if (!raw.numbers->is_leaf || !raw.numbers->text.empty()) fail(raw.key, "has numbers, expected none");
  }

  // ---- Keys and values

  PromptLayer read_attention(const RawLayer& raw, CacheKind kind) const {
    Numbers numbers;
    const std::vector<Field> fields = raw.numbers ? fields_v1(kind) : fields_v2(kind);
    PromptLayer layer{.key = raw.key, .kind = raw.kind};
    if (raw.numbers) {
      read_numbers_v1(raw, fields, numbers);
    } else {
      read_numbers_v2(raw, fields, numbers);
    }
    if (raw.state) read_arrays(raw, kind, layer);
    int n_rows = rows_of(layer);
    if (is_ring(kind)) {
      place_ring(numbers, n_rows, layer);
    } else if (is_chunked(kind)) {
      kind = place_chunk(kind, numbers, n_rows, layer);
    } else {
      place_flat(numbers, n_rows, layer);
    }
    if (layer.n_rows == 0) layer.tensors.clear();
    layer.kind = kind_name(kind);
    for (const auto& [name, member] : fields_v1(kind))
      layer.numbers.push_back(std::to_string((numbers.*member).value_or(0)));
    return layer;
  }

  void read_numbers_v1(const RawLayer& raw, const std::vector<Field>& fields, Numbers& numbers) const {
    if (fields.empty()) return check_no_numbers(raw);
    if (raw.numbers->items.size() != fields.size()) {
      fail(raw.key, "the metadata has " + std::to_string(raw.numbers->items.size()) + " numbers, expected " +
                        std::to_string(fields.size()));
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const PromptNode& node = raw.numbers->items.at(static_cast<int>(i));
      const std::optional<int> value = parse_item_number(node.text);
      if (!value && !(node.text == "None" && fields[i].second == kChunk.second)) {
        fail(raw.key, std::string(fields[i].first) + " is \"" + node.text + "\", expected a number");
      }
      numbers.*fields[i].second = value;
    }
    check_range(raw, fields, numbers);
  }

  void read_numbers_v2(const RawLayer& raw, const std::vector<Field>& fields, Numbers& numbers) const {
    const std::size_t n_items = raw.state->items.size();
    // mlx-lm's ConcatenateKVCache has no offset.
    if (n_items == 2 && fields.size() == 1) return;
    if (n_items != 2 + fields.size()) {
      fail(raw.key, "has " + std::to_string(n_items) + " items, expected " + std::to_string(2 + fields.size()));
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const int item = static_cast<int>(i) + 2;
      const PromptNode& node = raw.state->items.at(item);
      if (node.is_none() && fields[i].second == kChunk.second) continue;
      numbers.*fields[i].second = number_of(node, raw.key + "." + std::to_string(item));
    }
    check_range(raw, fields, numbers);
  }

  void check_range(const RawLayer& raw, const std::vector<Field>& fields, const Numbers& numbers) const {
    for (const auto& [name, member] : fields) {
      const std::optional<int> value = numbers.*member;
      if (value && (*value < 0 || *value > Layout::kMaxRows)) {
        fail(raw.key, std::string(name) + " is " + std::to_string(*value) + ", expected 0 to 2^30");
      }
    }
  }

  void read_arrays(const RawLayer& raw, CacheKind kind, PromptLayer& layer) const {
    if (raw.state->items.size() < 2) fail(raw.key, "is not keys and values");
    for (const int side : {0, 1}) {
      const PromptNode& node = raw.state->items.at(side);
      const std::string key = raw.key + "." + std::to_string(side);
      if (node.is_none()) continue;
      if (!is_quantized(kind)) {
        layer.tensors.push_back(array_of(node, key));
        continue;
      }
      if (node.items.size() != 3) fail(key, "is not codes, scales and biases");
      for (const auto& [part, leaf] : node.items) {
        const std::string name = key + "." + std::to_string(part);
        layer.tensors.push_back(array_of(leaf, name));
        if (!layer.tensors.back()) fail(name, "is none, expected codes, scales or biases");
      }
    }
    if (raw.numbers && raw.state->items.size() != 2) fail(raw.key, "is not keys and values");
    const std::size_t n_arrays = is_quantized(kind) ? 6 : 2;
    if (!layer.tensors.empty() && layer.tensors.size() != n_arrays) fail(raw.key, "has keys or values, expected both");
  }

  // Rows of all arrays, which are [B, H, rows, D].
  int rows_of(const PromptLayer& layer) const {
    std::int64_t n_rows = -1;
    for (const auto& index : layer.tensors) {
      const SafetensorsTensor& one = tensor(index.value());
      if (one.shape.size() != 4) fail(one.name, "has " + std::to_string(one.shape.size()) + " axes, expected 4");
      if (n_rows >= 0 && one.shape[2] != n_rows) {
        fail(one.name, "has " + std::to_string(one.shape[2]) + " rows, the keys have " + std::to_string(n_rows));
      }
      n_rows = one.shape[2];
    }
    if (n_rows > Layout::kMaxRows) fail(layer.key, "has more than 2^30 rows");
    return static_cast<int>(std::max<std::int64_t>(n_rows, 0));
  }

  void place_flat(Numbers& numbers, int n_rows, PromptLayer& layer) const {
    if (!numbers.offset) numbers.offset = n_rows;
    if (*numbers.offset > n_rows) fail_rows(layer, n_rows, *numbers.offset);
    layer.n_rows = *numbers.offset;
    layer.offset = numbers.offset;
  }

  // As long as the ring has not turned, rows from the offset on are padding.
  void place_ring(Numbers& numbers, int n_rows, PromptLayer& layer) const {
    layer.offset = numbers.offset;
    layer.n_rows = std::min(n_rows, *numbers.offset);
    if (n_rows == 0 && *numbers.offset > 0) fail_rows(layer, n_rows, *numbers.offset);
    if (*numbers.next_row > layer.n_rows || (*numbers.offset < n_rows && *numbers.next_row != *numbers.offset)) {
      fail(layer.key, "_idx is " + std::to_string(*numbers.next_row) + " at offset " + std::to_string(*numbers.offset) +
                          " of " + std::to_string(n_rows) + " rows");
    }
    const auto unfilled = note_.unfilled.find(layer.key);
    if (unfilled == note_.unfilled.end()) return;
    if (unfilled->second < 0 || unfilled->second >= n_rows || *numbers.next_row != n_rows || *numbers.offset < n_rows) {
      fail(layer.key, "has no row " + std::to_string(unfilled->second) + " to be filled");
    }
    layer.unfilled_row = unfilled->second;
    numbers.next_row = n_rows - 1;
  }

  // v1 has no offset, and rows of padding once the front was cut off: what other layers say tells how many.
  CacheKind place_chunk(CacheKind kind, Numbers& numbers, int n_rows, PromptLayer& layer) const {
    const int start = *numbers.start;
    if (!numbers.offset && start == 0) numbers.offset = n_rows;
    if (!numbers.offset) numbers.offset = offset_;
    if (!numbers.offset) {
      layer.offset = std::nullopt;
      return kind;
    }
    if (*numbers.offset < start || *numbers.offset - start > n_rows) {
      fail(layer.key, std::to_string(n_rows) + " rows from " + std::to_string(start) + " on, at offset " +
                          std::to_string(*numbers.offset));
    }
    layer.offset = numbers.offset;
    layer.n_rows = *numbers.offset - start;
    if (numbers.chunk) return kind;
    if (start > 0) fail(layer.key, "chunk_size is None, but the rows before " + std::to_string(start) + " are gone");
    return is_quantized(kind) ? CacheKind::kQuantized : CacheKind::kKV;
  }

  [[noreturn]] void fail_rows(const PromptLayer& layer, int n_rows, int offset) const {
    fail(layer.key, std::to_string(n_rows) + " rows at offset " + std::to_string(offset));
  }

  // ---- The offset

  // What a batch's keys and values tell of its sequences, to slots that it has beside them.
  static void tell_offsets(std::vector<PromptLayer>& layers) {
    std::vector<int> offsets;
    for_each(layers, [&](PromptLayer& layer) {
      if (is_batch_kind(layer.kind)) offsets = layer.offsets;
    });
    for_each(layers, [&](PromptLayer& layer) {
      const bool is_slots = layer.kind == "ArraysCache" || layer.kind == "MambaCache";
      if (is_slots && layer.offsets.empty()) layer.offsets = offsets;
    });
  }

  template <class Act>
  static void for_each(std::vector<PromptLayer>& layers, const Act& act) {
    for (PromptLayer& layer : layers) {
      act(layer);
      for_each(layer.children, act);
    }
  }

  static std::optional<int> some_offset(const PromptLayer& layer) {
    if (layer.kind == "ArraysCache" || layer.kind == "MambaCache") return std::nullopt;
    if (layer.offset) return layer.offset;
    for (const PromptLayer& child : layer.children) {
      if (const std::optional<int> offset = some_offset(child)) return offset;
    }
    return std::nullopt;
  }

  void check_offset(const PromptLayer& layer) {
    for (const PromptLayer& child : layer.children) check_offset(child);
    if (layer.kind == kNoCache || layer.kind == "CacheList") return;
    if (!layer.offset) {
      throw UnsupportedError(file_.path(), layer.key,
                             "nothing in the file tells how many tokens its state has taken in");
    }
    if (!offset_) offset_ = layer.offset;
    if (*layer.offset != *offset_) {
      fail(layer.key,
           "is at offset " + std::to_string(*layer.offset) + ", another layer at " + std::to_string(*offset_));
    }
  }

  PromptNode metadata_;
  PromptNode tensors_;
  Note note_;
  std::optional<int> offset_;
};

}  // namespace

std::string_view format_name(PromptFormat format) {
  return format == PromptFormat::kV1 ? "v1" : "v2";
}

PromptIndex read_prompt_index(const SafetensorsFile& file) {
  return Reader(file).read();
}

void add_header(Checksum& checksum, const std::vector<SafetensorsEntry>& entries,
                const std::map<std::string, std::string>& metadata) {
  for (const SafetensorsEntry& entry : entries) {
    checksum.add(entry.name);
    checksum.add(entry.dtype);
    for (const std::int64_t size : entry.shape) checksum.add(std::to_string(size));
  }
  for (const auto& [key, text] : metadata) {
    if (key.ends_with(kChecksumKey)) continue;
    checksum.add(key);
    checksum.add(text);
  }
}

}  // namespace memoir::cache
