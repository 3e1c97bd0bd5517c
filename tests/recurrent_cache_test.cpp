// RecurrentCache: the tables of the reference (the runner's cache tests 4.3 and 4.4) and what it refuses.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cache/arrays.h"
#include "memoir/cache/recurrent.h"
#include "memoir/kernels/gated_delta.h"
#include "memoir/kernels/short_convolution.h"
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

TEST(RecurrentCache, IsEmptyAtFirst) {
  RecurrentCache cache(kShape);
  EXPECT_EQ(cache.kind(), "RecurrentCache");
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_EQ(cache.size_bytes(), 0U);
  EXPECT_TRUE(cache.state().empty());
  EXPECT_EQ(cache.snapshot(0), nullptr);
  EXPECT_FALSE(cache.is_trimmable());
  EXPECT_TRUE(cache.can_rewind(0));
  cache.free();
}

// 4.4 RecurrentCacheGetLazyInit.
TEST(RecurrentCache, StatesAreZerosAtFirstUse) {
  RecurrentCache cache(kShape);
  const RecurrentState states = cache.get(2, mx::bfloat16);
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_TRUE(is_equal(states.tail, mx::zeros({2, 3, 4}, mx::bfloat16)));
  EXPECT_TRUE(is_equal(states.state, mx::zeros({2, 2, 3, 5}, mx::float32)));
  EXPECT_EQ(cache.size_bytes(), 2U * (3 * 4 * 2 + 2 * 3 * 5 * 4));
}

TEST(RecurrentCache, StatesAreMadeAnewForAnotherBatchOrType) {
  for (const auto& [n_sequences, dtype] : {std::pair(2, mx::float32), std::pair(1, mx::float16)}) {
    RecurrentCache cache(kShape);
    feed(cache, range(1, 6), 5);
    const RecurrentState states = cache.get(n_sequences, dtype);
    EXPECT_EQ(cache.offset(), 0);
    EXPECT_TRUE(is_equal(states.tail, mx::zeros({n_sequences, 3, 4}, dtype)));
    EXPECT_TRUE(is_equal(states.state, mx::zeros({n_sequences, 2, 3, 5})));
  }
}

TEST(RecurrentCache, KeepsATailOrAStateAlone) {
  RecurrentCache tail({.tail_tokens = 2, .tail_channels = 6});
  EXPECT_FALSE(tail.get(1, mx::float16).state.has_value());
  tail.put({.tail = mx::ones({1, 2, 6}, mx::float16)}, 4);
  EXPECT_EQ(tail.state().size(), 1U);
  RecurrentCache state({.state = {8, 16}});
  EXPECT_FALSE(state.get(1, mx::float16).tail.has_value());
  state.put({.state = mx::ones({1, 8, 16})}, 4);
  EXPECT_EQ(state.state().size(), 1U);
  EXPECT_TRUE(is_equal(state.get(1, mx::bfloat16).state, mx::ones({1, 8, 16})));  // the tail's type alone matters
}

// 4.4 RecurrentCachePutAdvances.
TEST(RecurrentCache, PutAdvancesByTheRealTokens) {
  RecurrentCache cache(kShape);
  cache.get(1, mx::float32);
  cache.put(states_after({1, 2}), 2);
  expect_holds(cache, {1, 2});
}

// 4.4 RecurrentCacheRestoreExactOffset.
TEST(RecurrentCache, RestoresExactOffsetsAlone) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 16);
  feed(cache, tokens, 10);
  const auto snapshot = cache.snapshot(0);
  feed(cache, tokens, 5);
  EXPECT_FALSE(cache.restore(snapshot.get(), 5));
  EXPECT_FALSE(cache.restore(snapshot.get(), 15));
  EXPECT_FALSE(cache.restore(nullptr, 14));
  EXPECT_FALSE(cache.restore(nullptr, 0));
  EXPECT_FALSE(cache.restore(nullptr, 16));
  EXPECT_FALSE(cache.restore(nullptr, -1));
  expect_holds(cache, tokens);
  EXPECT_TRUE(cache.restore(nullptr, 15));
  EXPECT_TRUE(cache.restore(snapshot.get(), 10));
  expect_holds(cache, prefix(tokens, 10));
  RecurrentCache fresh(kShape);
  EXPECT_TRUE(fresh.restore(snapshot.get(), 10));
  expect_holds(fresh, prefix(tokens, 10));
}

