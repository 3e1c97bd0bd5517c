// Rows in cells: the tables of the reference with real arrays, and the same rows in single-stream caches, bit for bit.

#include "memoir/cache/cell_cache.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/cache/cell_caches.h"
#include "memoir/cache/kv.h"
#include "memoir/kernels/rope.h"
#include "memoir/kernels/row_move.h"
#include "tests/held_allocations.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

constexpr int kHeads = 2;
constexpr std::size_t kLayer = 3;

CellBatch rows_of(int sequence, int begin, int end) {
  CellBatch batch;
  for (int p = begin; p < end; ++p) {
    batch.sequences.push_back(sequence);
    batch.positions.push_back(p);
  }
  return batch;
}

bool same_bits(const mx::array& a, const mx::array& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && mx::array_equal(a, b).item<bool>();
}

float max_difference(const mx::array& a, const mx::array& b) {
  return mx::max(mx::abs(mx::subtract(mx::astype(a, mx::float32), mx::astype(b, mx::float32)))).item<float>();
}

// ---- The tables of ollama's kvcache/causal_test.go, as in cells_test.cpp, values in both of their layouts.

// [1, H, T, width], each row filled with its number.
mx::array filled(const std::vector<int>& numbers, int width, float sign) {
  const auto n = static_cast<int>(numbers.size());
  const mx::array column = mx::astype(mx::array(numbers.data(), {1, 1, n, 1}, mx::int32), mx::float32);
  return mx::broadcast_to(mx::multiply(column, mx::array(sign)), {1, kHeads, n, width});
}

class CellRowsTable : public testing::TestWithParam<bool> {
 protected:
  void make(CellsOptions cells) {
    cells.capacity = 16;
    cache_.emplace(CellCacheOptions{.cells = cells,
                                    .dtype = mx::float16,
                                    .transposes_values = GetParam(),
                                    .turn = [](std::size_t, const mx::array& keys, int shift) {
                                      return mx::add(keys, mx::astype(mx::array(shift), keys.dtype()));
                                    }});
  }

  // Feeds the batch and reads it back: the keys' numbers. Values are checked where no key has been turned.
  std::vector<int> feed(const std::vector<int>& numbers, const CellBatch& batch) {
    EXPECT_TRUE(cache_->begin(batch));
    cache_->put(kLayer, filled(numbers, 4, 1), filled(numbers, 6, -1));
    const CellRows rows = cache_->get(kLayer);
    const mx::array keys = mx::contiguous(mx::astype(rows.keys, mx::int32));
    EXPECT_EQ(rows.keys.shape(3), 4);
    EXPECT_EQ(rows.values.shape(3), 6);
    EXPECT_TRUE(
        mx::all(mx::equal(rows.keys, mx::slice(rows.keys, {0, 0, 0, 0}, {1, 1, keys.shape(2), 1}))).item<bool>());
    mx::eval(keys);
    last_values_ = mx::contiguous(mx::astype(mx::negative(rows.values), mx::int32));
    mx::eval(*last_values_);
    std::vector<int> result;
    for (int row = 0; row < keys.shape(2); ++row) result.push_back(keys.data<int>()[row * 4]);
    return result;
  }

  std::vector<int> values() const {
    return {last_values_->data<int>(), last_values_->data<int>() + last_values_->shape(2) * 6};
  }

  std::vector<std::string> mask() const {
    const mx::array bits = cache_->mask();
    const mx::array added = cache_->mask(mx::float32);
    mx::eval(bits, added);
    std::vector<std::string> rows;
    const int n_columns = bits.shape(3);
    for (int row = 0; row < bits.shape(2); ++row) {
      std::string text;
      for (int i = 0; i < n_columns; ++i) {
        const bool is_seen = bits.data<bool>()[row * n_columns + i];
        EXPECT_EQ(added.data<float>()[row * n_columns + i], is_seen ? 0 : -std::numeric_limits<float>::infinity());
        text += is_seen ? '0' : 'x';
      }
      rows.push_back(text);
    }
    return rows;
  }

  using Rows = std::vector<std::string>;
  using Numbers = std::vector<int>;
  std::optional<CellCache> cache_;
  std::optional<mx::array> last_values_;
};

INSTANTIATE_TEST_SUITE_P(ValuesLie, CellRowsTable, testing::Values(false, true),
                         [](const auto& one) { return one.param ? "Transposed" : "AsTheyCome"; });

