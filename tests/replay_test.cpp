// Transactions over the recurrent layers of models, with the states inside a pass captured by the kernels and made
// again by a replay: the bits of a cache that took in the same tokens one pass each, and never anything else. On the
// tiny models of the tests, a family for each kernel: gated delta rule, Mamba 2's scan (alone, beside attention, in
// lists), short convolution.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "memoir/cache/composite.h"
#include "memoir/cache/recurrent.h"
#include "memoir/cache/transaction.h"
#include "memoir/model/load.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kMostPositions = 9;

class Replay : public testing::TestWithParam<std::tuple<const char*, InsideStates>> {
 protected:
  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    loaded_ = model::load_model(test::data(std::get<0>(GetParam())));
    for (int i = 0; i < 64; ++i) text_.push_back(token());
  }

  const model::Model& model() const { return *loaded_.model; }
  InsideStates inside() const { return std::get<1>(GetParam()); }

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  TokenId token() { return below(model().config().vocab_size); }

  // Takes in the tokens of text_ in [cache.offset(), end). Returns the last logits.
  mx::array feed(ModelCache& cache, int end) const {
    const Tokens tokens(text_.begin() + cache.offset(), text_.begin() + end);
    mx::array logits = model().forward(tokens, cache, model::LogitRows::kLast);
    mx::eval(logits);
    return logits;
  }

  // The oracle: a cache that took in the first n tokens one by one.
  ModelCache oracle(int n) const {
    ModelCache cache = model().make_cache();
    while (cache.offset() < n) feed(cache, cache.offset() + 1);
    return cache;
  }

  // To the bit, and so are the logits of the next token.
  void expect_is(ModelCache& cache, int n) const {
    ASSERT_EQ(cache.offset(), n);
    ModelCache expected = oracle(n);
    expect_same_arrays(cache.state(), expected.state());
    ModelCache next = cache.copy();
    ASSERT_TRUE(mx::array_equal(feed(next, n + 1), feed(expected, n + 1)).item<bool>());
    expect_same_arrays(next.state(), expected.state());
  }

  static void expect_same_arrays(const std::vector<mx::array>& arrays, const std::vector<mx::array>& expected) {
    ASSERT_EQ(arrays.size(), expected.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      ASSERT_EQ(arrays[i].dtype(), expected[i].dtype());
      ASSERT_TRUE(mx::array_equal(arrays[i], expected[i]).item<bool>()) << "array " << i;
    }
  }

  std::mt19937 random_{5};
  model::LoadedModel loaded_;
  Tokens text_;
};

TEST_P(Replay, KeepsAnyBeginningOfAPassToTheBit) {
  for (const int n_before : {0, 1, 7}) {
    for (int n = 0; n <= kMostPositions; ++n) {
      SCOPED_TRACE(std::to_string(n) + " behind " + std::to_string(n_before));
      ModelCache cache = model().make_cache();
      if (n_before > 0) feed(cache, n_before);
      Transaction transaction = Transaction::begin(cache, kMostPositions, inside());
      feed(cache, n_before + kMostPositions);
      transaction.commit(n);
      ASSERT_NO_FATAL_FAILURE(expect_is(cache, n_before + n));
    }
  }
}

// Passes of one row and of several, rewinds inside, the isolated variant, several
// transactions one behind the other without an evaluation between a commit and the next begin.
TEST_P(Replay, AgreesWithPlainTokensUnderRandomTransactions) {
  ModelCache cache = model().make_cache();
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " from seed 5");
    if (cache.offset() > 30) cache.free();
    const int begin = cache.offset();
    const int n_max = 1 + below(kMostPositions);
    Transaction transaction = below(4) == 0 ? Transaction::begin_isolated(cache, n_max, inside())
                                            : Transaction::begin(cache, n_max, inside());
    // Drafts of their own each time: what was kept is all that stays of them.
    for (int i = begin; i < begin + n_max + 1; ++i) text_[static_cast<std::size_t>(i)] = token();
    for (int passes = below(4); passes > 0 && transaction.n_written() < n_max; --passes) {
      const int n = below(2) == 0 ? 1 : 1 + below(n_max - transaction.n_written());
      feed(transaction.cache(), transaction.cache().offset() + n);
      if (below(3) == 0) {
        ASSERT_TRUE(transaction.cache().rewind(begin + below(transaction.n_written() + 1)));
      }
    }
    const int n_kept = below(3) == 0 ? transaction.n_written() : below(transaction.n_written() + 1);
    transaction.commit(n_kept);
    if (below(2) == 0) {
      ASSERT_NO_FATAL_FAILURE(expect_is(cache, begin + n_kept));
    }
  }
  ASSERT_NO_FATAL_FAILURE(expect_is(cache, cache.offset()));
}

