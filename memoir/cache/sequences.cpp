#include "memoir/cache/sequences.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

mx::array zeros_like(const mx::array& a, int n_sequences) {
  mx::Shape shape = a.shape();
  shape[0] = n_sequences;
  return mx::zeros(shape, a.dtype());
}

bool is_one_run(const std::vector<int>& sequences) {
  for (std::size_t i = 1; i < sequences.size(); ++i) {
    if (sequences[i] != sequences[i - 1] + 1) return false;
  }
  return true;
}

}  // namespace

void check_sequences(const char* function, const std::vector<int>& sequences, int n_sequences) {
  const std::string where = std::string("[cache.") + function + "] ";
  if (sequences.empty()) throw std::invalid_argument(where + "no sequence is named");
  for (const int i : sequences) {
    if (i < 0 || i >= n_sequences) {
      throw std::invalid_argument(where + "sequence " + std::to_string(i) + " of " + std::to_string(n_sequences));
    }
  }
}

mx::array sequences_of(const mx::array& a, const std::vector<int>& sequences) {
  if (!is_one_run(sequences)) {
    return mx::take(a, mx::array(sequences.data(), {static_cast<int>(sequences.size())}, mx::int32), 0);
  }
  mx::Shape start(a.ndim(), 0);
  mx::Shape stop = a.shape();
  start[0] = sequences.front();
  stop[0] = sequences.back() + 1;
  return mx::slice(a, start, stop);
}

std::optional<mx::array> sequences_joined(const std::optional<mx::array>& a, int n, const std::optional<mx::array>& b,
                                          int m) {
  if (!a && !b) return std::nullopt;
  return mx::concatenate({a ? *a : zeros_like(*b, n), b ? *b : zeros_like(*a, m)}, 0);
}

}  // namespace memoir::cache
