// CacheList: as a whole or not at all. And random operations on it and on every kind without rows, against a cache that
// is only a list of tokens.

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
#include "memoir/cache/recurrent.h"
#include "tests/token_states.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using test::expect_holds;
using test::expect_refused;
using test::feed;
using test::is_equal;
using test::kShape;
using test::prefix;
using test::range;
using test::states_after;
using test::Tokens;

mx::array token_rows(const Tokens& tokens, int begin, float sign) {
  std::vector<float> values;
  for (std::size_t i = static_cast<std::size_t>(begin); i < tokens.size(); ++i) {
    values.push_back(static_cast<float>(tokens[i]) * sign);
  }
  return mx::broadcast_to(mx::array(values.data(), {1, 1, static_cast<int>(values.size()), 1}),
                          {1, 2, static_cast<int>(values.size()), 8});
}

void feed(KVCache& cache, const Tokens& tokens, int n) {
  const Tokens all = prefix(tokens, cache.offset() + n);
  cache.update(token_rows(all, cache.offset(), 1), token_rows(all, cache.offset(), -1));
}

void expect_holds(const KVCache& cache, const Tokens& tokens) {
  ASSERT_EQ(cache.offset(), static_cast<int>(tokens.size()));
  if (tokens.empty()) return;
  EXPECT_TRUE(is_equal(cache.view()->key_rows(), mx::array(token_rows(tokens, 0, 1))));
}

void feed(ArraysCache& cache, const Tokens& tokens, int n) {
  const RecurrentState states = states_after(prefix(tokens, cache.offset() + n));
  cache.set_slot(0, *states.tail);
  cache.set_slot(1, *states.state);
  cache.advance(n);
}

void expect_holds(const ArraysCache& cache, const Tokens& tokens) {
  ASSERT_EQ(cache.offset(), static_cast<int>(tokens.size()));
  if (tokens.empty()) return;
  EXPECT_TRUE(is_equal(cache.slot(0), states_after(tokens).tail));
  EXPECT_TRUE(is_equal(cache.slot(1), states_after(tokens).state));
}

void feed_any(LayerCache& cache, const Tokens& tokens, int n);
void expect_any_holds(LayerCache& cache, const Tokens& tokens);

// Calls with the cache as what it is; a list, child by child.
template <typename Call>
void as_itself(LayerCache& cache, const Call& call) {
  if (auto* list = dynamic_cast<CacheList*>(&cache)) {
    for (std::size_t i = 0; i < list->n_children(); ++i) {
      if (i != 1 || list->n_children() != 3) as_itself(list->child(i), call);  // of three, the middle one is null
    }
  } else if (auto* kv = dynamic_cast<KVCache*>(&cache)) {
    call(*kv);
  } else if (auto* arrays = dynamic_cast<ArraysCache*>(&cache)) {
    call(*arrays);
  } else {
    call(dynamic_cast<RecurrentCache&>(cache));
  }
}

void feed_any(LayerCache& cache, const Tokens& tokens, int n) {
  as_itself(cache, [&](auto& one) { feed(one, tokens, n); });
}

void expect_any_holds(LayerCache& cache, const Tokens& tokens) {
  as_itself(cache, [&](auto& one) { expect_holds(one, tokens); });
}

template <typename... Caches>
std::unique_ptr<CacheList> make_list(std::unique_ptr<Caches>... caches) {
  std::vector<std::unique_ptr<LayerCache>> children;
  (children.push_back(std::move(caches)), ...);
  return std::make_unique<CacheList>(std::move(children));
}

std::unique_ptr<CacheList> hybrid() {
  return make_list(std::make_unique<RecurrentCache>(kShape), std::unique_ptr<LayerCache>(),
                   std::make_unique<KVCache>());
}

