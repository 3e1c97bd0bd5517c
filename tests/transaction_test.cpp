// Transactions over layers of every kind at once, against a cache that is only a list of tokens: each layer's rows and
// states are worked out from that list anew; between snapshots, restores, rewinds and prompt-cache files. Then what is
// refused, the isolated variant, and that keeping everything copies nothing.

#include "memoir/cache/transaction.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cache/arrays.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/prompt_file.h"
#include "memoir/cache/recurrent.h"
#include "tests/held_allocations.h"
#include "tests/model_files.h"
#include "tests/token_states.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using test::is_equal;
using test::kShape;
using test::prefix;
using test::states_after;
using test::Tokens;

constexpr int kVocab = 97;

// The row of each token, [1, 2, kVocab, 32].
const mx::array& pool() {
  static const mx::array rows = [] {
    mx::array made = mx::random::normal({1, 2, kVocab, 32}, mx::float32, mx::random::key(3));
    mx::eval(made);
    return made;
  }();
  return rows;
}

mx::array rows_of(const Tokens& tokens) {
  return mx::take(pool(), mx::array(tokens.data(), {static_cast<int>(tokens.size())}, mx::int32), 2);
}

// As a cache with these options keeps them.
mx::array kept_rows_of(const Tokens& tokens, const KVOptions& options) {
  const mx::array rows = rows_of(tokens);
  if (!options.quantization) return rows;
  const auto parts = mx::quantize(rows, options.quantization->group_size, options.quantization->bits);
  return mx::dequantize(parts[0], parts[1], parts[2], options.quantization->group_size, options.quantization->bits);
}

void feed(LayerCache& cache, const Tokens& tokens, int n);

void feed_rows(AttentionCache& cache, const Tokens& tokens, int n) {
  const auto begin = tokens.begin() + cache.offset();
  const mx::array rows = rows_of(Tokens(begin, begin + n));
  cache.update(rows, mx::negative(rows));
}

// Takes in the n tokens behind the cache's offset.
void feed(LayerCache& cache, const Tokens& tokens, int n) {
  if (auto* attention = dynamic_cast<AttentionCache*>(&cache)) return feed_rows(*attention, tokens, n);
  if (auto* recurrent = dynamic_cast<RecurrentCache*>(&cache)) return test::feed(*recurrent, tokens, n);
  if (auto* list = dynamic_cast<CacheList*>(&cache)) {
    for (const std::size_t i : {0U, 2U}) feed(list->child(i), tokens, n);
    return;
  }
  auto& slots = dynamic_cast<ArraysCache&>(cache);
  const RecurrentState states = states_after(prefix(tokens, cache.offset() + n));
  slots.set_slot(0, *states.tail);
  slots.set_slot(1, *states.state);
  slots.advance(n);
}

void expect_rows(const KVCache& cache, const Tokens& tokens) {
  const std::optional<History> view = cache.view();
  if (!view) return;
  Tokens seen;
  for (const kernels::KvRange& range : view->ranges) {
    for (int i = 0; i < range.n_rows; ++i)
      seen.push_back(tokens.at(static_cast<std::size_t>(range.first_position + i)));
  }
  ASSERT_TRUE(is_equal(view->key_rows(), kept_rows_of(seen, cache.options()))) << cache.kind();
}

void expect_holds(LayerCache& cache, const Tokens& tokens) {
  ASSERT_EQ(cache.offset(), static_cast<int>(tokens.size())) << cache.kind();
  ASSERT_TRUE(cache.can_rewind(cache.offset()));
  if (auto* kv = dynamic_cast<KVCache*>(&cache)) return expect_rows(*kv, tokens);
  if (auto* recurrent = dynamic_cast<RecurrentCache*>(&cache)) return test::expect_holds(*recurrent, tokens);
  if (auto* list = dynamic_cast<CacheList*>(&cache)) {
    for (const std::size_t i : {0U, 2U}) ASSERT_NO_FATAL_FAILURE(expect_holds(list->child(i), tokens));
    return;
  }
  auto& slots = dynamic_cast<ArraysCache&>(cache);
  const RecurrentState expected = states_after(tokens);
  ASSERT_EQ(slots.slot(1).has_value(), !tokens.empty());
  if (!tokens.empty()) {
    ASSERT_TRUE(is_equal(slots.slot(1), expected.state));
  }
}

