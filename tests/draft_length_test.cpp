// The adaptive draft length, in simulated rounds. Regimes and expectations are those of the runner that the rule
// follows (its draft length tests), but for the climb: milliseconds by the width of a forward pass, which is drafts +
// 1, and how often each position is right; draws come from a hash of position and step.

#include "memoir/engine/draft_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace memoir::engine {
namespace {

using Milliseconds = std::function<double(int width)>;
using Rate = std::function<double(int position)>;  // from 1

double decaying(int position) {
  static const std::vector<double> rates = {.90, .82, .72, .60, .48, .40, .34, .30,
                                            .27, .25, .23, .22, .21, .20, .20, .20};
  return position <= 16 ? rates[static_cast<std::size_t>(position - 1)] : .18;
}

double always(int) {
  return 1;
}

// In [0, 1), evenly: the finalizer of MurmurHash3.
double draw(int position, int step) {
  std::uint64_t x = static_cast<std::uint64_t>(step) * 64 + static_cast<std::uint64_t>(position) + 1;
  for (const std::uint64_t factor : {0xff51afd7ed558ccdU, 0xc4ceb9fe1a85ec53U}) x = (x ^ (x >> 33)) * factor;
  return static_cast<double>((x ^ (x >> 33)) >> 11) * 0x1p-53;
}

class Simulation {
 public:
  // Returns the number of rounds with drafts.
  int run(int n_rounds, const Milliseconds& milliseconds, const Rate& rate) {
    int n_drafting = 0;
    for (int i = 0; i < n_rounds; ++i, ++step_) {
      const int n = length.choose(DraftLength::kMax);
      EXPECT_LE(n, 2 * length.frontier() + 1);
      int n_accepted = 0;
      while (n_accepted < n && draw(n_accepted + 1, step_) < rate(n_accepted + 1)) ++n_accepted;
      length.observe(n, std::min(n, n_accepted + 1), n_accepted, milliseconds(n + 1) / 1000);
      n_tokens += 1 + n_accepted;
      total += milliseconds(n + 1);
      if (n > 0) ++n_drafting;
      shortest_interval = std::min(shortest_interval, length.probe_interval());
    }
    return n_drafting;
  }

  DraftLength length;
  int shortest_interval = 1 << 20;
  int n_tokens = 0;
  double total = 0;  // milliseconds

