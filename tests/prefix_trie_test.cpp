#include "memoir/prefix/trie.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memoir/prefix/keys.h"
#include "prefix_fakes.h"

namespace memoir::prefix {
namespace {

constexpr Needs kRowsOnly = {true, false};
constexpr Needs kHybrid = {true, true};
constexpr Needs kRecurrent = {false, true};

std::optional<Position> put(Trie& trie, FakeWorld& world, const Keys& keys, int rows_from = 0,
                            bool checkpoint = false) {
  Insertion insertion;
  insertion.keys = keys;
  if (rows_from >= 0) insertion.rows = std::make_unique<FakeRows>(world, keys, rows_from);
  if (checkpoint) insertion.checkpoint = std::make_unique<FakeCheckpoint>(world, keys);
  const auto position = trie.insert(std::move(insertion));
  EXPECT_EQ(trie.check(), "");
  return position;
}

int matched(Trie& trie, const Keys& keys) {
  return trie.lookup(keys, kRowsOnly).matched;
}

// ---- Keys

TEST(PrefixKeys, TokensMediaAndPairsAreTold) {
  const std::vector<TokenId> tokens = {5, 0, 7};
  EXPECT_EQ(token_keys(tokens), (Keys{5, 0, 7}));
  EXPECT_EQ(pair_keys(token_keys(tokens)), (Keys{Key{5} << 32, 7}));  // t[i] << 32 | t[i + 1], as in ollama's trie
  EXPECT_TRUE(pair_keys(Keys{5}).empty());
  EXPECT_TRUE(pair_keys(Keys{}).empty());
  const std::vector<TokenId> negative = {-1};
  EXPECT_THROW(token_keys(negative), std::invalid_argument);
}

TEST(PrefixKeys, MediaNeverEqualTokensAndDependOnContentAndPlace) {
  const Keys image = {media_key(900, 0), media_key(900, 1), media_key(901, 0)};
  EXPECT_EQ(std::set<Key>(image.begin(), image.end()).size(), 3U);
  for (const Key key : image) EXPECT_EQ(key >> 63, 1U);
  EXPECT_EQ(media_key(900, 1), image[1]);
}

// Two images in the same place of one text, 3 positions each: pairs agree below the position before the image.
TEST(PrefixKeys, PairsDivergeOnePositionBeforeTheMediaDoes) {
  const auto text = [](std::uint64_t hash) {
    return Keys{1, 2, media_key(hash, 0), media_key(hash, 1), media_key(hash, 2), 3, 4};
  };
  const Keys a = pair_keys(text(900));
  const Keys b = pair_keys(text(901));
  EXPECT_EQ(a[0], b[0]);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_NE(a[i], b[i]) << i;
  EXPECT_EQ(a[5], b[5]);
  EXPECT_EQ(pair_keys(text(900)), a);
}

// ---- Matching: the cases of ollama's cache_trie_test.go (reference, 4.7)

TEST(PrefixTrie, MatchesTheBranchThatFits) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3});
  put(trie, world, {4, 5, 6});
  EXPECT_EQ(matched(trie, {1, 2, 3, 7}), 3);
  EXPECT_EQ(matched(trie, {4, 5, 6, 8}), 3);
  EXPECT_EQ(matched(trie, {7, 8, 9}), 0);
  EXPECT_EQ(matched(trie, {}), 0);
}

TEST(PrefixTrie, MatchesTheLongestOfSeveralContinuations) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 10, 11, 12, 13, 14});
  put(trie, world, {1, 2, 3, 10, 11, 12});
  put(trie, world, {1, 2, 9});
  EXPECT_EQ(matched(trie, {1, 2, 3, 10, 11, 12, 99, 100}), 6);
  EXPECT_EQ(matched(trie, {1, 2, 3, 7, 8}), 3);
  EXPECT_EQ(matched(trie, {1, 2, 9, 9}), 3);
}

