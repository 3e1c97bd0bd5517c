// The prefix store over caches of every kind: what it restores is what computing the tokens makes, for many sequences
// at once, within its budget, and whatever fails.

#include "memoir/prefix/store.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/toy_caches.h"

namespace mx = mlx::core;

namespace memoir::prefix {
namespace {

using test::expect_toy_holds;
using test::feed_toy;
using test::joined;
using test::kToyModels;
using test::Layers;
using test::make_toy;
using test::range;
using test::Tokens;
using test::ToyLayer;

StateSize size_of(const Layers& layers) {
  cache::ModelCache toy = make_toy(layers);
  feed_toy(toy, {1});
  return state_size(toy);
}

/// One sequence.
struct Sequence {
  Lease lease;
  std::optional<cache::ModelCache> cache;
};

/// A store over toys, and sequences as an engine runs them.
class Toys {
 public:
  explicit Toys(Layers layers, StoreOptions options = {.max_bytes = std::size_t{1} << 30})
      : layers_(std::move(layers)), store([this] { return make_toy(layers_); }, size_of(layers_), options) {}

  /// Begins a sequence and checks what it begins with.
  Sequence begin(const Tokens& prompt, const std::vector<int>& turn_ends = {}) {
    Sequence run;
    run.cache.emplace(store.begin(run.lease, {prompt, static_cast<int>(prompt.size()), turn_ends}));
    EXPECT_LT(run.cache->offset(), static_cast<int>(prompt.size()));
    EXPECT_EQ(run.cache->offset(), run.lease.restored());
    expect_toy_holds(*run.cache, layers_, test::prefix(prompt, run.cache->offset()));
    return run;
  }

  /// One pass: takes in the tokens up to tokens.size().
  void feed(Sequence& run, const Tokens& tokens) {
    const auto n_before = static_cast<std::size_t>(run.cache->offset());
    store.prepare(run.lease, *run.cache, std::span(tokens).subspan(n_before));
    feed_toy(*run.cache, tokens);
    store.record(run.lease, *run.cache);
    expect_sound();
  }

  void end(Sequence& run) {
    store.end(run.lease, *run.cache);
    run.cache.reset();
    expect_sound();
  }

  /// A whole prompt in one pass, and an answer token by token. Returns what was restored.
  int serve(const Tokens& prompt, const Tokens& answer = {}, const std::vector<int>& turn_ends = {}) {
    Sequence run = begin(prompt, turn_ends);
    const int restored = run.cache->offset();
    feed(run, prompt);
    Tokens all = prompt;
    for (const int token : answer) {
      all.push_back(token);
      feed(run, all);
    }
    end(run);
    return restored;
  }

  void expect_sound() const {
    EXPECT_EQ(store.trie().check(), "");
    EXPECT_LE(store.size_bytes(), store.max_bytes());
    EXPECT_EQ(store.counters().n_failed_inserts, 0U);
  }

  const Layers& layers() const { return layers_; }

 private:
  Layers layers_;

