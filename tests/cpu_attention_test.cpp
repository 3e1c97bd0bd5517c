// The attention kernel: against double precision, and bit for bit however queries come, rows lie and threads share.

#include "memoir/kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "memoir/base/half.h"
#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/threads.h"
#include "tests/float_rows.h"

namespace memoir::kernels::cpu {
namespace {

using test::random_float;
using test::same_bits;

// Rows of heads in a buffer with room, in one of the element types.
struct Rows {
  int n_heads;
  int capacity;
  int dim;
  Element element;
  std::vector<std::byte> bytes;
  std::vector<double> values;  // [n_heads, capacity, dim]

  KvRows view() const { return {dim, element, bytes.data(), static_cast<std::ptrdiff_t>(capacity) * dim, dim}; }
};

Rows random_rows(int n_heads, int capacity, int dim, Element element, unsigned seed) {
  std::mt19937 random(seed);
  Rows rows{n_heads, capacity, dim, element, {}, {}};
  const std::size_t size = element_bytes(element);
  rows.bytes.resize(static_cast<std::size_t>(n_heads * capacity * dim) * size);
  for (std::size_t i = 0; i < rows.bytes.size() / size; ++i) {
    const float value = random_float(random);
    if (element == Element::kF32) {
      std::memcpy(rows.bytes.data() + i * 4, &value, 4);
      rows.values.push_back(value);
      continue;
    }
    const std::uint16_t half = element == Element::kF16 ? float_to_float16(value) : float_to_bfloat16(value);
    std::memcpy(rows.bytes.data() + i * 2, &half, 2);
    rows.values.push_back(element == Element::kF16 ? float16_to_float(half) : bfloat16_to_float(half));
  }
  return rows;
}

struct Case {
  int n_heads = 4;
  int n_kv_heads = 2;
  int key_dim = 16;
  int value_dim = 16;
  int n_positions = 200;
  Element element = Element::kF32;
  float soft_cap = 0;
  int window = 0;
  int keep = 0;
  int chunk = 0;
  bool has_sinks = false;
  MaskElement mask = MaskElement::kNone;
  bool is_causal = true;
};

std::string name_of(const Case& c) {
  return std::to_string(c.n_heads) + "/" + std::to_string(c.n_kv_heads) + " heads of " + std::to_string(c.key_dim) +
         "/" + std::to_string(c.value_dim) + ", " + std::to_string(c.n_positions) + " positions, element " +
         std::to_string(static_cast<int>(c.element)) + ", cap " + std::to_string(c.soft_cap) + ", window " +
         std::to_string(c.window) + ", keep " + std::to_string(c.keep) + ", chunk " + std::to_string(c.chunk) +
         ", sinks " + std::to_string(c.has_sinks) + ", mask " + std::to_string(static_cast<int>(c.mask));
}

std::vector<Case> cases() {
  std::vector<Case> list(22);
  list[1].n_heads = 9, list[1].n_kv_heads = 3, list[1].key_dim = list[1].value_dim = 64;
  list[2].key_dim = 24, list[2].value_dim = 40;
  list[3].key_dim = 10, list[3].value_dim = 7;
  list[4].element = Element::kF16, list[4].value_dim = 72;
  list[5].element = Element::kBF16, list[5].key_dim = 5;
  list[6].soft_cap = 2;
  list[7].window = 50;
  list[8].window = 70, list[8].keep = 5;
  list[9].chunk = 90;
  list[10].has_sinks = true, list[10].n_heads = 8;
  list[11].mask = MaskElement::kBool, list[11].window = 100;
  list[12].mask = MaskElement::kF32, list[12].has_sinks = true, list[12].soft_cap = 3;
  list[13].is_causal = false, list[13].n_kv_heads = 4;
  list[14].window = 60, list[14].keep = 5, list[14].n_positions = 420;  // blocks between the kept and the window
  list[15].window = 65, list[15].keep = 64, list[15].n_positions = 330;
  list[16].window = list[16].keep = list[16].chunk = std::numeric_limits<int>::max();
  list[17].window = 30, list[17].keep = 100, list[17].n_positions = 300;
  list[18] = list[1], list[18].element = Element::kBF16;  // read where they lie, for few queries
  list[19] = list[1], list[19].element = Element::kF16, list[19].window = 50, list[19].keep = 5;
  list[20].n_heads = 8, list[20].n_kv_heads = 1, list[20].key_dim = 128, list[20].element = Element::kF16;
  list[21].n_heads = 13, list[21].n_kv_heads = 1, list[21].key_dim = 32;  // many rows even for one query
  return list;
}

// Everything that a case needs, for all its positions.
class Data {
 public:
  explicit Data(const Case& c)
      : c_(c),
        keys_(random_rows(c.n_kv_heads, c.n_positions, c.key_dim, c.element, 1)),
        values_(random_rows(c.n_kv_heads, c.n_positions, c.value_dim, c.element, 2)) {
    std::mt19937 random(3);
    for (int i = 0; i < c.n_heads * c.n_positions * c.key_dim; ++i) queries_.push_back(random_float(random) * 2);
    for (int i = 0; i < c.n_heads; ++i) sinks_.push_back(random_float(random));
    for (int i = 0; i < c.n_heads * c.n_positions * c.n_positions; ++i) {
      bool_mask_.push_back(random() % 4 != 0);
      float_mask_.push_back(random() % 5 == 0 ? -std::numeric_limits<float>::infinity() : random_float(random));
    }
  }