TEST(PrefixTrie, SplitsAnEdgeWhereAPromptLeavesIt) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4, 5});
  EXPECT_EQ(trie.n_nodes(), 1U);
  put(trie, world, {1, 2, 3, 6, 7});
  const Node& upper = *trie.root().children().at(1);
  EXPECT_EQ(Keys(upper.keys().begin(), upper.keys().end()), (Keys{1, 2, 3}));
  EXPECT_EQ(trie.root().children().size(), 1U);
  ASSERT_EQ(upper.children().size(), 2U);
  EXPECT_EQ(upper.rows()->to(), 3);
  EXPECT_EQ(upper.children().at(4)->rows()->from(), 3);
  EXPECT_EQ(matched(trie, {1, 2, 3, 4, 5}), 5);
  EXPECT_EQ(matched(trie, {1, 2, 3, 6, 7}), 5);
  EXPECT_EQ(matched(trie, {1, 2, 3, 9, 9}), 3);
}

TEST(PrefixTrie, BranchesAgainAndAgain) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4, 5});
  EXPECT_EQ(matched(trie, {1, 2, 3, 6, 7}), 3);
  put(trie, world, {1, 2, 3, 6, 7});
  EXPECT_EQ(matched(trie, {1, 2, 8, 9}), 2);
  put(trie, world, {1, 2, 8, 9});
  EXPECT_EQ(matched(trie, {1, 2, 3, 4, 5}), 5);
  EXPECT_EQ(matched(trie, {1, 2, 3, 6, 7}), 5);
  EXPECT_EQ(matched(trie, {1, 2, 8, 9}), 4);
}

TEST(PrefixTrie, RemovingABranchJoinsWhatItHadSplit) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4, 5, 6});
  put(trie, world, {1, 2, 3, 9});
  Match match = trie.lookup(Keys{1, 2, 3, 9}, kRowsOnly);
  ASSERT_EQ(match.path.size(), 2U);
  EXPECT_TRUE(trie.remove(*match.path.back()));
  EXPECT_EQ(trie.check(), "");
  EXPECT_EQ(trie.n_nodes(), 1U);
  EXPECT_EQ(trie.root().children().at(1)->rows()->to(), 6);
  EXPECT_EQ(world.n_copied, 0) << "the halves of one buffer are joined without a copy";
  EXPECT_EQ(matched(trie, {1, 2, 3, 4, 5, 6}), 6);
}

TEST(PrefixTrie, RemovingANodeTakesWhatIsBelow) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3}, 0, true);
  put(trie, world, {1, 2, 3, 4}, 3, true);
  put(trie, world, {1, 2, 3, 5}, 3, true);
  put(trie, world, {2}, 0, true);
  EXPECT_TRUE(trie.remove(*trie.lookup(Keys{1, 2, 3}, kRowsOnly).path[0]));
  EXPECT_EQ(trie.n_nodes(), 1U);
  EXPECT_EQ(world.n_live, 2);
  EXPECT_EQ(trie.rows_bytes(), 10U);
  EXPECT_EQ(trie.checkpoint_bytes(), 100U);
  Match root = trie.lookup(Keys{7}, kRowsOnly);
  EXPECT_FALSE(trie.remove(*root.restorable.node)) << "the root stays";
}

TEST(PrefixTrie, PayloadsAreDestroyedWithTheTrie) {
  FakeWorld world;
  {
    Trie trie;
    put(trie, world, {1, 2, 3}, 0, true);
    put(trie, world, {1, 2, 4}, 0, true);
    EXPECT_EQ(world.n_live, 5);
  }
  EXPECT_EQ(world.n_live, 0);
}

// ---- What is stored stays, what is missing is taken

TEST(PrefixTrie, ASecondInsertOfTheSameKeepsTheFirst) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3}, 0, true);
  const Rows* const rows = trie.root().children().at(1)->rows();
  const Checkpoint* const checkpoint = trie.root().children().at(1)->checkpoint();
  put(trie, world, {1, 2, 3}, 0, true);
  EXPECT_EQ(trie.root().children().at(1)->rows(), rows);
  EXPECT_EQ(trie.root().children().at(1)->checkpoint(), checkpoint);
  EXPECT_EQ(world.n_live, 2);
}