 public:
  Store store;
};

TEST(PrefixStore, RowsAreRestoredWhereverPromptsPart) {
  Toys toys({ToyLayer::kFlat});
  EXPECT_EQ(toys.serve(range(0, 600), {1, 2, 3}), 0);
  EXPECT_EQ(toys.serve(range(0, 600)), 599);  // a token is left to compute
  EXPECT_EQ(toys.serve(joined(range(0, 600), {1, 2, 3, 4})), 603);
  EXPECT_EQ(toys.serve(joined(range(0, 255), {9, 9})), 255);
  EXPECT_EQ(toys.serve(joined(range(0, 300), {8, 8})), 300);
  EXPECT_EQ(toys.serve({0}), 0);
  EXPECT_EQ(toys.serve({5, 6}), 0);
}

TEST(PrefixStore, SeveralSequencesBeginWithOnePrefixAtOnce) {
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    Toys toys(layers);
    const Tokens system = range(0, 40);
    const Tokens first = joined(system, range(100, 130));
    toys.serve(first, {}, {40});
    std::vector<Sequence> runs;
    for (int i = 0; i < 3; ++i) {
      runs.push_back(toys.begin(joined(system, {50 + i, 51, 52})));
      EXPECT_EQ(runs.back().cache->offset(), 40);
    }
    for (int i = 0; i < 3; ++i) toys.feed(runs[static_cast<std::size_t>(i)], joined(system, {50 + i, 51, 52}));
    for (int i = 0; i < 3; ++i) {
      expect_toy_holds(*runs[static_cast<std::size_t>(i)].cache, layers, joined(system, {50 + i, 51, 52}));
    }
    EXPECT_EQ(toys.begin(joined(first, {7})).cache->offset(), toys.store.restorable(joined(first, {7})));
  }
}

TEST(PrefixStore, WhatAPromptHasComputedSoFarServesTheNext) {
  Toys toys({ToyLayer::kFlat});
  const Tokens prompt = range(0, 300);
  Sequence first = toys.begin(prompt);
  toys.feed(first, test::prefix(prompt, 100));
  EXPECT_EQ(toys.begin(prompt).cache->offset(), 100);
  toys.feed(first, test::prefix(prompt, 200));
  first = Sequence();  // cancelled
  EXPECT_EQ(toys.begin(prompt).cache->offset(), 200);
}

// docs/prefix-cache.md: the cold chat of 1200 tokens, N = 410, in slices.
TEST(PrefixStore, CheckpointsLandWhereThePlanSaysHoweverThePromptIsCut) {
  for (const int n_slice : {7, 100, 512, 2000}) {
    Toys toys({ToyLayer::kRecurrent, ToyLayer::kFlat});
    Store store(
        [] {
          return make_toy({ToyLayer::kRecurrent, ToyLayer::kFlat});
        },
        {10250, 100}, {.max_bytes = std::size_t{1} << 30});
    ASSERT_EQ(store.spacing(), 410);
    const Tokens prompt = range(0, 1200);
    Lease lease;
    cache::ModelCache cache = store.begin(lease, {prompt, 1200, std::vector<int>{1195, 300, 340, 700}});
    while (cache.offset() < 1200) {
      const int end = std::min(1200, cache.offset() + n_slice);
      store.prepare(lease, cache,
                    std::span(prompt).subspan(static_cast<std::size_t>(cache.offset()),
                                              static_cast<std::size_t>(end - cache.offset())));
      feed_toy(cache, test::prefix(prompt, end));
      store.record(lease, cache);
    }
    std::vector<int> offsets;
    for (int p = 1; p <= 1200; ++p) {
      const Tokens asked = joined(test::prefix(prompt, p), {5000});
      if (store.restorable(asked) == p) offsets.push_back(p);
    }
    // Turns at 300, 700 and 1195. Tapers 88 %, 22 % and 11 % of 1200 before the end; 672 and 1134 are near to turns.
    EXPECT_EQ(offsets, (std::vector<int>{144, 300, 700, 936, 1068, 1195})) << n_slice;
  }
}

TEST(PrefixStore, LongAnswersAndTheirEndsGetCheckpoints) {
  Toys toys({ToyLayer::kRecurrent, ToyLayer::kFlat},
            {.max_bytes = std::size_t{1} << 30, .policy = {.share = 1e9, .min_spacing = 30}});
  ASSERT_EQ(toys.store.spacing(), 30);
  const Tokens prompt = range(0, 20);  // a checkpoint at 16
  const Tokens answer = range(100, 190);
  toys.serve(prompt, answer);
  const auto restored = [&](int n) {
    return toys.store.restorable(joined(joined(prompt, test::prefix(answer, n)), {7}));
  };
  EXPECT_EQ(restored(0), 16);
  EXPECT_EQ(restored(25), 16);
  EXPECT_EQ(restored(26), 46);
  EXPECT_EQ(restored(89), 106);
  EXPECT_EQ(restored(90), 106);  // 110 is nearer than 16 to it
  toys.serve(prompt, range(200, 230));
  EXPECT_EQ(toys.store.restorable(joined(joined(prompt, range(200, 230)), {7})), 46);
}

TEST(PrefixStore, BytesAreThoseThatAreHeld) {
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    Toys toys(layers);
    mx::synchronize();
    mx::clear_cache();
    const std::size_t before = mx::get_active_memory();
    for (int i = 0; i < 3; ++i) toys.serve(joined(range(0, 700), range(1000 * i, 1000 * i + 600)), {1, 2}, {650, 700});
    toys.serve(joined(range(0, 333), {4}));  // cuts a block
    mx::synchronize();
    const auto held = static_cast<double>(mx::get_active_memory() - before);
    const auto counted = static_cast<double>(toys.store.trie().rows_bytes() + toys.store.trie().checkpoint_bytes());
    EXPECT_GE(held, counted);
    // An array has a header of its own and is rounded up by the allocator; a block may share up to 16 KiB.
    EXPECT_LE(held, counted * 1.05 + 200'000);
    toys.store.clear();
    EXPECT_EQ(toys.store.size_bytes(), 0U);
    EXPECT_EQ(mx::get_active_memory(), before);
  }
}

TEST(PrefixStore, RowsAreCopiedIntoTheStoreOnce) {
  Toys toys({ToyLayer::kFlat, ToyLayer::kHalf});
  const StateSize size = size_of(toys.layers());
  EXPECT_EQ(size.row_bytes, 2U * 2 * 32 * 4 + 2U * 2 * 32 * 2);  // keys and values of 2 heads of 32
  toys.serve(range(0, 1000));
  EXPECT_EQ(toys.store.trie().rows_bytes(), 1000 * size.row_bytes);
  toys.serve(joined(range(0, 1000), {5, 6, 7}));
  toys.serve(joined(range(0, 500), {8}));
  EXPECT_EQ(toys.store.trie().rows_bytes(), 1004 * size.row_bytes);
}

TEST(PrefixStore, ABudgetIsKeptAndPinsAreNotDropped) {
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    const StateSize size = size_of(layers);
    Toys toys(layers, {.max_bytes = 300 * size.row_bytes + 6 * size.checkpoint_bytes + 20'000});
    const Tokens held = range(0, 60);
    toys.serve(held);
    Sequence run = toys.begin(joined(held, {1, 2}));
    const int restored = run.cache->offset();
    EXPECT_GE(restored, 56);
    for (int i = 1; i < 40; ++i) toys.serve(range(1000 * i, 1000 * i + 97), {1, 2, 3});
    EXPECT_GE(toys.store.restorable(joined(held, {1, 2})), restored);
    toys.feed(run, joined(held, {1, 2}));
    toys.end(run);
    EXPECT_GT(toys.store.report()["evicted"]["bytes"], 0);
  }
}

TEST(PrefixStore, WhatDoesNotFitIsNotKeptAndNothingIsThrownAwayForIt) {
  const StateSize size = size_of({ToyLayer::kFlat});
  Toys toys({ToyLayer::kFlat}, {.max_bytes = 200 * size.row_bytes});
  toys.serve(range(0, 100));
  toys.serve(range(1000, 1500));
  EXPECT_EQ(toys.store.restorable(range(0, 100)), 99);
  EXPECT_EQ(toys.store.restorable(range(1000, 1500)), 0);
  EXPECT_GT(toys.store.counters().n_without_room, 0U);

  Toys none({ToyLayer::kFlat}, {});
  none.serve(range(0, 100));
  EXPECT_EQ(none.serve(range(0, 100)), 0);
  EXPECT_EQ(none.store.size_bytes(), 0U);
}

// Two sequences whose caches are in different formats, which the engine never has: rows of one are in the way of the
// other.
TEST(PrefixStore, AFailedRestoreIsAShorterHit) {
  bool is_half = false;
  const auto make = [&] { return make_toy({is_half ? ToyLayer::kHalf : ToyLayer::kFlat}); };
  Store store(make, size_of({ToyLayer::kFlat}), {.max_bytes = std::size_t{1} << 30});
  const auto serve = [&](const Tokens& prompt) {
    Lease lease;
    cache::ModelCache cache = store.begin(lease, {prompt, static_cast<int>(prompt.size())});
    const int restored = cache.offset();
    store.prepare(lease, cache, std::span(prompt).subspan(static_cast<std::size_t>(restored)));
    feed_toy(cache, prompt);
    store.record(lease, cache);
    store.end(lease, cache);
    return restored;
  };
  serve(range(0, 50));
  Lease lease;
  is_half = true;
  const Tokens longer = range(0, 80);
  cache::ModelCache half = store.begin(lease, {longer, 80});
  EXPECT_EQ(half.offset(), 0);
  EXPECT_EQ(store.counters().n_failed_restores, 1U);
  store.prepare(lease, half, longer);
  feed_toy(half, longer);
  store.record(lease, half);
  is_half = false;
  EXPECT_EQ(store.restorable(joined(longer, {1})), 80);
  EXPECT_EQ(serve(joined(longer, {1})), 50);
  EXPECT_EQ(store.trie().check(), "");
}

TEST(PrefixStore, ACacheThatWentBackStoresItsNewTokens) {
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    Toys toys(layers);
    const Tokens prompt = range(0, 30);
    Sequence run = toys.begin(prompt);
    toys.feed(run, prompt);
    const bool can_go_back = run.cache->rewind(24);
    if (!can_go_back) run.cache->free();
    const Tokens other = joined(range(0, 24), range(70, 95));
    if (can_go_back) {
      toys.feed(run, other);
    } else {
      toys.feed(run, test::prefix(other, 10));
      toys.feed(run, other);
    }
    toys.end(run);
    toys.begin(joined(prompt, {1}));  // checks what it begins with
    EXPECT_GE(toys.begin(joined(other, {1})).cache->offset(), 24);
  }
}

TEST(PrefixStore, AFailedPassKeepsNothing) {
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    Toys toys(layers);
    const Tokens prompt = range(0, 30);
    Sequence run = toys.begin(prompt);
    toys.store.prepare(run.lease, *run.cache, prompt);
    toys.store.cancel_pass(run.lease, *run.cache);
    EXPECT_EQ(toys.store.restorable(prompt), 0);
    toys.feed(run, prompt);
    toys.end(run);
    EXPECT_GE(toys.store.restorable(prompt), 26);
  }
}