TEST_P(CellRowsTable, Store) {
  make({.max_batch = 16});
  EXPECT_EQ(feed({1, 2, 3, 4}, rows_of(0, 0, 4)), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(mask(), (Rows{"0xxx", "00xx", "000x", "0000"}));
  EXPECT_EQ(feed({5}, rows_of(0, 4, 5)), (Numbers{1, 2, 3, 4, 5}));
  EXPECT_EQ(mask(), (Rows{"00000"}));
  for (int i = 0; i < 30; ++i) EXPECT_EQ(values()[static_cast<std::size_t>(i)], 1 + i / 6);
}

TEST_P(CellRowsTable, SlidingWindow) {
  make({.max_batch = 16, .window = 2});
  EXPECT_EQ(feed({1, 2, 3, 4}, rows_of(0, 0, 4)), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(mask(), (Rows{"0xxx", "00xx", "x00x", "xx00"}));
  EXPECT_EQ(feed({5, 6}, rows_of(0, 4, 6)), (Numbers{5, 6, 3, 4}));
  EXPECT_EQ(mask(), (Rows{"0xx0", "00xx"}));
}

TEST_P(CellRowsTable, SlidingWindowInSeparateBatches) {
  make({.max_sequences = 2, .max_batch = 2, .window = 2});
  EXPECT_EQ(feed({1, 2}, rows_of(0, 0, 2)), (Numbers{1, 2}));
  EXPECT_EQ(feed({3, 4}, rows_of(0, 2, 4)), (Numbers{2, 3, 4}));
  EXPECT_EQ(feed({5, 6}, rows_of(1, 0, 2)), (Numbers{5, 6}));
  EXPECT_EQ(feed({7, 8}, rows_of(1, 2, 4)), (Numbers{6, 3, 4, 7, 8}));
  EXPECT_EQ(mask(), (Rows{"0xx0x", "xxx00"}));
  EXPECT_EQ(feed({9, 10}, rows_of(0, 4, 6)), (Numbers{9, 10, 3, 4}));
  EXPECT_EQ(mask(), (Rows{"0xx0", "00xx"}));
}

TEST_P(CellRowsTable, SlidingWindowWithMemory) {
  make({.max_batch = 16, .window = 2, .memory = 3, .placing = Placing::kFirstFree});
  EXPECT_EQ(feed({1, 2, 3, 4}, rows_of(0, 0, 4)), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(feed({5, 6}, rows_of(0, 4, 6)), (Numbers{5, 2, 3, 4, 6}));
  EXPECT_EQ(mask(), (Rows{"0xx0x", "0xxx0"}));
}

TEST_P(CellRowsTable, ChunkedAttention) {
  make({.max_batch = 16, .chunk = 2});
  EXPECT_EQ(feed({1, 2, 3, 4}, rows_of(0, 0, 4)), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(feed({5, 6, 7}, rows_of(0, 4, 7)), (Numbers{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mask(), (Rows{"xxxx0xx", "xxxx00x", "xxxxxx0"}));
  EXPECT_EQ(feed({8, 9}, rows_of(0, 7, 9)), (Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(mask(), (Rows{"xxxxxx00x", "xxxxxxxx0"}));
}

TEST_P(CellRowsTable, Sequences) {
  make({.max_sequences = 2, .max_batch = 16});
  EXPECT_EQ(feed({1, 2, 3, 4}, {{0, 0, 1, 1}, {0, 1, 0, 1}}), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(feed({5, 6}, {{0, 1}, {2, 2}}), (Numbers{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(mask(), (Rows{"00xx0x", "xx00x0"}));
}

TEST_P(CellRowsTable, Remove) {
  make({.max_sequences = 2, .max_batch = 16, .placing = Placing::kFirstFree});
  feed({1, 2, 3, 4}, {{0, 0, 1, 1}, {0, 1, 0, 1}});
  ASSERT_EQ(cache_->remove(0, 1), Removal::kDone);
  EXPECT_EQ(feed({5, 6}, {{0, 1}, {1, 2}}), (Numbers{1, 5, 3, 4, 6}));
  EXPECT_EQ(mask(), (Rows{"00xxx", "xx000"}));
  ASSERT_EQ(cache_->remove(0, 0, 1), Removal::kDone);
  EXPECT_EQ(feed({7, 8}, rows_of(0, 1, 3)), (Numbers{7, 4, 3, 4, 6, 8}));
  EXPECT_EQ(mask(), (Rows{"00xxxx", "00xxx0"}));
}

TEST_P(CellRowsTable, Copy) {
  make({.max_sequences = 2, .max_batch = 16});
  feed({1, 2, 3, 4}, rows_of(0, 0, 4));
  cache_->copy_prefix(0, 1, 2);
  EXPECT_EQ(feed({5, 6}, rows_of(1, 3, 5)), (Numbers{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(mask(), (Rows{"00xx0x", "00xx00"}));
}

TEST_P(CellRowsTable, ADefragmentationLosesNothing) {
  make({.max_sequences = 3, .max_batch = 4, .n_cells = 12});
  for (int s = 0; s < 3; ++s) feed({10 * s, 10 * s + 1, 10 * s + 2, 10 * s + 3}, rows_of(s, 0, 4));
  cache_->remove(0, 2);
  cache_->remove(2, 2);
  // Free are 2 cells behind sequence 0 and 2 at the end: for 4 side by side, sequence 2 has to move.
  EXPECT_EQ(feed({2, 3, 4, 5}, rows_of(0, 2, 6)), (Numbers{0, 1, 20, 21, 10, 11, 12, 13, 2, 3, 4, 5}));
  for (int s = 0; s < 3; ++s) {
    const std::unique_ptr<Snapshot> snapshot = cache_->snapshot(s, kLayer);
    KVCache alone({.dtype = mx::float16});
    ASSERT_TRUE(alone.restore(snapshot.get(), snapshot->to()));
    EXPECT_EQ(alone.offset(), s == 0 ? 6 : s == 1 ? 4 : 2);
    const int first = 10 * s;
    for (int p = 0; p < alone.offset(); ++p) {
      const mx::array key = mx::slice(alone.view()->key_rows(), {0, 0, p, 0}, {1, 1, p + 1, 1});
      const mx::array value = mx::slice(alone.view()->value_rows(), {0, 0, p, 0}, {1, 1, p + 1, 1});
      EXPECT_EQ(mx::astype(key, mx::float32).item<float>(), static_cast<float>(first + p));
      EXPECT_EQ(mx::astype(value, mx::float32).item<float>(), static_cast<float>(-first - p));
    }
  }
}

// ---- The bits of single-stream caches

struct Kind {
  const char* name;
  KVOptions kv;
  Placing placing = Placing::kBesideOwn;
};

std::vector<Kind> kinds() {
  const KVQuantization q8{8, 32};
  const KVQuantization q4{4, 32};
  return {{"flat_f32", {}},
          {"flat_f16", {.dtype = mx::float16}},
          {"flat_bf16_side_by_side", {.dtype = mx::bfloat16}, Placing::kSideBySide},
          {"flat_q8_first_free", {.dtype = mx::float16, .quantization = q8}, Placing::kFirstFree},
          {"window", {.window = 9}},
          {"window_q4", {.window = 9, .dtype = mx::float16, .quantization = q4}, Placing::kSideBySide},
          {"window_and_keep", {.window = 9, .keep = 4, .dtype = mx::float16}, Placing::kFirstFree},
          {"chunk", {.chunk = 7, .dtype = mx::float16}}};
}

class CellBits : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CellBits, testing::ValuesIn(kinds()), [](const auto& one) { return one.param.name; });

CellCacheOptions options_for(const Kind& kind, const CellsOptions& like) {
  CellsOptions cells = like;
  cells.window = kind.kv.window;
  cells.keep = kind.kv.keep;
  cells.chunk = kind.kv.chunk;
  cells.placing = kind.placing;
  return {.cells = cells, .dtype = kind.kv.dtype, .quantization = kind.kv.quantization};
}

kernels::AttentionOptions attention_for(const Kind& kind) {
  kernels::AttentionOptions options{.scale = 0.2F};
  options.window = kind.kv.window;
  options.keep = kind.kv.keep;
  options.chunk = kind.kv.chunk;
  return options;
}

constexpr int kWidth = 32;

mx::array random_rows(int n_heads, int n_rows, int width, mx::array& key) {
  const auto [next, use] = mx::random::split(key);
  key = next;
  return mx::random::normal({1, n_heads, n_rows, width}, mx::float32, use);
}

mx::array rows_between(const mx::array& rows, int begin, int end) {
  return mx::slice(rows, {0, 0, begin, 0}, {1, rows.shape(1), end, rows.shape(3)});
}

// Sequences in cells, each beside a cache of its own with the same rows.
class Twins {
 public:
  Twins(const Kind& kind, const CellsOptions& cells) : kind_(kind), cells_(options_for(kind, cells)) {
    for (int s = 0; s < cells.max_sequences; ++s) alone_.push_back(make_kv_cache(kind.kv));
  }

  // n_rows[i] rows of sequence sequences[i].
  void feed(const std::vector<int>& sequences, const std::vector<int>& n_rows, bool compares_masks = true) {
    CellBatch batch;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int begin = cells_.cells().end(sequences[i]);
      ASSERT_EQ(begin, alone(sequences[i]).offset());
      for (int t = 0; t < n_rows[i]; ++t) {
        batch.sequences.push_back(sequences[i]);
        batch.positions.push_back(begin + t);
      }
    }
    const int n = batch.n_rows();
    const mx::array keys = random_rows(kHeads, n, kWidth, key_);
    const mx::array values = random_rows(kHeads, n, kWidth, key_);
    const mx::array queries = random_rows(2 * kHeads, n, kWidth, key_);
    ASSERT_TRUE(cells_.begin(batch));
    cells_.put(kLayer, keys, values);
    const mx::array together = kernels::attention(queries, cells_.histories(kLayer), attention_for(kind_));
    int row = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int end = row + n_rows[i];
      const History history = alone(sequences[i]).update(rows_between(keys, row, end), rows_between(values, row, end));
      const mx::array single = kernels::attention(rows_between(queries, row, end), history, attention_for(kind_));
      const mx::array part = mx::slice(together, {0, row, 0}, {1, end, together.shape(2)});
      ASSERT_TRUE(same_bits(part, single)) << "sequence " << sequences[i] << " at " << cells_.cells().end(sequences[i]);
      row = end;
    }
    if (!compares_masks) return;
    const CellRows rows = cells_.get(kLayer);
    const mx::array masked =
        mx::fast::scaled_dot_product_attention(queries, mx::astype(rows.keys, mx::float32),
                                               mx::astype(rows.values, mx::float32), 0.2F, "array", cells_.mask());
    const mx::array joined =
        mx::reshape(mx::transpose(masked, {0, 2, 1, 3}), {1, n, masked.shape(1) * masked.shape(3)});
    // Dequantized rows are rounded to float16 there, and not in the kernel.
    ASSERT_LT(max_difference(joined, together), kind_.kv.quantization ? 5e-3F : 2e-6F);
  }

  void fork(int from, int to) {
    cells_.copy_prefix(from, to, cells_.cells().end(from));
    const auto copy = alone(from).copy();
    alone_[static_cast<std::size_t>(to)].reset(static_cast<KVCache*>(copy.get()->copy().release()));
  }

  void rewind(int sequence, int target) {
    const Removal result = cells_.remove(sequence, target);
    if (result == Removal::kDone) {
      ASSERT_TRUE(alone(sequence).restore(nullptr, target));
    } else {
      ASSERT_EQ(result, Removal::kWindow);
    }
  }

  CellCache& cells() { return cells_; }
  KVCache& alone(int s) { return *alone_[static_cast<std::size_t>(s)]; }

 private:
  Kind kind_;
  CellCache cells_;
  std::vector<std::unique_ptr<KVCache>> alone_;
  mx::array key_ = mx::random::key(7);
};

TEST_P(CellBits, SharedAndRaggedSequencesGetTheBitsThatTheyGetAlone) {
  Twins twins(GetParam(), {.max_sequences = 4, .capacity = 200, .max_batch = 64});
  twins.feed({0}, {37});
  twins.fork(0, 1);
  twins.fork(0, 2);
  twins.feed({0, 1, 2}, {1, 1, 1});
  twins.feed({3}, {5});
  twins.feed({2, 0, 3, 1}, {3, 1, 8, 2});
  for (int i = 0; i < 30 && !testing::Test::HasFatalFailure(); ++i) twins.feed({0, 1, 2, 3}, {1, 1, 1, 1}, i % 10 == 0);
  twins.fork(2, 0);  // as a beam does
  twins.feed({0, 2}, {1, 1});
}

TEST_P(CellBits, RandomOperations) {
  for (unsigned seed = 1; seed <= 3 && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Twins twins(GetParam(), {.max_sequences = 3, .capacity = 150, .max_batch = 20});
    for (int step = 0; step < 40 && !testing::Test::HasFatalFailure(); ++step) {
      const int s = below(3);
      const int end = twins.cells().cells().end(s);
      switch (below(8)) {
        case 0:
          if (end > 0) twins.fork(s, (s + 1) % 3);
          break;
        case 1:
          if (end > 0) twins.rewind(s, std::max(0, end - 1 - below(8)));
          break;
        case 2:
          twins.cells().defragment(below(2) == 0 ? 1 : Layout::kMaxRows);
          break;
        default: {
          if (end > 110) break;
          const int other = (s + 1) % 3;
          twins.feed({s, other}, {1 + below(12), 1 + below(3)}, step % 8 == 0);
        }
      }
    }
  }
}

TEST_P(CellBits, StateMovesToSingleStreamCachesAndBack) {
  const Kind& kind = GetParam();
  for (const int n : {3, 20, 45}) {
    Twins twins(kind, {.max_sequences = 2, .capacity = 100, .max_batch = 64});
    twins.feed({0}, {n});
    const std::unique_ptr<Snapshot> paged = twins.cells().snapshot(0, kLayer);
    ASSERT_TRUE(paged);
    EXPECT_EQ(paged->to(), n);
    // To a single stream: the view is the same bits.
    const auto fresh = make_kv_cache(kind.kv);
    ASSERT_TRUE(fresh->restore(paged.get(), n));
    EXPECT_TRUE(same_bits(fresh->view()->key_rows(), twins.alone(0).view()->key_rows()));
    EXPECT_TRUE(same_bits(fresh->view()->value_rows(), twins.alone(0).view()->value_rows()));
    // And from one, lazy or not, to another sequence, which goes on with the bits of its twin.
    const std::unique_ptr<Snapshot> lazy = twins.alone(0).snapshot(0);
    const std::vector<LayerSnapshot> all = {{kLayer, n == 20 ? lazy.get() : paged.get()}};
    ASSERT_TRUE(twins.cells().can_restore(1, all, n));
    ASSERT_TRUE(twins.cells().restore(1, all, n));
    ASSERT_TRUE(twins.alone(1).restore(paged.get(), n));
    twins.feed({1, 0}, {2, 1});
    twins.feed({1}, {9});
    ASSERT_TRUE(twins.cells().restore(1, all, 0));
    EXPECT_EQ(twins.cells().cells().end(1), 0);
    EXPECT_FALSE(twins.cells().restore(1, all, n + 1));
    EXPECT_FALSE(twins.cells().restore(1, all, -1));
  }
}

TEST(CellCache, RefusesSnapshotsThatDoNotFit) {
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 16, .max_batch = 16, .n_cells = 16}});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 4)));
  cells.put(0, filled({1, 2, 3, 4}, 4, 1), filled({1, 2, 3, 4}, 4, -1));
  KVCache ring({.window = 4});
  KVCache flat;
  KVCache wide;
  KVCache longer;
  ring.update(filled({1, 2}, 4, 1), filled({1, 2}, 4, 1));
  flat.update(filled({1, 2}, 4, 1), filled({1, 2}, 4, 1));
  wide.update(filled({1, 2}, 8, 1), filled({1, 2}, 8, 1));
  longer.update(filled(std::vector<int>(20, 1), 4, 1), filled(std::vector<int>(20, 1), 4, 1));
  const auto refuses = [&](const std::vector<LayerSnapshot>& snapshots, int target) {
    EXPECT_THROW(cells.restore(1, snapshots, target), std::invalid_argument);
  };
  refuses({}, 2);
  refuses({{0, nullptr}}, 2);
  refuses({{0, ring.snapshot(0).get()}}, 2);
  refuses({{0, wide.snapshot(0).get()}}, 2);
  refuses({{1, flat.snapshot(0).get()}}, 2);  // layer 0 has none
  refuses({{0, flat.snapshot(0).get()}, {1, flat.snapshot(1).get()}}, 2);
  const auto half = flat.snapshot(1);
  EXPECT_FALSE(cells.restore(1, std::vector<LayerSnapshot>{{0, half.get()}}, 2));  // does not reach from the beginning
  const auto many = longer.snapshot(0);
  EXPECT_FALSE(cells.restore(1, std::vector<LayerSnapshot>{{0, many.get()}}, 20));  // no room
  EXPECT_TRUE(cells.restore(1, std::vector<LayerSnapshot>{{0, many.get()}}, 12));
  EXPECT_EQ(cells.cells().end(0), 4);
  EXPECT_EQ(cells.cells().end(1), 12);
}

// ---- Shifts

constexpr int kTurned = 64;

// Keys turned by rope at their positions.
mx::array roped(const mx::array& keys, int first) {
  const kernels::Rope rope{kTurned, false, kernels::rope_periods(kTurned, 10000)};
  return kernels::rope(keys, kernels::make_turns(rope, first, keys.shape(2)));
}

// R(-d) is R(d) with the sines' sign changed, which is R(d) of the pair's second halves negated, and negated back.
mx::array turned_back(const mx::array& keys, int shift) {
  const kernels::Rope rope{kTurned, false, kernels::rope_periods(kTurned, 10000)};
  std::vector<kernels::PositionRun> runs(static_cast<std::size_t>(keys.shape(2)), {-shift, 1});
  const std::vector<mx::array> halves = mx::split(keys, 2, -1);
  const mx::array flipped = mx::concatenate({halves[0], mx::negative(halves[1])}, -1);
  const std::vector<mx::array> turned = mx::split(kernels::rope(flipped, kernels::make_turns(rope, runs)), 2, -1);
  return mx::concatenate({turned[0], mx::negative(turned[1])}, -1);
}

struct ShiftCase {
  const char* name;
  std::optional<mx::Dtype> dtype;
  std::optional<KVQuantization> quantization;
  float
      tolerance;  // keys are normal, so below 5: float32 arithmetic; a step of float16 at 4; two of 8 bits at 10 / 255
};

class CellShift : public testing::TestWithParam<ShiftCase> {};
INSTANTIATE_TEST_SUITE_P(Rows, CellShift,
                         testing::Values(ShiftCase{"f32", std::nullopt, std::nullopt, 2e-5F},
                                         ShiftCase{"f16", mx::float16, std::nullopt, 8e-3F},
                                         ShiftCase{"q8", mx::float16, KVQuantization{8, 64}, 8e-2F}),
                         [](const auto& one) { return one.param.name; });

TEST_P(CellShift, KeysBehindARemovalAreThoseOfTheirNewPositions) {
  mx::array key = mx::random::key(3);
  const mx::array plain = random_rows(kHeads, 30, kTurned, key);
  const mx::array values = random_rows(kHeads, 30, kTurned, key);
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 64, .max_batch = 32},
                   .dtype = GetParam().dtype,
                   .quantization = GetParam().quantization,
                   .turn = [](std::size_t, const mx::array& keys, int shift) { return turned_back(keys, shift); }});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 30)));
  cells.put(0, roped(plain, 0), values);
  ASSERT_EQ(cells.remove(0, 4, 15), Removal::kDone);
  EXPECT_EQ(cells.cells().end(0), 19);
  const auto snapshot = cells.snapshot(0, 0);
  KVCache alone({.dtype = GetParam().dtype, .quantization = GetParam().quantization});
  ASSERT_TRUE(alone.restore(snapshot.get(), 19));
  const mx::array expected =
      mx::concatenate({roped(rows_between(plain, 0, 4), 0), roped(rows_between(plain, 15, 30), 4)}, 2);
  EXPECT_LT(max_difference(alone.view()->key_rows(), expected), GetParam().tolerance);
  const mx::array kept = mx::concatenate({rows_between(values, 0, 4), rows_between(values, 15, 30)}, 2);
  EXPECT_LT(max_difference(alone.view()->value_rows(), kept), GetParam().tolerance);
}