TEST(PrefixTrie, ACheckpointWithinAnEdgeSplitsIt) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4});
  put(trie, world, {1, 2}, -1, true);
  EXPECT_EQ(trie.n_nodes(), 2U);
  const Match match = trie.lookup(Keys{1, 2, 3, 4}, kHybrid);
  EXPECT_EQ(match.matched, 4);
  EXPECT_EQ(match.restorable.offset, 2);
}

TEST(PrefixTrie, RowsGivenForAKnownPartAreCutToWhatIsNew) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4});
  put(trie, world, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 2);
  const Match match = trie.lookup(Keys{1, 2, 3, 4, 5, 6, 7, 8, 9}, kRowsOnly, {.n_left = 0});
  EXPECT_EQ(match.restorable.offset, 9);
  put(trie, world, {1, 2}, 1);  // nothing new at all
  EXPECT_EQ(trie.rows_bytes(), 90U);
}

TEST(PrefixTrie, RowsFillNodesThatHaveNone) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4, 5, 6}, -1, true);
  put(trie, world, {1, 2, 3}, -1, true);
  EXPECT_EQ(trie.lookup(Keys{1, 2, 3, 4, 5, 6}, kHybrid).restorable.offset, 0);
  put(trie, world, {1, 2, 3, 4, 5}, 0);  // ends within the second edge, which has to be split
  EXPECT_EQ(trie.lookup(Keys{1, 2, 3, 4, 5, 6}, kHybrid).restorable.offset, 3);
  EXPECT_EQ(trie.lookup(Keys{1, 2, 3, 4, 5, 6}, kRowsOnly, {.n_left = 0}).restorable.offset, 5);
  put(trie, world, {1, 2, 3, 4, 5, 6}, 5);
  EXPECT_EQ(trie.lookup(Keys{1, 2, 3, 4, 5, 6}, kHybrid, {.n_left = 0}).restorable.offset, 6);
}

TEST(PrefixTrie, RowsEndWhereTheFirstNodeWithoutThemBegins) {
  FakeWorld world;
  Trie trie;
  const Keys keys = range_keys(0, 30);
  EXPECT_EQ(trie.rows_end({}, keys).offset, 0);
  put(trie, world, first_of(keys, 10));
  put(trie, world, first_of(keys, 20), -1, true);  // keys alone
  const auto deepest = trie.lookup(keys, kRecurrent).restorable;
  ASSERT_EQ(deepest.offset, 20);
  EXPECT_EQ(trie.rows_end({}, keys).offset, 10);
  EXPECT_EQ(trie.rows_end(deepest, keys).offset, 10);
  EXPECT_EQ(trie.rows_end({}, first_of(keys, 7)).offset, 7);
  EXPECT_EQ(trie.rows_end({}, joined(range_keys(0, 4), {99})).offset, 4);
  EXPECT_THROW(trie.rows_end(deepest, first_of(keys, 7)), std::invalid_argument);
  put(trie, world, keys, 5);
  const auto end = trie.rows_end(trie.lookup(keys, kRowsOnly).restorable, keys);
  EXPECT_EQ(end.offset, 30);
  EXPECT_EQ(end.node->to(), 30);
}

TEST(PrefixTrie, RowsWithNothingAboveThemAreRefused) {
  FakeWorld world;
  Trie trie;
  EXPECT_FALSE(put(trie, world, {1, 2, 3, 4}, 2));
  put(trie, world, {1, 2, 3, 4}, -1, true);
  EXPECT_FALSE(put(trie, world, {1, 2, 3, 4, 5}, 2)) << "keys are there, their rows are not";
  EXPECT_EQ(trie.n_keys(), 4U);
  EXPECT_EQ(world.n_live, 1);
}

TEST(PrefixTrie, RefusesPayloadsThatDontEndWithTheKeys) {
  FakeWorld world;
  Trie trie;
  const Keys keys = {1, 2, 3};
  const Keys two = first_of(keys, 2);
  Insertion rows{.keys = two, .rows = std::make_unique<FakeRows>(world, keys, 0)};
  EXPECT_THROW(trie.insert(std::move(rows)), std::invalid_argument);
  Insertion checkpoint;
  checkpoint.keys = two;
  checkpoint.checkpoint = std::make_unique<FakeCheckpoint>(world, keys);
  EXPECT_THROW(trie.insert(std::move(checkpoint)), std::invalid_argument);
  EXPECT_EQ(trie.n_nodes(), 0U);
  EXPECT_EQ(world.n_live, 0);
  EXPECT_EQ(trie.insert({})->offset, 0);
}

