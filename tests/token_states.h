#pragma once

// States that tell which tokens they are of, for the tests of caches without rows.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/cache/recurrent.h"

namespace memoir::test {

using Tokens = std::vector<int>;

inline const cache::RecurrentShape kShape{.tail_tokens = 3, .tail_channels = 4, .state = {2, 3, 5}};

// A number that tells a list of tokens from all others that a test makes; exact in float32.
inline float digest(const Tokens& tokens) {
  int value = 1;
  for (const int token : tokens) value = (value * 31 + token) % 100003;
  return static_cast<float>(tokens.empty() ? 0 : value);
}

// The states after these tokens: the tail holds the last of them, the state their digest.
inline cache::RecurrentState states_after(const Tokens& tokens, int n_sequences = 1,
                                          mlx::core::Dtype dtype = mlx::core::float32) {
  std::vector<float> tail;
  for (int i = 3; i > 0; --i) {
    const auto at = static_cast<std::ptrdiff_t>(tokens.size()) - i;
    tail.push_back(at < 0 ? 0 : static_cast<float>(tokens[static_cast<std::size_t>(at)]));
  }
  const mlx::core::array row(tail.data(), {1, 3, 1});
  return {mlx::core::astype(mlx::core::broadcast_to(row, {n_sequences, 3, 4}), dtype),
          mlx::core::full({n_sequences, 2, 3, 5}, digest(tokens))};
}

inline Tokens prefix(const Tokens& tokens, int n) {
  return {tokens.begin(), tokens.begin() + n};
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tokens range(int begin, int end) {
  Tokens result;
  for (int i = begin; i < end; ++i) result.push_back(i);
  return result;
}

inline bool is_equal(const std::optional<mlx::core::array>& a, const std::optional<mlx::core::array>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->shape() == b->shape() && a->dtype() == b->dtype() && mlx::core::array_equal(*a, *b).item<bool>();
}

// Of a pass over the tokens from `begin` on: it has to be given the states that were there before it.
inline cache::StateReplay replay_of(const Tokens& tokens, int begin) {
  return [tokens, begin](const cache::RecurrentState& start, int n) {
    const cache::RecurrentState expected = states_after(prefix(tokens, begin));
    EXPECT_TRUE(is_equal(start.tail, expected.tail) && is_equal(start.state, expected.state)) << "from " << begin;
    EXPECT_TRUE(n > 0 && begin + n < static_cast<int>(tokens.size())) << n << " from " << begin;
    return states_after(prefix(tokens, begin + n));
  };
}

// Takes in n more of the tokens, with the states that the cache asks for on the way, or a replay where it wants one.
inline void feed(cache::RecurrentCache& cache, const Tokens& tokens, int n) {
  const int begin = cache.offset();
  cache.get(1, mlx::core::float32);
  const bool has_replay = cache.wants_replay(n, 0);
  std::vector<cache::RecurrentState> captured;
  for (const int step : cache.capture_steps(n, has_replay))
    captured.push_back(states_after(prefix(tokens, begin + step)));
  cache.put(states_after(prefix(tokens, begin + n)), n, captured,
            has_replay ? replay_of(prefix(tokens, begin + n), begin) : cache::StateReplay{});
}

inline void expect_holds(cache::RecurrentCache& cache, const Tokens& tokens) {
  ASSERT_EQ(cache.offset(), static_cast<int>(tokens.size()));
  const cache::RecurrentState states = cache.get(1, mlx::core::float32);
  const cache::RecurrentState expected = states_after(tokens);
  EXPECT_TRUE(is_equal(states.tail, expected.tail));
  EXPECT_TRUE(is_equal(states.state, expected.state));
}

template <typename Call>
inline void expect_refused(const Call& call, const std::string& expected) {
  try {
    call();
    FAIL() << "nothing was thrown, expected: " << expected;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

}  // namespace memoir::test