 private:
  int step_ = 0;
};

double flat(int width) {
  return 210 + 2.6 * width;
}
double steep(int width) {
  return 30 + 19 * width;
}
double parked(int width) {
  return 16 + 15 * (width - 1);
}

TEST(DraftLength, DraftsFarWhereMoreRowsCostLittle) {
  Simulation simulation;
  simulation.run(600, flat, decaying);
  EXPECT_GE(simulation.length.best(), 5);
}

TEST(DraftLength, DraftsLittleWhereEachRowCosts) {
  Simulation simulation;
  simulation.run(600, steep, decaying);
  EXPECT_LE(simulation.length.best(), 4);
  EXPECT_GE(simulation.length.best(), 1);
}

// (1 + .3) / 68 < 1 / 49.
TEST(DraftLength, DraftsNothingWhereItDoesNotPay) {
  Simulation simulation;
  simulation.run(600, steep, [](int) { return .3; });
  EXPECT_EQ(simulation.length.best(), 0);
  EXPECT_TRUE(simulation.length.seconds(0).has_value());
}

TEST(DraftLength, MeasuresNoneAndOneFirst) {
  DraftLength length;
  EXPECT_EQ(length.best(), 0);
  EXPECT_EQ(length.choose(8), 0);
  length.observe(0, 0, 0, .02);  // the first of a length isn't counted
  EXPECT_FALSE(length.seconds(0).has_value());
  EXPECT_EQ(length.choose(8), 0);
  length.observe(0, 0, 0, .02);
  EXPECT_EQ(length.choose(8), 1);
  EXPECT_EQ(length.choose(0), 0);
  length.observe(1, 1, 1, .021);
  EXPECT_EQ(length.best(), 0);
  length.observe(1, 1, 1, .021);
  EXPECT_EQ(length.best(), 1);
}

// 4 rounds of 0 and 1, in which the first two samples of 1 come, and 3 for each of the frontiers 1, 3 and 7 (one of 1
// is left).
TEST(DraftLength, DoublesWhileAllIsRight) {
  Simulation simulation;
  simulation.run(
      24, [](int) { return 20; }, always);
  EXPECT_EQ(simulation.length.best(), DraftLength::kMax);
}

TEST(DraftLength, OneStallMovesTheCostByAQuarterAtMost) {
  DraftLength length;
  for (int i = 0; i < 20; ++i) length.observe(0, 0, 0, .016);
  length.observe(0, 0, 0, .049);
  EXPECT_LE(*length.seconds(0), .016 * (1 + .3 * .25) + 1e-12);
  for (int i = 0; i < 60; ++i) length.observe(0, 0, 0, .032);
  EXPECT_GT(*length.seconds(0), .031);
  EXPECT_LT(*length.seconds(0), .033);
}

TEST(DraftLength, AStallDoesNotStartDrafting) {
  Simulation simulation;
  simulation.run(600, parked, [](int) { return .6; });
  EXPECT_EQ(simulation.length.best(), 0);
  simulation.length.observe(0, 0, 0, .049);
  EXPECT_EQ(simulation.length.best(), 0);
}

TEST(DraftLength, TriesLessAndLessOftenAndNoticesABetterTime) {
  Simulation simulation;
  const Rate rate = [](int) { return .6; };
  simulation.run(600, parked, rate);
  const int n_drafting = simulation.run(4096, parked, rate);
  EXPECT_EQ(simulation.length.probe_interval(), 512);
  EXPECT_LE(n_drafting, 4096 / 100);  // two rounds each; luck may start it anew once
  EXPECT_LE(simulation.run(400, parked, rate), 2);
  simulation.shortest_interval = 1 << 20;
  simulation.run(
      8192, [](int width) { return 16 + .5 * (width - 1); }, [](int) { return .95; });
  EXPECT_GT(simulation.length.best(), 0);
  EXPECT_EQ(simulation.shortest_interval, 4);
}

// Owed at most: three rounds before a rate is believed, and the two of a try that was begun with nothing owed.
TEST(DraftLength, LosesLittleWhereNothingIsRight) {
  for (const int n_rounds : {100, 200, 1000, 10000}) {
    Simulation simulation;
    simulation.run(n_rounds, parked, [](int) { return 0; });
    const double lost = simulation.total - simulation.n_tokens * parked(1);
    EXPECT_GT(lost, 0);
    EXPECT_LE(lost, .02 * simulation.total + 5 * (parked(2) - parked(1)));
  }
}

// As before, where a text follows in which drafts had paid for long: 4 plain rounds are saved up.
TEST(DraftLength, LosesLittleBehindATextThatPaid) {
  Simulation simulation;
  simulation.run(2000, flat, always);
  const double total = simulation.total;
  const int n_tokens = simulation.n_tokens;
  simulation.run(2000, flat, [](int) { return 0; });
  const double lost = simulation.total - total - (simulation.n_tokens - n_tokens) * flat(1);
  // Until the rates have fallen, each of the rounds drafts as many as paid.
  const double falling = 30 * (flat(1 + DraftLength::kMax) - flat(1));
  EXPECT_LE(lost, .02 * (simulation.total - total) + 4 * flat(1) + falling);
}

TEST(DraftLength, FollowsWhatIsRightMoreOften) {
  Simulation simulation;
  simulation.run(400, flat, [](int position) { return position <= 2 ? .9 : .2; });
  const int before = simulation.length.best();
  EXPECT_LE(before, 4);
  simulation.run(4096, flat, [](int) { return .95; });
  EXPECT_GT(simulation.length.best(), before);
}

TEST(DraftLength, TimesBetweenKnownLengthsAreByProportion) {
  DraftLength length;
  EXPECT_FALSE(length.seconds(3).has_value());
  for (int i = 0; i < 2; ++i) length.observe(1, 1, 0, .010);
  for (int i = 0; i < 2; ++i) length.observe(5, 1, 0, .030);
  EXPECT_DOUBLE_EQ(*length.seconds(0), .010);
  EXPECT_DOUBLE_EQ(*length.seconds(2), .015);
  EXPECT_DOUBLE_EQ(*length.seconds(9), .030);
}

TEST(DraftLength, RefusesCountsThatCannotBe) {
  DraftLength length;
  EXPECT_THROW(length.choose(-1), std::invalid_argument);
  EXPECT_THROW(length.observe(2, 1, 2, .01), std::invalid_argument);
  EXPECT_THROW(length.observe(2, 3, 2, .01), std::invalid_argument);
  EXPECT_THROW(length.observe(16, 0, 0, .01), std::invalid_argument);
  EXPECT_THROW(length.observe(2, 2, -1, .01), std::invalid_argument);
  EXPECT_THROW(length.observe(2, 2, 2, -1), std::invalid_argument);
  EXPECT_THROW(length.seconds(16), std::invalid_argument);
  EXPECT_EQ(length.choose(8), 0);
}

}  // namespace
}  // namespace memoir::engine
