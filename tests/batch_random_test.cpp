// Random operations on left-padded batches of every kind, against a list of single caches that are fed the same tokens:
// what attention gives for a sequence is the same to the bit on the CPU, and near over the padded tensor with its mask.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "memoir/cache/batch.h"
#include "memoir/cache/batch_kv.h"
#include "memoir/cache/kv.h"
#include "tests/token_states.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using memoir::test::is_equal;

constexpr int kHeads = 2;
constexpr int kQueryHeads = 4;
constexpr int kWidth = 32;
constexpr int kMaxSequences = 6;

struct Kind {
  std::string name;
  KVOptions options;
};

class BatchRandom : public testing::TestWithParam<Kind> {
 protected:
  int any(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  mx::array rows(int n_sequences, int n_heads, int n_rows) {
    return mx::random::normal({n_sequences, n_heads, n_rows, kWidth}, mx::random::key(random_()));
  }

  std::unique_ptr<KVCache> make() const { return make_kv_cache(GetParam().options); }

  static mx::array tokens(const mx::array& a, int sequence, const Padding::Span& span) {
    return mx::slice(a, {sequence, 0, span.begin, 0}, {sequence + 1, a.shape(1), span.end, a.shape(3)});
  }

  kernels::AttentionOptions attention_options() const {
    const KVOptions& options = GetParam().options;
    return {.scale = 0.3F, .window = options.window, .keep = options.keep, .chunk = options.chunk};
  }

  // Feeds both sides the same tokens, and compares what queries see.
  void feed(int n_tokens) {
    const int n = batch_->batch_size();
    const mx::array keys = rows(n, kHeads, n_tokens);
    const mx::array values = rows(n, kHeads, n_tokens);
    const mx::array queries = rows(n, kQueryHeads, n_tokens);
    const mx::array mask = batch_->make_mask(n_tokens);
    const BatchHistory history = batch_->update(keys, values);
    const mx::array y = attention(queries, history, attention_options());
    ASSERT_EQ(y.shape(), (mx::Shape{n, n_tokens, kQueryHeads * kWidth}));
    ASSERT_TRUE(is_equal(mask, history.mask()));
    const mx::array padded = mx::fast::scaled_dot_product_attention(queries, history.keys(), history.values(), 0.3F,
                                                                    "array", history.mask());
    const mx::array near = mx::reshape(mx::transpose(padded, {0, 2, 1, 3}), y.shape());
    for (int b = 0; b < n; ++b) {
      const Padding::Span span = history.columns().real[static_cast<std::size_t>(b)];
      if (span.begin == span.end) continue;
      KVCache& one = *singles_[static_cast<std::size_t>(b)];
      const History alone = one.update(tokens(keys, b, span), tokens(values, b, span));
      const mx::array expected = kernels::attention(tokens(queries, b, span), alone, attention_options());
      const auto of_sequence = [&](const mx::array& a) {
        return mx::slice(a, {b, span.begin, 0}, {b + 1, span.end, a.shape(2)});
      };
      EXPECT_TRUE(is_equal(of_sequence(y), expected)) << "sequence " << b;
      EXPECT_TRUE(mx::allclose(of_sequence(near), expected, 1e-4, 1e-4).item<bool>()) << "sequence " << b;
    }
  }

  void feed_right_padded() {
    std::vector<int> lengths;
    for (int i = 0; i < batch_->batch_size(); ++i) lengths.push_back(any(0, 30));
    batch_->prepare(lengths);
    int n_left = *std::max_element(lengths.begin(), lengths.end());
    while (n_left > 0) {
      const int n = any(1, n_left);
      feed(n);
      n_left -= n;
    }
    batch_->finalize();
  }

  // Left-padded, or merged of single caches, some of them empty.
  void add_sequences() {
    if (singles_.size() >= kMaxSequences) return;
    std::vector<std::unique_ptr<KVCache>> fresh;
    std::unique_ptr<BatchKVCache> other;
    const int n = any(1, 2);
    if (any(0, 1) == 0) {
      std::vector<const KVCache*> caches;
      for (int i = 0; i < n; ++i) {
        fresh.push_back(make());
        if (const int n_tokens = any(0, 40); n_tokens > 0)
          fresh.back()->update(rows(1, kHeads, n_tokens), rows(1, kHeads, n_tokens));
        caches.push_back(fresh.back().get());
      }
      other = BatchKVCache::merged(caches);
    } else {
      std::vector<int> left;
      for (int i = 0; i < n; ++i) {
        left.push_back(any(0, 5));
        fresh.push_back(make());
      }
      other = std::make_unique<BatchKVCache>(GetParam().options, left);
    }
    if (batch_) {
      batch_->extend(*other);
    } else {
      batch_ = std::move(other);
    }
    std::move(fresh.begin(), fresh.end(), std::back_inserter(singles_));
  }

  void drop_sequences() {
    std::vector<int> stay;
    for (int i = 0; i < batch_->batch_size(); ++i) stay.push_back(i);
    std::shuffle(stay.begin(), stay.end(), random_);
    stay.resize(static_cast<std::size_t>(any(1, batch_->batch_size())));
    std::vector<std::unique_ptr<KVCache>> left;
    for (const int i : stay) left.push_back(std::move(singles_[static_cast<std::size_t>(i)]));
    singles_ = std::move(left);
    batch_->filter(stay);
  }

  void trim() {
    const std::vector<int> before = batch_->offsets();
    const int n = std::min(any(0, 6), batch_->offset());
    const int n_dropped = batch_->trim(n);
    if (n_dropped == 0) return;
    ASSERT_EQ(n_dropped, n);
    for (std::size_t i = 0; i < singles_.size(); ++i) {
      if (before[i] <= 0) continue;
      ASSERT_TRUE(singles_[i]->restore(nullptr, std::max(0, before[i] - n)));
    }
  }

  void save_and_load() {
    BatchKVCache loaded(GetParam().options, std::vector<int>(singles_.size(), 0));
    loaded.set_state(batch_->state(), batch_->meta_state());
    batch_ = std::make_unique<BatchKVCache>(GetParam().options, std::vector<int>(singles_.size(), 0));
    batch_->set_state(loaded.state(), loaded.meta_state());
  }

  void go_back_and_forth() {
    const std::unique_ptr<Snapshot> snapshot = batch_->snapshot(0);
    if (!snapshot) return;
    const mx::array more = rows(batch_->batch_size(), kHeads, 3);
    batch_->update(more, more);
    ASSERT_TRUE(batch_->restore(snapshot.get(), snapshot->to()));
  }

  // The same first rows that are kept, and last rows: right after a trim one more of those between may be left.
  bool holds(const mx::array& expected, const mx::array& rows) {
    const int n_kept = std::min({GetParam().options.keep, rows.shape(2), expected.shape(2)});
    const int n_last = std::min(rows.shape(2), expected.shape(2)) - n_kept;
    EXPECT_LE(std::abs(rows.shape(2) - expected.shape(2)), GetParam().options.chunk.value_or(1));
    const auto part = [](const mx::array& a, int begin, int end) {
      return mx::slice(a, {0, 0, begin, 0}, {1, a.shape(1), end, a.shape(3)});
    };
    const auto last = [&](const mx::array& a) { return part(a, a.shape(2) - n_last, a.shape(2)); };
    return is_equal(part(rows, 0, n_kept), part(expected, 0, n_kept)) && is_equal(last(rows), last(expected));
  }

  void compare_extracted() {
    for (std::size_t i = 0; i < singles_.size(); ++i) {
      const auto one = batch_->extract(static_cast<int>(i));
      ASSERT_EQ(one->offset(), singles_[i]->offset());
      const std::vector<mx::array> expected = singles_[i]->state();
      const std::vector<mx::array> state = one->state();
      if (state.empty()) continue;
      ASSERT_EQ(state.size(), expected.size());
      for (std::size_t k = 0; k < state.size(); ++k) ASSERT_TRUE(holds(expected[k], state[k]));
      EXPECT_EQ(std::max(0, batch_->offsets()[i]), one->offset());
    }
  }

  void step() {
    switch (any(0, 9)) {
      case 0:
        return add_sequences();
      case 1:
        return drop_sequences();
      case 2:
        return feed_right_padded();
      case 3:
        return trim();
      case 4:
        return save_and_load();
      case 5:
        return go_back_and_forth();
      case 6:
        return feed(any(1, 30));
      default:
        return feed(any(1, 3));
    }
  }

  std::mt19937 random_;
  std::unique_ptr<BatchKVCache> batch_;
  std::vector<std::unique_ptr<KVCache>> singles_;
};

TEST_P(BatchRandom, IsWhatItsSequencesAreAlone) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  random_.seed(seed);
  for (int run = 0; run < 3; ++run) {
    batch_.reset();
    singles_.clear();
    add_sequences();
    for (int i = 0; i < 25; ++i) {
      step();
      compare_extracted();
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BatchRandom,
    testing::Values(Kind{"flat", {}}, Kind{"ring", {.window = 7}}, Kind{"kept", {.window = 5, .keep = 3}},
                    Kind{"chunk", {.chunk = 6}}, Kind{"quantized", {.quantization = KVQuantization{8, 32}}},
                    Kind{"quantized_kept", {.window = 9, .keep = 2, .quantization = KVQuantization{4, 32}}},
                    Kind{"quantized_chunk", {.chunk = 5, .quantization = KVQuantization{6, 32}}}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace memoir::cache