// ---- The deepest offset that can be restored

TEST(PrefixTrie, LeavesOneTokenUnlessAskedOtherwise) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2, 3, 4});
  const Keys keys = {1, 2, 3, 4};
  EXPECT_EQ(trie.lookup(keys, kRowsOnly).restorable.offset, 3);
  EXPECT_EQ(trie.lookup(keys, kRowsOnly).matched, 4);
  EXPECT_EQ(trie.lookup(keys, kRowsOnly, {.n_left = 0}).restorable.offset, 4);
  EXPECT_EQ(trie.lookup(keys, kRowsOnly, {.n_left = 9}).restorable.offset, 0);
  EXPECT_EQ(trie.lookup(keys, kRowsOnly, {.max_offset = 2}).restorable.offset, 2);
  EXPECT_THROW(trie.lookup(keys, kRowsOnly, {.n_left = -1}), std::invalid_argument);
}

TEST(PrefixTrie, NeedsTellsWhichStateCounts) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2}, 0, true);
  put(trie, world, {1, 2, 3, 4}, 2, false);
  put(trie, world, {1, 2, 3, 4, 5, 6}, -1, true);
  const Keys keys = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(trie.lookup(keys, kRowsOnly).restorable.offset, 4);
  EXPECT_EQ(trie.lookup(keys, kHybrid).restorable.offset, 2);
  EXPECT_EQ(trie.lookup(keys, kRecurrent).restorable.offset, 6);
  EXPECT_EQ(trie.lookup(keys, [](const Node&, int) { return Reach{}; }).restorable.offset, 0);
  EXPECT_THROW(trie.lookup(keys, [](const Node&, int limit) { return Reach{limit + 1, true}; }), std::invalid_argument);
}

// A recurrent state is exact; that of a ring goes back by its slack, also for a branch that is split off later.
TEST(PrefixTrie, ACheckpointServesAsFarBackAsItCanRewind) {
  FakeWorld world;
  for (const int n_rewind : {0, 4}) {
    Trie trie;
    const Keys a = range_keys(0, 20);
    Insertion insertion{.keys = a};
    insertion.rows = std::make_unique<FakeRows>(world, a, 0);
    insertion.checkpoint = std::make_unique<FakeCheckpoint>(world, a, n_rewind);
    trie.insert(std::move(insertion));
    const Keys b = joined(range_keys(0, 17), {100, 101});
    const Keys far = joined(range_keys(0, 15), {100, 101});
    const int expected = n_rewind == 0 ? 0 : 17;
    EXPECT_EQ(trie.lookup(b, kHybrid).restorable.offset, expected);
    EXPECT_EQ(trie.lookup(far, kHybrid).restorable.offset, 0);
    put(trie, world, b);
    EXPECT_EQ(trie.lookup(joined(range_keys(0, 17), {200}), kHybrid).restorable.offset, expected);
    EXPECT_EQ(trie.checkpoint_bytes(), 100U) << "the view shares the storage and is counted once";
    EXPECT_EQ(trie.check(), "");
  }
}

TEST(PrefixTrie, UseRefreshesNoCheckpointOnTheWay) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2}, 0, true);
  put(trie, world, {1, 2, 3, 4}, 2, true);
  trie.advance_clock(5);
  const Match match = trie.lookup(Keys{1, 2, 3, 4, 5}, kHybrid);
  trie.use(match, 5);
  EXPECT_EQ(match.path[0]->n_hits(), 0U);
  EXPECT_EQ(match.path[0]->clock(), 0);
  EXPECT_EQ(match.path[1]->n_hits(), 1U);
  EXPECT_EQ(match.path[1]->clock(), 5);
  trie.advance_clock(4);
  EXPECT_EQ(trie.clock(), 5);
  trie.use(trie.lookup(Keys{9}, kHybrid), 1);
  EXPECT_EQ(trie.counters().n_lookups, 2U);
  EXPECT_EQ(trie.counters().n_hits, 1U);
  EXPECT_EQ(trie.counters().n_keys_reused, 4U);
  EXPECT_EQ(trie.counters().n_keys_evaluated, 2U);
}