TEST(PrefixStore, ClearDropsAllButWhatRuns) {
  Toys toys({ToyLayer::kFlat});
  toys.serve(range(0, 100));
  toys.serve(joined(range(0, 50), range(200, 250)));
  toys.serve(range(500, 600));
  Sequence run = toys.begin(joined(range(0, 50), {1}));
  toys.store.clear();
  toys.expect_sound();
  EXPECT_EQ(toys.store.restorable(range(500, 600)), 0);
  EXPECT_EQ(toys.store.restorable(joined(range(0, 50), {1})), 50);
  toys.feed(run, joined(range(0, 50), {1}));
  toys.end(run);
  toys.store.clear();
  EXPECT_EQ(toys.store.size_bytes(), 0U);
}

TEST(PrefixStore, ReportsWhatItHolds) {
  Toys toys({ToyLayer::kRecurrent, ToyLayer::kFlat});
  toys.serve(range(0, 100));
  toys.serve(range(0, 100));
  const nlohmann::json report = toys.store.report();
  EXPECT_EQ(report["max_bytes"], std::size_t{1} << 30);
  EXPECT_EQ(report["bytes"]["total"], toys.store.size_bytes());
  EXPECT_EQ(report["lookups"], 2);
  EXPECT_EQ(report["hits"], 1);
  EXPECT_EQ(report["tokens_reused"], 96);
  EXPECT_EQ(report["rules"]["prompt_end"]["used"], 1);
  EXPECT_EQ(report["tree"].size(), toys.store.trie().n_nodes());
  EXPECT_EQ(report["failed"]["inserts"], 0);
}

