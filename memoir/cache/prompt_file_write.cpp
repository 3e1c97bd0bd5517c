// Caches into files; what the names mean is in docs/prompt-cache-files.md.

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/base/replaced_file.h"
#include "memoir/cache/arrays.h"
#include "memoir/cache/batch_kv.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/prompt_file.h"
#include "memoir/cache/recurrent.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kSmallBytes = 4096;

constexpr std::string_view kNoChecksum = "0000000000000000";

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[cache.save_prompt_file] " + what);
}

std::string dtype_name(mx::Dtype dtype) {
  if (dtype == mx::float32) return "F32";
  if (dtype == mx::float16) return "F16";
  if (dtype == mx::bfloat16) return "BF16";
  if (dtype == mx::uint32) return "U32";
  if (dtype == mx::int32) return "I32";
  if (dtype == mx::int64) return "I64";
  if (dtype == mx::bool_) return "BOOL";
  if (dtype == mx::uint8) return "U8";
  if (dtype == mx::int8) return "I8";
  if (dtype == mx::uint16) return "U16";
  if (dtype == mx::int16) return "I16";
  if (dtype == mx::uint64) return "U64";
  refuse("a slot has a dtype that these files don't have");
}

// The first number of a list of texts on.
int number(const std::vector<std::string>& texts, std::size_t index) {
  return std::stoi(texts.at(index));
}

// The bytes of the array, row by row, in runs as they lie: the rows of a cache are a part of each head's buffer. Short
// runs are copied together.
template <class Take>
void for_each_run(mx::array a, const Take& take) {
  mx::eval(a);
  int n_outer = a.ndim();  // axes that are walked through, before those that lie in one piece
  std::size_t n_run = 1;   // items
  while (n_outer > 0 && (a.shape(n_outer - 1) == 1 || a.strides(n_outer - 1) == static_cast<std::int64_t>(n_run))) {
    n_run *= static_cast<std::size_t>(a.shape(--n_outer));
  }
  if (n_outer > 0 && n_run * a.itemsize() < kSmallBytes) {
    a = mx::contiguous(a);
    mx::eval(a);
    n_outer = 0;
    n_run = a.size();
  }
  const auto* const data = reinterpret_cast<const std::byte*>(a.data<std::uint8_t>());
  const std::size_t n_runs = n_run > 0 ? a.size() / n_run : 0;
  for (std::size_t run = 0; run < n_runs; ++run) {
    std::int64_t offset = 0;
    std::size_t index = run;
    for (int axis = n_outer; axis-- > 0; index /= static_cast<std::size_t>(a.shape(axis))) {
      offset += static_cast<std::int64_t>(index % static_cast<std::size_t>(a.shape(axis))) * a.strides(axis);
    }
    take(std::span(data + offset * static_cast<std::int64_t>(a.itemsize()), n_run * a.itemsize()));
  }
}

class Writer {
 public:
  Writer(const std::string& path, PromptFormat format) : path_(path), format_(format) {}

  void add_layers(const ModelCache& cache) {
    const bool is_v1 = format_ == PromptFormat::kV1;
    if (!is_v1) metadata_["2.0"] = "";
    for (std::size_t i = 0; i < cache.n_layers(); ++i) {
      const std::string key = std::to_string(i);
      metadata_[(is_v1 ? "2." : "1.") + key] = add_layer(cache.find(i), key, "0." + key);
    }
  }

  void add_metadata(const PromptMetadata& metadata, int offset) {
    const std::string user = format_ == PromptFormat::kV1 ? "1." : "0.";
    for (const auto& [key, text] : metadata.user) {
      if (key == kNoteKey || key == kChecksumKey) refuse("metadata has the key " + key + ", which is memoir's own");
      metadata_[user + key] = text;
    }
    note_["offset"] = offset;
    if (!metadata.model.empty()) note_["model"] = metadata.model;
    if (!metadata.model_name.empty()) note_["model_name"] = metadata.model_name;
    if (metadata.tokens) note_["tokens"] = *metadata.tokens;
    if (!kinds_.empty()) note_["kinds"] = kinds_;
    if (!unfilled_.empty()) note_["unfilled"] = unfilled_;
    if (!offsets_.empty()) note_["offsets"] = offsets_;
    try {
      metadata_[user + std::string(kNoteKey)] = note_.dump();
    } catch (const Json::exception&) {
      refuse("the model's name is not UTF-8");
    }
    checksum_key_ = user + std::string(kChecksumKey);
    metadata_[checksum_key_] = kNoChecksum;
  }

