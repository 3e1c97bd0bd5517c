#include "memoir/kernels/linear.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

class LinearPrimitive : public CpuPrimitive {
 public:
  LinearPrimitive(mx::Stream stream, const Linear& layer, bool has_residual)
      : CpuPrimitive(stream), layer_(layer), has_residual_(has_residual) {}
  DEFINE_NAME(Linear)

  // inputs: x [..., K], the layer's arrays, and residual [..., N] where there is one.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    const mx::array& x = next();
    const float* in = floats_of(x);
    const cpu::LinearArgs layer = layer_.read(next, [this](const mx::array& a) { return floats_of(a); });
    const auto n_rows = static_cast<int>(x.size() / static_cast<std::size_t>(layer.format.n_columns));
    cpu::MatmulArgs args = cpu::product(layer, n_rows, in, allocate(outputs[0]));
    if (has_residual_) args.residual = floats_of(next());
    queue([args]() mutable { cpu::matmul({&args, 1}); });
  }

 private:
  LinearReader layer_;
  bool has_residual_;
};

class RowsPrimitive : public CpuPrimitive {
 public:
  RowsPrimitive(mx::Stream stream, const cpu::PackedFormat& format) : CpuPrimitive(stream), format_(format) {}
  DEFINE_NAME(EmbeddingRows)

  // inputs: ids [...] int32 row-contiguous, packed table.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const std::int32_t* ids = inputs[0].data<std::int32_t>();
    const auto n_ids = static_cast<int>(inputs[0].size());
    const std::byte* packed = packed_bytes(inputs[1]);
    float* out = allocate(outputs[0]);
    queue([=, format = format_] {
      cpu::run_parts(n_ids, [&](int i) {
        cpu::unpack_row(format, packed, ids[i], out + static_cast<std::ptrdiff_t>(i) * format.n_columns);
      });
    });
  }

 private:
  cpu::PackedFormat format_;
};

void check_linear(const mx::array& x, const Linear& layer, const std::optional<mx::array>& residual) {
  check_columns("linear", x, layer);
  if (!residual) return;
  mx::Shape shape = x.shape();
  shape.back() = layer.rows();
  if (residual->shape() != shape) {
    throw std::invalid_argument("[kernels.linear] residual has shape " + shape_text(*residual) + ", expected (...," +
                                std::to_string(layer.rows()) + ") for x " + shape_text(x));
  }
}

mx::array packed_linear(const mx::array& x, const Linear& layer, const std::optional<mx::array>& residual) {
  mx::Shape shape = x.shape();
  shape.back() = layer.rows();
  std::vector<mx::array> inputs = {as_float(x)};
  append_arrays(layer, inputs);
  if (residual) inputs.push_back(as_float(*residual));
  const auto primitive = std::make_shared<LinearPrimitive>(cpu_stream(), layer, residual.has_value());
  mx::array y(std::move(shape), mx::float32, primitive, std::move(inputs));
  return mx::astype(y, x.dtype(), cpu_stream());
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

void check_columns(const char* function, const mx::array& x, const Linear& layer) {
  if (x.ndim() < 1 || x.shape(-1) != layer.columns()) {
    throw std::invalid_argument(std::string("[kernels.") + function + "] x has shape " + shape_text(x) +
                                ", expected (...," + std::to_string(layer.columns()) + ")");
  }
  if (layer.bias && (layer.bias->ndim() != 1 || layer.bias->shape(0) != layer.rows())) {
    throw std::invalid_argument(std::string("[kernels.") + function + "] bias has shape " + shape_text(*layer.bias) +
                                ", expected (" + std::to_string(layer.rows()) + ")");
  }
}

void append_arrays(const Linear& layer, std::vector<mx::array>& arrays) {
  arrays.push_back(layer.weight.data);
  if (layer.bias) arrays.push_back(as_float(*layer.bias));
}

mx::array linear(const mx::array& x, const Linear& layer, const std::optional<mx::array>& residual) {
  check_linear(x, layer, residual);
  const Weight& w = layer.weight;
  if (w.packed) return packed_linear(x, layer, residual);
  mx::array y = w.quantization ? quantized_product(x, w) : mx::matmul(x, mx::transpose(mx::astype(w.data, x.dtype())));
  if (layer.bias) y = mx::add(y, mx::astype(*layer.bias, x.dtype()));
  return residual ? mx::add(y, *residual) : y;
}

mx::array embed(const mx::array& ids, const Weight& table, mx::Dtype dtype) {
  if (table.packed) {
    mx::Shape shape = ids.shape();
    shape.push_back(table.packed->n_columns);
    const mx::array rows(std::move(shape), mx::float32, std::make_shared<RowsPrimitive>(cpu_stream(), *table.packed),
                         {mx::contiguous(mx::astype(ids, mx::int32, cpu_stream()), false, cpu_stream()), table.data});
    return mx::astype(rows, dtype, cpu_stream());
  }
  const mx::array rows = mx::take(table.data, ids, 0);
  if (!table.quantization) return mx::astype(rows, dtype);
  const Quantization& q = *table.quantization;
  const mx::array scales = mx::astype(mx::take(q.scales, ids, 0), dtype);
  const mx::array biases = mx::astype(mx::take(q.biases, ids, 0), dtype);
  return mx::dequantize(rows, scales, biases, q.group_size, q.bits);
}

}  // namespace memoir::kernels