// 4.4 RecurrentCachePaddedRoundTrip, exact: 4 columns, 2 real tokens, the padding holds 99.
TEST(RecurrentCache, PaddedTokensLeaveTheStatesOfTheRealOnes) {
  mx::random::seed(1);
  const mx::array x = mx::random::normal({1, 2, 24});
  const mx::array padded = mx::concatenate({x, mx::full({1, 2, 24}, 99.0F)}, 1);
  const kernels::ShortConvolution convolution{mx::random::normal({4, 24})};
  const auto run = [&](RecurrentCache& cache, const mx::array& input, const kernels::RecurrenceOptions& options) {
    const int n = input.shape(1);
    const RecurrentState before = cache.get(1, mx::float32);
    const kernels::Recurrence conv = kernels::short_convolution(input, convolution, before.tail, options);
    const mx::array heads = mx::reshape(conv.y, {1, n, 2, 12});
    const mx::array gates = mx::full({1, n, 2}, -0.5F);
    const kernels::Recurrence delta = kernels::gated_delta(
        {heads, heads, heads, gates, mx::negative(gates), before.state, std::nullopt, true}, options);
    cache.put({conv.state, delta.state}, 2);
  };
  const RecurrentShape shape{.tail_tokens = 3, .tail_channels = 24, .state = {2, 12, 12}};
  RecurrentCache plain(shape);
  RecurrentCache with_padding(shape);
  for (int turn = 0; turn < 3; ++turn) {
    run(plain, x, {});
    run(with_padding, padded, {.spans = {{0, 2}}});
  }
  EXPECT_EQ(with_padding.offset(), 6);
  EXPECT_TRUE(is_equal(with_padding.state()[0], plain.state()[0]));
  EXPECT_TRUE(is_equal(with_padding.state()[1], plain.state()[1]));
}

// 4.3 RecurrentSnapshotSplitsAndSegmentedCapture.
TEST(RecurrentCache, CapturesTheStatesInsideAForwardPass) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 10);
  feed(cache, tokens, 5);
  cache.capture_at({5, 6, 7, 8});
  EXPECT_EQ(cache.capture_steps(4), (std::vector<int>{1, 2, 3}));
  feed(cache, tokens, 4);
  expect_holds(cache, tokens);
  const auto snapshots = cache.take_captured();
  ASSERT_EQ(snapshots.size(), 4U);
  for (const int a : {2, 0, 3, 1}) {
    const Snapshot* snapshot = snapshots[static_cast<std::size_t>(a)].get();
    ASSERT_NE(snapshot, nullptr);
    EXPECT_EQ(snapshot->to(), 5 + a);
    EXPECT_EQ(snapshot->from(), a == 0 ? 0 : 4 + a);
    ASSERT_TRUE(cache.restore(snapshot, 5 + a));
    expect_holds(cache, prefix(tokens, 5 + a));
  }
  EXPECT_TRUE(cache.take_captured().empty());
}