void feed(ModelCache& cache, const Tokens& tokens, int n) {
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    if (LayerCache* layer = cache.find(i)) feed(*layer, tokens, n);
  }
}

void expect_holds(const ModelCache& cache, const Tokens& tokens) {
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    if (LayerCache* layer = cache.find(i)) {
      ASSERT_NO_FATAL_FAILURE(expect_holds(*layer, tokens)) << "layer " << i;
    }
  }
}

using Layers = std::vector<std::unique_ptr<LayerCache>>;

Layers attention_layers() {
  const KVQuantization q8{8, 32};
  const KVQuantization q4{4, 32};
  Layers layers;
  layers.push_back(make_kv_cache({}));
  layers.push_back(make_kv_cache({.window = 6, .keep = 2}));
  layers.push_back(make_kv_cache({.chunk = 5}));
  layers.push_back(make_kv_cache({.quantization = q8}));
  layers.push_back(make_kv_cache({.window = 9, .quantization = q4}));
  layers.push_back(make_kv_cache({.chunk = 21, .quantization = q8}));
  layers.push_back(nullptr);
  return layers;
}

ModelCache hybrid() {
  Layers layers = attention_layers();
  layers.push_back(std::make_unique<RecurrentCache>(kShape));
  Layers children;
  children.push_back(make_kv_cache({.window = 4}));
  children.push_back(nullptr);
  children.push_back(std::make_unique<RecurrentCache>(kShape));
  layers.push_back(std::make_unique<CacheList>(std::move(children)));
  return ModelCache(std::move(layers));
}

// With slots, of which one position can be taken back.
ModelCache slotted() {
  Layers layers;
  layers.push_back(std::make_unique<MambaCache>());
  layers.push_back(make_kv_cache({.window = 6, .keep = 2}));
  layers.push_back(nullptr);
  layers.push_back(std::make_unique<ArraysCache>(2));
  layers.push_back(std::make_unique<RecurrentCache>(kShape));
  return ModelCache(std::move(layers));
}

ModelCache one_layer(std::unique_ptr<LayerCache> layer) {
  Layers layers;
  layers.push_back(std::move(layer));
  return ModelCache(std::move(layers));
}

Tokens random_tokens(std::mt19937& random, int n) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(static_cast<int>(random() % kVocab));
  return tokens;
}

void append(Tokens& tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

// With the states inside a pass captured, and made again.
class EitherWay : public testing::TestWithParam<InsideStates> {};

std::string way_name(InsideStates inside) {
  return inside == InsideStates::kCaptured ? "Captured" : "Replayed";
}

INSTANTIATE_TEST_SUITE_P(Transaction, EitherWay, testing::Values(InsideStates::kCaptured, InsideStates::kReplayed),
                         [](const auto& param) { return way_name(param.param); });

// ---- What is kept (the acceptance tables: all, up to a mismatch, none; the bonus token is never part of it)

TEST_P(EitherWay, KeepsExactlyTheAcceptedBeginning) {
  // Written: the present token and the drafts.
  for (const int n_written : {1, 2, 5, 16}) {
    for (int n = 0; n <= n_written; ++n) {
      for (const int n_before : {0, 3, 40}) {
        SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(n_written) + " behind " + std::to_string(n_before));
        std::mt19937 random(1);
        ModelCache cache = hybrid();
        Tokens tokens = random_tokens(random, n_before);
        if (n_before > 0) feed(cache, tokens, n_before);
        Tokens drafted = tokens;
        append(drafted, random_tokens(random, n_written));
        Transaction transaction = Transaction::begin(cache, 16, GetParam());
        feed(transaction.cache(), drafted, n_written);
        EXPECT_EQ(transaction.n_written(), n_written);
        transaction.commit(n);
        EXPECT_FALSE(transaction.is_open());
        ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(drafted, n_before + n)));
        // The next token goes where a rejected draft was.
        Tokens next = prefix(drafted, n_before + n);
        next.push_back(kVocab - 1);
        feed(cache, next, 1);
        ASSERT_NO_FATAL_FAILURE(expect_holds(cache, next));
      }
    }
  }
}

