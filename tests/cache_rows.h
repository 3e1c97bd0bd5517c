#pragma once

// Rows for the tests of caches: filled with a number, so that what a cache holds can be read off.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <optional>
#include <vector>

#include "memoir/cache/kv.h"

namespace memoir::cache::test {

namespace mx = mlx::core;

inline constexpr int kHeads = 4;
inline constexpr int kWidth = 8;

/// Rows whose elements are their position times `sign`: keys get their position and values its negative.
inline mx::array rows_at(int begin, int end, float sign, int width = kWidth, mx::Dtype dtype = mx::float32) {
  const mx::array positions = mx::reshape(mx::arange(begin, end, mx::float32), {1, 1, end - begin, 1});
  return mx::astype(mx::broadcast_to(mx::multiply(positions, mx::array(sign)), {1, kHeads, end - begin, width}), dtype);
}

/// Writes rows filled with first_value, first_value + 1, ...
inline History feed(AttentionCache& cache, int n_tokens, int first_value) {
  return cache.update(rows_at(first_value, first_value + n_tokens, 1),
                      rows_at(first_value, first_value + n_tokens, -1));
}

/// The same, filled with their positions.
inline History feed(AttentionCache& cache, int n_tokens) {
  return feed(cache, n_tokens, cache.offset());
}

/// Positions of the rows of a history.
inline std::vector<int> positions_of(const std::optional<History>& history) {
  std::vector<int> result;
  if (!history) return result;
  for (const kernels::KvRange& range : history->ranges) {
    for (int i = 0; i < range.n_rows; ++i) result.push_back(range.first_position + i);
  }
  return result;
}

/// The value that fills each row; checks that rows are filled evenly and that keys and values belong together.
inline std::vector<int> contents(const std::optional<History>& history) {
  if (!history) return {};
  std::vector<int> result;
  mx::array keys = mx::contiguous(mx::astype(history->key_rows(), mx::float32));
  mx::array values = mx::contiguous(mx::astype(history->value_rows(), mx::float32));
  mx::eval(keys, values);
  const int n_rows = keys.shape(2);
  for (int row = 0; row < n_rows; ++row) {
    result.push_back(static_cast<int>(keys.data<float>()[row * keys.shape(3)]));
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int row = 0; row < n_rows; ++row) {
      const auto expected = static_cast<float>(result[static_cast<std::size_t>(row)]);
      for (int i = 0; i < keys.shape(3); ++i) {
        EXPECT_EQ(keys.data<float>()[(head * n_rows + row) * keys.shape(3) + i], expected);
      }
      for (int i = 0; i < values.shape(3); ++i) {
        EXPECT_EQ(values.data<float>()[(head * n_rows + row) * values.shape(3) + i], -expected);
      }
    }
  }
  return result;
}

/// begin, begin + 1, ... end - 1.
inline std::vector<int> range(int begin, int end) {
  std::vector<int> result;
  for (int i = begin; i < end; ++i) result.push_back(i);
  return result;
}

}  // namespace memoir::cache::test