TEST(PrefixStore, ALeaseMayOutliveTheStore) {
  Sequence run;
  {
    Toys toys({ToyLayer::kFlat});
    run = toys.begin(range(0, 10));
  }
  EXPECT_EQ(run.lease.stored(), 0);
}

TEST(PrefixStore, RefusesASequenceWithoutAPrompt) {
  Toys toys({ToyLayer::kFlat});
  Lease lease;
  EXPECT_THROW(toys.store.begin(lease, {{}, 0}), std::invalid_argument);
  EXPECT_THROW(toys.store.begin(lease, {range(0, 3), 4}), std::invalid_argument);
}

// ---- At random

class PrefixStoreRandom : public testing::TestWithParam<std::pair<const std::string, Layers>> {};

struct Busy {
  Sequence run;
  Tokens tokens;  // prompt and answer
  std::vector<int> slices;
};

TEST_P(PrefixStoreRandom, RestoresWhatComputingMakes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto some_tokens = [&](int n) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(number(0, 2));
    return tokens;
  };
  const Layers& layers = GetParam().second;
  const StateSize size = size_of(layers);
  const std::size_t budget =
      number(0, 1) == 0 ? std::size_t{1} << 30 : 600 * size.row_bytes + 5 * size.checkpoint_bytes + 40'000;
  Toys toys(layers, {.max_bytes = budget, .policy = {.share = 1e9, .min_spacing = number(20, 80), .close = 3}});
  std::vector<Tokens> texts = {some_tokens(300)};
  std::vector<Busy> busy;
  for (int step = 0; step < 150 && !HasFailure(); ++step) {
    if (busy.size() < 4 && number(0, 2) > 0) {
      Tokens prompt = texts[static_cast<std::size_t>(number(0, static_cast<int>(texts.size()) - 1))];
      prompt.resize(static_cast<std::size_t>(number(1, static_cast<int>(prompt.size()))));
      prompt = joined(prompt, some_tokens(number(0, 60)));
      Busy one{toys.begin(prompt, {number(0, 300), number(0, 300), number(0, 300)}), prompt, {}};
      busy.push_back(std::move(one));
      texts.push_back(prompt);
    }
    if (busy.empty()) continue;
    const auto at = static_cast<std::size_t>(number(0, static_cast<int>(busy.size()) - 1));
    Busy& one = busy[at];
    const int left = static_cast<int>(one.tokens.size()) - one.run.cache->offset();
    if (left > 0 && number(0, 9) > 0) {
      toys.feed(one.run, test::prefix(one.tokens, one.run.cache->offset() + number(1, left)));
    } else if (number(0, 3) > 0) {
      one.tokens = joined(test::prefix(one.tokens, one.run.cache->offset()), some_tokens(1));
      toys.feed(one.run, one.tokens);
      texts.push_back(one.tokens);
    } else {
      expect_toy_holds(*one.run.cache, layers, test::prefix(one.tokens, one.run.cache->offset()));
      if (number(0, 3) > 0) toys.end(one.run);
      busy.erase(busy.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  EXPECT_EQ(toys.store.counters().n_failed_restores, 0U);
  busy.clear();
  toys.store.clear();
  EXPECT_EQ(toys.store.size_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixStoreRandom, testing::ValuesIn(kToyModels),
                         [](const auto& one) { return one.param.first; });

}  // namespace
}  // namespace memoir::prefix
