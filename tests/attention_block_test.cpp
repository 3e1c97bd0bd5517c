// A layer's attention and feed-forward as one operation: the bits of the single operations, for one sequence and for
// several, whatever their buffers.

#include "memoir/kernels/attention_block.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <string>
#include <vector>

#include "memoir/kernels/linear.h"
#include "memoir/kernels/rope.h"
#include "memoir/kernels/weight_memory.h"
#include "tests/random_array.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr int kHidden = 64;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kDim = 32;
constexpr int kInner = 96;
constexpr int kCapacity = 80;

using test::random_array;

Linear packed_linear(int rows, int columns, unsigned seed) {
  const std::vector<mx::array> parts = mx::quantize(random_array({rows, columns}, seed), 32, 4);
  return {prepared({parts[0], Quantization{parts[1], parts[2], 32, 4}}), random_array({rows}, seed + 50)};
}

struct Layer {
  std::optional<Norm> norm = Norm{random_array({kHidden}, 1), 1e-5F};
  HeadProjection projection{packed_linear(kHeads * kDim, kHidden, 2),
                            packed_linear(kKvHeads* kDim, kHidden, 3),
                            packed_linear(kKvHeads* kDim, kHidden, 4),
                            kHeads,
                            kKvHeads,
                            kDim,
                            Norm{random_array({kDim}, 5), 1e-6F}};
  Linear output = packed_linear(kHidden, kHeads* kDim, 6);
  Norm mlp_norm{random_array({kHidden}, 7), 1e-5F};
  GatedMlp mlp{packed_linear(kInner, kHidden, 8), packed_linear(kInner, kHidden, 9), packed_linear(kHidden, kInner, 10),
               Gate::kSilu};
  AttentionOptions options{0.2F};

  AttentionBlock block(const std::optional<Turns>& turns, bool has_mlp) const {
    AttentionBlock b{norm, projection, turns, options, output};
    if (has_mlp) b.mlp_norm = &mlp_norm;
    if (has_mlp) b.mlp = &mlp;
    return b;
  }
};

enum class Form { kF32, kF16, kQ8 };

KvBuffer buffer_of(Form form, int n_sequences, unsigned seed) {
  const mx::array rows = random_array({n_sequences, kKvHeads, kCapacity, kDim}, seed);
  if (form == Form::kF32) return {rows};
  if (form == Form::kF16) return {mx::astype(rows, mx::float16)};
  const std::vector<mx::array> parts = mx::quantize(mx::astype(rows, mx::float16), 32, 8);
  return {parts[0], Quantization{parts[1], parts[2], 32, 8}};
}

// A sequence with n_before positions, the oldest in row `turn` of a ring.
SequenceRows rows_of(Form form, int n_sequences, int n_before, int n_tokens, int turn, unsigned seed) {
  SequenceRows s{n_tokens, {buffer_of(form, n_sequences, seed), buffer_of(form, n_sequences, seed + 1)}, {}, {}};
  const auto add_run = [&](int position, int n, auto&& take) {
    for (const int end = position + n; position < end;) {
      const int row = (turn + position) % kCapacity;
      const int n_here = std::min(end - position, kCapacity - row);
      take(position, row, n_here);
      position += n_here;
    }
  };
  add_run(n_before, n_tokens, [&](int, int row, int n) { s.runs.push_back({row, n}); });
  add_run(0, n_before + n_tokens, [&](int position, int row, int n) { s.ranges.push_back({position, row, n}); });
  return s;
}

struct Outcome {
  mx::array y;
  std::vector<KvBuffers> buffers;
};