// A lazy snapshot that gets rows of its own, as in ollama's PagedOutBytesUpdatesOnMaterialize.
TEST(PrefixTrie, RecountSeesAPayloadThatHasGrown) {
  FakeWorld world;
  world.row_bytes = 0;
  Trie trie;
  const Position position = *put(trie, world, {1, 2, 3, 4});
  EXPECT_EQ(trie.rows_bytes(), 0U);
  world.row_bytes = std::size_t{1} << 18;
  trie.recount(*position.node);
  EXPECT_EQ(trie.rows_bytes(), std::size_t{1} << 20);
  EXPECT_EQ(trie.check(), "");
}

// ---- Pins

TEST(PrefixTriePins, WhatIsPinnedStaysAndSoDoesWhatIsAbove) {
  FakeWorld world;
  Trie trie;
  put(trie, world, {1, 2}, 0, true);
  put(trie, world, {1, 2, 3, 4}, 2, true);
  put(trie, world, {1, 2, 5}, 2, true);
  const Match match = trie.lookup(Keys{1, 2, 3, 4}, kHybrid, {.n_left = 0});
  Pin pin = trie.pin(match.restorable);
  for (Node* const node : match.path) {
    EXPECT_FALSE(trie.drop_checkpoint(*node));
    EXPECT_FALSE(trie.remove(*node));
    EXPECT_FALSE(trie.trim(*node, node->from() + 1));
  }
  EXPECT_TRUE(trie.remove(*trie.lookup(Keys{1, 2, 5}, kHybrid).path.back()));
  pin.release();
  EXPECT_EQ(trie.n_open_pins(), 0U);
  EXPECT_TRUE(trie.remove(*match.path[0]));
}

TEST(PrefixTriePins, PinnedBytesAreThoseAboveAPin) {
  FakeWorld world;
  world.splits_share = false;
  Trie trie;
  put(trie, world, range_keys(0, 20), 0, true);
  put(trie, world, joined(range_keys(0, 8), {100, 101}), 0, true);
  EXPECT_EQ(trie.pinned_bytes(), 0U);
  const Pin upper = trie.pin(*put(trie, world, range_keys(0, 8), -1));
  EXPECT_EQ(trie.pinned_bytes(), Node::kBytes + 8 * (sizeof(Key) + world.row_bytes));
  Pin leaf = trie.pin(*put(trie, world, range_keys(0, 20), -1));
  EXPECT_EQ(trie.pinned_bytes(), 2 * Node::kBytes + 20 * (sizeof(Key) + world.row_bytes) + world.checkpoint_bytes);
  leaf.release();
  EXPECT_EQ(trie.pinned_bytes(), Node::kBytes + 8 * (sizeof(Key) + world.row_bytes));
}

TEST(PrefixTriePins, ASplitKeepsAPinWithItsOffset) {
  FakeWorld world;
  Trie trie;
  put(trie, world, range_keys(0, 10));
  Node* const edge = trie.lookup(range_keys(0, 10), kRowsOnly).path[0];
  const Pin shallow = trie.pin({edge, 4});
  const Pin at_split = trie.pin({edge, 6});
  Pin deep = trie.pin({edge, 7});
  put(trie, world, joined(range_keys(0, 6), {100}));
  EXPECT_EQ(shallow.position().node->to(), 6);
  EXPECT_EQ(at_split.position().node->to(), 6);
  EXPECT_EQ(deep.position().node->to(), 10);
  EXPECT_EQ(shallow.position().node->n_pins(), 3);
  EXPECT_EQ(deep.position().node->n_pins(), 1);
  deep.release();
  EXPECT_TRUE(trie.remove(*trie.lookup(range_keys(0, 10), kRowsOnly).path[1])) << "nothing below 6 is pinned";
  EXPECT_FALSE(trie.remove(*shallow.position().node));
  EXPECT_EQ(trie.check(), "");
}

