#include "memoir/kernels/history.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr int kRowAxis = 2;
constexpr int kMaxPositions = 1 << 30;  // so that sums of a few of them stay in an int

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument("[" + std::string(function) + "] " + what);
}

mx::array rows_of(const mx::array& buffer, const std::vector<KvRange>& ranges) {
  const auto between = [&](int begin, int end) {
    const mx::Shape start{0, 0, begin, 0};
    const mx::Shape stop{buffer.shape(0), buffer.shape(1), end, buffer.shape(3)};
    return mx::slice(buffer, start, stop);
  };
  if (ranges.empty()) return between(0, 0);
  std::vector<mx::array> parts;
  for (const KvRange& range : ranges) parts.push_back(between(range.begin_row, range.begin_row + range.n_rows));
  return parts.size() == 1 ? parts[0] : mx::concatenate(parts, kRowAxis);
}

void check_scales(const char* function, const char* name, const KvBuffer& buffer) {
  const Quantization& q = *buffer.quantization;
  mx::Shape expected = buffer.data.shape();
  expected.back() = q.group_size > 0 ? buffer.dim() / q.group_size : 0;
  const bool is_known = (q.bits == 2 || q.bits == 3 || q.bits == 4 || q.bits == 5 || q.bits == 6 || q.bits == 8) &&
                        (q.group_size == 32 || q.group_size == 64 || q.group_size == 128);
  if (!is_known || buffer.data.dtype() != mx::uint32 || buffer.dim() % q.group_size != 0 ||
      q.scales.shape() != expected || q.biases.shape() != expected || q.scales.dtype() != q.biases.dtype()) {
    refuse(function, std::string(name) + " have codes " + shape_text(buffer.data) + " " +
                         dtype_text(buffer.data.dtype()) + ", scales " + shape_text(q.scales) + ", biases " +
                         shape_text(q.biases) + ", " + std::to_string(q.bits) + " bits, groups of " +
                         std::to_string(q.group_size) +
                         ": expected uint32 (B,Hkv,C,D*bits/32) and twice (B,Hkv,C,D/group) with 2, 3, 4, 5, 6 or 8 "
                         "bits and groups of 32, 64 or 128");
  }
}

void check_ranges(const char* function, const History& history) {
  int end = 0;
  for (const KvRange& range : history.ranges) {
    const bool lies_inside = range.n_rows > 0 && range.begin_row >= 0 &&
                             range.begin_row <= history.keys.data.shape(kRowAxis) - range.n_rows &&
                             range.first_position >= end && range.first_position <= kMaxPositions - range.n_rows;
    if (!lies_inside) {
      refuse(function, "a range has " + std::to_string(range.n_rows) + " rows from row " +
                           std::to_string(range.begin_row) + ", position " + std::to_string(range.first_position) +
                           ": expected them inside keys " + shape_text(history.keys.data) + ", after position " +
                           std::to_string(end) + " and below 2^30");
    }
    end = range.first_position + range.n_rows;
  }
}

}  // namespace

int KvBuffer::dim() const {
  if (!quantization) return data.shape(3);
  return static_cast<int>(static_cast<std::int64_t>(data.shape(3)) * 32 / quantization->bits);
}

mx::Dtype KvBuffer::dtype() const {
  return quantization ? quantization->scales.dtype() : data.dtype();
}

std::vector<mx::array> KvBuffer::arrays() const {
  if (!quantization) return {data};
  return {data, quantization->scales, quantization->biases};
}

std::size_t KvBuffer::size_bytes() const {
  std::size_t n_bytes = 0;
  for (const mx::array& a : arrays()) n_bytes += a.nbytes();
  return n_bytes;
}

KvForm::KvForm(const KvBuffer& buffer) : dim(buffer.dim()) {
  if (!buffer.quantization) return;
  bits = buffer.quantization->bits;
  group_size = buffer.quantization->group_size;
}

std::vector<mx::array> arrays_of(const KvBuffer& keys, const KvBuffer& values) {
  std::vector<mx::array> arrays = keys.arrays();
  for (mx::array& a : values.arrays()) arrays.push_back(std::move(a));
  return arrays;
}

mx::array KvBuffer::rows(const std::vector<KvRange>& ranges) const {
  const mx::array elements = rows_of(data, ranges);
  if (!quantization) return elements;
  return mx::dequantize(elements, rows_of(quantization->scales, ranges), rows_of(quantization->biases, ranges),
                        quantization->group_size, quantization->bits);
}

int History::n_rows() const {
  int n = 0;
  for (const KvRange& range : ranges) n += range.n_rows;
  return n;
}

void check_history(const char* function, const History& history) {
  const mx::array& k = history.keys.data;
  const mx::array& v = history.values.data;
  if (k.ndim() != 4 || v.ndim() != 4 || v.shape(0) != k.shape(0) || v.shape(1) != k.shape(1) ||
      v.shape(2) != k.shape(2)) {
    refuse(function, "values have shape " + shape_text(v) + ", keys " + shape_text(k) +
                         ": expected (B,Hkv,C,Dv) and (B,Hkv,C,Dk)");
  }
  if (history.keys.quantization) check_scales(function, "keys", history.keys);
  if (history.values.quantization) check_scales(function, "values", history.values);
  check_ranges(function, history);
  if ((history.window && *history.window < 1) || history.keep < 0) {
    refuse(function, "the history's window is " + std::to_string(history.window.value_or(1)) + ", keep " +
                         std::to_string(history.keep) + ": expected at least 1 and 0");
  }
}

}  // namespace memoir::kernels