  // Queries [begin, end) over the positions below `end` (or all), rows as they are.
  AttentionArgs args(int begin, int end, std::vector<float>& out, const std::vector<KvRange>& ranges) const {
    AttentionArgs a{};
    a.n_heads = c_.n_heads;
    a.n_kv_heads = c_.n_kv_heads;
    a.n_queries = end - begin;
    a.first_position = begin;
    a.queries = queries_.data() + static_cast<std::ptrdiff_t>(begin) * c_.key_dim;
    a.query_head_stride = static_cast<std::ptrdiff_t>(c_.n_positions) * c_.key_dim;
    a.query_row_stride = c_.key_dim;
    a.keys = keys_.view();
    a.values = values_.view();
    a.ranges = ranges;
    a.scale = 0.5F;
    a.soft_cap = c_.soft_cap;
    a.window = c_.window;
    a.keep = c_.keep;
    a.chunk = c_.chunk;
    a.is_causal = c_.is_causal;
    a.sinks = c_.has_sinks ? sinks_.data() : nullptr;
    a.mask_element = c_.mask;
    const std::ptrdiff_t mask_row = static_cast<std::ptrdiff_t>(begin) * c_.n_positions;
    if (c_.mask == MaskElement::kBool) a.mask = bool_mask_.data() + mask_row;
    if (c_.mask == MaskElement::kF32) a.mask = float_mask_.data() + mask_row;
    a.mask_head_stride = static_cast<std::ptrdiff_t>(c_.n_positions) * c_.n_positions;
    a.mask_query_stride = c_.n_positions;
    a.out_head_stride = c_.value_dim;
    a.out_row_stride = static_cast<std::ptrdiff_t>(c_.n_heads) * c_.value_dim;
    a.out = out.data() + begin * a.out_row_stride;
    return a;
  }

  // The result for all positions, `n_at_once` queries in a call.
  std::vector<float> outputs(int n_at_once) const {
    std::vector<float> out(n_outputs());
    for (int begin = 0; begin < c_.n_positions; begin += n_at_once) {
      const int end = std::min(begin + n_at_once, c_.n_positions);
      const std::vector<KvRange> ranges = {{0, 0, c_.is_causal ? end : c_.n_positions}};
      const AttentionArgs a = args(begin, end, out, ranges);
      attention({&a, 1});
    }
    return out;
  }

  std::size_t n_outputs() const { return static_cast<std::size_t>(c_.n_positions * c_.n_heads * c_.value_dim); }

