// The contract of every attention cache: each layout in each row format against a naive cache, which is a list of rows
// that grows and is cut, and from which everything is worked out anew. Rows come from a pool of random ones, so that a
// row's bytes tell which it is: what the cache holds is compared byte for byte, quantized rows with the pool quantized
// by MLX. 10,000 random sequences of operations; a failure names layout, format and seed.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "memoir/cache/kv.h"
#include "memoir/cache/prompt_file.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

constexpr int kPoolRows = 1500;
constexpr int kBatch = 2;
constexpr int kHeads = 2;

struct Format {
  const char* name;
  mx::Dtype computed;  // the type of the rows that come
  std::optional<mx::Dtype> stored;
  std::optional<KVQuantization> quantization;
  int key_dim;
  int value_dim;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"f32", mx::float32, std::nullopt, std::nullopt, 5, 3},
      {"f16", mx::float16, std::nullopt, std::nullopt, 8, 8},
      {"bf16", mx::bfloat16, std::nullopt, std::nullopt, 4, 6},
      {"f32 kept as f16, no values", mx::float32, mx::float16, std::nullopt, 7, 0},
      {"q8/64", mx::float32, mx::float16, KVQuantization{8, 64}, 64, 64},
      {"q4/32", mx::float32, std::nullopt, KVQuantization{4, 32}, 32, 64},
      {"q2/128", mx::float16, std::nullopt, KVQuantization{2, 128}, 128, 128},
      {"q3/32", mx::float32, mx::bfloat16, KVQuantization{3, 32}, 96, 32},
      {"q5/32", mx::bfloat16, std::nullopt, KVQuantization{5, 32}, 32, 0},
      {"q6/64", mx::float32, mx::float16, KVQuantization{6, 64}, 64, 128},
  };
  return all;
}

struct NamedLayout {
  const char* name;
  KVOptions options;
};

void PrintTo(const NamedLayout& layout, std::ostream* out) {
  *out << layout.name;
}

std::vector<NamedLayout> layouts() {
  return {{"Flat", {}},
          {"Ring4", {.window = 4}},
          {"Ring6Keep2", {.window = 6, .keep = 2}},
          {"Ring37Keep5", {.window = 37, .keep = 5}},
          {"Chunk4", {.chunk = 4}},
          {"Chunk33", {.chunk = 33}}};
}

KVOptions options_of(const NamedLayout& layout, const Format& format) {
  KVOptions options = layout.options;
  options.dtype = format.stored;
  options.quantization = format.quantization;
  return options;
}

kernels::KvBuffer stored_as(const mx::array& rows, const Format& format) {
  const mx::array cast = mx::astype(rows, format.stored.value_or(format.computed));
  if (!format.quantization) return {cast};
  const auto parts = mx::quantize(cast, format.quantization->group_size, format.quantization->bits);
  return {parts[0],
          kernels::Quantization{parts[1], parts[2], format.quantization->group_size, format.quantization->bits}};
}

// Random rows as they come, and as a cache in the format must keep them.
struct Pool {
  explicit Pool(const Format& format)
      : keys(random_rows(format.key_dim, 1, format.computed)),
        values(random_rows(format.value_dim, 2, format.computed)),
        stored_keys(stored_as(keys, format)),
        stored_values(stored_as(values, format)) {
    mx::eval(keys, values);
    mx::eval(stored_keys.arrays());
    mx::eval(stored_values.arrays());
  }

  static mx::array random_rows(int dim, unsigned seed, mx::Dtype dtype) {
    return mx::astype(mx::random::normal({kBatch, kHeads, kPoolRows, dim}, mx::float32, mx::random::key(seed)), dtype);
  }

  mx::array keys;
  mx::array values;
  kernels::KvBuffer stored_keys;
  kernels::KvBuffer stored_values;
};

mx::array slice_rows(const mx::array& rows, int begin, int end) {
  return mx::slice(rows, mx::Shape{0, 0, begin, 0}, mx::Shape{rows.shape(0), rows.shape(1), end, rows.shape(3)});
}

