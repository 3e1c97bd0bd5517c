#include "memoir/cache/prompt_batch.h"

#include <algorithm>
#include <array>

#include "memoir/base/error.h"
#include "memoir/cache/layout.h"

namespace memoir::cache {
namespace {

constexpr std::string_view kFlat = "BatchKVCache";
constexpr std::string_view kRing = "BatchRotatingKVCache";

class BatchReader {
 public:
  BatchReader(const PromptLeaves& leaves, const RawBatch& raw) : leaves_(leaves), raw_(raw) {
    layer_.key = raw.key;
    layer_.kind = raw.kind;
  }

  PromptLayer read() {
    if (!raw_.state) leaves_.fail(raw_.key, "has no tensors");
    if (raw_.kind == kFlat) {
      read_flat();
    } else if (raw_.kind == kRing) {
      read_ring();
    } else {
      read_own();
    }
    finish();
    return std::move(layer_);
  }

 private:
  bool is_v1() const { return raw_.numbers != nullptr; }

  const PromptNode& item(int i, int n_items) const {
    if (static_cast<int>(raw_.state->items.size()) != n_items) {
      leaves_.fail(raw_.key,
                   "has " + std::to_string(raw_.state->items.size()) + " items, expected " + std::to_string(n_items));
    }
    return raw_.state->items.at(i);
  }

  std::string key(int i) const { return raw_.key + "." + std::to_string(i); }

  int number(int i, int n_items) const { return in_range(leaves_.number_of(item(i, n_items), key(i)), key(i)); }

  int in_range(int value, const std::string& where) const {
    if (value < 0 || value > Layout::kMaxRows) {
      leaves_.fail(where, std::to_string(value) + ", expected 0 to 2^30");
    }
    return value;
  }

  int in_range_above(int value) const { return value < 0 ? 0 : in_range(value, key(2)); }

  // v1: number i of n in the metadata.
  std::string text(std::size_t i, std::size_t n) const {
    if (raw_.numbers->items.size() != n) leaves_.fail(raw_.key, "the metadata has other numbers than expected");
    return raw_.numbers->items.at(static_cast<int>(i)).text;
  }

  int number_v1(std::size_t i, std::size_t n) const {
    const std::optional<int> value = parse_item_number(text(i, n));
    if (!value) leaves_.fail(raw_.key, "\"" + text(i, n) + "\", expected a number");
    return in_range(*value, raw_.key);
  }

  // Keys, values, offsets; what the file has of left padding is what these tell.
  void read_rows(int n_items) {
    for (const int side : {0, 1}) {
      if (const auto index = leaves_.array_of(item(side, n_items), key(side))) layer_.tensors.push_back(index);
    }
    if (layer_.tensors.size() == 1) leaves_.fail(raw_.key, "has keys or values, expected both");
    layer_.offsets = leaves_.numbers_of(item(2, n_items), key(2));
    if (leaves_.numbers_of(item(3, n_items), key(3)).size() != layer_.offsets.size()) {
      leaves_.fail(key(3), "is not of as many sequences as the offsets");
    }
  }

  std::int64_t n_rows_there() const {
    std::int64_t n_rows = -1;
    for (const auto& index : layer_.tensors) {
      const SafetensorsTensor& one = leaves_.tensor(index.value());
      if (one.shape.size() != 4 || one.shape[0] != static_cast<std::int64_t>(layer_.offsets.size())) {
        leaves_.fail(one.name, "has not four axes, or not as many sequences as there are offsets");
      }
      if (n_rows >= 0 && one.shape[2] != n_rows) leaves_.fail(one.name, "has other rows than the keys");
      n_rows = one.shape[2];
    }
    return std::max<std::int64_t>(n_rows, 0);
  }

  void read_flat() {
    read_rows(is_v1() ? 4 : 5);
    const std::int64_t n_rows = n_rows_there();
    if (is_v1() && n_rows > Layout::kMaxRows) leaves_.fail(raw_.key, "has more than 2^30 rows");
    layer_.n_columns = is_v1() ? static_cast<int>(n_rows) : number(4, 5);
    if (layer_.n_columns > n_rows) {
      leaves_.fail(raw_.key, std::to_string(n_rows) + " rows for " + std::to_string(layer_.n_columns) + " columns");
    }
    layer_.n_rows = layer_.n_columns;
  }

