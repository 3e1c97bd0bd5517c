#include "memoir/cache/rows.h"

#include <mlx/ops.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memoir/kernels/kv_write.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::KvBuffer;

constexpr int kRowAxis = 2;

mx::array between(const mx::array& rows, int begin, int end) {
  const mx::Shape start{0, 0, begin, 0};
  const mx::Shape stop{rows.shape(0), rows.shape(1), end, rows.shape(3)};
  return mx::slice(rows, start, stop);
}

// MLX copies element by element, which for two bytes each is at a third of the memory's speed. So rows that lie side by
// side are copied as elements of 8 bytes, where their width allows: a view, no operation on the data.
mx::array widened(const mx::array& a) {
  const bool fits_8_bytes = a.shape(3) > 0 && static_cast<std::size_t>(a.shape(3)) * a.itemsize() % 8 == 0;
  return fits_8_bytes ? mx::view(a, mx::uint64) : a;
}

mx::array narrowed(const mx::array& a, mx::Dtype dtype) {
  return a.dtype() == dtype ? a : mx::view(a, dtype);
}

// The buffer whose every array is what `change` makes of the buffer's.
template <class Change>
KvBuffer changed(const KvBuffer& buffer, const Change& change) {
  if (!buffer.quantization) return {change(buffer.data)};
  const kernels::Quantization& q = *buffer.quantization;
  return {change(buffer.data), kernels::Quantization{change(q.scales), change(q.biases), q.group_size, q.bits}};
}

// The same from two buffers in one format.
template <class Change>
KvBuffer changed(const KvBuffer& a, const KvBuffer& b, const Change& change) {
  if (!a.quantization) return {change(a.data, b.data)};
  const kernels::Quantization& p = *a.quantization;
  const kernels::Quantization& q = *b.quantization;
  return {change(a.data, b.data),
          kernels::Quantization{change(p.scales, q.scales), change(p.biases, q.biases), p.group_size, p.bits}};
}

mx::array spread(const mx::array& rows, int capacity, std::vector<RowRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const RowRun& a, const RowRun& b) { return a.to_row < b.to_row; });
  std::vector<mx::array> parts;
  int end = 0;
  const auto add_zeros_until = [&](int row) {
    if (row > end) parts.push_back(mx::zeros({rows.shape(0), rows.shape(1), row - end, rows.shape(3)}, rows.dtype()));
  };
  for (const RowRun& run : runs) {
    add_zeros_until(run.to_row);
    parts.push_back(between(rows, run.from_row, run.from_row + run.n_rows));
    end = run.to_row + run.n_rows;
  }
  add_zeros_until(capacity);
  return parts.size() == 1 ? mx::contiguous(parts[0]) : mx::concatenate(parts, kRowAxis);
}

mx::array written(mx::array buffer, const mx::array& rows, const std::vector<RowRun>& runs) {
  for (const RowRun& run : runs) {
    const bool is_all = run.from_row == 0 && run.n_rows == rows.shape(kRowAxis);
    const mx::Shape start{0, 0, run.to_row, 0};
    const mx::Shape stop{buffer.shape(0), buffer.shape(1), run.to_row + run.n_rows, buffer.shape(3)};
    buffer =
        mx::slice_update(buffer, is_all ? rows : between(rows, run.from_row, run.from_row + run.n_rows), start, stop);
  }
  return buffer;
}

mx::array taken(const mx::array& buffer, const std::vector<StoredRun>& runs) {
  if (runs.empty()) return between(buffer, 0, 0);
  std::vector<mx::array> parts;
  for (const StoredRun& run : runs) parts.push_back(between(buffer, run.begin_row, run.begin_row + run.n_rows));
  return parts.size() == 1 ? parts[0] : mx::concatenate(parts, kRowAxis);
}

}  // namespace

void check_format(const RowFormat& format) {
  if (format.dtype && !kernels::is_float(*format.dtype)) {
    throw std::invalid_argument("[cache.KVCache] dtype is " + kernels::dtype_text(*format.dtype) +
                                ", expected float32, float16 or bfloat16");
  }
  if (!format.quantization) return;
  const auto [bits, group_size] = *format.quantization;
  const bool is_known = (bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8) &&
                        (group_size == 32 || group_size == 64 || group_size == 128);
  if (!is_known) {
    throw std::invalid_argument("[cache.KVCache] " + std::to_string(bits) + " bits in groups of " +
                                std::to_string(group_size) +
                                ", expected 2, 3, 4, 5, 6 or 8 in groups of 32, 64 or 128");
  }
}

KvBuffer encoded(const mx::array& rows, const RowFormat& format) {
  const mx::array cast = format.dtype ? kernels::rows_as(rows, *format.dtype) : rows;
  if (!format.quantization) return {cast};
  const auto [bits, group_size] = *format.quantization;
  const std::vector<mx::array> parts = mx::quantize(cast, group_size, bits);
  return {parts[0], kernels::Quantization{parts[1], parts[2], group_size, bits}};
}

