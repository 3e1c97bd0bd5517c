// A KVCache's state, as files hold it: arrays without padding, by position, and the numbers beside them.

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "memoir/cache/kv.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::KvBuffer;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[cache.set_state] " + what);
}

bool is_ring(CacheKind kind) {
  return kind == CacheKind::kRotating || kind == CacheKind::kQuantizedRotating;
}

bool is_chunked(CacheKind kind) {
  return kind == CacheKind::kChunked || kind == CacheKind::kQuantizedChunked;
}

bool is_quantized(CacheKind kind) {
  return kind == CacheKind::kQuantized || kind == CacheKind::kQuantizedRotating || kind == CacheKind::kQuantizedChunked;
}

// The numbers of every kind, those that a kind has none of at their defaults.
struct Numbers {
  int keep = 0;
  int max_size = 0;  // keep + window
  int chunk = 0;
  int start = 0;
  int offset = -1;  // -1: the rows tell
  int next_row = -1;
  int group_size = 0;
  int bits = 0;
};

// The order of a kind's numbers.
std::vector<std::pair<const char*, int Numbers::*>> fields(CacheKind kind) {
  std::vector<std::pair<const char*, int Numbers::*>> result;
  if (is_ring(kind)) {
    result = {{"keep", &Numbers::keep},
              {"max_size", &Numbers::max_size},
              {"offset", &Numbers::offset},
              {"_idx", &Numbers::next_row}};
  }
  if (is_chunked(kind)) result = {{"chunk_size", &Numbers::chunk}, {"start_position", &Numbers::start}};
  if (kind == CacheKind::kQuantized) result = {{"offset", &Numbers::offset}};
  if (is_quantized(kind)) {
    result.emplace_back("group_size", &Numbers::group_size);
    result.emplace_back("bits", &Numbers::bits);
  }
  return result;
}

Numbers parse(CacheKind kind, const std::vector<std::string>& meta) {
  const auto wanted = fields(kind);
  if (meta.size() != wanted.size()) {
    refuse("a " + std::string(kind_name(kind)) + " with " + std::to_string(meta.size()) + " numbers, expected " +
           std::to_string(wanted.size()));
  }
  Numbers numbers;
  for (std::size_t i = 0; i < meta.size(); ++i) {
    int value = 0;
    const char* end = meta[i].data() + meta[i].size();
    const auto [stop, error] = std::from_chars(meta[i].data(), end, value);
    if (error != std::errc() || stop != end || value < 0 || value > Layout::kMaxRows) {
      refuse(std::string(wanted[i].first) + " is \"" + meta[i] + "\", expected a number from 0 to 2^30");
    }
    numbers.*wanted[i].second = value;
  }
  return numbers;
}

KVOptions options_of(CacheKind kind, const Numbers& numbers) {
  KVOptions options;
  if (is_ring(kind)) {
    if (numbers.max_size <= numbers.keep) {
      refuse("max_size is " + std::to_string(numbers.max_size) + ", expected more than keep, " +
             std::to_string(numbers.keep));
    }
    options.window = numbers.max_size - numbers.keep;
    options.keep = numbers.keep;
  }
  if (is_chunked(kind)) options.chunk = numbers.chunk;
  if (is_quantized(kind)) options.quantization = KVQuantization{numbers.bits, numbers.group_size};
  return options;
}

KvBuffer buffer_of(const std::vector<mx::array>& state, bool is_second, const KVOptions& options) {
  if (!options.quantization) return {state[is_second ? 1 : 0]};
  const std::size_t at = is_second ? 3 : 0;
  return {state[at], kernels::Quantization{state[at + 1], state[at + 2], options.quantization->group_size,
                                           options.quantization->bits}};
}

// mlx-lm's ring: the first keep rows, and the others from row next_row on, round. Brings them into order.
std::vector<StoredRun> ring_runs(const Numbers& numbers, int n) {
  const auto run = [](int begin, int end) { return StoredRun{0, begin, end - begin}; };
  if (numbers.next_row == n) return {run(0, n)};
  if (numbers.next_row < numbers.keep || numbers.next_row > n) {
    refuse("_idx is " + std::to_string(numbers.next_row) + ", expected from keep, " + std::to_string(numbers.keep) +
           ", to the " + std::to_string(n) + " rows");
  }
  std::vector<StoredRun> runs;
  for (const StoredRun& one : {run(0, numbers.keep), run(numbers.next_row, n), run(numbers.keep, numbers.next_row)}) {
    if (one.n_rows > 0) runs.push_back(one);
  }
  return runs;
}