TEST_P(EitherWay, KeepsABeginningOfSeveralForwardPasses) {
  for (int n = 0; n <= 7; ++n) {
    std::mt19937 random(2);
    ModelCache cache = hybrid();
    Tokens tokens = random_tokens(random, 20);
    feed(cache, tokens, 20);
    append(tokens, random_tokens(random, 7));
    Transaction transaction = Transaction::begin(cache, 7, GetParam());
    for (const int n_tokens : {3, 1, 2, 1}) feed(cache, tokens, n_tokens);
    transaction.commit(n);
    ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 20 + n)));
  }
}

TEST_P(EitherWay, LeavingItWithoutACommitRollsBack) {
  std::mt19937 random(3);
  ModelCache cache = hybrid();
  const Tokens tokens = random_tokens(random, 12);
  Tokens drafted = tokens;
  append(drafted, random_tokens(random, 5));
  feed(cache, tokens, 12);
  { const Transaction unused = Transaction::begin(cache, 5, GetParam()); }
  {
    Transaction transaction = Transaction::begin(cache, 5, GetParam());
    feed(cache, drafted, 5);
  }
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, tokens));
  const auto fails = [&] {
    Transaction transaction = Transaction::begin(cache, 5, GetParam());
    feed(cache, drafted, 2);
    feed(*cache.find(0), drafted, 1);  // a forward pass that fails in the second layer
    throw std::runtime_error("");
  };
  EXPECT_THROW(fails(), std::runtime_error);
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, tokens));
}

TEST_P(EitherWay, CommitsWhatEveryLayerHasAfterAFailedForwardPass) {
  std::mt19937 random(4);
  ModelCache cache = hybrid();
  const Tokens tokens = random_tokens(random, 9);
  Transaction transaction = Transaction::begin(cache, 9, GetParam());
  feed(cache, tokens, 6);
  feed(*cache.find(0), tokens, 3);
  feed(*cache.find(7), tokens, 3);
  EXPECT_EQ(transaction.n_written(), 6);
  EXPECT_THROW(transaction.commit(7), std::invalid_argument);
  transaction.commit(6);
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 6)));
}

TEST_P(EitherWay, ARewindInsideGoesBackToTheBeginAtMost) {
  std::mt19937 random(5);
  ModelCache cache = hybrid();
  Tokens tokens = random_tokens(random, 10);
  feed(cache, tokens, 10);
  append(tokens, random_tokens(random, 6));
  Transaction transaction = Transaction::begin(cache, 6, GetParam());
  feed(cache, tokens, 6);
  EXPECT_FALSE(cache.rewind(9));
  ASSERT_TRUE(cache.rewind(14));
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 14)));
  tokens[14] = 1;
  feed(cache, tokens, 2);
  transaction.commit(5);
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 15)));
}

TEST_P(EitherWay, AnEmptyCacheIsEmptyAgainAndTakesAnotherBatch) {
  ModelCache cache = hybrid();
  const Tokens tokens = {4, 5, 6};
  {
    Transaction transaction = Transaction::begin(cache, 3, GetParam());
    feed(cache, tokens, 3);
  }
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, {}));
  EXPECT_EQ(cache.layer(0).size_bytes(), 0U);
  EXPECT_NO_THROW(cache.attention(0).update(mx::zeros({3, 1, 1, 8}), mx::zeros({3, 1, 1, 8})));
}

