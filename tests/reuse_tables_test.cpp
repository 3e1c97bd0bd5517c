// The tables of ollama's kvcache/recurrent_checkpoints_test.go and of CountCommon and FindCacheSlot in its
// runner/ollamarunner/cache_test.go (at 9db4bdbad^), by what does their work here: one trie for all sequences, where
// they have slots with a ring of checkpoints each. A checkpoint "at position p" there has taken in the tokens 0 to p:
// its offset here is p + 1.
//
// The rest of these tables: states of a wrong shape (RecurrentCache.RefusesWhatDoesNotFitAndStaysAsItWas),
// ShiftDiscard, ShiftCacheSlot and LoadCacheSlot (cells_model_test.cpp), no slot that is free
// (Planner.RefusesWhatCanNeverRun and the scheduler's full queue).

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/prefix_fakes.h"

namespace memoir::prefix {
namespace {

constexpr Needs kStateAlone{.rows = false, .checkpoint = true};
constexpr LookupOptions kAll{.n_left = 0};

// A recurrent model's states of the text 0, 1, 2, ...
class Checkpoints {
 public:
  explicit Checkpoints(const std::vector<int>& positions = {}) {
    for (const int position : positions) record(position);
  }

  void record(int position) {
    const Keys keys = first_of(text, position + 1);
    Insertion insertion;
    insertion.keys = keys;
    insertion.checkpoint = std::make_unique<FakeCheckpoint>(world_, keys);
    EXPECT_TRUE(trie_.insert(std::move(insertion)));
    EXPECT_EQ(trie_.check(), "");
  }

  // The position of the best one among the first `target` tokens of a text.
  std::optional<int> best(int target) { return best(text, target); }
  std::optional<int> best(const Keys& of, int target) {
    const int offset = trie_.lookup(first_of(of, target), kStateAlone, kAll).restorable.offset;
    return offset == 0 ? std::nullopt : std::optional(offset - 1);
  }

  void forget(int position) { EXPECT_TRUE(trie_.drop_checkpoint(node_at(position))); }
  void forget_from(int position) { EXPECT_TRUE(trie_.remove(node_at(position))); }

  const Keys text = range_keys(0, 60);

 private:
  Node& node_at(int position) { return *trie_.lookup(first_of(text, position + 1), kStateAlone, kAll).restorable.node; }