TEST(CellCache, AShiftWithoutATurnIsRefusedAndChangesNothing) {
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 16, .max_batch = 16}});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 8)));
  cells.put(0, filled({0, 1, 2, 3, 4, 5, 6, 7}, 4, 1), filled({0, 1, 2, 3, 4, 5, 6, 7}, 4, -1));
  EXPECT_EQ(cells.remove(0, 2, 4), Removal::kNoTurn);
  EXPECT_EQ(cells.cells().end(0), 8);
  EXPECT_EQ(cells.remove(0, 2, 8), Removal::kDone);  // nothing behind it
  EXPECT_EQ(cells.cells().end(0), 2);
}

TEST(CellCache, ATurnThatThrowsChangesNothing) {
  CellCache cells({.cells = {.capacity = 16, .max_batch = 16},
                   .turn = [](std::size_t, const mx::array&, int) -> mx::array { throw std::runtime_error("no"); }});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 8)));
  cells.put(0, filled({0, 1, 2, 3, 4, 5, 6, 7}, 4, 1), filled({0, 1, 2, 3, 4, 5, 6, 7}, 4, -1));
  EXPECT_THROW(cells.remove(0, 2, 4), std::runtime_error);
  EXPECT_EQ(cells.cells().end(0), 8);
}

// ---- Reserving, bad input, memory