// A checkpoint that was asked for inside the drafts is the state there, if the tokens up to it were kept.
TEST_P(Replay, ChecksOffsetsInsideAPassWhileItIsOpen) {
  for (const int n : {2, 4, 6}) {
    ModelCache cache = model().make_cache();
    feed(cache, 3);
    std::vector<RecurrentCache*> layers;
    for (std::size_t i = 0; i < cache.n_layers(); ++i) {
      if (auto* recurrent = dynamic_cast<RecurrentCache*>(cache.find(i))) layers.push_back(recurrent);
    }
    for (RecurrentCache* layer : layers) layer->capture_at({7});
    Transaction transaction = Transaction::begin(cache, 6, inside());
    feed(cache, 9);
    transaction.commit(n);
    ModelCache expected = oracle(7);
    for (std::size_t i = 0, at = 0; i < cache.n_layers(); ++i) {
      auto* layer = dynamic_cast<RecurrentCache*>(cache.find(i));
      if (!layer) continue;
      ++at;
      const auto captured = layer->take_captured();
      ASSERT_EQ(captured.size(), 1U);
      ASSERT_EQ(captured[0] != nullptr, n >= 4);
      if (!captured[0]) continue;
      ASSERT_TRUE(layer->restore(captured[0].get(), 7));
      ASSERT_NO_FATAL_FAILURE(expect_same_arrays(layer->state(), expected.layer(i).state())) << "layer " << at;
    }
  }
}

// Neither keeping all nor keeping none allocates: what is there stays or comes back.
TEST_P(Replay, KeepingAllOrNothingComputesNothing) {
  ModelCache cache = model().make_cache();
  feed(cache, 5);
  for (const int n : {0, 5}) {
    Transaction transaction = Transaction::begin(cache, 5, inside());
    const int begin = cache.offset();
    feed(cache, begin + 5);
    cache.materialize();
    mx::synchronize();
    mx::reset_peak_memory();
    const std::size_t before = mx::get_active_memory();
    transaction.commit(n);
    cache.materialize();
    mx::synchronize();
    EXPECT_LE(mx::get_peak_memory(), before);
    ASSERT_NO_FATAL_FAILURE(expect_is(cache, begin + n));
  }
}

// One layer further than the others, so that the next pass has no room there.
void write_ahead(LayerCache& layer) {
  if (auto* list = dynamic_cast<CacheList*>(&layer)) return write_ahead(list->child(0));
  if (auto* recurrent = dynamic_cast<RecurrentCache*>(&layer)) {
    const mx::Dtype dtype = recurrent->state().at(0).dtype();
    recurrent->put(recurrent->get(1, dtype), 1);
    return;
  }
  auto& attention = dynamic_cast<AttentionCache&>(layer);
  const History view = *attention.view();
  const auto last_row = [](const mx::array& rows) {
    return mx::slice(rows, {0, 0, rows.shape(2) - 1, 0}, rows.shape());
  };
  const mx::array keys = last_row(view.key_rows());
  const mx::array values = last_row(view.value_rows());
  mx::eval(keys, values);
  attention.update(keys, values);
}

// A pass that throws in a layer has gone through those before it. The next 20 tokens are those of a cache that never
// saw it.
TEST_P(Replay, APassThatFailsHalfWayLeavesNoTrace) {
  constexpr int kBefore = 9;
  const std::size_t n_layers = model().make_cache().n_layers();
  for (std::size_t failing = 0; failing < n_layers; ++failing) {
    SCOPED_TRACE("layer " + std::to_string(failing));
    ModelCache cache = model().make_cache();
    if (!cache.find(failing)) continue;
    feed(cache, kBefore);
    ModelCache expected = oracle(kBefore);
    const auto fail = [&] {
      const Transaction transaction = Transaction::begin(cache, 8, inside());
      feed(cache, kBefore + 3);
      write_ahead(cache.layer(failing));
      const Tokens drafts(text_.begin() + 20, text_.begin() + 25);
      model().forward(drafts, cache, model::LogitRows::kAll);
    };
    ASSERT_THROW(fail(), std::invalid_argument);
    ASSERT_EQ(cache.offset(), kBefore);
    ASSERT_NO_FATAL_FAILURE(expect_same_arrays(cache.state(), expected.state()));
    for (int i = 1; i <= 20; ++i) {
      const mx::array logits = feed(cache, kBefore + i);
      ASSERT_TRUE(mx::array_equal(logits, feed(expected, kBefore + i)).item<bool>()) << i << " behind it";
    }
    ASSERT_NO_FATAL_FAILURE(expect_same_arrays(cache.state(), expected.state()));
  }
}

std::string name_of(const testing::TestParamInfo<Replay::ParamType>& info) {
  const bool is_replayed = std::get<1>(info.param) == InsideStates::kReplayed;
  return std::get<0>(info.param) + std::string(is_replayed ? "_replayed" : "_captured");
}

INSTANTIATE_TEST_SUITE_P(Models, Replay,
                         testing::Combine(testing::Values("qwen3_next", "qwen3_5", "mamba2", "falcon_h1",
                                                          "granitemoehybrid", "lfm2"),
                                          testing::Values(InsideStates::kCaptured, InsideStates::kReplayed)),
                         name_of);

}  // namespace
}  // namespace memoir::cache