bool same_row(const mx::array& a, int a_row, const mx::array& b, int b_row) {
  const auto n_bytes = static_cast<std::size_t>(a.shape(3)) * a.itemsize();
  const auto bytes_of = [](const mx::array& x, int batch, int head, int row) {
    const auto at = batch * x.strides(0) + head * x.strides(1) + row * x.strides(2);
    return x.data<char>() + at * static_cast<std::ptrdiff_t>(x.itemsize());
  };
  for (int batch = 0; batch < kBatch; ++batch) {
    for (int head = 0; head < kHeads; ++head) {
      if (n_bytes != 0 && std::memcmp(bytes_of(a, batch, head, a_row), bytes_of(b, batch, head, b_row), n_bytes) != 0) {
        return false;
      }
    }
  }
  return true;
}

bool same_row(const kernels::KvBuffer& a, int a_row, const kernels::KvBuffer& b, int b_row) {
  const std::vector<mx::array> x = a.arrays();
  const std::vector<mx::array> y = b.arrays();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!same_row(x[i], a_row, y[i], b_row)) return false;
  }
  return x.size() == y.size();
}

// The positions that a query at p sees before itself.
std::vector<int> seen(const KVOptions& options, int p) {
  std::vector<int> result;
  for (int j = 0; j < p; ++j) {
    if (options.window && p - j >= *options.window && j >= options.keep) continue;
    if (options.chunk && p / *options.chunk != j / *options.chunk) continue;
    result.push_back(j);
  }
  return result;
}

// A cache and the list that it must agree with.
struct Subject {
  std::unique_ptr<KVCache> cache;
  std::vector<int> rows;  // the pool's row at each position
  int floor = 0;          // the lowest offset that the contract promises a rewind to
};

struct Saved {
  std::unique_ptr<Snapshot> snapshot;
  std::vector<int> rows;  // all rows up to its end
};

class Sequence {
 public:
  Sequence(const NamedLayout& layout, const Format& format, const Pool& pool, unsigned seed)
      : options_(options_of(layout, format)), format_(format), pool_(pool), random_(seed) {
    for (Subject& subject : subjects_) subject.cache = new_cache();
  }