TEST(CellCache, ReservingSizesWithoutWriting) {
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 16, .max_batch = 8, .mask_padding = 4}});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 3)));
  cells.put(0, filled({1, 2, 3}, 4, 1), filled({1, 2, 3}, 4, -1));
  cells.begin_reserving(6);
  cells.put(0, filled(std::vector<int>(6, 9), 4, 1), filled(std::vector<int>(6, 9), 4, -1));
  cells.put(1, filled(std::vector<int>(6, 9), 4, 1), filled(std::vector<int>(6, 9), 4, -1));
  EXPECT_EQ(cells.get(1).keys.shape(), (mx::Shape{1, kHeads, 32, 4}));
  EXPECT_EQ(cells.mask().shape(), (mx::Shape{1, 1, 8, 32}));
  EXPECT_EQ(cells.size_bytes(), std::size_t{2} * 2 * kHeads * 32 * 4 * sizeof(float));
  EXPECT_EQ(cells.cells().end(0), 3);
  EXPECT_EQ(max_difference(rows_between(cells.get(0).keys, 0, 3), filled({1, 2, 3}, 4, 1)), 0);
  EXPECT_EQ(mx::max(mx::abs(cells.get(1).keys)).item<float>(), 0);
  EXPECT_THROW(cells.begin_reserving(9), std::invalid_argument);
}