  // The formula in double precision.
  std::vector<double> expected() const {
    std::vector<double> out;
    for (int t = 0; t < c_.n_positions; ++t) {
      for (int head = 0; head < c_.n_heads; ++head) {
        const std::vector<double> row = expected_row(head, t);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
    return out;
  }

  Rows& keys() { return keys_; }
  Rows& values() { return values_; }

 private:
  bool sees(int t, int s) const {
    if (c_.is_causal && s > t) return false;
    if (c_.window > 0 && s <= t - c_.window && s >= c_.keep) return false;
    return c_.chunk == 0 || s / c_.chunk == t / c_.chunk;
  }

  std::vector<double> expected_row(int head, int t) const {
    const int kv_head = head / (c_.n_heads / c_.n_kv_heads);
    double sum = c_.has_sinks ? std::exp(static_cast<double>(sinks_[static_cast<std::size_t>(head)])) : 0;
    bool sees_any = false;
    std::vector<double> out(static_cast<std::size_t>(c_.value_dim));
    for (int s = 0; s < c_.n_positions; ++s) {
      const auto mask_at = static_cast<std::size_t>((head * c_.n_positions + t) * c_.n_positions + s);
      if (!sees(t, s) || (c_.mask == MaskElement::kBool && !bool_mask_[mask_at])) continue;
      double score = 0;
      for (int d = 0; d < c_.key_dim; ++d) {
        score += static_cast<double>(queries_[static_cast<std::size_t>((head * c_.n_positions + t) * c_.key_dim + d)]) *
                 keys_.values[static_cast<std::size_t>((kv_head * c_.n_positions + s) * c_.key_dim + d)];
      }
      score *= 0.5;
      if (c_.soft_cap > 0) score = c_.soft_cap * std::tanh(score / static_cast<double>(c_.soft_cap));
      if (c_.mask == MaskElement::kF32) score += static_cast<double>(float_mask_[mask_at]);
      const double weight = std::exp(score);
      sees_any = sees_any || weight > 0;
      sum += weight;
      for (int d = 0; d < c_.value_dim; ++d) {
        out[static_cast<std::size_t>(d)] +=
            weight * values_.values[static_cast<std::size_t>((kv_head * c_.n_positions + s) * c_.value_dim + d)];
      }
    }
    for (double& value : out) value = sees_any ? value / sum : 0;
    return out;
  }

  Case c_;
  Rows keys_;
  Rows values_;
  std::vector<float> queries_;
  std::vector<float> sinks_;
  std::vector<char> bool_mask_;
  std::vector<float> float_mask_;
};

static_assert(sizeof(char) == sizeof(bool));

TEST(CpuAttention, AgreesWithTheFormula) {
  for (const Case& c : cases()) {
    const Data data(c);
    const std::vector<float> out = data.outputs(c.n_positions);
    const std::vector<double> expected = data.expected();
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], expected[i], 2e-5) << name_of(c) << ", element " << i;
  }
}

TEST(CpuAttention, GivesTheSameBitsInChunksOfAnySizeOnAnyThreadsInEverySet) {
  const int before = n_threads();
  const KernelList list = supported_kernels();
  for (const Case& c : cases()) {
    const Data data(c);
    set_n_threads(1);
    choose_kernels(list.sets[0]->name);
    const std::vector<float> whole = data.outputs(c.n_positions);
    for (const int n_at_once : {1, 7, 8, 9, 64}) {
      set_n_threads(1 + n_at_once % 3);
      EXPECT_TRUE(same_bits(data.outputs(n_at_once), whole)) << name_of(c) << ", chunk " << n_at_once;
    }
    for (int i = 1; i < list.n_sets; ++i) {
      choose_kernels(list.sets[i]->name);
      EXPECT_TRUE(same_bits(data.outputs(c.n_positions), whole)) << name_of(c) << ", " << list.sets[i]->name;
    }
  }
  choose_kernels("");
  set_n_threads(before);
}

// The rows [begin, capacity) of each head moved to the front, and those before them behind.
Rows turned(const Rows& rows, int begin) {
  Rows result = rows;
  const std::size_t row_bytes = static_cast<std::size_t>(rows.dim) * element_bytes(rows.element);
  const std::size_t head_bytes = row_bytes * static_cast<std::size_t>(rows.capacity);
  for (int head = 0; head < rows.n_heads; ++head) {
    const auto at = result.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(head) * head_bytes);
    std::rotate(at, at + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(begin) * row_bytes),
                at + static_cast<std::ptrdiff_t>(head_bytes));
  }
  return result;
}

TEST(CpuAttention, GivesTheSameBitsFromARingAtEveryTurn) {
  Case c;
  c.n_positions = 150;
  c.window = 100;
  Data data(c);
  const std::vector<float> whole = data.outputs(c.n_positions);
  const Rows keys = data.keys();
  const Rows values = data.values();
  for (int turn = 1; turn < c.n_positions; ++turn) {
    data.keys() = turned(keys, turn);
    data.values() = turned(values, turn);
    const std::vector<KvRange> ranges = {{0, c.n_positions - turn, turn}, {turn, 0, c.n_positions - turn}};
    std::vector<float> out(data.n_outputs());
    const AttentionArgs a = data.args(0, c.n_positions, out, ranges);
    attention({&a, 1});
    ASSERT_TRUE(same_bits(out, whole)) << "turn " << turn;
  }
}

// Positions that a window has left behind need no rows.
TEST(CpuAttention, GivesTheSameBitsWithoutTheRowsThatAreNotSeen) {
  Case c;
  c.window = 40;
  c.keep = 3;
  const Data data(c);
  const std::vector<float> whole = data.outputs(c.n_positions);
  for (const int begin : {50, 110, 190}) {
    std::vector<float> out(data.n_outputs());
    const int first_kept = begin - c.window + 1;
    const std::vector<KvRange> ranges = {{0, 0, c.keep}, {first_kept, first_kept, c.n_positions - first_kept}};
    const AttentionArgs a = data.args(begin, c.n_positions, out, ranges);
    attention({&a, 1});
    const auto from = static_cast<std::ptrdiff_t>(begin) * c.n_heads * c.value_dim;
    EXPECT_TRUE(std::equal(out.begin() + from, out.end(), whole.begin() + from)) << "from position " << begin;
  }
}