KvBuffer zero_rows(const RowShape& shape, int dim, int capacity, const RowFormat& format) {
  const mx::Dtype dtype = format.dtype.value_or(shape.dtype);
  const auto zeros = [&](int width, mx::Dtype type) {
    return mx::zeros({shape.n_sequences, shape.n_heads, capacity, width}, type);
  };
  if (!format.quantization) return {zeros(dim, dtype)};
  const auto [bits, group_size] = *format.quantization;
  const int n_groups = dim / group_size;
  return {zeros(dim * bits / 32, mx::uint32),
          kernels::Quantization{zeros(n_groups, dtype), zeros(n_groups, dtype), group_size, bits}};
}

int n_rows(const KvBuffer& buffer) {
  return buffer.data.shape(kRowAxis);
}

bool fits(const KvBuffer& a, const KvBuffer& b) {
  const auto fit = [](const mx::array& x, const mx::array& y) {
    return x.ndim() == 4 && y.ndim() == 4 && x.shape(0) == y.shape(0) && x.shape(1) == y.shape(1) &&
           x.shape(3) == y.shape(3) && x.dtype() == y.dtype();
  };
  if (!fit(a.data, b.data) || a.quantization.has_value() != b.quantization.has_value()) return false;
  if (!a.quantization) return true;
  return a.quantization->bits == b.quantization->bits && a.quantization->group_size == b.quantization->group_size &&
         fit(a.quantization->scales, b.quantization->scales) && fit(a.quantization->biases, b.quantization->biases);
}

std::string rows_text(const KvBuffer& buffer) {
  std::string text = "(" + std::to_string(buffer.data.shape(0)) + "," + std::to_string(buffer.data.shape(1)) + ",*," +
                     std::to_string(buffer.dim()) + ") ";
  if (buffer.quantization) {
    text += "in " + std::to_string(buffer.quantization->bits) + " bits, groups of " +
            std::to_string(buffer.quantization->group_size) + ", ";
  }
  return text + kernels::dtype_text(buffer.dtype());
}

KvBuffer spread(const KvBuffer& rows, int capacity, const std::vector<RowRun>& runs, RowsLie lie) {
  return changed(rows, [&](const mx::array& a) {
    if (lie == RowsLie::kAnyhow) return spread(a, capacity, runs);
    return narrowed(spread(widened(a), capacity, runs), a.dtype());
  });
}

KvBuffer stacked(const std::vector<KvBuffer>& parts, int n_rows, int capacity) {
  const auto stack = [&](const auto& array_of) {
    std::vector<mx::array> arrays;
    int n_left = n_rows;
    for (const KvBuffer& part : parts) {
      const mx::array rows = widened(array_of(part));
      const int n_taken = std::min(n_left, rows.shape(kRowAxis));
      arrays.push_back(n_taken < rows.shape(kRowAxis) ? between(rows, 0, n_taken) : rows);
      n_left -= n_taken;
    }
    if (capacity > n_rows) {
      const mx::array& like = arrays.front();
      arrays.push_back(mx::zeros({like.shape(0), like.shape(1), capacity - n_rows, like.shape(3)}, like.dtype()));
    }
    const mx::array whole = arrays.size() == 1 ? mx::contiguous(arrays[0]) : mx::concatenate(arrays, kRowAxis);
    return narrowed(whole, array_of(parts.front()).dtype());
  };
  const mx::array data = stack([](const KvBuffer& part) -> const mx::array& { return part.data; });
  if (!parts.front().quantization) return {data};
  const kernels::Quantization& q = *parts.front().quantization;
  return {data, kernels::Quantization{
                    stack([](const KvBuffer& part) -> const mx::array& { return part.quantization->scales; }),
                    stack([](const KvBuffer& part) -> const mx::array& { return part.quantization->biases; }),
                    q.group_size, q.bits}};
}

KvBuffer written(const KvBuffer& buffer, const KvBuffer& rows, const std::vector<RowRun>& runs, RowsLie lie) {
  return changed(buffer, rows, [&](const mx::array& a, const mx::array& b) {
    if (lie == RowsLie::kAnyhow) return written(a, b, runs);
    return narrowed(written(widened(a), widened(b), runs), a.dtype());
  });
}

KvBuffer taken(const KvBuffer& buffer, const std::vector<StoredRun>& runs) {
  return changed(buffer, [&](const mx::array& a) { return taken(a, runs); });
}

KvBuffer taken_out(const KvBuffer& buffer, const std::vector<StoredRun>& runs) {
  return changed(buffer,
                 [&](const mx::array& a) { return narrowed(mx::contiguous(taken(widened(a), runs)), a.dtype()); });
}

KvBuffer joined(const KvBuffer& a, const KvBuffer& b) {
  return changed(a, b, [](const mx::array& x, const mx::array& y) {
    return narrowed(mx::concatenate({widened(x), widened(y)}, kRowAxis), x.dtype());
  });
}

}  // namespace memoir::cache