// mlx-lm test 12.
TEST(CacheList, TrimsOnlyWhereEveryChildCan) {
  const auto attention = make_list(std::make_unique<KVCache>(), std::make_unique<KVCache>());
  feed_any(*attention, range(1, 9), 8);
  EXPECT_TRUE(attention->is_trimmable());
  EXPECT_EQ(attention->trim(5), 5);
  expect_any_holds(*attention, range(1, 4));
  EXPECT_EQ(attention->trim(9), 3);
  const auto mixed = make_list(std::make_unique<ArraysCache>(2), std::make_unique<KVCache>());
  feed_any(*mixed, range(1, 9), 8);
  EXPECT_FALSE(mixed->is_trimmable());
  EXPECT_EQ(mixed->trim(1), 0);
  expect_any_holds(*mixed, range(1, 9));
}

TEST(CacheList, PassesNullChildrenOver) {
  const auto list = hybrid();
  const Tokens tokens = range(1, 9);
  EXPECT_EQ(list->kind(), "CacheList");
  EXPECT_EQ(list->snapshot(0), nullptr);
  feed_any(*list, tokens, 8);
  EXPECT_EQ(list->offset(), 8);
  EXPECT_EQ(list->size_bytes(), list->child(0).size_bytes() + list->child(2).size_bytes());
  EXPECT_EQ(list->state().size(), 4U);
  const auto copy = list->copy();
  list->free();
  EXPECT_TRUE(list->is_empty());
  expect_any_holds(*copy, tokens);
  const auto other = hybrid();
  other->set_state(copy->state(), copy->meta_state());
  expect_any_holds(*other, tokens);
}

TEST(CacheList, RewindsAsAWholeOrNotAtAll) {
  const auto list = hybrid();
  feed_any(*list, range(1, 9), 8);
  EXPECT_FALSE(list->can_rewind(5));
  EXPECT_FALSE(list->restore(nullptr, 5));
  expect_any_holds(*list, range(1, 9));
  EXPECT_TRUE(list->restore(nullptr, 8));
}

// The first child could be restored, the second not: the first is put back.
TEST(CacheList, RestoresAsAWholeOrNotAtAll) {
  const auto list = hybrid();
  const Tokens tokens = range(1, 13);
  feed_any(*list, tokens, 4);
  const auto base = list->snapshot(0);
  feed_any(*list, tokens, 4);
  const auto later = list->snapshot(4);
  const auto fresh = hybrid();
  EXPECT_FALSE(fresh->restore(later.get(), 8));  // no rows below 4
  EXPECT_TRUE(fresh->is_empty());
  EXPECT_EQ(fresh->child(0).offset(), 0);
  ASSERT_TRUE(fresh->restore(base.get(), 4));
  ASSERT_TRUE(fresh->restore(later.get(), 8));
  expect_any_holds(*fresh, prefix(tokens, 8));
  EXPECT_FALSE(fresh->restore(later.get(), 6));
  expect_any_holds(*fresh, prefix(tokens, 8));
}

// A child that throws: the earlier ones are put back too.
TEST(CacheList, AThrowLeavesEveryChildAsItWas) {
  const auto list = hybrid();
  const Tokens tokens = range(1, 9);
  feed_any(*list, tokens, 4);
  const auto wide =
      make_list(std::make_unique<RecurrentCache>(kShape), std::unique_ptr<LayerCache>(), std::make_unique<KVCache>());
  as_itself(wide->child(0), [&](auto& one) { feed(one, tokens, 4); });
  wide->child<KVCache>(2).update(mx::ones({1, 2, 4, 16}), mx::ones({1, 2, 4, 16}));
  feed_any(*list, tokens, 2);
  expect_refused([&] { list->restore(wide->snapshot(0).get(), 4); }, "[cache.restore]");
  expect_any_holds(*list, prefix(tokens, 6));
  std::vector<std::string> meta = list->meta_state();
  std::vector<mx::array> state = list->state();
  state.back() = mx::ones({1, 2, 3, 8});
  expect_refused([&] { list->set_state(state, meta); }, "[cache.set_state]");
  expect_any_holds(*list, prefix(tokens, 6));
}