// The positions of n rows in order.
Positions positions_of(CacheKind kind, const Numbers& numbers, int n) {
  if (is_chunked(kind)) {
    if (n > Layout::kMaxRows - numbers.start) refuse("start_position and rows pass 2^30");
    return {0, numbers.start, numbers.start + n};
  }
  const int offset = numbers.offset < 0 ? n : numbers.offset;
  if (offset < n || (offset != n && !is_ring(kind))) {
    refuse(std::to_string(n) + " rows at offset " + std::to_string(offset) + ", expected them to agree");
  }
  if (offset == n) return {0, 0, n};
  if (n < numbers.keep) refuse(std::to_string(n) + " rows, expected at least keep, " + std::to_string(numbers.keep));
  return {numbers.keep, offset - (n - numbers.keep), offset};
}

std::vector<std::string> texts(CacheKind kind, const Numbers& numbers) {
  std::vector<std::string> result;
  for (const auto& [name, member] : fields(kind)) result.push_back(std::to_string(numbers.*member));
  return result;
}

}  // namespace

std::vector<mx::array> KVCache::state() const {
  const Positions seen = layout_.seen_by_last(1);
  if (seen.is_empty()) return {};
  const std::vector<StoredRun> runs = layout_.runs(seen);
  return kernels::arrays_of(taken(*keys_, runs), taken(*values_, runs));
}

std::vector<std::string> KVCache::meta_state() const {
  const Positions seen = layout_.seen_by_last(1);
  Numbers numbers;
  numbers.keep = layout_.keep();
  numbers.max_size = layout_.keep() + layout_.window();
  numbers.chunk = layout_.chunk();
  numbers.start = seen.first;
  numbers.offset = offset();
  numbers.next_row = seen.n_rows();
  if (format_.quantization) {
    numbers.group_size = format_.quantization->group_size;
    numbers.bits = format_.quantization->bits;
  }
  return texts(kind_of(), numbers);
}

void KVCache::set_state(const std::vector<mx::array>& state, const std::vector<std::string>& meta) {
  check_no_transaction("set_state");
  const CacheKind kind = kind_of();
  const Numbers numbers = parse(kind, meta);
  const KVOptions own = options();
  const KVOptions theirs = options_of(kind, numbers);
  if (theirs.window != own.window || theirs.keep != own.keep || theirs.chunk != own.chunk ||
      theirs.quantization != own.quantization) {
    refuse("the state is of a cache with other options, expected this " + std::string(this->kind()) + "'s");
  }
  const std::size_t n_arrays = format_.quantization ? 6 : 2;
  if (state.empty()) {
    const int offset = std::max(numbers.start, numbers.offset);
    const Positions nothing{0, std::max(0, offset), std::max(0, offset)};
    if (!layout_.reaches(nothing, nothing.end) || numbers.next_row > 0) {
      refuse("no arrays at offset " + std::to_string(offset) + ", expected 0 for an empty cache");
    }
    free();
    layout_.reclaim(nothing);
    return;
  }
  if (state.size() != n_arrays) {
    refuse(std::to_string(state.size()) + " arrays, expected " + std::to_string(n_arrays));
  }
  KvBuffer keys = buffer_of(state, false, theirs);
  KvBuffer values = buffer_of(state, true, theirs);
  kernels::check_history("cache.set_state", {keys, values, {}});
  const int n = n_rows(keys);
  if (n < 1) refuse("arrays without rows, expected none or some");
  KVCache fresh(own);
  if (format_.quantization) {
    fresh.check_encoded(keys, values);
  } else {
    fresh.check_rows(keys.data, values.data);
    keys = encoded(keys.data, format_);
    values = encoded(values.data, format_);
  }
  const Positions positions = positions_of(kind, numbers, n);
  if (is_ring(kind)) {
    const std::vector<StoredRun> runs = ring_runs(numbers, n);
    if (runs.size() > 1) {
      keys = taken(keys, runs);
      values = taken(values, runs);
    }
  }
  Write write = fresh.layout_.plan_restore(positions);
  // Flat rows are kept as they came: a file's are in memory once, and the next update makes room behind them.
  if (!is_ring(kind) && !is_chunked(kind)) write.capacity = n;
  fresh.write(write, keys, values, RowsLie::kAnyhow);
  copy_out(lazy_);
  layout_ = fresh.layout_;
  keys_ = fresh.keys_;
  values_ = fresh.values_;
}

std::unique_ptr<KVCache> make_kv_cache(CacheKind kind, const std::vector<mx::array>& state,
                                       const std::vector<std::string>& meta) {
  auto cache = make_kv_cache(options_of(kind, parse(kind, meta)));
  cache->set_state(state, meta);
  return cache;
}

}  // namespace memoir::cache