  void run() {
    const int n_steps = 4 + below(14);
    for (int step = 0; step < n_steps; ++step) {
      operate(subjects_[below(4) == 0 ? 1 : 0]);
      if (testing::Test::HasFatalFailure()) return;
      for (const Subject& subject : subjects_) {
        ASSERT_NO_FATAL_FAILURE(check(subject));
      }
    }
    for (const Saved& one : saved_) {
      ASSERT_NO_FATAL_FAILURE(check_saved(one));
    }
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool is_flat() const { return !options_.window && !options_.chunk; }

  std::unique_ptr<KVCache> new_cache() {
    auto cache = make_kv_cache(options_);
    set_hook(*cache);
    return cache;
  }

  void set_hook(KVCache& cache) {
    cache.on_snapshot_copied([this](const Snapshot& snapshot) {
      EXPECT_FALSE(snapshot.is_lazy());
      ++n_copied_;
    });
  }

  void operate(Subject& subject) {
    switch (below(15)) {
      case 0:
      case 1:
        return update(subject, 1 + below(3));
      case 2:
        return update(subject, 1 + below(70));
      case 3:
        return below(4) == 0 ? update(subject, 200 + below(200)) : update(subject, 1);
      case 4:
        return rewind(subject);
      case 5:
        return trim(subject);
      case 6:
      case 7:
        return save(subject);
      case 8:
      case 9:
        return restore(subject);
      case 10:
        return divide(subject);
      case 11:
        return replace(subject);
      case 12:
      case 13:
        return transact(subject);
      default:
        return misuse(subject);
    }
  }

  void update(Subject& subject, int n_tokens) {
    const int begin = below(kPoolRows - n_tokens);
    const int before = subject.cache->offset();
    const History history = [&] {
      if (format_.quantization && below(3) == 0) {
        return subject.cache->update_quantized(taken(pool_.stored_keys, {{0, begin, n_tokens}}),
                                               taken(pool_.stored_values, {{0, begin, n_tokens}}));
      }
      return subject.cache->update(slice_rows(pool_.keys, begin, begin + n_tokens),
                                   slice_rows(pool_.values, begin, begin + n_tokens));
    }();
    for (int i = 0; i < n_tokens; ++i) subject.rows.push_back(begin + i);
    subject.floor = std::max(subject.floor, std::min(before, before + n_tokens - Layout::kSlack));
    // Exactly what its queries see.
    std::vector<int> expected = seen(options_, before);
    for (int p = before; p < before + n_tokens; ++p) expected.push_back(p);
    ASSERT_NO_FATAL_FAILURE(check_history(subject, history, &expected));
    if (below(25) == 0) {
      ASSERT_NO_FATAL_FAILURE(check_attention(subject, history, n_tokens));
    }
  }

  void rewind(Subject& subject) {
    const int offset = subject.cache->offset();
    const int target = below(2) == 0 ? offset - below(18) : below(offset + 2);
    const bool can = subject.cache->can_rewind(target);
    ASSERT_EQ(subject.cache->restore(nullptr, target), can);
    const bool is_inside = target >= 0 && target <= offset;
    if (is_flat()) {
      ASSERT_EQ(can, is_inside);
    }
    if (is_inside && (target >= subject.floor || target == 0 || target <= options_.keep)) {
      ASSERT_TRUE(can) << target << " of " << offset << ", floor " << subject.floor;
    }
    if (!is_inside) {
      ASSERT_FALSE(can);
    }
    if (can) rewound(subject, target);
  }

  void trim(Subject& subject) {
    const int offset = subject.cache->offset();
    const int n_tokens = below(20);
    const bool can = subject.cache->can_rewind(std::max(0, offset - n_tokens));
    const int n_dropped = subject.cache->trim(n_tokens);
    ASSERT_EQ(n_dropped, can ? std::min(n_tokens, offset) : 0);
    if (can) rewound(subject, offset - n_dropped);
  }

  static void rewound(Subject& subject, int target) {
    subject.rows.resize(static_cast<std::size_t>(target));
    subject.floor = std::min(subject.floor, target);
  }

  void save(const Subject& subject) {
    const int offset = subject.cache->offset();
    const int from = below(offset + 3) - 1;
    const std::size_t before = subject.cache->size_bytes();
    auto snapshot = subject.cache->snapshot(from);
    ASSERT_EQ(snapshot == nullptr, std::max(0, from) >= offset);
    ASSERT_EQ(subject.cache->size_bytes(), before);
    if (!snapshot) return;
    ASSERT_EQ(snapshot->from(), std::max(0, from));
    ASSERT_EQ(snapshot->to(), offset);
    ASSERT_TRUE(snapshot->is_lazy());
    if (below(4) == 0) {
      const int n_before = n_copied_;
      snapshot->materialize();
      ASSERT_EQ(n_copied_, n_before + 1);
    }
    saved_.push_back({std::move(snapshot), subject.rows});
    if (saved_.size() > 5) saved_.erase(saved_.begin() + below(5));
  }

  void restore(Subject& subject) {
    if (saved_.empty()) return;
    const Saved& one = saved_[static_cast<std::size_t>(below(static_cast<int>(saved_.size())))];
    const int from = one.snapshot->from();
    const int to = one.snapshot->to();
    const int target = below(3) == 0 ? below(to + 2) : std::max(0, to - below(std::min(20, to - from + 1)));
    const int offset = subject.cache->offset();
    const bool was_restored = subject.cache->restore(one.snapshot.get(), target);
    if (target > to || (is_flat() && offset < from)) {
      ASSERT_FALSE(was_restored);
    } else if (is_flat() || target == to || target == 0) {
      ASSERT_TRUE(was_restored);
    }
    if (!was_restored) {
      ASSERT_EQ(subject.cache->offset(), offset);
      return;
    }
    ASSERT_EQ(subject.cache->offset(), target);
    std::vector<int> rows(one.rows.begin(), one.rows.begin() + target);
    if (is_flat()) std::copy_n(subject.rows.begin(), std::min(from, target), rows.begin());
    subject.rows = std::move(rows);
    subject.floor = is_flat() ? 0 : target;
  }

  // Splits a snapshot, and merges it again or keeps a half.
  void divide(const Subject& subject) {
    if (saved_.empty()) return;
    Saved& one = saved_[static_cast<std::size_t>(below(static_cast<int>(saved_.size())))];
    const int from = one.snapshot->from();
    const int to = one.snapshot->to();
    const bool was_lazy = one.snapshot->is_lazy();
    const int at = from - 1 + below(to - from + 3);
    SnapshotPair halves = subject.cache->split(std::move(one.snapshot), at);
    if (at <= from || at >= to) {
      ASSERT_EQ(halves.parent == nullptr, at <= from);
      ASSERT_EQ(halves.child == nullptr, at > from);
      one.snapshot = halves.parent ? std::move(halves.parent) : std::move(halves.child);
      return;
    }
    ASSERT_TRUE(halves.child);
    if (!halves.parent) {
      ASSERT_FALSE(is_flat());
      one.snapshot = std::move(halves.child);
      return;
    }
    ASSERT_EQ(halves.parent->from(), from);
    ASSERT_EQ(halves.parent->to(), at);
    ASSERT_EQ(halves.child->from(), at);
    ASSERT_EQ(halves.child->to(), to);
    ASSERT_EQ(halves.parent->is_lazy(), was_lazy);
    if (below(2) == 0) {
      one.snapshot = subject.cache->merge(std::move(halves.parent), std::move(halves.child));
      ASSERT_EQ(one.snapshot->from(), from);
      ASSERT_EQ(one.snapshot->to(), to);
      ASSERT_EQ(one.snapshot->is_lazy(), was_lazy);
    } else if (below(2) == 0) {
      one.snapshot = std::move(halves.parent);
      one.rows.resize(static_cast<std::size_t>(at));
    } else {
      one.snapshot = std::move(halves.child);
    }
  }

  // A copy, or a new cache from the state or a prompt-cache file, takes the subject's place; or it is emptied.
  void replace(Subject& subject) {
    const int what = below(5);
    if (what == 0) {
      subject.cache->free();
      ASSERT_EQ(subject.cache->size_bytes(), 0U);
      subject.rows.clear();
      subject.floor = 0;
    } else if (what <= 2) {
      std::unique_ptr<LayerCache> copy = subject.cache->copy();
      ASSERT_EQ(copy->kind(), subject.cache->kind());
      Subject other{std::unique_ptr<KVCache>(dynamic_cast<KVCache*>(copy.release())), subject.rows, subject.floor};
      ASSERT_TRUE(other.cache);
      set_hook(*other.cache);
      // Written to both, each keeps its own; one of them goes.
      ASSERT_NO_FATAL_FAILURE(update(other, 1 + below(4)));
      ASSERT_NO_FATAL_FAILURE(check(subject));
      if (below(2) == 0) {
        ASSERT_NO_FATAL_FAILURE(update(subject, 1 + below(4)));
      }
      ASSERT_NO_FATAL_FAILURE(check(other));
      if (below(2) == 0) std::swap(subject, other);
    } else {
      subject.cache = what == 3 ? from_state(*subject.cache) : from_file(std::move(subject.cache));
      subject.floor = is_flat() ? 0 : subject.cache->offset();
    }
  }

  std::unique_ptr<KVCache> from_state(const KVCache& cache) {
    auto fresh = new_cache();
    fresh->set_state(cache.state(), cache.meta_state());
    return fresh;
  }

  std::unique_ptr<KVCache> from_file(std::unique_ptr<KVCache> cache) {
    const test::fs::path path = folder_.path() / "cache.safetensors";
    const auto model_of = [](std::unique_ptr<KVCache> layer) {
      std::vector<std::unique_ptr<LayerCache>> layers;
      layers.push_back(std::move(layer));
      return ModelCache(std::move(layers));
    };
    save_prompt_file(path, model_of(std::move(cache)), {});
    ModelCache loaded = fitted(load_prompt_file(path).cache, model_of(new_cache()));
    auto layers = std::move(loaded).release();
    std::unique_ptr<KVCache> fresh(dynamic_cast<KVCache*>(layers.at(0).release()));
    set_hook(*fresh);
    return fresh;
  }

  // A transaction: some rows, then what is refused while it is open, and of the rows as many are kept as chance says.
  void transact(Subject& subject) {
    KVCache& cache = *subject.cache;
    const int n_max = is_flat() && below(3) == 0 ? 1 + below(80) : 1 + below(Layout::kSlack);
    const int begin = cache.offset();
    const std::vector<int> rows = subject.rows;
    if (!is_flat()) {
      ASSERT_THROW(cache.begin(Layout::kSlack + 1), std::invalid_argument);
    }
    cache.begin(n_max);
    ASSERT_THROW(cache.begin(1), std::invalid_argument);
    for (int i = below(4); i > 0 && cache.n_written() < n_max; --i) {
      ASSERT_NO_FATAL_FAILURE(update(subject, 1 + below(n_max - cache.n_written())));
      if (below(4) == 0) save(subject);
      if (below(4) == 0) {
        const int target = begin + below(cache.n_written() + 1);
        ASSERT_TRUE(cache.restore(nullptr, target));
        rewound(subject, target);
      }
      ASSERT_NO_FATAL_FAILURE(check(subject));
    }
    ASSERT_EQ(cache.n_written(), cache.offset() - begin);
    ASSERT_NO_FATAL_FAILURE(misuse_transaction(subject, begin, n_max));
    ASSERT_NO_FATAL_FAILURE(check(subject));
    const int n_kept = below(3) == 0 ? cache.n_written() : below(cache.n_written() + 1);
    if (n_kept == 0 && below(2) == 0) {
      cache.roll_back();
    } else {
      cache.commit(n_kept);
    }
    ASSERT_FALSE(cache.is_in_transaction());
    rewound(subject, begin + n_kept);
    ASSERT_TRUE(std::equal(rows.begin(), rows.end(), subject.rows.begin()));
    ASSERT_THROW(cache.commit(0), std::invalid_argument);
    cache.roll_back();  // nothing
  }

  void misuse_transaction(Subject& subject, int begin, int n_max) {
    KVCache& cache = *subject.cache;
    const int n_too_many = n_max - cache.n_written() + 1;
    ASSERT_THROW(cache.update(slice_rows(pool_.keys, 0, n_too_many), slice_rows(pool_.values, 0, n_too_many)),
                 std::invalid_argument);
    ASSERT_THROW(cache.commit(cache.n_written() + 1), std::invalid_argument);
    ASSERT_THROW(cache.commit(-1), std::invalid_argument);
    ASSERT_THROW(cache.set_state({}, cache.meta_state()), std::invalid_argument);
    ASSERT_FALSE(cache.restore(nullptr, begin - 1));
    ASSERT_FALSE(cache.can_rewind(begin - 1));
    ASSERT_EQ(cache.trim(cache.n_written() + 1), begin == 0 ? cache.n_written() : 0);
    if (begin == 0) rewound(subject, 0);
    if (!saved_.empty()) {
      ASSERT_THROW(cache.restore(saved_[0].snapshot.get(), saved_[0].snapshot->to()), std::invalid_argument);
    }
  }

  void misuse(Subject& subject);
  void check(const Subject& subject) const;
  void check_history(const Subject& subject, const History& history, const std::vector<int>* expected) const;
  void check_attention(const Subject& subject, const History& history, int n_tokens);
  void check_saved(const Saved& one);

  KVOptions options_;
  const Format& format_;
  const Pool& pool_;
  std::mt19937 random_;
  int n_copied_ = 0;  // before the caches, whose end may call the hook
  Subject subjects_[2];
  std::vector<Saved> saved_;
  test::TemporaryFolder folder_;
};

// Each readable row is the list's; with `expected`, the positions are these.
void Sequence::check_history(const Subject& subject, const History& history, const std::vector<int>* expected) const {
  mx::eval(history.keys.arrays());
  mx::eval(history.values.arrays());
  ASSERT_NO_THROW(kernels::check_history("test", history));
  std::vector<int> positions;
  for (const kernels::KvRange& range : history.ranges) {
    for (int i = 0; i < range.n_rows; ++i) {
      const int position = range.first_position + i;
      positions.push_back(position);
      const int row = subject.rows.at(static_cast<std::size_t>(position));
      ASSERT_TRUE(same_row(history.keys, range.begin_row + i, pool_.stored_keys, row)) << "key of " << position;
      ASSERT_TRUE(same_row(history.values, range.begin_row + i, pool_.stored_values, row)) << "value of " << position;
    }
  }
  if (expected) {
    ASSERT_EQ(positions, *expected);
  }
}

void Sequence::check(const Subject& subject) const {
  const KVCache& cache = *subject.cache;
  const int offset = static_cast<int>(subject.rows.size());
  ASSERT_EQ(cache.offset(), offset);
  ASSERT_EQ(cache.is_empty(), offset == 0);
  ASSERT_TRUE(cache.can_rewind(offset));
  ASSERT_EQ(cache.can_rewind(0), !cache.is_in_transaction() || cache.n_written() == offset);
  const std::optional<History> view = cache.view();
  // All that the next query sees is there.
  const std::vector<int> needed = seen(options_, offset);
  if (!view) {
    ASSERT_TRUE(needed.empty());
    return;
  }
  ASSERT_NO_FATAL_FAILURE(check_history(subject, *view, nullptr));
  std::vector<int> positions;
  for (const kernels::KvRange& range : view->ranges) {
    for (int i = 0; i < range.n_rows; ++i) positions.push_back(range.first_position + i);
  }
  ASSERT_TRUE(std::includes(positions.begin(), positions.end(), needed.begin(), needed.end()));
  const mx::array& data = view->keys.data;
  ASSERT_EQ(data.shape(2), cache.capacity());
  ASSERT_EQ(cache.size_bytes(), view->keys.size_bytes() + view->values.size_bytes());
}

// Attention over the history, against attention over all rows from the pool: the same bits; and for quantized rows
// close to attention over the dequantized ones.
void Sequence::check_attention(const Subject& subject, const History& history, int n_tokens) {
  if (format_.value_dim == 0) return;
  const mx::array ids(subject.rows.data(), {static_cast<int>(subject.rows.size())}, mx::int32);
  const auto naive_of = [&](const kernels::KvBuffer& pool) {
    const auto rows = [&](const mx::array& a) { return mx::contiguous(mx::take(a, ids, 2)); };
    if (!pool.quantization) return kernels::KvBuffer{rows(pool.data)};
    const kernels::Quantization& q = *pool.quantization;
    return kernels::KvBuffer{rows(pool.data),
                             kernels::Quantization{rows(q.scales), rows(q.biases), q.group_size, q.bits}};
  };
  const int n_rows = static_cast<int>(subject.rows.size());
  const History naive{naive_of(pool_.stored_keys), naive_of(pool_.stored_values), {{0, 0, n_rows}}};
  const mx::array queries =
      mx::random::normal({kBatch, 2 * kHeads, n_tokens, format_.key_dim}, mx::float32, mx::random::key(random_()));
  const kernels::AttentionOptions options{
      .scale = 1.0F / std::sqrt(static_cast<float>(format_.key_dim)),
      .window = options_.window,
      .keep = options_.keep,
      .chunk = options_.chunk,
  };
  const mx::array y = kernels::attention(queries, history, options);
  ASSERT_TRUE(mx::array_equal(y, kernels::attention(queries, naive, options)).item<bool>());
  if (!format_.quantization) return;
  const auto dequantized_of = [&](kernels::KvBuffer rows) {
    rows.quantization->scales = mx::astype(rows.quantization->scales, mx::float32);
    rows.quantization->biases = mx::astype(rows.quantization->biases, mx::float32);
    return kernels::KvBuffer{rows.rows(naive.ranges)};
  };
  const History dequantized{dequantized_of(naive.keys), dequantized_of(naive.values), naive.ranges};
  ASSERT_TRUE(mx::allclose(y, kernels::attention(queries, dequantized, options), 1e-4, 1e-4).item<bool>());
}

// A snapshot still holds its rows, whatever has become of its cache: restored where it can be.
void Sequence::check_saved(const Saved& one) {
  Subject subject;
  subject.cache = new_cache();
  if (is_flat() && one.snapshot->from() > 0) {
    const int from = one.snapshot->from();
    ASSERT_FALSE(subject.cache->restore(one.snapshot.get(), one.snapshot->to()));
    ASSERT_NO_FATAL_FAILURE(update(subject, from));  // other rows below
  }
  ASSERT_TRUE(subject.cache->restore(one.snapshot.get(), one.snapshot->to()));
  std::vector<int> rows = one.rows;
  if (is_flat()) std::copy(subject.rows.begin(), subject.rows.end(), rows.begin());
  subject.rows = rows;
  ASSERT_NO_FATAL_FAILURE(check(subject));
  ASSERT_NO_FATAL_FAILURE(update(subject, 1));
}

// Calls that are refused; check() follows and finds the cache as it was.
void Sequence::misuse(Subject& subject) {
  KVCache& cache = *subject.cache;
  const std::size_t n_bytes = cache.size_bytes();
  const auto rows = [&](int batch, int heads, int n_tokens, int dim) {
    return mx::zeros({batch, heads, n_tokens, dim}, format_.computed);
  };
  const int k = format_.key_dim;
  const int v = format_.value_dim;
  const mx::array keys = rows(kBatch, kHeads, 2, k);
  const mx::array values = rows(kBatch, kHeads, 2, v);
  ASSERT_THROW(cache.update(keys, rows(kBatch, kHeads, 3, v)), std::invalid_argument);
  ASSERT_THROW(cache.update(keys, rows(kBatch, kHeads + 1, 2, v)), std::invalid_argument);
  ASSERT_THROW(cache.update(mx::reshape(keys, {kBatch, -1, k}), values), std::invalid_argument);
  ASSERT_THROW(cache.update(mx::astype(keys, mx::int32), values), std::invalid_argument);
  ASSERT_THROW(cache.update(rows(kBatch, kHeads, 0, k), rows(kBatch, kHeads, 0, v)), std::invalid_argument);
  ASSERT_THROW(cache.trim(-1), std::invalid_argument);
  ASSERT_FALSE(cache.restore(nullptr, -1));
  ASSERT_FALSE(cache.restore(nullptr, cache.offset() + 1));
  if (format_.quantization) {
    ASSERT_THROW(cache.update(rows(kBatch, kHeads, 2, k + 1), values), std::invalid_argument);
    ASSERT_THROW(cache.update_quantized({keys}, {values}), std::invalid_argument);
  } else {
    ASSERT_THROW(cache.update_quantized({keys}, {values}), std::invalid_argument);
  }
  if (n_bytes > 0) {
    ASSERT_THROW(cache.update(rows(1, kHeads, 2, k), rows(1, kHeads, 2, v)), std::invalid_argument);
    ASSERT_THROW(cache.update(rows(kBatch, 1, 2, k), rows(kBatch, 1, 2, v)), std::invalid_argument);
    ASSERT_THROW(cache.update(rows(kBatch, kHeads, 2, 2 * k), values), std::invalid_argument);
    ASSERT_THROW(cache.update(keys, rows(kBatch, kHeads, 2, v + 128)), std::invalid_argument);
    if (!cache.options().dtype) {  // which rows from a file have given it
      const mx::Dtype other = format_.computed == mx::float16 ? mx::float32 : mx::float16;
      ASSERT_THROW(cache.update(mx::astype(keys, other), values), std::invalid_argument);
    }
  }
  // A snapshot of another kind.
  KVCache foreign({.window = 5});
  foreign.update(mx::zeros({1, 1, 3, 4}), mx::zeros({1, 1, 3, 4}));
  const auto snapshot = foreign.snapshot(0);
  ASSERT_THROW(cache.restore(snapshot.get(), 3), std::invalid_argument);
  ASSERT_THROW(cache.split(foreign.snapshot(0), 1), std::invalid_argument);
  ASSERT_THROW(cache.merge(foreign.snapshot(0), foreign.snapshot(1)), std::invalid_argument);
  ASSERT_THROW(cache.set_state({keys}, {}), std::invalid_argument);
  ASSERT_THROW(cache.set_state({keys, values}, {"1", "x", "", "-1", "1", "1", "1"}), std::invalid_argument);
  if (cache.offset() > 0) {
    ASSERT_THROW(cache.merge(cache.snapshot(0), cache.snapshot(0)), std::invalid_argument);  // they don't meet
  }
  ASSERT_EQ(cache.size_bytes(), n_bytes);
}

class CacheContract : public testing::TestWithParam<NamedLayout> {};

TEST_P(CacheContract, AgreesWithANaiveCacheUnderRandomOperations) {
  constexpr unsigned kSequences = 167;  // times 6 layouts, times 10 formats
  for (const Format& format : formats()) {
    const Pool pool(format);
    for (unsigned seed = 0; seed < kSequences; ++seed) {
      SCOPED_TRACE(std::string(GetParam().name) + ", " + format.name + ", seed " + std::to_string(seed));
      Sequence(GetParam(), format, pool, seed).run();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CacheContract, QuantizesAFilledCache) {
  const Format dense{"f32", mx::float32, std::nullopt, std::nullopt, 64, 32};
  const Pool pool(dense);
  for (const KVQuantization quantization : {KVQuantization{4, 32}, KVQuantization{3, 32}, KVQuantization{8, 32}}) {
    const kernels::KvBuffer expected = stored_as(pool.keys, {"", mx::float32, std::nullopt, quantization, 64, 32});
    KVCache cache(GetParam().options);
    cache.update(slice_rows(pool.keys, 0, 90), slice_rows(pool.values, 0, 90));
    for (int i = 90; i < 110; ++i) cache.update(slice_rows(pool.keys, i, i + 1), slice_rows(pool.values, i, i + 1));
    const auto converted = cache.to_quantized(quantization);
    ASSERT_TRUE(converted);
    EXPECT_EQ(converted->offset(), 110);
    EXPECT_EQ(std::string(converted->kind()), "Quantized" + std::string(cache.kind()));
    const auto& quantized = dynamic_cast<const KVCache&>(*converted);
    EXPECT_EQ(quantized.options().keep, GetParam().options.keep);
    EXPECT_EQ(quantized.layout().stored(), cache.layout().stored());
    EXPECT_LT(quantized.size_bytes(), cache.size_bytes());
    EXPECT_EQ(converted->to_quantized(quantization), nullptr);
    const History history = *converted->view();
    mx::eval(history.keys.arrays());
    mx::eval(expected.arrays());
    ASSERT_EQ(history.ranges.size(), cache.view()->ranges.size());
    for (const kernels::KvRange& range : history.ranges) {
      for (int i = 0; i < range.n_rows; ++i) {
        ASSERT_TRUE(same_row(history.keys, range.begin_row + i, expected, range.first_position + i));
      }
    }
    EXPECT_EQ(converted->trim(10), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CacheContract, testing::ValuesIn(layouts()),
                         [](const auto& param) { return std::string(param.param.name); });

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