// As 4.3 PerTokenSnapshotPersistsAcrossWrites: the asking outlives a write, and each is taken however tokens are cut.
TEST(RecurrentCache, CapturesAcrossSeveralForwardPasses) {
  const Tokens tokens = range(1, 10);
  for (const int cut : {1, 2, 3}) {
    RecurrentCache cache(kShape);
    cache.capture_at({0, 2, 3, 6, 8});
    while (cache.offset() < 7) feed(cache, tokens, std::min(cut, 7 - cache.offset()));
    const auto snapshots = cache.take_captured();
    ASSERT_EQ(snapshots.size(), 5U);
    EXPECT_EQ(snapshots[0], nullptr);  // nothing is stored at offset 0
    EXPECT_EQ(snapshots[4], nullptr);  // never reached
    for (const std::size_t i : {1U, 2U, 3U}) {
      const int offset = std::vector<int>{0, 2, 3, 6}[i];
      ASSERT_NE(snapshots[i], nullptr);
      ASSERT_TRUE(cache.restore(snapshots[i].get(), offset));
      expect_holds(cache, prefix(tokens, offset));
    }
  }
}

// 4.3 PrepareSnapshotsPastOffsetPanics, and the other panics of the schedule.
TEST(RecurrentCache, RefusesToCaptureWhatHasPassedOrIsOutOfOrder) {
  RecurrentCache cache(kShape);
  feed(cache, range(1, 6), 5);
  expect_refused([&] { cache.capture_at({3}); }, "offset 3");
  expect_refused([&] { cache.capture_at({7, 6}); }, "offset 6 follows 7");
  expect_refused([&] { cache.capture_at({6, 6}); }, "offset 6 follows 6");
  cache.capture_at({6});
  expect_refused([&] { cache.capture_at({7}); }, "have not been taken");
  EXPECT_EQ(cache.take_captured().size(), 1U);
  cache.capture_at({7});
}

TEST(RecurrentCache, SnapshotsHoldTheStatesThatWereThere) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 9);
  feed(cache, tokens, 4);
  EXPECT_EQ(cache.snapshot(4), nullptr);
  const auto snapshot = cache.snapshot(2);
  EXPECT_EQ(snapshot->from(), 2);
  EXPECT_EQ(snapshot->to(), 4);
  EXPECT_FALSE(snapshot->is_lazy());
  EXPECT_EQ(snapshot->size_bytes(), sizeof(float) * (3 * 4 + 2 * 3 * 5));
  feed(cache, tokens, 4);
  cache.free();
  EXPECT_EQ(cache.size_bytes(), 0U);
  ASSERT_TRUE(cache.restore(snapshot.get(), 4));
  expect_holds(cache, prefix(tokens, 4));
}

// A tail that is cut from a forward pass's inputs is copied, so that these can go.
TEST(RecurrentCache, ATailDoesNotHoldItsForwardPass) {
  RecurrentCache cache({.tail_tokens = 3, .tail_channels = 256});
  std::unique_ptr<Snapshot> snapshot;
  const std::size_t before = mx::get_active_memory();
  {
    const mx::array x = mx::add(mx::ones({1, 2000, 256}), mx::array(1.0F));  // 2 MB
    cache.get(1, mx::float32);
    cache.put({.tail = mx::slice(x, {0, 1997, 0}, {1, 2000, 256})}, 2000);
    snapshot = cache.snapshot(0);
    cache.materialize();
  }
  mx::synchronize();
  EXPECT_LT(mx::get_active_memory() - before, 64U << 10);
}

// ---- Replays

TEST(RecurrentCache, WantsAReplayInATransactionAlone) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 10);
  feed(cache, tokens, 2);
  EXPECT_FALSE(cache.wants_replay(4, 0));
  cache.begin(4, InsideStates::kReplayed);
  EXPECT_TRUE(cache.wants_replay(4, 1U << 30));
  EXPECT_FALSE(cache.wants_replay(1, 0));  // nothing lies inside
  EXPECT_EQ(cache.capture_steps(4, true), std::vector<int>{});
  EXPECT_EQ(cache.capture_steps(4), (std::vector<int>{1, 2, 3}));  // of a layer that has none
  cache.roll_back();
  cache.begin(4, InsideStates::kCaptured);
  EXPECT_FALSE(cache.wants_replay(4, 0));
}