TEST(CacheList, SplitsAndMergesChildByChild) {
  const auto list = hybrid();
  const Tokens tokens = range(1, 11);
  feed_any(*list, tokens, 10);
  SnapshotPair halves = list->split(list->snapshot(0), 6);
  ASSERT_TRUE(halves.parent && halves.child);
  EXPECT_EQ(halves.parent->to(), 6);
  EXPECT_EQ(halves.child->from(), 6);
  const auto fresh = hybrid();
  EXPECT_FALSE(fresh->restore(halves.parent.get(), 6));  // the rows are there, the recurrent state at 6 is not
  EXPECT_TRUE(fresh->is_empty());
  const auto whole = list->merge(std::move(halves.parent), std::move(halves.child));
  ASSERT_TRUE(whole);
  ASSERT_TRUE(fresh->restore(whole.get(), 10));
  expect_any_holds(*fresh, tokens);
  EXPECT_EQ(list->merge(nullptr, list->snapshot(0)), nullptr);
  expect_refused([&] { list->merge(list->snapshot(0), list->snapshot(5)); }, "expected them to meet");
  EXPECT_EQ(list->split(list->snapshot(3), 3).parent, nullptr);
  EXPECT_EQ(list->split(list->snapshot(3), 10).child, nullptr);
}

TEST(CacheList, ReleasedChildrenOutliveIt) {
  auto list = hybrid();
  feed_any(*list, range(1, 6), 5);
  int n_copied = 0;
  list->on_snapshot_copied([&n_copied](const Snapshot&) { ++n_copied; });
  const auto children = std::move(*list).release();
  list.reset();
  const auto snapshot = children.front()->snapshot(0);
  snapshot->materialize();
  EXPECT_EQ(n_copied, 0);
}

TEST(CacheList, TellsOfRowsCopiedOutByAChild) {
  const auto list = hybrid();
  const Tokens tokens = range(1, 11);
  feed_any(*list, tokens, 10);
  const auto snapshot = list->snapshot(4);
  const std::size_t n_before = snapshot->size_bytes();
  std::size_t n_copied = 0;
  list->on_snapshot_copied([&](const Snapshot& part) { n_copied += part.size_bytes(); });
  snapshot->materialize();
  EXPECT_FALSE(snapshot->is_lazy());
  EXPECT_EQ(n_copied, snapshot->size_bytes() - n_before);
}

TEST(CacheList, ItsRowsAreQuantizedBesideItsStates) {
  const Tokens tokens = range(1, 9);
  std::vector<std::unique_ptr<LayerCache>> children;
  auto states = std::make_unique<RecurrentCache>(kShape);
  feed(*states, tokens, 8);
  children.push_back(std::move(states));
  children.push_back(make_kv_cache({}));
  const mx::array rows = mx::random::normal({1, 2, 8, 64}, mx::float32, mx::random::key(1));
  dynamic_cast<KVCache&>(*children[1]).update(rows, rows);
  std::vector<std::unique_ptr<LayerCache>> layers;
  layers.push_back(std::make_unique<CacheList>(std::move(children)));
  ModelCache cache(std::move(layers));
  EXPECT_THROW(cache.to_quantized({8, 48}), std::invalid_argument);
  EXPECT_EQ(cache.to_quantized({8, 64}), 1);
  auto& list = dynamic_cast<CacheList&>(cache.layer(0));
  EXPECT_EQ(list.child(1).kind(), "QuantizedKVCache");
  expect_holds(list.child<RecurrentCache>(0), prefix(tokens, 8));
  const std::vector<mx::array> parts = mx::quantize(rows, 64, 8);
  const mx::array expected = mx::dequantize(parts[0], parts[1], parts[2], 64, 8);
  EXPECT_TRUE(mx::allclose(list.child<KVCache>(1).view()->key_rows(), expected, 1e-5, 1e-5).item<bool>());
  EXPECT_EQ(cache.to_quantized({8, 64}), 0);
}