TEST(CellCache, RowsThatDoNotFitAreRefused) {
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 16, .max_batch = 8}});
  const mx::array three = filled({1, 2, 3}, 4, 1);
  EXPECT_THROW(cells.put(0, three, three), std::invalid_argument);  // no pass
  EXPECT_THROW(cells.get(0), std::invalid_argument);
  EXPECT_THROW(cells.mask(), std::invalid_argument);
  EXPECT_THROW(cells.set_uncausal({0}), std::invalid_argument);
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 3)));
  EXPECT_THROW(cells.get(0), std::invalid_argument);  // no rows
  EXPECT_THROW(cells.put(0, filled({1, 2}, 4, 1), filled({1, 2}, 4, 1)), std::invalid_argument);
  EXPECT_THROW(cells.put(0, mx::squeeze(three, 0), three), std::invalid_argument);
  EXPECT_THROW(cells.put(0, mx::astype(three, mx::int32), three), std::invalid_argument);
  cells.put(0, three, three);
  EXPECT_THROW(cells.put(0, filled({1, 2, 3}, 8, 1), three), std::invalid_argument);
  EXPECT_THROW(cells.put(0, mx::astype(three, mx::float16), three), std::invalid_argument);
  EXPECT_THROW(cells.set_uncausal({3}), std::invalid_argument);
  ASSERT_TRUE(cells.begin({{0, 1, 0}, {3, 0, 5}}));
  cells.put(0, three, three);
  EXPECT_NO_THROW(cells.histories(0));
  ASSERT_TRUE(cells.begin({{0, 0}, {6, 8}}));
  cells.put(0, filled({1, 2}, 4, 1), filled({1, 2}, 4, 1));
  EXPECT_THROW(cells.histories(0), std::invalid_argument);  // positions with a gap
  EXPECT_THROW(CellCache({.quantization = KVQuantization{7, 64}}), std::invalid_argument);
  EXPECT_THROW(CellCache({.quantization = KVQuantization{}, .transposes_values = true}), std::invalid_argument);
}