  FakeWorld world_;
  Trie trie_;
};

TEST(CheckpointTable, BestIndex) {
  Checkpoints checkpoints({10, 20});
  EXPECT_EQ(checkpoints.best(15), 10);
  checkpoints.forget(10);  // the ring of two does so for 30
  checkpoints.record(30);
  EXPECT_EQ(checkpoints.best(15), std::nullopt);
  EXPECT_EQ(checkpoints.best(40), 30);
}

TEST(CheckpointTable, PrepareRestore) {
  Checkpoints checkpoints({5, 9, 15});
  EXPECT_EQ(checkpoints.best(12), 9);  // so 10 tokens are restored
}

// Another text behind position 20 has the states up to there; nothing is lost for the first one until it is dropped.
TEST(CheckpointTable, PruneAfter) {
  Checkpoints checkpoints({10, 20, 30});
  const Keys other = joined(first_of(checkpoints.text, 21), range_keys(100, 120));
  EXPECT_EQ(checkpoints.best(other, 25), 20);
  EXPECT_EQ(checkpoints.best(other, 35), 20);
  EXPECT_EQ(checkpoints.best(35), 30);
  checkpoints.forget_from(30);
  EXPECT_EQ(checkpoints.best(25), 20);
  EXPECT_EQ(checkpoints.best(35), 20);
}

TEST(CheckpointTable, PruneAfterAll) {
  Checkpoints checkpoints({10, 20, 30});
  EXPECT_EQ(checkpoints.best(joined(first_of(checkpoints.text, 6), range_keys(100, 150)), 40), std::nullopt);
  checkpoints.forget_from(10);
  EXPECT_EQ(checkpoints.best(60), std::nullopt);
}

// A state has taken in every token before it, so that of a text without some of them is another one. The reference
// brings the checkpoints 1, 4, 7, 10 to 1, 3, 6 when [2, 6) goes; here the one before the removed part is all there is,
// and a context with such layers doesn't shift (ContextShift.IsRefusedByNameWhereAStateHasNoPositions).
TEST(CheckpointTable, ShiftRangeAndRemoveMiddle) {
  Checkpoints checkpoints({1, 4, 7, 10});
  const Keys rest = joined(first_of(checkpoints.text, 2), range_keys(6, 60));
  EXPECT_EQ(checkpoints.best(rest, 20), 1);
}

TEST(CheckpointTable, RingBufferWrapAround) {
  Checkpoints checkpoints({10, 20, 30});
  checkpoints.forget(10);
  checkpoints.record(40);
  EXPECT_EQ(checkpoints.best(15), std::nullopt);
  EXPECT_EQ(checkpoints.best(25), 20);
  EXPECT_EQ(checkpoints.best(35), 30);
  EXPECT_EQ(checkpoints.best(45), 40);
}

TEST(CheckpointTable, FullCapacity) {
  Checkpoints checkpoints({10, 20});
  EXPECT_EQ(checkpoints.best(15), 10);
  EXPECT_EQ(checkpoints.best(25), 20);
}

TEST(CheckpointTable, EmptyBuffer) {
  EXPECT_EQ(Checkpoints().best(15), std::nullopt);
}

// RestoreRejectsIncompleteCheckpoint and RestoreAcceptsCompleteCheckpoint: rows without the state of the layers beside
// them restore nothing.
TEST(CheckpointTable, RestoreWantsEveryLayersPart) {
  const Needs both{.rows = true, .checkpoint = true};
  FakeWorld world;
  Trie trie;
  const Keys keys = range_keys(0, 10);
  const auto insert = [&](bool is_complete) {
    Insertion insertion;
    insertion.keys = keys;
    insertion.rows = std::make_unique<FakeRows>(world, keys, 0);
    if (is_complete) insertion.checkpoint = std::make_unique<FakeCheckpoint>(world, keys);
    trie.insert(std::move(insertion));
  };
  insert(false);
  EXPECT_EQ(trie.lookup(keys, both, kAll).restorable.offset, 0);
  insert(true);
  EXPECT_EQ(trie.lookup(keys, both, kAll).restorable.offset, 10);
}

// ---- Sequences that begin alike

int n_common(const std::vector<Keys>& known, const Keys& prompt, std::size_t n_running = 0) {
  constexpr Needs kRowsAlone{};
  FakeWorld world;
  Trie trie;
  std::vector<Pin> pins;
  for (const Keys& keys : known) {
    if (keys.empty()) continue;
    Insertion insertion;
    insertion.keys = keys;
    insertion.rows = std::make_unique<FakeRows>(world, keys, 0);
    const auto position = trie.insert(std::move(insertion));
    EXPECT_TRUE(position);
    if (pins.size() < n_running) pins.push_back(trie.pin(*position));
  }
  const Match match = trie.lookup(prompt, kRowsAlone, kAll);
  EXPECT_EQ(match.restorable.offset, match.matched);
  return match.matched;
}

TEST(CountCommonTable, TokensAndImages) {
  const Key image = media_key(1, 0);
  const Key other = media_key(2, 0);
  EXPECT_EQ(n_common({{1, 2, 3}}, {1, 2, 3}), 3);       // equal
  EXPECT_EQ(n_common({{1}}, {1, 2, 3}), 1);             // prefix
  EXPECT_EQ(n_common({{image}}, {image, other}), 1);    // image prefix
  EXPECT_EQ(n_common({{1, image}}, {1, image, 5}), 2);  // mixed
  EXPECT_EQ(n_common({{1, image}}, {1, other}), 1);     // of the same length, another hash
  EXPECT_EQ(n_common({{}}, {1, 2, 3}), 0);              // empty
  EXPECT_EQ(n_common({{}}, {}), 0);                     // both
}

// The longest of both columns: a prompt is never moved into another sequence's slot, and one that runs gives its
// beginning to others as well.
TEST(FindCacheSlotTable, TheLongestBeginningOfAnySequence) {
  EXPECT_EQ(n_common({{}, {}}, {1}), 0);             // Empty
  EXPECT_EQ(n_common({{1}, {1, 2}}, {1, 2}), 2);     // Extend
  EXPECT_EQ(n_common({{1, 2}, {}}, {2}), 0);         // New
  EXPECT_EQ(n_common({{1, 2}, {}}, {1}), 1);         // Fork
  EXPECT_EQ(n_common({{1}, {1, 2}}, {2, 3}), 0);     // Evict
  EXPECT_EQ(n_common({{1, 2}, {1}}, {1, 2}, 1), 2);  // In use
}

}  // namespace
}  // namespace memoir::prefix