  // The checksum, which takes in all of them, comes last.
  void write() {
    put_small_ones_last();
    const std::string header = safetensors_header(entries_, metadata_);
    ReplacedFile file(path_);
    file.write(header);
    Checksum checksum;
    add_header(checksum, entries_, metadata_);
    for (const mx::array& a : arrays_) {
      for_each_run(a, [&](std::span<const std::byte> bytes) {
        checksum.add(bytes);
        file.write(bytes);
      });
    }
    const std::string before = '"' + checksum_key_ + "\":\"";
    file.write_at(header.find(before) + before.size(), checksum.hex());
    file.commit();
    ReplacedFile::remove_all_abandoned(path_);
  }

 private:
  // Returns the class. `meta` is where v1 has its numbers.
  std::string add_layer(const LayerCache* cache, const std::string& key, const std::string& meta) {
    if (!cache) return add_nothing(key, meta);
    if (const auto* list = dynamic_cast<const CacheList*>(cache)) return add_list(*list, key, meta);
    if (const auto* slots = dynamic_cast<const ArraysCache*>(cache)) return add_slots(*slots, key, meta);
    if (const auto* recurrent = dynamic_cast<const RecurrentCache*>(cache)) return add_states(*recurrent, key, meta);
    if (const auto* rows = dynamic_cast<const KVCache*>(cache)) return add_rows(*rows, key, meta);
    if (const auto* batch = dynamic_cast<const BatchKVCache*>(cache)) return add_batch(*batch, key, meta);
    refuse("layer " + key + " is a " + std::string(cache->kind()) + ", which no file can hold");
  }

  bool is_v1() const { return format_ == PromptFormat::kV1; }

  [[noreturn]] void refuse_v1(const std::string& key, const std::string& what) const {
    throw UnsupportedError(path_, key, "the format v1 has no way to hold " + what);
  }

  // Numbers are read before the rows. Pages that the system has already, one behind each layer's rows, halve the speed
  // at which it reads ahead over the whole file.
  void put_small_ones_last() {
    std::vector<std::size_t> order(arrays_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_partition(order.begin(), order.end(),
                          [this](std::size_t i) { return arrays_[i].nbytes() > kSmallBytes; });
    std::vector<SafetensorsEntry> entries;
    std::vector<mx::array> arrays;
    for (const std::size_t i : order) {
      entries.push_back(std::move(entries_[i]));
      arrays.push_back(std::move(arrays_[i]));
    }
    entries_ = std::move(entries);
    arrays_ = std::move(arrays);
  }

  void add_array(const std::string& key, const mx::array& a) {
    entries_.push_back({key, dtype_name(a.dtype()), {a.shape().begin(), a.shape().end()}});
    arrays_.push_back(a);
  }

  // v2: what is no array becomes a tensor with a mark.
  void add_marked(const std::string& key, const mx::array& a, const char* mark) {
    const std::string entry = "2." + std::to_string(++n_marks_);
    metadata_[entry + ".0"] = key;
    metadata_[entry + ".1"] = mark;
    add_array(key, a);
  }

  void add_none(const std::string& key) { add_marked(key, mx::zeros({0}, mx::float32), "none"); }
  void add_number(const std::string& key, int value) { add_marked(key, mx::array(value), "scalar"); }

  void add_text(const std::string& key, const std::string& text) {
    std::vector<int> characters(text.begin(), text.end());
    add_marked(key, mx::array(characters.data(), {static_cast<int>(characters.size())}, mx::int32), "string");
  }

  std::string add_nothing(const std::string& key, const std::string& meta) {
    if (is_v1()) {
      metadata_[meta] = "";
    } else {
      add_none(key);
    }
    return kNoCache;
  }

  std::string add_list(const CacheList& list, const std::string& key, const std::string& meta) {
    for (std::size_t i = 0; i < list.n_children(); ++i) {
      const std::string child = key + "." + std::to_string(i);
      if (is_v1() && !list.find(i)) refuse_v1(child, "a list's child without a cache");
      if (is_v1()) {
        metadata_[meta + ".0." + std::to_string(i)] = add_layer(list.find(i), child, meta + ".1." + std::to_string(i));
      } else {
        add_text(child + ".1", add_layer(list.find(i), child + ".0", ""));
      }
    }
    return "CacheList";
  }

  // ---- Slots

  std::string add_slots(const ArraysCache& cache, const std::string& key, const std::string& meta) {
    if (cache.kind() != "ArraysCache") kinds_[key] = cache.kind();
    std::vector<std::optional<mx::array>> slots;
    for (int i = 0; i < cache.n_slots(); ++i) slots.push_back(cache.slot(i));
    return add_slots(slots, cache.padding(), key, meta);
  }

  std::string add_states(const RecurrentCache& cache, const std::string& key, const std::string& meta) {
    const bool has_tail = cache.shape().tail_tokens > 0;
    const bool has_state = !cache.shape().state.empty();
    std::vector<std::optional<mx::array>> slots;
    for (mx::array& a : cache.state()) slots.emplace_back(std::move(a));
    if (slots.empty()) {
      slots.resize(static_cast<std::size_t>(has_tail) + static_cast<std::size_t>(has_state));
    } else if (cache.padding().is_even()) {
      kinds_[key] = !has_state ? "tail" : has_tail ? "tail,state" : "state";
    }
    return add_slots(slots, cache.padding(), key, meta);
  }

  std::string add_slots(const std::vector<std::optional<mx::array>>& slots, const Padding& padding,
                        const std::string& key, const std::string& meta) {
    if (!padding.offsets().empty()) offsets_[key] = padding.offsets();
    const std::string prefix = is_v1() ? key + "." : key + ".0.";
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::string name = prefix + std::to_string(i);
      if (slots[i]) {
        add_array(name, *slots[i]);
      } else if (is_v1()) {
        refuse_v1(name, "an empty slot");
      } else {
        add_none(name);
      }
    }
    if (is_v1()) {
      if (!padding.left().empty() || !padding.lengths().empty()) refuse_v1(key, "padding");
      metadata_[meta] = "";
    } else {
      add_numbers(key + ".1", padding.left());
      add_numbers(key + ".2", padding.lengths());
    }
    return "ArraysCache";
  }

