#include "memoir/cache/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace memoir::cache {
namespace {

void write(FlatLayout& layout, int n_tokens) {
  layout.apply(layout.plan(n_tokens));
}

// Capacities as mlx-lm 0.32.2 has them for the same writes (its KVCache, step 256).
TEST(FlatLayout, GrowsByWholeStepsBehindTheRowsThatAreKept) {
  FlatLayout layout;
  write(layout, 300);
  EXPECT_EQ(layout.capacity(), 512);
  layout.clear();
  write(layout, 513);
  EXPECT_EQ(layout.capacity(), 768);
  write(layout, 300);
  EXPECT_EQ(layout.capacity(), 1025);  // 513 kept + 512
  EXPECT_EQ(layout.offset(), 813);
}

TEST(FlatLayout, AWriteThatFitsLeavesTheBuffer) {
  FlatLayout layout;
  write(layout, 10);
  const FlatWrite plan = layout.plan(246);
  EXPECT_EQ(plan.added_rows, 0);
  EXPECT_EQ(plan.begin, 10);
  EXPECT_EQ(plan.end, 256);
  EXPECT_EQ(layout.plan(247).added_rows, 256);
}

TEST(FlatLayout, PlanningChangesNothing) {
  FlatLayout layout;
  write(layout, 10);
  layout.plan(1000);
  EXPECT_EQ(layout.offset(), 10);
  EXPECT_EQ(layout.capacity(), 256);
}

TEST(FlatLayout, RewindStopsAtTheEnds) {
  FlatLayout layout;
  write(layout, 10);
  EXPECT_FALSE(layout.rewind(-1));
  EXPECT_FALSE(layout.rewind(11));
  EXPECT_EQ(layout.offset(), 10);
  EXPECT_TRUE(layout.rewind(10));
  EXPECT_TRUE(layout.rewind(0));
  EXPECT_EQ(layout.capacity(), 256);
}

TEST(FlatLayout, RefusesWritesOfNothingAndBeyondTheLimit) {
  FlatLayout layout;
  EXPECT_THROW(layout.plan(0), std::invalid_argument);
  EXPECT_THROW(layout.plan(-5), std::invalid_argument);
  EXPECT_THROW(layout.plan((1 << 30) + 1), std::invalid_argument);
  write(layout, 1);
  EXPECT_THROW(layout.plan(1 << 30), std::invalid_argument);
}

// Against a list: which position each row holds, -1 for padding.
TEST(FlatLayout, HoldsPositionIInRowIUnderRandomWritesAndRewinds) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    FlatLayout layout;
    std::vector<int> rows;
    for (int step = 0; step < 60; ++step) {
      if (random() % 4 == 0) {
        const int target = static_cast<int>(random() % static_cast<unsigned>(layout.offset() + 1));
        ASSERT_TRUE(layout.rewind(target));
        continue;
      }
      const FlatWrite plan = layout.plan(1 + static_cast<int>(random() % 600));
      if (plan.added_rows > 0) {
        ASSERT_LE(plan.kept_rows, static_cast<int>(rows.size()));
        ASSERT_GE(plan.kept_rows, layout.offset());
        rows.resize(static_cast<std::size_t>(plan.kept_rows));
        rows.resize(rows.size() + static_cast<std::size_t>(plan.added_rows), -1);
        ASSERT_EQ(plan.added_rows % FlatLayout::kStep, 0);
      }
      ASSERT_LE(plan.end, static_cast<int>(rows.size()));
      for (int row = plan.begin; row < plan.end; ++row) rows[static_cast<std::size_t>(row)] = row;
      layout.apply(plan);
      ASSERT_EQ(layout.capacity(), static_cast<int>(rows.size()));
      for (int row = 0; row < layout.offset(); ++row) ASSERT_EQ(rows[static_cast<std::size_t>(row)], row);
    }
  }
}

}  // namespace
}  // namespace memoir::cache
