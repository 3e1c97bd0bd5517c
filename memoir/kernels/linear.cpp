#include "memoir/kernels/linear.h"

#include <mlx/ops.h>

#include <stdexcept>

#include "memoir/kernels/device.h"
#include "memoir/kernels/packed_ops.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

void check_linear(const mx::array& x, const Weight& w, const std::optional<mx::array>& bias) {
  if (x.ndim() < 1 || x.shape(-1) != w.columns()) {
    throw std::invalid_argument("[kernels.linear] x has shape " + shape_text(x) + ", expected (...," +
                                std::to_string(w.columns()) + ")");
  }
  if (bias && (bias->ndim() != 1 || bias->shape(0) != w.rows())) {
    throw std::invalid_argument("[kernels.linear] bias has shape " + shape_text(*bias) + ", expected (" +
                                std::to_string(w.rows()) + ")");
  }
}

// MLX's CPU quantized product costs the same for every row of x, about 0.7 times as much as turning all the weights
// to float32 once. So several rows go through a dense product, which also runs on OpenBLAS.
bool is_cheaper_dequantized(const mx::array& x) {
  return on_cpu() && x.size() / static_cast<std::size_t>(x.shape(-1)) > 1;
}

mx::array quantized_product(const mx::array& x, const Weight& w) {
  const Quantization& q = *w.quantization;
  const mx::array scales = mx::astype(q.scales, x.dtype());
  const mx::array biases = mx::astype(q.biases, x.dtype());
  if (is_cheaper_dequantized(x)) {
    const mx::array dense = mx::dequantize(w.data, scales, biases, q.group_size, q.bits);
    return mx::matmul(x, mx::transpose(dense));
  }
  return mx::quantized_matmul(x, w.data, scales, biases, /* transpose = */ true, q.group_size, q.bits);
}

}  // namespace

mx::array linear(const mx::array& x, const Weight& w, const std::optional<mx::array>& bias) {
  check_linear(x, w, bias);
  if (w.packed) return packed_linear(x, w, bias);
  const mx::array y =
      w.quantization ? quantized_product(x, w) : mx::matmul(x, mx::transpose(mx::astype(w.data, x.dtype())));
  return bias ? mx::add(y, mx::astype(*bias, x.dtype())) : y;
}

mx::array embed(const mx::array& ids, const Weight& table, mx::Dtype dtype) {
  if (table.packed) return mx::astype(packed_rows(ids, table), dtype);
  const mx::array rows = mx::take(table.data, ids, 0);
  if (!table.quantization) return mx::astype(rows, dtype);
  const Quantization& q = *table.quantization;
  const mx::array scales = mx::astype(mx::take(q.scales, ids, 0), dtype);
  const mx::array biases = mx::astype(mx::take(q.biases, ids, 0), dtype);
  return mx::dequantize(rows, scales, biases, q.group_size, q.bits);
}

}  // namespace memoir::kernels