  void add_numbers(const std::string& key, const std::vector<int>& numbers) {
    if (numbers.empty()) return add_none(key);
    add_array(key, mx::array(numbers.data(), {static_cast<int>(numbers.size())}, mx::int32));
  }

  // ---- Keys and values

  std::string add_rows(const KVCache& cache, const std::string& key, const std::string& meta) {
    const std::vector<std::string> texts = cache.meta_state();
    const KVOptions options = cache.options();
    std::vector<mx::array> state = cache.state();
    int n_rows = state.empty() ? 0 : state[0].shape(2);
    if (options.window && fill_ring(state, n_rows, cache, key)) ++n_rows;
    if (state.empty()) {
      if (is_v1()) refuse_v1(key, "a cache without rows");
      add_none(key + ".0");
      add_none(key + ".1");
    }
    const std::size_t n_arrays = state.size() / 2;
    for (std::size_t i = 0; i < state.size(); ++i) {
      std::string name = key + (i < n_arrays ? ".0" : ".1");
      if (options.quantization) name += "." + std::to_string(i % n_arrays);
      add_array(name, state[i]);
    }
    if (is_v1()) {
      add_numbers_v1(texts, options, n_rows, meta);
    } else {
      add_numbers_v2(texts, options, n_rows, cache.offset(), key);
    }
    return std::string(cache.kind());
  }

  // ---- Batches of keys and values

  std::string add_batch(const BatchKVCache& cache, const std::string& key, const std::string& meta) {
    const std::string kind(cache.kind());
    if (!cache.lengths().empty()) refuse("layer " + key + " is in the middle of right-padded tokens");
    std::vector<mx::array> state = cache.state();
    const std::size_t n_rows = cache.is_empty() ? 0 : state.size() - std::min<std::size_t>(2, state.size());
    state.erase(state.begin() + static_cast<std::ptrdiff_t>(n_rows), state.end());
    if (kind != "BatchKVCache" && kind != "BatchRotatingKVCache") return add_own_batch(cache, state, key);
    if (state.empty()) {
      if (is_v1()) refuse_v1(key, "a cache without rows");
      add_none(key + ".0");
      add_none(key + ".1");
    } else {
      fill_batch(state, cache, key);
      add_array(key + ".0", state[0]);
      add_array(key + ".1", state[1]);
    }
    // mlx-lm counts a ring's padding from the first row that is there.
    const int n_stored = state.empty() ? 0 : state[0].shape(2);
    std::vector<int> left_padding = cache.left_padding();
    for (int& left : left_padding) left -= cache.offset() - n_stored;
    add_numbers(key + ".2", cache.offsets());
    add_numbers(key + ".3", left_padding);
    const bool is_ring = cache.options().window.has_value();
    if (is_v1()) {
      const std::vector<std::string> numbers = {std::to_string(cache.options().window.value_or(0)),
                                                std::to_string(cache.offset()), std::to_string(n_stored), "False"};
      if (!is_ring) metadata_[meta] = "";
      for (std::size_t i = 0; is_ring && i < numbers.size(); ++i)
        metadata_[meta + "." + std::to_string(i)] = numbers[i];
      return kind;
    }
    if (!is_ring) {
      add_number(key + ".4", cache.offset());
      return kind;
    }
    add_number(key + ".4", *cache.options().window);
    add_number(key + ".5", cache.offset());
    add_number(key + ".6", n_stored);
    add_marked(key + ".7", mx::array(false), "scalar");
    return kind;
  }