// By the formula of is_replay_cheaper().
TEST(RecurrentCache, ReplaysLargeStatesOfSeveralTokens) {
  constexpr std::size_t kLarge = 2U << 20;  // Qwen3-Next's, of a layer
  constexpr std::size_t kInputs = 9 * 70'000;
  EXPECT_FALSE(is_replay_cheaper(1, kLarge, kInputs));
  EXPECT_TRUE(is_replay_cheaper(2, kLarge, kInputs));
  EXPECT_TRUE(is_replay_cheaper(9, kLarge, kInputs));
  EXPECT_FALSE(is_replay_cheaper(2, 50'000, 1'000));
  EXPECT_TRUE(is_replay_cheaper(4, 50'000, 1'000));
  EXPECT_FALSE(is_replay_cheaper(9, 2'000, 1'000));
  EXPECT_FALSE(is_replay_cheaper(9, kLarge, 20 * kLarge));
  RecurrentCache large({.state = {32, 128, 128}});
  large.get(1, mx::float32);
  large.begin(9);
  EXPECT_TRUE(large.wants_replay(9, kInputs));
  EXPECT_FALSE(large.wants_replay(1, kInputs));
}

TEST(RecurrentCache, ReplaysOnlyWhereSomeOfAPassIsTakenBack) {
  const Tokens tokens = range(1, 12);
  for (const int n_kept : {0, 1, 3, 4}) {
    RecurrentCache cache(kShape);
    feed(cache, tokens, 2);
    cache.begin(4, InsideStates::kReplayed);
    int n_replays = 0;
    cache.put(states_after(prefix(tokens, 6)), 4, {}, [&](const RecurrentState& before, int n) {
      ++n_replays;
      return memoir::test::replay_of(prefix(tokens, 6), 2)(before, n);
    });
    cache.commit(n_kept);
    EXPECT_EQ(n_replays, n_kept == 1 || n_kept == 3 ? 1 : 0) << n_kept;
    expect_holds(cache, prefix(tokens, 2 + n_kept));
  }
}

TEST(RecurrentCache, RefusesAReplayThatGivesOtherStates) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 7);
  cache.begin(6, InsideStates::kReplayed);
  feed(cache, tokens, 2);
  expect_refused(
      [&] {
        cache.put(states_after(tokens), 4, {states_after(tokens)},
                  [](const RecurrentState& state, int) { return state; });
      },
      "1 captured states for 0 steps");
  cache.put(states_after(tokens), 4, {}, [](const RecurrentState&, int) { return RecurrentState{}; });
  expect_refused([&] { cache.commit(3); }, "[cache.replay]");
  expect_holds(cache, tokens);
  EXPECT_TRUE(cache.is_in_transaction());
  cache.commit(2);
  expect_holds(cache, prefix(tokens, 2));
}

// What the cache holds on to while a pass is open: with a replay two states, else one for each token.
TEST(RecurrentCache, AReplayHoldsNoStatesInside) {
  constexpr std::size_t kStateBytes = sizeof(float) * 8 * 64 * 64;
  const auto bytes_held = [](InsideStates inside) {
    RecurrentCache cache({.state = {8, 64, 64}});
    cache.get(1, mx::float32);
    const auto state = [](int i) { return RecurrentState{.state = mx::full({1, 8, 64, 64}, static_cast<float>(i))}; };
    const std::size_t before = mx::get_active_memory();
    cache.put(state(1), 1);
    cache.begin(8, inside);
    std::vector<RecurrentState> captured;
    const bool has_replay = cache.wants_replay(8, 0);
    for (const int step : cache.capture_steps(8, has_replay)) {
      captured.push_back(state(step));
      mx::eval(*captured.back().state);
    }
    cache.put(state(9), 8, captured, has_replay ? [](const RecurrentState& s, int) { return s; } : StateReplay{});
    captured.clear();
    cache.materialize();
    mx::synchronize();
    return mx::get_active_memory() - before;
  };
  EXPECT_GE(bytes_held(InsideStates::kCaptured), 8 * kStateBytes);
  EXPECT_LT(bytes_held(InsideStates::kReplayed), 3 * kStateBytes);
}

