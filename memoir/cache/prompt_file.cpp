#include "memoir/cache/prompt_file.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/cache/arrays.h"
#include "memoir/cache/batch_kv.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/recurrent.h"
#include "memoir/kernels/allocated.h"
#include "memoir/kernels/memory_pages.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using Layers = std::vector<std::unique_ptr<LayerCache>>;

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

mx::Dtype dtype_of(const SafetensorsTensor& tensor, const std::string& path) {
  static const std::array<std::pair<std::string_view, mx::Dtype>, 12> kDtypes = {{{"F32", mx::float32},
                                                                                  {"F16", mx::float16},
                                                                                  {"BF16", mx::bfloat16},
                                                                                  {"U32", mx::uint32},
                                                                                  {"I32", mx::int32},
                                                                                  {"I64", mx::int64},
                                                                                  {"BOOL", mx::bool_},
                                                                                  {"U8", mx::uint8},
                                                                                  {"I8", mx::int8},
                                                                                  {"U16", mx::uint16},
                                                                                  {"I16", mx::int16},
                                                                                  {"U64", mx::uint64}}};
  for (const auto& [name, dtype] : kDtypes) {
    if (tensor.dtype == name) return dtype;
  }
  throw UnsupportedError(path, tensor.name, "has the dtype " + tensor.dtype);
}

// Room for a tensor, to be filled.
struct Incoming {
  mx::allocator::Data data;
  mx::Shape shape;
  mx::Dtype dtype;

  std::span<std::byte> bytes(const SafetensorsTensor& tensor) {
    return {static_cast<std::byte*>(data.buffer().raw_ptr()), tensor.size_bytes};
  }
};

Incoming room_for(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  mx::Shape shape;
  for (const std::int64_t size : tensor.shape) {
    if (size > std::numeric_limits<int>::max()) {
      throw FormatError(file.path(), tensor.name, "has an axis of " + std::to_string(size));
    }
    shape.push_back(static_cast<int>(size));
  }
  const mx::Dtype dtype = dtype_of(tensor, file.path());
  return {kernels::allocated(tensor.size_bytes), std::move(shape), dtype};
}

std::vector<std::span<std::byte>> pieces_of(const std::vector<SafetensorsTensor>& tensors,
                                            std::vector<Incoming>& rooms) {
  std::vector<std::span<std::byte>> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::span<std::byte> left = rooms[i].bytes(tensors[i]); !left.empty();) {
      pieces.push_back(left.first(std::min(left.size(), kPieceBytes)));
      left = left.subspan(pieces.back().size());
    }
  }
  return pieces;
}

// A thread beside the one that reads: it has the memory's pages made, which takes as long as reading from a disk, and
// adds what was read to the checksum.
class ReadingBeside {
 public:
  ReadingBeside(const std::vector<std::span<std::byte>>& pieces, Checksum& checksum)
      : pieces_(pieces), checksum_(checksum), thread_([this] { run(); }) {}
  ReadingBeside(const ReadingBeside&) = delete;
  ReadingBeside& operator=(const ReadingBeside&) = delete;

  // Should reading have thrown, without the rest.
  ~ReadingBeside() {
    if (!thread_.joinable()) return;
    set(kStop);
    thread_.join();
  }

  void has_read(std::size_t n_pieces) { set(n_pieces); }

  // Waits until all is in the checksum, after has_read() of all.
  void finish() { thread_.join(); }

 private:
  static constexpr std::size_t kStop = std::numeric_limits<std::size_t>::max();

  void set(std::size_t n_read) {
    n_read_.store(n_read, std::memory_order_release);
    n_read_.notify_one();
  }

  void run() {
    std::size_t n_made = 0;
    for (std::size_t n_added = 0; n_added < pieces_.size();) {
      if (n_made < pieces_.size()) kernels::make_pages(pieces_[n_made++]);
      if (n_made == pieces_.size()) n_read_.wait(n_added, std::memory_order_acquire);
      const std::size_t n_read = n_read_.load(std::memory_order_acquire);
      if (n_read == kStop) return;
      for (; n_added < n_read; ++n_added) checksum_.add(pieces_[n_added]);
    }
  }

  const std::vector<std::span<std::byte>>& pieces_;
  Checksum& checksum_;
  std::atomic<std::size_t> n_read_ = 0;
  std::thread thread_;
};