TEST(CacheList, RefusesWhatDoesNotFit) {
  std::vector<std::unique_ptr<LayerCache>> none(2);
  expect_refused([&] { CacheList list(std::move(none)); }, "no child has a cache");
  const auto list = hybrid();
  feed_any(*list, range(1, 5), 4);
  expect_refused([&] { list->child(1); }, "child 1");
  expect_refused([&] { list->child(3); }, "child 3");
  expect_refused([&] { list->child<KVCache>(0); }, "child 0");
  expect_refused([&] { list->trim(-1); }, "n_tokens is -1");
  expect_refused([&] { list->restore(list->child(2).snapshot(0).get(), 4); }, "of another kind");
  const auto pair = make_list(std::make_unique<KVCache>(), std::make_unique<KVCache>());
  expect_refused([&] { pair->restore(list->snapshot(0).get(), 4); }, "a CacheList of 2");
  std::vector<std::string> meta = list->meta_state();
  for (std::size_t i = 0; i < meta.size(); ++i) {  // every number of the list left out, or replaced
    std::vector<std::string> damaged = meta;
    damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THROW(list->set_state(list->state(), damaged), std::invalid_argument) << i;
    damaged = meta;
    damaged[i] = "18446744073709551615";
    EXPECT_THROW(list->set_state(list->state(), damaged), std::invalid_argument) << i;
  }
  meta.emplace_back("1");
  EXPECT_THROW(list->set_state(list->state(), meta), std::invalid_argument);
  expect_any_holds(*list, range(1, 5));
}

// ---- Random operations

struct RandomKind {
  const char* name;
  std::unique_ptr<LayerCache> (*make)();
  bool has_rows;  // restoring needs those below the snapshot
};

const RandomKind kKinds[] = {
    {"RecurrentCache", [] { return std::unique_ptr<LayerCache>(new RecurrentCache(kShape)); }, false},
    {"ArraysCache", [] { return std::unique_ptr<LayerCache>(new ArraysCache(2)); }, false},
    {"MambaCache", [] { return std::unique_ptr<LayerCache>(new MambaCache()); }, false},
    {"CacheList", [] { return std::unique_ptr<LayerCache>(hybrid()); }, true},
};

// A snapshot and what the naive cache knows of it.
struct Kept {
  std::unique_ptr<Snapshot> snapshot;
  Tokens tokens;   // [0, to)
  bool has_state;  // the state at its end, not rows alone
};

class RandomOperations : public testing::TestWithParam<RandomKind> {
 protected:
  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void add_tokens() {
    const int n = 1 + pick(5);
    for (int i = 0; i < n; ++i) tokens_.push_back(1 + pick(900));
    feed_any(*cache_, tokens_, n);
  }

  void keep(std::unique_ptr<Snapshot> snapshot, Tokens tokens, bool has_state) {
    if (snapshot) kept_.push_back({std::move(snapshot), std::move(tokens), has_state});
    if (kept_.size() > 12) kept_.erase(kept_.begin() + pick(12));
  }

  void take_snapshot() {
    const int from = pick(static_cast<int>(tokens_.size()) + 2) - 1;
    auto snapshot = cache_->snapshot(from);
    ASSERT_EQ(snapshot == nullptr, std::max(0, from) >= static_cast<int>(tokens_.size()));
    keep(std::move(snapshot), tokens_, true);
  }

  void rewind() {
    const int target = pick(static_cast<int>(tokens_.size()) + 3) - 1;
    const bool expected = target == static_cast<int>(tokens_.size());
    EXPECT_EQ(cache_->can_rewind(target), expected);
    EXPECT_EQ(cache_->restore(nullptr, target), expected);
  }