TEST(RecurrentCache, SplitGivesTheWholeStateToTheLaterHalf) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 11);
  feed(cache, tokens, 10);
  SnapshotPair halves = cache.split(cache.snapshot(0), 6);
  EXPECT_EQ(halves.parent, nullptr);
  ASSERT_NE(halves.child, nullptr);
  EXPECT_EQ(halves.child->from(), 6);
  ASSERT_TRUE(cache.restore(halves.child.get(), 10));
  expect_holds(cache, tokens);
  SnapshotPair front = cache.split(std::move(halves.child), 2);
  EXPECT_EQ(front.parent, nullptr);
  EXPECT_EQ(front.child->from(), 6);
  SnapshotPair behind = cache.split(std::move(front.child), 10);
  EXPECT_EQ(behind.child, nullptr);
  EXPECT_EQ(behind.parent->to(), 10);
  SnapshotPair none = cache.split(nullptr, 3);
  EXPECT_EQ(none.parent, nullptr);
  EXPECT_EQ(none.child, nullptr);
}

TEST(RecurrentCache, MergeGivesTheLaterState) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 11);
  feed(cache, tokens, 4);
  auto earlier = cache.snapshot(0);
  feed(cache, tokens, 6);
  auto merged = cache.merge(std::move(earlier), cache.snapshot(4));
  EXPECT_EQ(merged->from(), 0);
  EXPECT_EQ(merged->to(), 10);
  cache.free();
  ASSERT_TRUE(cache.restore(merged.get(), 10));
  expect_holds(cache, tokens);
  EXPECT_EQ(cache.merge(nullptr, cache.snapshot(4))->from(), 4);
  EXPECT_EQ(cache.merge(cache.snapshot(4), nullptr), nullptr);
  expect_refused([&] { cache.merge(cache.snapshot(0), cache.snapshot(5)); }, "expected them to meet");
}

TEST(RecurrentCache, StateAndNumbersBringItBack) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 8);
  feed(cache, tokens, 7);
  RecurrentCache other(kShape);
  other.set_state(cache.state(), cache.meta_state());
  expect_holds(other, tokens);
  other.set_state({}, {"0"});
  EXPECT_TRUE(other.is_empty());
}

TEST(RecurrentCache, ACopyGoesItsOwnWay) {
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 8);
  feed(cache, tokens, 4);
  const auto copy = cache.copy();
  feed(cache, tokens, 3);
  expect_holds(dynamic_cast<RecurrentCache&>(*copy), prefix(tokens, 4));
  expect_holds(cache, tokens);
}