// All tensors, in order.
std::vector<mx::array> read_tensors(const SafetensorsFile& file, Checksum& checksum) {
  const std::vector<SafetensorsTensor>& tensors = file.tensors();
  std::vector<Incoming> rooms;
  for (const SafetensorsTensor& tensor : tensors) rooms.push_back(room_for(file, tensor));
  const std::vector<std::span<std::byte>> pieces = pieces_of(tensors, rooms);
  ReadingBeside beside(pieces, checksum);
  std::size_t n_read = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> all = rooms[i].bytes(tensors[i]);
    for (std::size_t begin = 0; begin < all.size(); begin += pieces[n_read++].size()) {
      file.read_part(tensors[i], begin, pieces[n_read]);
      beside.has_read(n_read + 1);
    }
  }
  beside.finish();
  std::vector<mx::array> arrays;
  for (Incoming& room : rooms) arrays.emplace_back(std::move(room.data), std::move(room.shape), room.dtype);
  return arrays;
}

std::vector<mx::array> read_arrays(const SafetensorsFile& file, const std::string& expected_checksum) {
  Checksum checksum;
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsTensor& tensor : file.tensors()) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  add_header(checksum, entries, file.metadata());
  if (!expected_checksum.empty() && file.n_bytes_behind() > 0) {
    throw FormatError(file.path(), "",
                      std::to_string(file.n_bytes_behind()) + " bytes follow the last tensor: the file was changed");
  }
  std::vector<mx::array> arrays = read_tensors(file, checksum);
  if (!expected_checksum.empty() && checksum.hex() != expected_checksum) {
    throw FormatError(file.path(), std::string(kChecksumKey), "does not match: the file is damaged or was changed");
  }
  return arrays;
}

mx::array rows_between(const mx::array& a, int begin, int end) {
  mx::Shape start(4, 0);
  mx::Shape stop = a.shape();
  start[2] = begin;
  stop[2] = end;
  return mx::slice(a, start, stop);
}

class Builder {
 public:
  Builder(const SafetensorsFile& file, const std::vector<mx::array>& arrays) : file_(file), arrays_(arrays) {}

  Layers layers(const std::vector<PromptLayer>& entries) const {
    Layers result;
    for (const PromptLayer& entry : entries) result.push_back(layer(entry));
    return result;
  }

 private:
  std::unique_ptr<LayerCache> layer(const PromptLayer& entry) const {
    try {
      if (entry.kind == kNoCache) return nullptr;
      if (entry.kind == "CacheList") return std::make_unique<CacheList>(layers(entry.children));
      if (entry.kind == "RecurrentCache") return recurrent(entry);
      if (entry.kind == "ArraysCache" || entry.kind == "MambaCache") return slots(entry);
      if (!entry.offsets.empty()) return batch(entry);
      return make_kv_cache(parse_kind(entry.kind).value(), rows(entry), entry.numbers);
    } catch (const std::invalid_argument& refusal) {
      throw FormatError(file_.path(), entry.key, refusal.what());
    }
  }

  std::vector<mx::array> rows(const PromptLayer& entry) const {
    std::vector<mx::array> state;
    for (const auto& index : entry.tensors) {
      const mx::array& all = arrays_[index.value()];
      mx::array counted = entry.n_rows == all.shape(2) ? all : rows_between(all, 0, entry.n_rows);
      if (entry.unfilled_row) {
        const int row = *entry.unfilled_row;
        counted = mx::concatenate({rows_between(counted, 0, row), rows_between(counted, row + 1, entry.n_rows)}, 2);
      }
      state.push_back(std::move(counted));
    }
    return state;
  }