// The mistake is said, and neither rows nor free cells have changed.
TEST(CellCache, BadInputIsSaidAndChangesNothing) {
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 16, .max_batch = 4}});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 4)));
  cells.put(0, filled({1, 2, 3, 4}, 4, 1), filled({1, 2, 3, 4}, 4, -1));
  cells.copy_prefix(0, 1, 3);
  const auto says = [&](const std::string& wanted, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no throw: " << wanted;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
    }
    EXPECT_EQ(cells.cells().n_free(), 28);
    EXPECT_EQ(cells.cells().end(0), 4);
    EXPECT_EQ(cells.cells().end(1), 3);
    EXPECT_EQ(max_difference(cells.get(0).keys, filled({1, 2, 3, 4}, 4, 1)), 0);
  };
  const std::string unknown = "sequence 2 is unknown, expected 0 to 1";
  says(unknown, [&] { cells.begin(rows_of(2, 0, 1)); });
  says(unknown, [&] { cells.begin({{0, 2}, {4, 0}}); });  // one more than promised
  says(unknown, [&] { cells.has_room(rows_of(2, 0, 1)); });
  says(unknown, [&] { cells.remove(2, 0); });
  says(unknown, [&] { cells.copy_prefix(0, 2, 1); });
  says(unknown, [&] { cells.can_resume(2, 0); });
  says(unknown, [&] { cells.snapshot(2, 0); });
  says("sequence -1 is unknown", [&] { cells.remove(-1, 0); });
  says("is to be copied to itself", [&] { cells.copy_prefix(1, 1, 1); });
  says("the batch has 5 positions for 5 sequences, expected 1 to 4", [&] { cells.begin(rows_of(0, 4, 9)); });
  says("the batch has 0 positions", [&] { cells.begin({}); });
  says("sequence 0 has a row at position 3, expected one from 4 on", [&] { cells.begin(rows_of(0, 3, 4)); });
  says("sequence 1 has a row at position 4, expected one from 6 on", [&] { cells.begin({{1, 1}, {5, 4}}); });
  says("positions from 2 to 1", [&] { cells.remove(0, 2, 1); });
  says("positions from -1", [&] { cells.remove(0, -1); });
  // An expected refusal: position 2 of sequence 0 is that of sequence 1 as well.
  EXPECT_EQ(cells.remove(0, 0, 1), Removal::kShared);
  EXPECT_EQ(cells.cells().end(0), 4);
  EXPECT_EQ(max_difference(cells.get(0).keys, filled({1, 2, 3, 4}, 4, 1)), 0);
}