TEST(CpuAttention, GivesTheSameBitsForSequencesTogether) {
  const std::vector<Case> list = cases();
  std::vector<Data> data;
  for (const Case& c : list) data.emplace_back(c);
  std::vector<std::vector<float>> out(list.size());
  std::vector<std::vector<KvRange>> ranges;
  for (const Case& c : list) ranges.push_back({{0, 0, c.n_positions}});
  std::vector<AttentionArgs> together;
  for (std::size_t i = 0; i < list.size(); ++i) {
    out[i].resize(data[i].n_outputs());
    const int begin = i % 2 == 0 ? 0 : list[i].n_positions - 3;  // many queries and few
    together.push_back(data[i].args(begin, list[i].n_positions, out[i], ranges[i]));
  }
  attention(together);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::vector<float> alone = data[i].outputs(list[i].n_positions);
    const auto n_compared = static_cast<std::ptrdiff_t>(3 * list[i].n_heads * list[i].value_dim);
    EXPECT_TRUE(std::equal(alone.end() - n_compared, alone.end(), out[i].end() - n_compared)) << name_of(list[i]);
  }
}

TEST(CpuAttention, ReadsQuantizedRowsAsTheirValues) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    std::mt19937 random(static_cast<unsigned>(bits));
    const int n_rows = 70;
    const int dim = 64;
    const auto n_words = static_cast<std::size_t>(n_rows * dim * bits / 32);
    std::vector<std::uint32_t> words(n_words);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
    std::vector<float> scales(static_cast<std::size_t>(n_rows) * 2);
    std::vector<float> biases(scales.size());
    for (float& scale : scales) scale = random_float(random) / static_cast<float>(1 << bits);
    for (float& bias : biases) bias = random_float(random);
    std::vector<float> dense;
    for (int i = 0; i < n_rows * dim; ++i) {
      std::uint32_t code = 0;
      for (int bit = 0; bit < bits; ++bit) {
        const auto at = static_cast<std::size_t>(i * bits + bit);
        code |= ((words[at / 32] >> (at % 32)) & 1U) << bit;
      }
      const auto group = static_cast<std::size_t>(i / 32);
      dense.push_back(std::fma(static_cast<float>(code), scales[group], biases[group]));
    }
    std::vector<float> queries(static_cast<std::size_t>(2 * dim));
    for (float& value : queries) value = random_float(random);
    std::vector<float> out(static_cast<std::size_t>(2 * dim));
    std::vector<float> expected(out.size());
    const std::vector<KvRange> ranges = {{0, 0, n_rows}};
    AttentionArgs a{};
    a.n_heads = 2;
    a.n_kv_heads = 1;
    a.n_queries = 1;
    a.first_position = n_rows - 1;
    a.queries = queries.data();
    a.query_head_stride = dim;
    a.query_row_stride = dim;
    a.ranges = ranges;
    a.scale = 0.125F;
    a.out_head_stride = dim;
    a.out = expected.data();
    a.keys = a.values = {dim, Element::kF32, dense.data(), 0, dim};
    attention({&a, 1});
    a.out = out.data();
    a.keys =
        a.values = {dim, Element::kF32, words.data(), 0, dim * bits / 32, bits, 32, scales.data(), biases.data(), 0, 2};
    attention({&a, 1});
    EXPECT_TRUE(same_bits(out, expected)) << bits << " bits";
  }
}

TEST(CpuAttention, AQueryThatSeesNothingGivesZeros) {
  std::vector<float> ones(64, 1.0F);
  std::vector<float> out(16, 99.0F);
  const std::vector<KvRange> ranges = {{0, 0, 4}};
  const bool mask[4] = {};
  AttentionArgs a{};
  a.n_heads = a.n_kv_heads = a.n_queries = 1;
  a.first_position = 3;
  a.queries = ones.data();
  a.keys = a.values = {16, Element::kF32, ones.data(), 0, 16};
  a.ranges = ranges;
  a.scale = 1;
  a.mask_element = MaskElement::kBool;
  a.mask = mask;
  a.out = out.data();
  attention({&a, 1});
  EXPECT_EQ(out, std::vector<float>(16, 0.0F));
}

}  // namespace
}  // namespace memoir::kernels::cpu