// The operations one after the other.
Outcome single_operations(const mx::array& x, const Layer& layer, const std::optional<Turns>& turns, bool has_mlp,
                          const std::vector<SequenceRows>& sequences) {
  const Heads heads = project_heads(x, layer.norm, layer.projection, turns);
  std::vector<SequenceHistory> histories;
  std::vector<KvBuffers> buffers;
  int begin = 0;
  for (const SequenceRows& s : sequences) {
    const auto own = [&](const mx::array& a) {
      return mx::slice(a, {0, 0, begin, 0}, {a.shape(0), a.shape(1), begin + s.n_tokens, a.shape(3)});
    };
    buffers.push_back(write_rows(s.buffers, own(heads.keys), own(heads.values), s.runs));
    histories.push_back({s.n_tokens, {buffers.back().keys, buffers.back().values, s.ranges, s.window, s.keep}});
    begin += s.n_tokens;
  }
  mx::array y = linear(attention(heads.queries, histories, layer.options), layer.output, x);
  if (has_mlp) y = gated_mlp(y, layer.mlp_norm, layer.mlp, y);
  return {y, buffers};
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_TRUE(mx::array_equal(a.y, b.y).item<bool>()) << what;
  for (std::size_t i = 0; i < a.buffers.size(); ++i) {
    const std::vector<mx::array> ours = arrays_of(a.buffers[i].keys, a.buffers[i].values);
    const std::vector<mx::array> theirs = arrays_of(b.buffers[i].keys, b.buffers[i].values);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t k = 0; k < ours.size(); ++k) {
      EXPECT_TRUE(mx::array_equal(ours[k], theirs[k]).item<bool>()) << what << ", sequence " << i << ", array " << k;
    }
  }
}

void expect_bits_of_single_operations(const Layer& layer, const mx::array& x, const std::vector<PositionRun>& positions,
                                      const std::vector<SequenceRows>& sequences, const std::string& what) {
  const std::optional<Turns> turns = make_turns({kDim, false, rope_periods(kDim, 1e4)}, positions);
  for (const bool has_mlp : {false, true}) {
    const Outcome expected = single_operations(x, layer, turns, has_mlp, sequences);
    const BlockOutput output = attention_block(x, layer.block(turns, has_mlp), sequences, x);
    expect_same({output.y, output.buffers}, expected, what + (has_mlp ? ", with feed-forward" : ""));
  }
}

TEST(AttentionBlock, GivesTheBitsOfTheSingleOperations) {
  const Layer layer;
  for (const Form form : {Form::kF32, Form::kF16, Form::kQ8}) {
    for (const int n_sequences : {1, 2}) {
      for (const int n_tokens : {1, 5, 40}) {
        for (const int turn : {0, 45}) {
          const mx::array x = random_array({n_sequences, n_tokens, kHidden}, 11);
          const SequenceRows rows = rows_of(form, n_sequences, 30, n_tokens, turn, 12);
          expect_bits_of_single_operations(layer, x, {{30, n_tokens}}, {rows},
                                           std::to_string(n_sequences) + " sequences of " + std::to_string(n_tokens) +
                                               ", form " + std::to_string(static_cast<int>(form)) + ", turn " +
                                               std::to_string(turn));
        }
      }
    }
  }
}

TEST(AttentionBlock, SeveralSequencesKeepToTheirOwnRows) {
  const Layer layer;
  for (const Form form : {Form::kF32, Form::kQ8}) {
    std::vector<SequenceRows> sequences = {rows_of(form, 1, 0, 3, 0, 21), rows_of(form, 1, 64, 1, 70, 23),
                                           rows_of(form, 1, 17, 7, 0, 25)};
    sequences[1].window = 20;
    sequences[1].keep = 2;
    const mx::array x = random_array({1, 11, kHidden}, 27);
    expect_bits_of_single_operations(layer, x, {{0, 3}, {64, 1}, {17, 7}}, sequences, "three sequences");
  }
}

TEST(AttentionBlock, WindowsCapsAndSinksHold) {
  Layer layer;
  layer.options.window = 9;
  layer.options.soft_cap = 2;
  layer.options.sinks = random_array({kHeads}, 31);
  layer.norm.reset();
  const mx::array x = random_array({1, 4, kHidden}, 32);
  expect_bits_of_single_operations(layer, x, {{30, 4}}, {rows_of(Form::kF32, 1, 30, 4, 0, 33)}, "window");
}