TEST(PrefixTriePins, APinsEndIsNotJoinedAwayUntilItIsReleased) {
  FakeWorld world;
  Trie trie;
  Pin pin = trie.pin(*put(trie, world, {1, 2}));
  put(trie, world, {1, 2, 3, 4}, 2);
  EXPECT_EQ(trie.n_nodes(), 2U);
  pin.release();
  EXPECT_EQ(trie.n_nodes(), 1U);
  EXPECT_EQ(trie.check(), "");
}

TEST(PrefixTriePins, MoveAndOutliveTheTrie) {
  FakeWorld world;
  auto trie = std::make_unique<Trie>();
  Pin a = trie->pin(*put(*trie, world, {1, 2}));
  Pin b = std::move(a);
  EXPECT_TRUE(b.is_open());
  a = std::move(b);
  EXPECT_EQ(trie->n_open_pins(), 1U);
  a = trie->pin(*put(*trie, world, {3}));
  EXPECT_EQ(trie->n_open_pins(), 1U) << "the old pin was released";
  EXPECT_EQ(trie->check(), "");
  trie.reset();
  EXPECT_FALSE(a.is_open());
  EXPECT_EQ(a.position().offset, 0);
}

TEST(PrefixTriePins, RefusesAnOffsetOutsideTheNode) {
  FakeWorld world;
  Trie trie;
  const Position position = *put(trie, world, {1, 2});
  EXPECT_THROW(trie.pin({position.node, 3}), std::invalid_argument);
  EXPECT_THROW(trie.pin({position.node, 0}), std::invalid_argument);
  EXPECT_THROW(trie.pin({}), std::invalid_argument);
  Pin root = trie.pin(trie.lookup(Keys{9}, kRowsOnly).restorable);
  EXPECT_EQ(trie.check(), "");
}

// ---- Requests, as ollama's prefix_cache_test.go tells them (reference, 4.8)

class PrefixRequests : public testing::TestWithParam<Needs> {};

TEST_P(PrefixRequests, BranchIsRevealedAndThenReused) {
  FakeEngine engine(GetParam());
  EXPECT_EQ(engine.run(range_keys(1, 9), {20, 21}), 0);
  EXPECT_EQ(engine.matched(joined(range_keys(1, 9), {20, 21})), 9);
  const Keys b = joined(range_keys(1, 6), {10, 11, 12});
  EXPECT_EQ(engine.run(b, {30, 31}), engine.needs.checkpoint ? 0 : 5);
  EXPECT_EQ(engine.matched(b), 8);
  EXPECT_EQ(engine.run(joined(range_keys(1, 6), {13, 14, 15})), 5) << "the third that leaves there";
  EXPECT_EQ(engine.run(joined(range_keys(1, 9), {20, 41})), 9);
}

TEST_P(PrefixRequests, TheSamePromptAgainLeavesOneToken) {
  FakeEngine engine(GetParam());
  engine.run(range_keys(1, 6), {10, 11});
  EXPECT_EQ(engine.run(range_keys(1, 6), {20, 21}), 4);
  EXPECT_EQ(engine.run(range_keys(1, 6)), 4);
}

TEST_P(PrefixRequests, AConversationGoesOnWhereItEnded) {
  FakeEngine engine(GetParam());
  engine.run(range_keys(1, 6), {10, 11, 12});
  Keys all = joined(range_keys(1, 6), {10, 11, 12, 20, 21});
  EXPECT_EQ(engine.run(all, {30}), 7) << "all but the answer's last token, which was not fed";
  all = joined(all, {30, 40, 41});
  EXPECT_EQ(engine.run(all, {50}), 10);
}

TEST_P(PrefixRequests, SwitchingBranchesRestoresTheRightState) {
  FakeEngine engine(GetParam());
  engine.run(range_keys(1, 6), {10, 11});
  engine.run({1, 2, 3, 6, 7}, {12, 13});
  EXPECT_EQ(engine.run({1, 2, 3, 4, 5, 10, 11, 20}), 6);  // run() compares the payloads with the prompt
}