TEST(RecurrentCache, RefusesWhatDoesNotFitAndStaysAsItWas) {
  expect_refused([] { RecurrentCache cache({}); }, "[cache.RecurrentCache]");
  expect_refused([] { RecurrentCache cache({.tail_tokens = 3}); }, "[cache.RecurrentCache]");
  expect_refused([] { RecurrentCache cache({.state = {3, 0}}); }, "[cache.RecurrentCache]");
  RecurrentCache cache(kShape);
  const Tokens tokens = range(1, 6);
  feed(cache, tokens, 5);
  const RecurrentState next = states_after(range(1, 7));
  const auto with = [&](std::optional<mx::array> tail, std::optional<mx::array> state) {
    return RecurrentState{std::move(tail), std::move(state)};
  };
  expect_refused([&] { cache.get(0, mx::float32); }, "[cache.get] 0 sequences");
  expect_refused([&] { cache.get(1, mx::int32); }, "int32");
  expect_refused([&] { cache.put(next, 0); }, "n_tokens is 0");
  expect_refused([&] { cache.put(with(mx::zeros({1, 2, 4}), next.state), 1); }, "[cache.put] tail (1,2,4)");
  expect_refused([&] { cache.put(with(next.tail, mx::zeros({1, 2, 5, 3})), 1); }, "state (1,2,5,3)");
  expect_refused([&] { cache.put(with(next.tail, mx::astype(*next.state, mx::float16)), 1); }, "float16");
  expect_refused([&] { cache.put(with(next.tail, std::nullopt), 1); }, "state none");
  expect_refused([&] { cache.put(states_after(tokens, 2), 1); }, "as get() gave them");
  expect_refused([&] { cache.put(states_after(tokens, 1, mx::float16), 1); }, "as get() gave them");
  expect_refused([&] { cache.put(next, 1, {next}); }, "1 captured states for 0 steps");
  expect_refused([&] { cache.trim(-1); }, "n_tokens is -1");
  EXPECT_EQ(cache.trim(3), 0);
  expect_refused([&] { cache.set_state(cache.state(), {}); }, "the offset");
  expect_refused([&] { cache.set_state(cache.state(), {"5x"}); }, "the offset");
  expect_refused([&] { cache.set_state(cache.state(), {"1073741825"}); }, "from 0 to 2^30");
  expect_refused([&] { cache.put(next, (1 << 30) - 4); }, "would pass 2^30");
  expect_refused([&] { cache.set_state({*next.tail}, {"5"}); }, "1 arrays at offset 5");
  expect_refused([&] { cache.set_state(cache.state(), {"0"}); }, "at offset 0");
  ArraysCache arrays(2);
  arrays.set_slot(0, mx::ones({1, 3}));
  arrays.advance(5);
  expect_refused([&] { cache.restore(arrays.snapshot(0).get(), 5); }, "of a ArraysCache");
  expect_refused([&] { cache.merge(arrays.snapshot(0), nullptr); }, "[cache.merge]");
  expect_refused([&] { cache.split(arrays.snapshot(0), 2); }, "[cache.split]");
  RecurrentCache narrow({.tail_tokens = 3, .tail_channels = 2, .state = {2, 3, 5}});
  expect_refused([&] { narrow.restore(cache.snapshot(0).get(), 5); }, "other shapes");
  expect_holds(cache, tokens);
}

// A padding of other sequences than the states' would be read out of its bounds.
TEST(RecurrentCache, StatesAndPaddingAreOfOneBatch) {
  RecurrentCache cache(kShape);
  cache.pad_left({3});
  expect_refused([&] { cache.put(states_after(range(1, 3), 2), 2); }, "expected 1, as the padding has");
  RecurrentCache got(kShape);
  got.get(2, mx::float32);
  got.pad_left({3});
  EXPECT_EQ(got.batch_size(), 1);
  expect_refused([&] { got.filter({1}); }, "sequence 1 of 1");
  EXPECT_TRUE(is_equal(got.get(1, mx::float32).tail, mx::zeros({1, 3, 4})));
  EXPECT_EQ(got.padding().left(), std::vector<int>{3});
  RecurrentCache captured(kShape);
  captured.capture_at({1});
  expect_refused([&] { captured.put(states_after(range(1, 3), 2), 2, {states_after(range(1, 2), 1)}); },
                 "of another batch");
}

TEST(RecurrentCache, ExtendedByItselfHasEachSequenceTwice) {
  RecurrentCache cache(kShape);
  cache.pad_left({1, 0});
  cache.put(states_after(range(1, 4), 2), 3);
  cache.extend(cache);
  EXPECT_EQ(cache.batch_size(), 4);
  EXPECT_EQ(cache.padding().offsets(), (std::vector<int>{2, 3, 2, 3}));
}

// Padding in a transaction could not be taken back with it.
TEST(RecurrentCache, RefusesPaddingInATransaction) {
  RecurrentCache cache(kShape);
  cache.begin(2);
  expect_refused([&] { cache.pad_left({1}); }, "a transaction is open");
  expect_refused([&] { cache.prepare({1}); }, "a transaction is open");
  EXPECT_TRUE(cache.padding().is_even());
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
