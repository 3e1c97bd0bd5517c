#include "memoir/cache/batch_rows.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <charconv>
#include <stdexcept>

#include "memoir/cache/layout.h"
#include "memoir/cache/sequences.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using Arrays = std::vector<mx::array>;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

mx::array between(const mx::array& a, int begin, int end) {
  mx::Shape start(a.ndim(), 0);
  mx::Shape stop = a.shape();
  start[kRowsAxis] = begin;
  stop[kRowsAxis] = end;
  return mx::slice(a, start, stop);
}

mx::array zeros_like(const mx::array& a, int n_rows) {
  mx::Shape shape = a.shape();
  shape[kRowsAxis] = n_rows;
  return mx::zeros(shape, a.dtype());
}

// Equal but for one axis.
bool is_alike(const mx::array& a, const mx::array& b, std::size_t free_axis) {
  if (a.dtype() != b.dtype() || a.ndim() != b.ndim()) return false;
  for (std::size_t i = 0; i < a.ndim(); ++i) {
    if (i != free_axis && a.shape(static_cast<int>(i)) != b.shape(static_cast<int>(i))) return false;
  }
  return true;
}

std::string text_of(const mx::array& a) {
  return kernels::shape_text(a) + " " + kernels::dtype_text(a.dtype());
}

void check_alike(const char* function, const Arrays& a, const Arrays& b, std::size_t free_axis) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!is_alike(a[i], b[i], free_axis)) {
      refuse(function, "rows of shape " + text_of(b[i]) + " beside " + text_of(a[i]) +
                           ", expected the same but for axis " + std::to_string(free_axis));
    }
  }
}

}  // namespace

std::vector<std::string> numbers_of(const KVOptions& options, int offset, int n_rows) {
  std::vector<int> numbers;
  if (options.window) {
    numbers = {options.keep, options.keep + *options.window, offset, n_rows};
  } else if (options.chunk) {
    numbers = {*options.chunk, offset - n_rows};
  } else if (options.quantization) {
    numbers = {offset};
  }
  if (options.quantization) {
    numbers.insert(numbers.end(), {options.quantization->group_size, options.quantization->bits});
  }
  std::vector<std::string> texts;
  for (const int n : numbers) texts.push_back(std::to_string(n));
  return texts;
}

Arrays first_rows(const Arrays& rows, int n) {
  Arrays result;
  for (const mx::array& a : rows) result.push_back(between(a, 0, n));
  return result;
}

Arrays last_rows(const Arrays& rows, int n) {
  Arrays result;
  for (const mx::array& a : rows) result.push_back(between(a, a.shape(kRowsAxis) - n, a.shape(kRowsAxis)));
  return result;
}

Arrays padded_left(const Arrays& rows, int n) {
  Arrays result;
  for (const mx::array& a : rows) {
    const int n_missing = n - a.shape(kRowsAxis);
    result.push_back(n_missing == 0 ? a : mx::concatenate({zeros_like(a, n_missing), a}, kRowsAxis));
  }
  return result;
}

Arrays padded_right(const Arrays& rows, const Arrays& like, int n) {
  Arrays result;
  for (std::size_t i = 0; i < like.size(); ++i) {
    const int n_there = rows.empty() ? 0 : rows[i].shape(kRowsAxis);
    const mx::array missing = zeros_like(like[i], n - n_there);
    result.push_back(rows.empty() ? missing : mx::concatenate({rows[i], missing}, kRowsAxis));
  }
  return result;
}

Arrays rows_after(const char* function, const Arrays& before, const Arrays& rows) {
  if (before.empty()) return rows;
  check_alike(function, before, rows, kRowsAxis);
  Arrays result;
  for (std::size_t i = 0; i < rows.size(); ++i) result.push_back(mx::concatenate({before[i], rows[i]}, kRowsAxis));
  return result;
}

Arrays rolled(const Arrays& rows, const std::vector<int>& gaps) {
  Arrays result;
  for (const mx::array& a : rows) {
    const int n = a.shape(kRowsAxis);
    const mx::array shifts = mx::array(gaps.data(), {static_cast<int>(gaps.size()), 1, 1, 1}, mx::int32);
    const mx::array to = mx::reshape(mx::arange(0, n), {1, 1, n, 1});
    const mx::array from = mx::remainder(mx::subtract(to, shifts), mx::array(n));
    result.push_back(mx::take_along_axis(a, mx::broadcast_to(from, a.shape()), kRowsAxis));
  }
  return result;
}

Arrays joined_sequences(const char* function, const Arrays& a, int n, const Arrays& b, int m) {
  if (!a.empty() && !b.empty()) check_alike(function, a, b, 0);
  Arrays result;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const auto one = [i](const Arrays& all) { return all.empty() ? std::optional<mx::array>() : all[i]; };
    result.push_back(sequences_joined(one(a), n, one(b), m).value());
  }
  return result;
}

void check_kept(const char* function, const Arrays& kept, const Arrays& rows, int keep) {
  if (kept.empty()) return;
  check_alike(function, rows, kept, kRowsAxis);
  for (const mx::array& a : kept) {
    if (a.shape(kRowsAxis) != keep) {
      refuse(function, std::to_string(a.shape(kRowsAxis)) + " kept rows, expected " + std::to_string(keep));
    }
  }
}

kernels::KvBuffer buffer_of(const Arrays& rows, bool is_second, const KVOptions& options) {
  if (!options.quantization) return {rows[is_second ? 1 : 0]};
  const std::size_t at = is_second ? 3 : 0;
  const auto [bits, group_size] = *options.quantization;
  return {rows[at], kernels::Quantization{rows[at + 1], rows[at + 2], group_size, bits}};
}

std::vector<int> integers_of(const char* function, const mx::array& a) {
  if (a.ndim() != 1 || a.dtype() != mx::int32) refuse(function, "numbers are " + text_of(a) + ", expected (B) int32");
  const mx::array row = mx::contiguous(a);
  mx::eval(row);
  return {row.data<int>(), row.data<int>() + row.size()};
}

std::vector<int> parsed_numbers(const char* function, const std::vector<std::string>& texts) {
  if (texts.empty()) refuse(function, "no numbers, expected the columns at least");
  std::vector<int> numbers;
  for (const std::string& text : texts) {
    int value = -1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < 0 || value > Layout::kMaxRows) {
      refuse(function, "\"" + text + "\", expected a number from 0 to 2^30");
    }
    numbers.push_back(value);
  }
  return numbers;
}

}  // namespace memoir::cache