TEST_P(PrefixRequests, ACancelledPromptKeepsWhatItComputed) {
  FakeEngine engine(GetParam());
  const Keys prompt = range_keys(0, 47);
  EXPECT_EQ(engine.run(prompt, {}, {}, 18), 0);
  EXPECT_EQ(engine.run(prompt, {}, {}, 36), 18);
  EXPECT_EQ(engine.run(prompt), 36);
}

// SGLang's branching kit: three prompts share 257 tokens. There the first two miss and the third hits up to a grid.
TEST_P(PrefixRequests, TheThirdOfThreeThatShareABeginningHitsAllOfIt) {
  FakeEngine engine(GetParam());
  const Keys shared = range_keys(0, 257);
  EXPECT_EQ(engine.run(joined(shared, range_keys(1000, 1100))), 0);
  // Of the first prompt's 357 tokens 44 %, 157, before its end stands a taper.
  EXPECT_EQ(engine.run(joined(shared, range_keys(2000, 2100))), engine.needs.checkpoint ? 200 : 257);
  EXPECT_EQ(engine.run(joined(shared, range_keys(3000, 3100))), 257);
}

// With the end of the system prompt known from the template the second hits already.
TEST_P(PrefixRequests, AKnownTurnEndIsHitByTheSecond) {
  FakeEngine engine(GetParam());
  const Keys shared = range_keys(0, 257);
  EXPECT_EQ(engine.run(joined(shared, range_keys(1000, 1100)), {}, {257}), 0);
  EXPECT_EQ(engine.run(joined(shared, range_keys(2000, 2100)), {}, {257}), 257);
}

// sglang#22935: a match of all but the last token splits an edge, and the identical prompt gets nothing.
TEST_P(PrefixRequests, APromptThatDiffersInItsLastTokenSpoilsNothing) {
  FakeEngine engine(GetParam());
  const Keys prompt = range_keys(0, 300);
  engine.run(prompt, {500, 501});
  EXPECT_EQ(engine.run(joined(range_keys(0, 299), {400})), 299);
  EXPECT_EQ(engine.run(prompt), 299);
}

// vllm#40696: with blocks of 528 a prompt of 500 tokens hits nothing, one of 979 a little more than half.
TEST_P(PrefixRequests, ShortPromptsHitToo) {
  for (const int n : {2, 20, 500, 979}) {
    FakeEngine engine(GetParam());
    engine.run(range_keys(0, n));
    EXPECT_EQ(engine.run(range_keys(0, n)), n - 1);
  }
}

TEST_P(PrefixRequests, NothingLeaks) {
  FakeEngine engine(GetParam());
  engine.run(range_keys(0, 100), range_keys(500, 600));
  engine.run(joined(range_keys(0, 50), range_keys(700, 800)), range_keys(500, 600));
  int n_held = 0;
  engine.trie.visit([&](Node& node) { n_held += (node.rows() != nullptr) + (node.checkpoint() != nullptr); });
  EXPECT_EQ(engine.world.n_live, n_held);
  EXPECT_EQ(engine.trie.n_open_pins(), 0U);
}

std::string model_name(const testing::TestParamInfo<Needs>& model) {
  return model.param.rows ? model.param.checkpoint ? "Hybrid" : "Attention" : "Recurrent";
}
INSTANTIATE_TEST_SUITE_P(Models, PrefixRequests, testing::Values(kRowsOnly, kHybrid, kRecurrent), model_name);

// ---- Failing payloads

TEST(PrefixTrie, APayloadThatThrowsLeavesTheTrieAsItWas) {
  FakeWorld world;
  Trie trie;
  put(trie, world, range_keys(0, 10));
  put(trie, world, joined(range_keys(0, 5), {77, 78}), 5);
  const int n_live = world.n_live;
  const Keys keys = joined(range_keys(0, 8), {100, 101});
  for (int i = 0; i < 2; ++i) {  // of the given rows, then of the stored edge
    world.throws_in = i;
    EXPECT_THROW(put(trie, world, keys, 0), std::bad_alloc);
    EXPECT_EQ(trie.check(), "");
    EXPECT_EQ(trie.n_nodes(), 3U);
    EXPECT_EQ(world.n_live, n_live);
  }
  world.throws_in = -1;
  put(trie, world, keys, 0);
  EXPECT_EQ(matched(trie, keys), 10);
}