// ---- What is refused

TEST(Transaction, RefusesASecondOneInside) {
  ModelCache cache = hybrid();
  Transaction transaction = Transaction::begin(cache, 4);
  EXPECT_THROW(Transaction::begin(cache, 4), std::invalid_argument);
  EXPECT_THROW(Transaction::begin_isolated(cache, 4), std::invalid_argument);
  feed(cache, {1, 2, 3, 4}, 2);
  transaction.commit(1);
  Transaction after = Transaction::begin(cache, 4);
  EXPECT_TRUE(after.is_open());
}

TEST(Transaction, RefusesAKindThatCannotByItsName) {
  Layers layers;
  layers.push_back(make_kv_cache({}));
  layers.push_back(std::make_unique<MambaCache>());
  ModelCache cache(std::move(layers));
  const auto refusal = Transaction::refusal(cache, 2);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->layer, 1U);
  EXPECT_EQ(refusal->kind, "MambaCache");
  EXPECT_FALSE(Transaction::refusal(cache, 1).has_value());
  try {
    Transaction::begin(cache, 2);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "[transaction.begin] layer 1 has a MambaCache, which can't take back any of 2 positions");
  }
  EXPECT_FALSE(cache.layer(0).is_in_transaction());
  ModelCache rings = one_layer(make_kv_cache({.window = 100}));
  EXPECT_EQ(Transaction::refusal(rings, Layout::kSlack + 1)->kind, "RotatingKVCache");
  EXPECT_FALSE(Transaction::refusal(rings, Layout::kSlack).has_value());
  Layers children;
  children.push_back(make_kv_cache({}));
  children.push_back(std::make_unique<ArraysCache>(3));
  ModelCache list = one_layer(std::make_unique<CacheList>(std::move(children)));
  EXPECT_EQ(Transaction::refusal(list, 2)->kind, "ArraysCache");
}

TEST(Transaction, RefusesWrongNumbersAndStaysOpen) {
  ModelCache cache = hybrid();
  EXPECT_THROW(Transaction::begin(cache, 0), std::invalid_argument);
  EXPECT_THROW(Transaction::begin(cache, -3), std::invalid_argument);
  const Tokens tokens = {1, 2, 3, 4, 5};
  Transaction transaction = Transaction::begin(cache, 4);
  feed(cache, tokens, 3);
  EXPECT_THROW(transaction.commit(4), std::invalid_argument);
  EXPECT_THROW(transaction.commit(-1), std::invalid_argument);
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    if (LayerCache* layer = cache.find(i)) {
      EXPECT_THROW(feed(*layer, tokens, 2), std::invalid_argument);  // 5 of 4
    }
  }
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 3)));
  EXPECT_THROW(cache.to_quantized({8, 32}), std::invalid_argument);
  transaction.commit(2);
  EXPECT_THROW(transaction.commit(0), std::invalid_argument);
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 2)));
}

TEST(Transaction, LayersRefuseStatesFromElsewhereMeanwhile) {
  std::mt19937 random(6);
  ModelCache cache = hybrid();
  Tokens tokens = random_tokens(random, 8);
  feed(cache, tokens, 8);
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    snapshots.push_back(cache.find(i) ? cache.layer(i).snapshot(0) : nullptr);
  }
  append(tokens, {1, 2});
  Transaction transaction = Transaction::begin(cache, 2);
  feed(cache, tokens, 2);
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    LayerCache* layer = cache.find(i);
    if (!layer) continue;
    EXPECT_THROW(layer->restore(snapshots[i].get(), 8), std::invalid_argument);
    EXPECT_THROW(layer->set_state(layer->state(), layer->meta_state()), std::invalid_argument);
  }
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, tokens));
  transaction.roll_back();
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 8)));
}