  // Without columns that are padding of all sequences, so that the layers of a model are at one offset.
  std::unique_ptr<LayerCache> batch(const PromptLayer& entry) const {
    KVOptions options{.keep = entry.keep};
    if (entry.window > 0) options.window = entry.window;
    if (entry.chunk > 0) options.chunk = entry.chunk;
    if (entry.bits > 0) options.quantization = KVQuantization{entry.bits, entry.group_size};
    std::vector<mx::array> state;
    for (const auto& index : entry.tensors) {
      const mx::array& all = arrays_[index.value()];
      if (entry.n_rows == 0) {
        state.push_back(all);
      } else if (entry.first_row == 0) {
        state.push_back(rows_between(all, entry.unfilled_row ? 1 : 0, entry.n_rows));
      } else {
        const int begin = entry.first_row;
        state.push_back(mx::concatenate({rows_between(all, begin, entry.n_rows), rows_between(all, 0, begin)}, 2));
      }
    }
    const int n_sequences = static_cast<int>(entry.offsets.size());
    std::vector<int> left_padding;
    std::vector<int> everyone;
    for (const int offset : entry.offsets) {
      left_padding.push_back(entry.n_columns - offset);
      everyone.push_back(static_cast<int>(everyone.size()));
    }
    state.push_back(mx::array(entry.offsets.data(), {n_sequences}, mx::int32));
    state.push_back(mx::array(left_padding.data(), {n_sequences}, mx::int32));
    auto cache = std::make_unique<BatchKVCache>(options, std::vector<int>(entry.offsets.size(), 0));
    if (cache->kind() != entry.kind) {
      throw std::invalid_argument("its numbers are those of a " + std::string(cache->kind()));
    }
    cache->set_state(state, {std::to_string(entry.n_columns)});
    cache->filter(everyone);
    return cache;
  }

  std::unique_ptr<LayerCache> slots(const PromptLayer& entry) const {
    const std::size_t n_slots = entry.tensors.size() - 2;
    std::vector<mx::array> state;
    for (std::size_t i = 0; i < entry.tensors.size(); ++i) {
      mx::array a = entry.tensors[i] ? arrays_[*entry.tensors[i]] : mx::zeros({0}, mx::float32);
      // Both count down, in mlx-lm below zero.
      if (i >= n_slots && entry.tensors[i] && a.dtype() == mx::int32) a = mx::maximum(a, mx::array(0));
      state.push_back(std::move(a));
    }
    std::unique_ptr<ArraysCache> cache;
    if (entry.kind == "MambaCache") {
      cache = std::make_unique<MambaCache>();
    } else {
      cache = std::make_unique<ArraysCache>(static_cast<int>(n_slots));
    }
    cache->set_state(state, entry.numbers);
    if (!entry.offsets.empty()) cache->set_offsets(entry.offsets);
    return cache;
  }

  std::unique_ptr<LayerCache> recurrent(const PromptLayer& entry) const {
    std::vector<mx::array> state;
    for (const auto& index : entry.tensors) state.push_back(arrays_[index.value()]);
    RecurrentShape shape;
    if (entry.has_tail) {
      const mx::array& tail = state.front();
      if (tail.ndim() != 3) throw std::invalid_argument("the tail has " + std::to_string(tail.ndim()) + " axes");
      shape.tail_tokens = tail.shape(1);
      shape.tail_channels = tail.shape(2);
    }
    if (!entry.has_tail || state.size() == 2) {
      const mx::Shape& axes = state.back().shape();
      if (axes.size() < 2) throw std::invalid_argument("the state has " + std::to_string(axes.size()) + " axes");
      shape.state.assign(axes.begin() + 1, axes.end());
    }
    auto cache = std::make_unique<RecurrentCache>(shape);
    cache->set_state(state, entry.numbers);
    return cache;
  }

  const SafetensorsFile& file_;
  const std::vector<mx::array>& arrays_;
};

// ---- fitted

[[noreturn]] void refuse_layer(const std::string& key, const std::string& what) {
  throw std::invalid_argument("[cache.fitted] layer " + key + " " + what);
}

std::string kind_text(const LayerCache* cache) {
  return cache ? "a " + std::string(cache->kind()) : "no cache";
}

void fit_layers(Layers& loaded, const std::function<const LayerCache*(std::size_t)>& made, std::size_t n_made,
                const std::string& key, RowForms forms);

void fit_states(std::unique_ptr<LayerCache>& loaded, const RecurrentCache& made, const std::string& key) {
  const auto* slots = dynamic_cast<const ArraysCache*>(loaded.get());
  const auto* same = dynamic_cast<const RecurrentCache*>(loaded.get());
  if (!slots && !same) refuse_layer(key, "is " + kind_text(loaded.get()) + ", expected " + kind_text(&made));
  std::vector<mx::array> state;
  if (same) state = same->state();
  for (int i = 0; slots && i < slots->n_slots(); ++i) {
    if (slots->slot(i)) state.push_back(*slots->slot(i));
  }
  auto cache = std::make_unique<RecurrentCache>(made.shape());
  try {
    cache->set_state(state, {std::to_string(loaded->offset())});
  } catch (const std::invalid_argument& refusal) {
    refuse_layer(key, refusal.what());
  }
  loaded = std::move(cache);
}