  // As fill_ring.
  void fill_batch(std::vector<mx::array>& state, const BatchKVCache& cache, const std::string& key) {
    if (state[0].shape(2) >= std::min(cache.offset(), cache.options().window.value_or(0))) return;
    for (mx::array& a : state) {
      mx::Shape row = a.shape();
      row[2] = 1;
      a = mx::concatenate({mx::zeros(row, a.dtype()), a}, 2);
    }
    unfilled_[key] = 0;
  }

  // A kind that mlx-lm does not have.
  std::string add_own_batch(const BatchKVCache& cache, const std::vector<mx::array>& rows, const std::string& key) {
    if (is_v1()) refuse_v1(key, "a " + std::string(cache.kind()));
    std::size_t n = 0;
    for (const mx::array& a : rows) add_array(key + ".0." + std::to_string(n++), a);
    add_numbers(key + ".0." + std::to_string(n++), cache.offsets());
    add_numbers(key + ".0." + std::to_string(n++), cache.left_padding());
    const KVOptions& options = cache.options();
    const KVQuantization quantization = options.quantization.value_or(KVQuantization{0, 0});
    int item = 1;
    for (const int number : {cache.offset(), options.window.value_or(0), options.keep, options.chunk.value_or(0),
                             quantization.group_size, quantization.bits}) {
      add_number(key + "." + std::to_string(item++), number);
    }
    return std::string(cache.kind());
  }

  // mlx-lm takes a ring that has turned and lacks rows for one that is still to grow, and fails. One lacks its oldest
  // row, which the next token hides, right after as many were taken back as can be: zeros stand for it.
  bool fill_ring(std::vector<mx::array>& state, int n_rows, const KVCache& cache, const std::string& key) {
    const int keep = cache.options().keep;
    const int max_size = keep + cache.options().window.value();
    if (state.empty() || n_rows >= std::min(cache.offset(), max_size)) return false;
    for (mx::array& a : state) {
      mx::Shape begin(4, 0);
      mx::Shape kept = a.shape();
      kept[2] = keep;
      mx::Shape row = a.shape();
      row[2] = 1;
      mx::Shape rest(4, 0);
      rest[2] = keep;
      a = mx::concatenate({mx::slice(a, begin, kept), mx::zeros(row, a.dtype()), mx::slice(a, rest, a.shape())}, 2);
    }
    unfilled_[key] = keep;
    return true;
  }

  void add_numbers_v1(std::vector<std::string> texts, const KVOptions& options, int n_rows, const std::string& meta) {
    if (options.window) texts.at(3) = std::to_string(n_rows);
    if (texts.empty()) metadata_[meta] = "";
    for (std::size_t i = 0; i < texts.size(); ++i) metadata_[meta + "." + std::to_string(i)] = texts[i];
  }

  void add_numbers_v2(const std::vector<std::string>& texts, const KVOptions& options, int n_rows, int offset,
                      const std::string& key) {
    std::vector<int> numbers = {offset};
    if (options.window) numbers.insert(numbers.end(), {number(texts, 0), number(texts, 1), n_rows});
    if (options.chunk) numbers.insert(numbers.end(), {number(texts, 0), number(texts, 1)});
    if (options.quantization) {
      numbers.insert(numbers.end(), {options.quantization->group_size, options.quantization->bits});
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) add_number(key + "." + std::to_string(i + 2), numbers[i]);
  }

  std::string path_;
  PromptFormat format_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<mx::array> arrays_;
  std::map<std::string, std::string> metadata_;
  std::string checksum_key_;
  Json note_ = Json::object();
  std::map<std::string, std::string> kinds_;         // of layers that mlx-lm has under another name
  std::map<std::string, int> unfilled_;              // rows of rings that stand for nothing
  std::map<std::string, std::vector<int>> offsets_;  // of the sequences of slots
  int n_marks_ = 0;
};

void check_offsets(const LayerCache& cache, int offset) {
  if (const auto* list = dynamic_cast<const CacheList*>(&cache)) {
    for (std::size_t i = 0; i < list->n_children(); ++i) {
      if (list->find(i)) check_offsets(*list->find(i), offset);
    }
    return;
  }
  if (cache.offset() == offset) return;
  refuse("a layer is at offset " + std::to_string(cache.offset()) + ", another at " + std::to_string(offset));
}

}  // namespace

void save_prompt_file(const std::filesystem::path& path, const ModelCache& cache, const PromptMetadata& metadata,
                      PromptFormat format) {
  const int offset = cache.offset();
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    if (cache.find(i)) check_offsets(*cache.find(i), offset);
  }
  if (metadata.tokens && metadata.tokens->size() != static_cast<std::size_t>(offset)) {
    refuse(std::to_string(metadata.tokens->size()) + " tokens for caches at offset " + std::to_string(offset));
  }
  Writer writer(path.string(), format);
  writer.add_layers(cache);
  writer.add_metadata(metadata, offset);
  writer.write();
}

}  // namespace memoir::cache