TEST(PrefixTrie, RowsThatCantBeJoinedStayApart) {
  FakeWorld world;
  world.can_append = false;
  Trie trie;
  put(trie, world, {1, 2});
  put(trie, world, {1, 2, 3, 4}, 2);
  EXPECT_EQ(trie.n_nodes(), 2U);
  EXPECT_EQ(trie.lookup(Keys{1, 2, 3, 4}, kRowsOnly, {.n_left = 0}).restorable.offset, 4);
}

// ---- Cost, in steps

TEST(PrefixTrieCost, ALookupTakesAStepForEachKeyMatchedAndNodeEntered) {
  FakeWorld world;
  Trie trie;
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    Keys keys;
    for (int j = 0; j < 40; ++j) keys.push_back(random() % 4);
    put(trie, world, keys, -1, true);
    if (i >= 100) continue;
    const std::uint64_t before = trie.counters().n_steps;
    const Match match = trie.lookup(keys, kRecurrent);
    EXPECT_EQ(trie.counters().n_steps - before, static_cast<std::uint64_t>(match.matched) + match.path.size() + 1);
  }
}

TEST(PrefixTrieCost, APromptStoredChunkByChunkIsWalkedOnceAndItsRowsCopiedAFewTimes) {
  constexpr int kTokens = 100000;
  for (const int chunk : {1, 512}) {
    FakeWorld world;
    Trie trie;
    const Keys keys = range_keys(0, kTokens);
    Pin pin;
    for (int from = 0; from < kTokens; from += chunk) {
      const int to = std::min(kTokens, from + chunk);
      Insertion insertion{.keys = std::span(keys).first(static_cast<std::size_t>(to)), .known = pin.position()};
      insertion.rows = std::make_unique<FakeRows>(world, from, Keys(keys.begin() + from, keys.begin() + to));
      pin = trie.pin(*trie.insert(std::move(insertion)));
    }
    pin.release();
    EXPECT_EQ(trie.check(), "");
    EXPECT_LE(trie.counters().n_steps, 3U * kTokens);
    EXPECT_LE(world.n_copied, 11LL * kTokens);  // log2(2048)
    EXPECT_LE(trie.n_nodes(), kTokens / 1024U + 11);
    EXPECT_EQ(trie.rows_bytes(), kTokens * world.row_bytes);
  }
}

class EmptyCheckpoint final : public Checkpoint {
 public:
  explicit EmptyCheckpoint(int offset) : offset_(offset) {}
  int offset() const override { return offset_; }
  std::size_t size_bytes() const override { return 1; }

 private:
  int offset_;
};

TEST(PrefixTrieCost, AMillionNodesDeepTakesNoStack) {
  constexpr int kDeep = 1000000;
  const Keys keys = range_keys(0, kDeep);
  Trie trie;
  Position position;
  for (int to = 1; to <= kDeep; ++to) {
    Insertion insertion{.keys = std::span(keys).first(static_cast<std::size_t>(to)), .known = position};
    insertion.checkpoint = std::make_unique<EmptyCheckpoint>(to);
    position = *trie.insert(std::move(insertion));
  }
  EXPECT_EQ(trie.n_nodes(), static_cast<std::size_t>(kDeep));
  EXPECT_EQ(trie.lookup(keys, kRecurrent).restorable.offset, kDeep - 1);
  EXPECT_EQ(trie.check(), "");
  Match middle = trie.lookup(first_of(keys, kDeep / 2), kRecurrent);
  EXPECT_TRUE(trie.remove(*middle.restorable.node));
  EXPECT_EQ(trie.n_nodes(), static_cast<std::size_t>(kDeep / 2 - 2));
}

}  // namespace
}  // namespace memoir::prefix