// Its rows are other ones then, or none.
TEST(CellCache, APassEndsWhereACopyTakesTheRowsOfItsSequence) {
  CellCache cells({.cells = {.max_sequences = 2, .capacity = 16, .max_batch = 4}});
  ASSERT_TRUE(cells.begin(rows_of(1, 0, 3)));
  cells.put(0, filled({1, 2, 3}, 4, 1), filled({1, 2, 3}, 4, -1));
  cells.copy_prefix(1, 0, 2);
  EXPECT_NO_THROW(cells.histories(0));
  cells.copy_prefix(0, 1, 0);
  EXPECT_THROW(cells.histories(0), std::invalid_argument);
  EXPECT_THROW(cells.mask(), std::invalid_argument);
  EXPECT_THROW(cells.put(0, filled({1, 2, 3}, 4, 1), filled({1, 2, 3}, 4, -1)), std::invalid_argument);
}

TEST(CellCache, RefusesTurnedKeysOfAnotherRemoval) {
  CellCache cells({.cells = {.capacity = 16}, .turn = [](std::size_t, const mx::array& keys, int) { return keys; }});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 4)));
  cells.put(0, filled({1, 2, 3, 4}, 4, 1), filled({1, 2, 3, 4}, 4, -1));
  CellCache::TurnedKeys few;
  few.emplace(0, kernels::KvBuffer{filled({3}, 4, 1)});
  CellCache::TurnedKeys elsewhere;
  elsewhere.emplace(1, kernels::KvBuffer{filled({3, 4}, 4, 1)});
  for (const CellCache::TurnedKeys& turned : {CellCache::TurnedKeys(), few, elsewhere}) {
    EXPECT_THROW(cells.remove(0, 1, 2, turned), std::invalid_argument);
    EXPECT_EQ(cells.cells().end(0), 4);
  }
  EXPECT_THROW(cells.remove(0, 1, 4, few), std::invalid_argument);  // nothing shifts
  EXPECT_EQ(cells.remove(0, 1, 2, cells.turned_keys(0, 1, 2)), Removal::kDone);
  EXPECT_EQ(cells.cells().end(0), 3);
}

TEST(CellCache, ExceptedRowsSeeLaterOnes) {
  CellCache cells({.cells = {.capacity = 16, .max_batch = 8}});
  ASSERT_TRUE(cells.begin(rows_of(0, 0, 3)));
  cells.set_uncausal({1});
  const mx::array mask = mx::astype(cells.mask(), mx::int32);
  const std::vector<int> expected = {1, 0, 0, 1, 1, 1, 1, 1, 1};
  EXPECT_TRUE(mx::array_equal(mask, mx::array(expected.data(), {1, 1, 3, 3}, mx::int32)).item<bool>());
}