TEST(Transaction, FreeingTheCacheEndsIt) {
  ModelCache cache = hybrid();
  Transaction transaction = Transaction::begin(cache, 2);
  feed(cache, {1, 2}, 2);
  cache.free();
  EXPECT_THROW(transaction.commit(0), std::invalid_argument);
  transaction.roll_back();
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, {}));
  EXPECT_NO_THROW(Transaction::begin(cache, 2));
}

// One position may be taken back from slots, which are known before and after it.
TEST(Transaction, TakesBackOnePositionOfSlots) {
  for (const int n : {0, 1}) {
    ModelCache cache = one_layer(std::make_unique<MambaCache>());
    const Tokens tokens = {7, 8, 9};
    feed(cache, tokens, 2);
    Transaction transaction = Transaction::begin(cache, 1);
    feed(cache, tokens, 1);
    transaction.commit(n);
    ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 2 + n)));
  }
}

// A snapshot that was asked for inside the drafts is of tokens that may be gone.
TEST_P(EitherWay, CapturesOfRejectedDraftsAreNotHandedOut) {
  RecurrentCache cache(kShape);
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  test::feed(cache, tokens, 2);
  cache.capture_at({3, 5});
  cache.begin(3, GetParam());
  test::feed(cache, tokens, 3);
  cache.commit(2);
  const auto captured = cache.take_captured();
  ASSERT_EQ(captured.size(), 2U);
  EXPECT_NE(captured[0], nullptr);
  EXPECT_EQ(captured[1], nullptr);
  test::expect_holds(cache, prefix(tokens, 4));
}

// The states that were asked for inside a pass are handed out by its kernels also where the rest is replayed.
TEST_P(EitherWay, CapturesInsideAPassWhileItIsOpen) {
  RecurrentCache cache(kShape);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7};
  test::feed(cache, tokens, 2);
  cache.capture_at({4, 6});
  cache.begin(5, GetParam());
  test::feed(cache, tokens, 5);
  ASSERT_TRUE(cache.restore(nullptr, 5));  // inside the pass, and further back inside it
  cache.commit(1);
  test::expect_holds(cache, prefix(tokens, 3));
  auto captured = cache.take_captured();
  EXPECT_EQ(captured[0], nullptr);
  EXPECT_EQ(captured[1], nullptr);
  cache.capture_at({4, 6});
  cache.begin(4, GetParam());
  test::feed(cache, tokens, 4);
  cache.commit(2);
  captured = cache.take_captured();
  EXPECT_EQ(captured[1], nullptr);
  ASSERT_TRUE(cache.restore(captured[0].get(), 4));
  test::expect_holds(cache, prefix(tokens, 4));
}

// ---- The isolated variant

TEST_P(EitherWay, IsolatedLeavesTheLiveCacheUntouchedUntilCommit) {
  for (int n = 0; n <= 4; ++n) {
    std::mt19937 random(7);
    ModelCache cache = hybrid();
    Tokens tokens = random_tokens(random, 30);
    feed(cache, tokens, 30);
    const auto snapshot = cache.layer(1).snapshot(0);
    int n_copied = 0;
    cache.layer(1).on_snapshot_copied([&](const Snapshot&) { ++n_copied; });
    Tokens drafted = tokens;
    append(drafted, random_tokens(random, 4));
    Transaction transaction = Transaction::begin_isolated(cache, 4, GetParam());
    feed(transaction.cache(), drafted, 4);
    ASSERT_NO_FATAL_FAILURE(expect_holds(transaction.cache(), drafted));
    ASSERT_NO_FATAL_FAILURE(expect_holds(cache, tokens));
    EXPECT_FALSE(cache.layer(0).is_in_transaction());
    EXPECT_THROW(transaction.commit(5), std::invalid_argument);
    transaction.commit(n);
    ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(drafted, 30 + n)));
    EXPECT_EQ(n_copied, 1);  // the old layer's rows, on its end
    auto later = cache.layer(1).snapshot(0);
    later->materialize();
    EXPECT_EQ(n_copied, 2);  // the hook has moved
    ASSERT_TRUE(cache.layer(1).restore(snapshot.get(), 30));
    ASSERT_NO_FATAL_FAILURE(expect_holds(cache.layer(1), tokens));
  }
}