  void restore() {
    if (kept_.empty()) return;
    const Kept& kept = kept_[static_cast<std::size_t>(pick(static_cast<int>(kept_.size())))];
    const int from = kept.snapshot->from();
    const int to = kept.snapshot->to();
    const int target = pick(2) == 0 ? to : pick(to + 3) - 1;
    const int offset = static_cast<int>(tokens_.size());
    const int n_shared = std::min({from, offset, to});
    const bool is_same_path = std::equal(tokens_.begin(), tokens_.begin() + n_shared, kept.tokens.begin());
    if (GetParam().has_rows && !is_same_path) return;  // rows of another path: the trie never asks for that
    // Rows alone don't bring the state along: only a rewind that needs neither is left.
    bool expected = kept.has_state ? target == to : target == offset && target == from;
    if (GetParam().has_rows && offset < from) expected = false;
    ASSERT_EQ(cache_->restore(kept.snapshot.get(), target), expected) << from << " " << to << " " << target;
    if (expected && kept.has_state) tokens_ = kept.tokens;
  }

  void split() {
    if (kept_.empty()) return;
    const auto index = kept_.begin() + pick(static_cast<int>(kept_.size()));
    Kept kept = std::move(*index);
    kept_.erase(index);
    const int from = kept.snapshot->from();
    const int to = kept.snapshot->to();
    const int at = pick(to + 2);
    SnapshotPair pair = cache_->split(std::move(kept.snapshot), at);
    const bool is_inside = at > from && at < to;
    ASSERT_EQ(pair.parent != nullptr, at >= to || (is_inside && GetParam().has_rows));
    ASSERT_EQ(pair.child != nullptr, at < to);
    if (pair.parent && pair.child && pick(2) == 0) {
      keep(cache_->merge(std::move(pair.parent), std::move(pair.child)), kept.tokens, kept.has_state);
      return;
    }
    keep(std::move(pair.parent), at >= to ? kept.tokens : prefix(kept.tokens, at), at >= to && kept.has_state);
    keep(std::move(pair.child), kept.tokens, kept.has_state);
  }

  void change_carrier() {
    switch (pick(3)) {
      case 0:
        cache_ = cache_->copy();
        break;
      case 1: {
        auto other = GetParam().make();
        other->set_state(cache_->state(), cache_->meta_state());
        cache_ = std::move(other);
        break;
      }
      default:
        cache_->free();
        tokens_.clear();
    }
  }

  std::unique_ptr<LayerCache> cache_ = GetParam().make();
  Tokens tokens_;
  std::vector<Kept> kept_;
  std::mt19937 random_;
};

TEST_P(RandomOperations, AgreeWithAListOfTokens) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  random_.seed(seed);
  for (int step = 0; step < 1500 && !HasFailure(); ++step) {
    switch (pick(9)) {
      case 0:
      case 1:
      case 2:
        add_tokens();
        break;
      case 3:
        take_snapshot();
        break;
      case 4:
        rewind();
        break;
      case 5:
      case 6:
        restore();
        break;
      case 7:
        split();
        break;
      default:
        if (pick(4) == 0) change_carrier();
    }
    if (HasFatalFailure()) return;
    ASSERT_EQ(cache_->offset(), static_cast<int>(tokens_.size())) << "step " << step;
    expect_any_holds(*cache_, tokens_);
  }
}

// The rows of one path beside the state of another.
TEST(CacheList, RefusesRowsWithoutTheirStateAlsoAtThePresentOffset) {
  const auto list = hybrid();
  feed_any(*list, range(1, 11), 10);
  const SnapshotPair halves = list->split(list->snapshot(0), 6);
  const auto other = hybrid();
  feed_any(*other, range(101, 107), 6);
  EXPECT_FALSE(other->restore(halves.parent.get(), 6));
  expect_any_holds(*other, range(101, 107));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RandomOperations, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