  // A ring that turns has its oldest row at _idx; else rows from there on are padding.
  void read_ring() {
    read_rows(is_v1() ? 4 : 8);
    layer_.window = is_v1() ? number_v1(0, 4) : number(4, 8);
    // After a merge _offset is the number of rows.
    layer_.n_columns = is_v1() ? number_v1(1, 4) : number(5, 8);
    for (const int offset : layer_.offsets) layer_.n_columns = std::max(layer_.n_columns, in_range_above(offset));
    const int next = is_v1() ? number_v1(2, 4) : number(6, 8);
    const bool turns = is_v1() ? text(3, 4) == "True" : leaves_.flag_of(item(7, 8), key(7));
    const std::int64_t n_rows = n_rows_there();
    if (layer_.window < 1) leaves_.fail(raw_.key, "max_size is 0");
    if (next > n_rows || (turns && n_rows != layer_.window)) {
      leaves_.fail(raw_.key, "_idx is " + std::to_string(next) + " of " + std::to_string(n_rows) + " rows, max_size " +
                                 std::to_string(layer_.window));
    }
    layer_.n_rows = turns ? static_cast<int>(n_rows) : next;
    layer_.first_row = turns ? next % layer_.window : 0;
    if (raw_.is_unfilled) {
      if (turns || layer_.n_rows != layer_.window) leaves_.fail(raw_.key, "has no row to be filled");
      layer_.unfilled_row = 0;
    }
    if (layer_.n_rows > layer_.n_columns || layer_.n_rows < std::min(layer_.n_columns, layer_.window - 1)) {
      leaves_.fail(raw_.key, std::to_string(layer_.n_rows) + " rows at " + std::to_string(layer_.n_columns) +
                                 " columns, max_size " + std::to_string(layer_.window));
    }
  }

  // Items: a list of the arrays of BatchKVCache::state(), columns, window, keep, chunk, group_size, bits; 0: none.
  void read_own() {
    if (is_v1()) {
      throw UnsupportedError(leaves_.path(), raw_.key, "memoir has no cache of the class \"" + raw_.kind + "\" in v1");
    }
    const PromptNode& arrays = item(0, 7);
    const int n_arrays = static_cast<int>(arrays.items.size());
    if (n_arrays < 2) leaves_.fail(key(0), "is no list of rows, offsets and left padding");
    for (const auto& [i, node] : arrays.items) {
      const std::string name = key(0) + "." + std::to_string(i);
      if (i == n_arrays - 2) layer_.offsets = leaves_.numbers_of(node, name);
      if (i >= n_arrays - 2) continue;
      const auto index = leaves_.array_of(node, name);
      if (!index) leaves_.fail(name, "is none, expected rows");
      layer_.tensors.push_back(index);
    }
    layer_.n_columns = number(1, 7);
    layer_.window = number(2, 7);
    layer_.keep = number(3, 7);
    layer_.chunk = number(4, 7);
    layer_.group_size = number(5, 7);
    layer_.bits = number(6, 7);
  }

  void finish() {
    if (layer_.offsets.empty()) leaves_.fail(raw_.key, "has no sequences");
    for (const int offset : layer_.offsets) {
      if (offset > layer_.n_columns || offset <= -Layout::kMaxRows) {
        leaves_.fail(raw_.key, "a sequence is at offset " + std::to_string(offset) + " of " +
                                   std::to_string(layer_.n_columns) + " columns");
      }
    }
    if (layer_.n_columns == 0) layer_.tensors.clear();
    layer_.offset = std::max(0, *std::max_element(layer_.offsets.begin(), layer_.offsets.end()));
  }

  const PromptLeaves& leaves_;
  const RawBatch& raw_;
  PromptLayer layer_;
};

}  // namespace

bool is_batch_kind(std::string_view kind) {
  static constexpr std::array<std::string_view, 7> kKinds = {kFlat,
                                                             kRing,
                                                             "BatchKeptRotatingKVCache",
                                                             "BatchChunkedKVCache",
                                                             "BatchQuantizedKVCache",
                                                             "BatchQuantizedRotatingKVCache",
                                                             "BatchQuantizedChunkedKVCache"};
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}

PromptLayer read_batch(const PromptLeaves& leaves, const RawBatch& raw) {
  return BatchReader(leaves, raw).read();
}

}  // namespace memoir::cache