// "a RotatingKVCache of float16 rows, a window of 21 and the first 4"
std::string described(const KVOptions& options, std::string_view kind) {
  std::string text = "a " + std::string(kind);
  if (options.quantization) {
    text += " of " + std::to_string(options.quantization->bits) + " bits in groups of " +
            std::to_string(options.quantization->group_size);
  } else if (options.dtype) {
    text += " of " + kernels::dtype_text(*options.dtype) + " rows";
  }
  if (options.window) text += ", a window of " + std::to_string(*options.window);
  if (options.keep > 0) text += " and the first " + std::to_string(options.keep);
  if (options.chunk) text += ", chunks of " + std::to_string(*options.chunk);
  return text;
}

bool is_form_asked_for(const KVOptions& own, const KVOptions& asked, RowForms forms) {
  if (forms == RowForms::kAny) return true;
  if (own.quantization) return asked.quantization ? own.quantization == asked.quantization : !asked.dtype;
  if (asked.quantization) return forms == RowForms::kAskedOrDense;
  return !asked.dtype || !own.dtype || own.dtype == asked.dtype;
}

void fit_rows(KVCache& own, const KVCache& made, const std::string& key, RowForms forms) {
  own.keep_dtype();
  const KVOptions a = own.options();
  const KVOptions b = made.options();
  const bool is_same_layout = a.window == b.window && a.keep == b.keep && a.chunk == b.chunk;
  if (is_same_layout && is_form_asked_for(a, b, forms)) return;
  refuse_layer(key, "is " + described(a, own.kind()) + ", expected " + described(b, made.kind()));
}

void fit_layer(std::unique_ptr<LayerCache>& loaded, const LayerCache* made, const std::string& key, RowForms forms) {
  if (const auto* recurrent = dynamic_cast<const RecurrentCache*>(made); recurrent && loaded) {
    return fit_states(loaded, *recurrent, key);
  }
  const auto refuse_kind = [&] {
    refuse_layer(key, "is " + kind_text(loaded.get()) + ", expected " + kind_text(made));
  };
  if (!loaded || !made) {
    if (loaded || made) refuse_kind();
    return;
  }
  if (const auto* list = dynamic_cast<const CacheList*>(made)) {
    auto* own = dynamic_cast<CacheList*>(loaded.get());
    if (!own) refuse_kind();
    Layers children = std::move(*own).release();
    fit_layers(
        children, [list](std::size_t i) { return list->find(i); }, list->n_children(), key + ".", forms);
    loaded = std::make_unique<CacheList>(std::move(children));
    return;
  }
  if (const auto* rows = dynamic_cast<const KVCache*>(made)) {
    auto* own = dynamic_cast<KVCache*>(loaded.get());
    if (!own) refuse_kind();
    if (!own->is_empty()) return fit_rows(*own, *rows, key, forms);
    loaded = made->copy();
    return;
  }
  if (loaded->kind() != made->kind()) refuse_kind();
}

void fit_layers(Layers& loaded, const std::function<const LayerCache*(std::size_t)>& made, std::size_t n_made,
                const std::string& key, RowForms forms) {
  if (loaded.size() != n_made) {
    throw std::invalid_argument("[cache.fitted] " + std::to_string(loaded.size()) + " layers, expected " +
                                std::to_string(n_made));
  }
  for (std::size_t i = 0; i < loaded.size(); ++i) fit_layer(loaded[i], made(i), key + std::to_string(i), forms);
}

}  // namespace

PromptFile load_prompt_file(const std::filesystem::path& path) {
  return load_prompt_file(SafetensorsFile::open(path));
}

PromptFile load_prompt_file(const SafetensorsFile& file) {
  PromptIndex index = read_prompt_index(file);
  const std::vector<mx::array> arrays = read_arrays(file, index.checksum);
  Layers layers = Builder(file, arrays).layers(index.layers);
  PromptFile loaded{ModelCache(std::move(layers)), std::move(index.metadata), index.format};
  loaded.cache.materialize();
  return loaded;
}

ModelCache fitted(ModelCache loaded, const ModelCache& made, RowForms forms) {
  Layers layers = std::move(loaded).release();
  fit_layers(
      layers, [&made](std::size_t i) { return made.find(i); }, made.n_layers(), "", forms);
  return ModelCache(std::move(layers));
}

}  // namespace memoir::cache
