#include "memoir/kernels/weight_stack.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"
#include "memoir/kernels/weight_memory.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

std::size_t aligned(std::size_t n_bytes) {
  return (n_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

bool is_same(const cpu::PackedFormat& a, const cpu::PackedFormat& b) {
  return a.n_rows == b.n_rows && a.n_columns == b.n_columns && a.element == b.element && a.bits == b.bits &&
         a.group_size == b.group_size && a.has_biases == b.has_biases;
}

void check_format(const cpu::PackedFormat& format, const cpu::PackedFormat& first, int index) {
  if (is_same(format, first)) return;
  throw std::invalid_argument("[kernels.stacked] matrix " + std::to_string(index) + " is (" +
                              std::to_string(format.n_rows) + "," + std::to_string(format.n_columns) + ") of " +
                              std::to_string(format.bits) + " bits, expected (" + std::to_string(first.n_rows) + "," +
                              std::to_string(first.n_columns) + ") of " + std::to_string(first.bits) +
                              " and the same types, as the first");
}

WeightStack packed_stack(int n, const Weight& first, const std::function<Weight(int)>& read) {
  const cpu::PackedFormat format = packed_format(first);
  mx::array data = weight_memory(static_cast<std::size_t>(n) * aligned(format.size_bytes()));
  WeightStack stack{n, format.n_rows, format.n_columns, std::move(data), std::nullopt, format};
  auto* out = const_cast<std::byte*>(packed_bytes(stack.data));
  pack(first, format, out);
  for (int i = 1; i < n; ++i) {
    const Weight weight = read(i);
    check_format(packed_format(weight), format, i);
    pack(weight, format, out + static_cast<std::size_t>(i) * stack.stride_bytes());
  }
  return stack;
}

WeightStack plain_stack(int n, const Weight& first, const std::function<Weight(int)>& read) {
  std::vector<mx::array> data = {first.data};
  std::vector<mx::array> scales;
  std::vector<mx::array> biases;
  const auto add_quantization = [&](const Weight& weight) {
    if (!weight.quantization) return;
    scales.push_back(weight.quantization->scales);
    biases.push_back(weight.quantization->biases);
  };
  add_quantization(first);
  for (int i = 1; i < n; ++i) {
    const Weight weight = read(i);
    check_format(packed_format(weight), packed_format(first), i);
    data.push_back(weight.data);
    add_quantization(weight);
  }
  WeightStack stack{n, first.rows(), first.columns(), mx::stack(data)};
  mx::eval(stack.data);
  if (!first.quantization) return stack;
  stack.quantization =
      Quantization{mx::stack(scales), mx::stack(biases), first.quantization->group_size, first.quantization->bits};
  mx::eval(stack.quantization->scales, stack.quantization->biases);
  return stack;
}

class HeadsPrimitive : public CpuPrimitive {
 public:
  HeadsPrimitive(mx::Stream stream, const WeightStack& heads)
      : CpuPrimitive(stream), format_(*heads.packed), stride_bytes_(heads.stride_bytes()) {}
  DEFINE_NAME(LinearOfHeads)

  // inputs: x [B, n, T, columns], the packed matrices.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array& x = inputs[0];
    const float* in = floats_of(x);
    float* out = allocate(outputs[0]);
    std::vector<cpu::MatmulArgs> products;
    for (int i = 0; i < x.shape(0) * x.shape(1); ++i) {
      cpu::MatmulArgs args{format_, packed_bytes(inputs[1]) + static_cast<std::size_t>(i % x.shape(1)) * stride_bytes_,
                           x.shape(2)};
      args.x = in + static_cast<std::ptrdiff_t>(i) * x.shape(2) * format_.n_columns;
      args.y = out + static_cast<std::ptrdiff_t>(i) * x.shape(2) * format_.n_rows;
      products.push_back(args);
    }
    queue([products = std::move(products)]() mutable { cpu::matmul(products); });
  }

 private:
  cpu::PackedFormat format_;
  std::size_t stride_bytes_;
};

}  // namespace

std::size_t WeightStack::stride_bytes() const {
  return aligned(packed->size_bytes());
}

std::size_t WeightStack::size_bytes() const {
  std::size_t n_bytes = data.nbytes();
  if (quantization) n_bytes += quantization->scales.nbytes() + quantization->biases.nbytes();
  return n_bytes;
}

WeightStack stacked(int n, const std::function<Weight(int)>& read) {
  const Weight first = read(0);
  return on_cpu() ? packed_stack(n, first, read) : plain_stack(n, first, read);
}

mx::array linear_of_heads(const mx::array& x, const WeightStack& heads) {
  if (x.ndim() != 4 || x.shape(1) != heads.n || x.shape(3) != heads.columns || x.size() == 0) {
    throw std::invalid_argument("[kernels.linear_of_heads] x has shape " + shape_text(x) + ", expected (B," +
                                std::to_string(heads.n) + ",T," + std::to_string(heads.columns) + ")");
  }
  if (heads.packed) {
    const mx::array y({x.shape(0), x.shape(1), x.shape(2), heads.rows}, mx::float32,
                      std::make_shared<HeadsPrimitive>(cpu_stream(), heads), {as_float(x), heads.data});
    return mx::astype(y, x.dtype(), cpu_stream());
  }
  if (!heads.quantization) {
    return mx::matmul(x, mx::swapaxes(mx::expand_dims(mx::astype(heads.data, x.dtype()), 0), 2, 3));
  }
  const Quantization& q = *heads.quantization;
  const auto typed = [&](const mx::array& a) { return mx::expand_dims(mx::astype(a, x.dtype()), 0); };
  return mx::quantized_matmul(x, mx::expand_dims(heads.data, 0), typed(q.scales), typed(q.biases),
                              /* transpose = */ true, q.group_size, q.bits);
}

}  // namespace memoir::kernels