TEST(Transaction, IsolatedIsRefusedOnceTheLiveCacheHasMovedOn) {
  ModelCache cache = hybrid();
  const Tokens tokens = {1, 2, 3, 4};
  Transaction transaction = Transaction::begin_isolated(cache, 2);
  feed(transaction.cache(), tokens, 2);
  feed(cache, tokens, 3);
  EXPECT_THROW(transaction.commit(2), std::invalid_argument);
  transaction.roll_back();
  ASSERT_NO_FATAL_FAILURE(expect_holds(cache, prefix(tokens, 3)));
}

// ---- Cost

TEST_P(EitherWay, KeepingEverythingAllocatesNothing) {
  std::mt19937 random(8);
  ModelCache cache = hybrid();
  const Tokens tokens = random_tokens(random, 200);
  feed(cache, tokens, 150);
  cache.materialize();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(memoir::test::held_allocation_bytes([&] {
                Transaction::begin(cache, 8, GetParam()).commit(0);
                return std::vector<mx::array>{};
              }),
              0U);
    Transaction transaction = Transaction::begin(cache, 8, GetParam());
    feed(cache, tokens, 8);
    cache.materialize();
    const std::size_t n_bytes = cache.size_bytes();
    EXPECT_EQ(memoir::test::held_allocation_bytes([&] {
                transaction.commit(8);
                return std::vector<mx::array>{};
              }),
              0U);
    EXPECT_EQ(cache.size_bytes(), n_bytes);
    // Nor is anything left to compute.
    const std::size_t before = mx::get_active_memory();
    mx::reset_peak_memory();
    cache.materialize();
    EXPECT_LE(mx::get_peak_memory(), before);
  }
}

// A cache of keys and values is written to in place also while a transaction is open.
TEST(Transaction, WritesInPlaceAndTakesBackWithoutACopy) {
  std::mt19937 random(9);
  ModelCache cache(attention_layers());
  const Tokens tokens = random_tokens(random, 200);
  feed(cache, tokens, 100);
  feed(cache, tokens, 1);  // rings and chunks go back to their steady size
  cache.materialize();
  const auto pointers = [&] {
    std::vector<const void*> result;
    for (const std::size_t i : {0U, 1U, 2U, 3U, 4U, 5U}) {
      result.push_back(cache.attention(i).view()->keys.data.data<void>());
    }
    return result;
  };
  const auto before = pointers();
  for (const int n : {0, 3, 8}) {
    Transaction transaction = Transaction::begin(cache, 8);
    feed(cache, tokens, 8);
    cache.materialize();
    transaction.commit(n);
    EXPECT_EQ(pointers(), before) << n;
  }
}

// ---- Random operations

class RandomRun {
 public:
  RandomRun(unsigned seed, ModelCache (*make)(), int most_positions)
      : make_(make), most_positions_(most_positions), random_(seed), cache_(make()) {}

  void run() {
    for (int step = 0; step < 25; ++step) {
      operate();
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_NO_FATAL_FAILURE(expect_holds(cache_, tokens_)) << "step " << step;
    }
  }

 private:
  struct Saved {
    std::vector<std::unique_ptr<Snapshot>> snapshots;
    Tokens tokens;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void operate() {
    switch (below(8)) {
      case 0:
        return take_in(cache_, tokens_, 1 + below(30));
      case 1:
        return take_in(cache_, tokens_, 1);
      case 2:
        return save();
      case 3:
        return restore();
      case 4:
        return rewind();
      case 5:
        return cache_.replace(from_file(cache_));
      default:
        return transact();
    }
  }

  void take_in(ModelCache& cache, Tokens& tokens, int n) {
    append(tokens, random_tokens(random_, n));
    feed(cache, tokens, n);
  }