TEST(CellCache, ADecodeStepLeavesTheBuffersWhereTheyLie) {
  CellCache cells({.cells = {.max_sequences = 4, .capacity = 4096, .max_batch = 512}, .dtype = mx::float16});
  mx::array key = mx::random::key(1);
  const auto feed = [&](const CellBatch& batch) {
    ASSERT_TRUE(cells.begin(batch));
    const int n = batch.n_rows();
    cells.put(0, random_rows(kHeads, n, kWidth, key), random_rows(kHeads, n, kWidth, key));
  };
  feed(rows_of(0, 0, 500));
  for (int s = 1; s < 4; ++s) cells.copy_prefix(0, s, 500);
  cells.materialize();
  const CellBatch step{{0, 1, 2, 3}, {500, 500, 500, 500}};
  const std::size_t n_bytes = memoir::test::held_allocation_bytes([&] {
    feed(step);
    const mx::array queries = random_rows(kHeads, 4, kWidth, key);
    return std::vector<mx::array>{kernels::attention(queries, cells.histories(0), {.scale = 1})};
  });
  EXPECT_LT(n_bytes, cells.size_bytes() / 8) << "of " << cells.size_bytes();
}

// ---- Several caches as one

TEST(CellCaches, FailAsAWholeOrNotAtAll) {
  const CellsOptions window{.max_sequences = 2, .capacity = 64, .max_batch = 8, .window = 3};
  const CellsOptions full{.max_sequences = 2, .capacity = 64, .max_batch = 8, .n_cells = 10};
  CellCaches caches({{.cells = window}, {.cells = full}}, {0, 1, std::nullopt, 0});
  EXPECT_EQ(caches.n_layers(), 4U);
  ASSERT_TRUE(caches.begin(rows_of(0, 0, 8)));
  const mx::array rows = filled({0, 1, 2, 3, 4, 5, 6, 7}, 4, 1);
  for (const std::size_t layer : {0U, 1U, 3U}) caches.update(layer, rows, rows);
  EXPECT_THROW(caches.update(2, rows, rows), std::invalid_argument);
  EXPECT_THROW(caches.update(4, rows, rows), std::invalid_argument);
  // The full cache has 2 cells left: the window's stays as it was, and lets nothing go.
  EXPECT_FALSE(caches.begin(rows_of(1, 0, 3)));
  EXPECT_EQ(caches.caches()[0].cells().end(1), 0);
  EXPECT_EQ(caches.caches()[0].cells().runs(0).front().first_position, 0);
  EXPECT_TRUE(caches.begin(rows_of(0, 8, 10)));
  for (const std::size_t layer : {0U, 1U, 3U}) caches.update(layer, rows_between(rows, 0, 2), rows_between(rows, 0, 2));
  EXPECT_EQ(caches.offset(0), 10);
  EXPECT_TRUE(caches.can_resume(0, 10));
  EXPECT_FALSE(caches.can_resume(0, 4));  // the window's can't
  EXPECT_EQ(caches.remove(0, 4), Removal::kWindow);
  EXPECT_EQ(caches.remove(0, 2, 4), Removal::kNoTurn);
  EXPECT_EQ(caches.caches()[1].cells().end(0), 10);
  caches.copy_prefix(0, 1, 10);
  EXPECT_EQ(caches.offset(1), 10);
  EXPECT_EQ(caches.remove(0, 0), Removal::kDone);
  const auto snapshots = caches.snapshot(1);
  ASSERT_EQ(snapshots.size(), 4U);
  EXPECT_EQ(snapshots[2], nullptr);
  EXPECT_FALSE(caches.restore(0, snapshots, 10));  // no room in the full one
  EXPECT_EQ(caches.offset(0), 0);
  EXPECT_EQ(caches.caches()[0].cells().end(0), 0);
  EXPECT_EQ(caches.remove(1, 0), Removal::kDone);
  EXPECT_TRUE(caches.restore(0, snapshots, 10));
  EXPECT_EQ(caches.offset(0), 10);
}

// ---- The kernel that moves rows

TEST(MoveRows, CopiesRunsAlongAnyAxis) {
  const mx::array a = mx::reshape(mx::arange(0, 2 * 6 * 3, mx::int32), {2, 6, 3});
  for (const int axis : {1, 2}) {
    const std::vector<kernels::RowMove> moves =
        axis == 1 ? std::vector<kernels::RowMove>{{4, 0, 2}, {3, 2, 1}} : std::vector<kernels::RowMove>{{2, 0, 1}};
    const std::vector<int> sources = axis == 1 ? std::vector<int>{4, 5, 3, 3, 4, 5} : std::vector<int>{2, 1, 2};
    const mx::array index(sources.data(), {static_cast<int>(sources.size())}, mx::int32);
    EXPECT_TRUE(same_bits(kernels::move_rows(mx::copy(a), axis, moves), mx::take(a, index, axis)));
  }
  EXPECT_TRUE(mx::array_equal(a, mx::reshape(mx::arange(0, 36, mx::int32), {2, 6, 3})).item<bool>());
  EXPECT_THROW(kernels::move_rows(a, 3, {}), std::invalid_argument);
  EXPECT_THROW(kernels::move_rows(a, 1, {{5, 0, 2}}), std::invalid_argument);
  EXPECT_THROW(kernels::move_rows(a, 1, {{4, 0, 0}}), std::invalid_argument);
  EXPECT_THROW(kernels::move_rows(a, 1, {{4, 0, 2}, {5, 2, 1}}), std::invalid_argument);
  EXPECT_THROW(kernels::move_rows(a, 1, {{2, 1, 2}}), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::cache