TEST(AttentionBlock, WritesIntoBuffersThatNothingElseHolds) {
  const Layer layer;
  std::vector<SequenceRows> sequences = {rows_of(Form::kF32, 1, 30, 1, 0, 41)};
  mx::eval(sequences[0].buffers.keys.data, sequences[0].buffers.values.data);
  const auto* keys = sequences[0].buffers.keys.data.data<float>();
  const mx::array x = random_array({1, 1, kHidden}, 42);
  const BlockOutput output = attention_block(x, layer.block(std::nullopt, true), std::move(sequences), x);
  mx::eval(output.y);
  EXPECT_EQ(output.buffers[0].keys.data.data<float>(), keys);
}

TEST(AttentionBlock, RefusesWhatDoesNotFit) {
  const Layer layer;
  const mx::array x = random_array({1, 4, kHidden}, 51);
  const SequenceRows rows = rows_of(Form::kF32, 1, 10, 4, 0, 52);
  const std::optional<Turns> turns;  // the blocks refer to it
  const auto refuses = [&](const mx::array& in, const AttentionBlock& block, std::vector<SequenceRows> sequences,
                           const std::optional<mx::array>& residual) {
    try {
      attention_block(in, block, std::move(sequences), residual);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what()).starts_with("[kernels.attention_block] ");
    }
    return false;
  };
  const AttentionBlock block = layer.block(turns, true);
  EXPECT_FALSE(refuses(x, block, {rows}, x));
  EXPECT_TRUE(refuses(x, block, {}, x));
  EXPECT_TRUE(refuses(x, block, {rows, rows}, x));  // eight tokens
  EXPECT_TRUE(refuses(random_array({1, 4, kHidden + 1}, 1), block, {rows}, std::nullopt));
  EXPECT_TRUE(refuses(x, block, {rows}, random_array({1, 3, kHidden}, 1)));
  EXPECT_TRUE(refuses(random_array({2, 4, kHidden}, 1), block, {rows}, std::nullopt));  // a buffer of one sequence
  SequenceRows outside = rows;
  outside.runs = {{kCapacity - 3, 4}};
  EXPECT_TRUE(refuses(x, block, {outside}, x));
  SequenceRows short_history = rows;
  short_history.ranges = {{0, 0, 3}};
  EXPECT_TRUE(refuses(x, block, {short_history}, x));
  SequenceRows narrow = rows;
  narrow.buffers.keys.data = random_array({1, kKvHeads, kCapacity, kDim / 2}, 1);
  EXPECT_TRUE(refuses(x, block, {narrow}, x));
  Layer masked;
  masked.options.mask = mx::zeros({1, 1, 4, 14});
  EXPECT_TRUE(refuses(x, masked.block(turns, false), {rows}, x));
  Layer other;
  other.output = packed_linear(kHidden, kHeads * kDim + 32, 6);
  EXPECT_TRUE(refuses(x, other.block(turns, false), {rows}, x));
}

TEST(WeightMemory, PiecesOfAChunkDoNotOverlapAndOutliveIt) {
  std::vector<mx::array> pieces;
  {
    const WeightChunks chunks;
    for (int i = 0; i < 300; ++i) pieces.push_back(weight_memory(static_cast<std::size_t>(1 + i * 1000)));
    pieces.push_back(weight_memory(std::size_t{20} << 20));  // larger than a chunk
  }
  pieces.push_back(weight_memory(100));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto* data = pieces[i].data<std::uint8_t>();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % kLineBytes, 0U);
    std::fill_n(data, pieces[i].nbytes(), static_cast<std::uint8_t>(i));
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto* data = pieces[i].data<std::uint8_t>();
    EXPECT_EQ(std::count(data, data + pieces[i].nbytes(), static_cast<std::uint8_t>(i)),
              static_cast<std::ptrdiff_t>(pieces[i].nbytes()));
  }
}

}  // namespace
}  // namespace memoir::kernels