  void save() {
    Saved saved{{}, tokens_};
    for (std::size_t i = 0; i < cache_.n_layers(); ++i) {
      LayerCache* layer = cache_.find(i);
      saved.snapshots.push_back(layer ? layer->snapshot(0) : nullptr);
    }
    if (!tokens_.empty()) saved_.push_back(std::move(saved));
  }

  void restore() {
    if (saved_.empty()) return;
    const Saved& saved = saved_[static_cast<std::size_t>(below(static_cast<int>(saved_.size())))];
    for (std::size_t i = 0; i < cache_.n_layers(); ++i) {
      LayerCache* layer = cache_.find(i);
      if (layer) {
        ASSERT_TRUE(layer->restore(saved.snapshots[i].get(), static_cast<int>(saved.tokens.size())));
      }
    }
    tokens_ = saved.tokens;
  }

  // What a file holds of the cache, also while a transaction is open.
  ModelCache from_file(const ModelCache& cache) const {
    const test::fs::path path = folder_.path() / "cache.safetensors";
    save_prompt_file(path, cache, {"", "", tokens_, {}});
    PromptFile file = load_prompt_file(path);
    EXPECT_EQ(file.metadata.tokens, tokens_);
    return fitted(std::move(file.cache), make_());
  }

  void rewind() {
    const int target = below(static_cast<int>(tokens_.size()) + 1);
    if (cache_.rewind(target)) tokens_.resize(static_cast<std::size_t>(target));
  }

  void transact() {
    const int n_max = 1 + below(most_positions_);
    const int begin = static_cast<int>(tokens_.size());
    const bool is_isolated = below(3) == 0;
    const InsideStates inside = std::vector{InsideStates::kCheaper, InsideStates::kCaptured,
                                            InsideStates::kReplayed}[static_cast<std::size_t>(below(3))];
    const Tokens before = tokens_;
    Transaction transaction =
        is_isolated ? Transaction::begin_isolated(cache_, n_max, inside) : Transaction::begin(cache_, n_max, inside);
    while (transaction.n_written() < n_max && below(4) != 0) {
      take_in(transaction.cache(), tokens_, 1 + below(n_max - transaction.n_written()));
      if (!is_isolated && below(5) == 0) save();
      if (below(5) == 0) {
        ASSERT_NO_FATAL_FAILURE(expect_holds(from_file(transaction.cache()), tokens_));
      }
      if (below(4) == 0) {
        const int target = begin + below(transaction.n_written() + 1);
        ASSERT_TRUE(transaction.cache().rewind(target));
        tokens_.resize(static_cast<std::size_t>(target));
      }
      ASSERT_NO_FATAL_FAILURE(expect_holds(transaction.cache(), tokens_));
    }
    if (is_isolated) {
      ASSERT_NO_FATAL_FAILURE(expect_holds(cache_, before));
    }
    ASSERT_THROW(transaction.commit(transaction.n_written() + 1), std::invalid_argument);
    const int n = below(3) == 0 ? transaction.n_written() : below(transaction.n_written() + 1);
    if (below(4) == 0) {
      transaction.roll_back();
      tokens_ = before;
    } else {
      transaction.commit(n);
      tokens_.resize(static_cast<std::size_t>(begin + n));
    }
  }

  ModelCache (*make_)();
  int most_positions_;
  std::mt19937 random_;
  ModelCache cache_;
  Tokens tokens_;
  std::vector<Saved> saved_;
  test::TemporaryFolder folder_;
};

TEST(Transaction, AgreesWithAListOfTokensUnderRandomOperations) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed, hybrid, Layout::kSlack).run();
    if (HasFatalFailure()) return;
  }
}

TEST(Transaction, AgreesWithAListOfTokensUnderRandomOperationsOnSlots) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed, slotted, 1).run();
    if (HasFatalFailure()) return;
  }
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
