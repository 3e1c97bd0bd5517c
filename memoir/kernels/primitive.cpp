#include "memoir/kernels/primitive.h"

#include <mlx/allocator.h>
#include <mlx/ops.h>

#include <stdexcept>
#include <string>

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

// Copies any array of floats to row-major order, axis by axis.
void copy_axes(const float* from, const mx::Shape& shape, const mx::Strides& strides, std::size_t axis, float*& to) {
  const auto n = shape[axis];
  const auto stride = strides[axis];
  if (axis + 1 == shape.size()) {
    for (int i = 0; i < n; ++i) *to++ = from[i * stride];
    return;
  }
  for (int i = 0; i < n; ++i) copy_axes(from + i * stride, shape, strides, axis + 1, to);
}

}  // namespace

mx::Stream cpu_stream() {
  return mx::default_stream(mx::Device(mx::Device::cpu));
}

mx::array as_float(const mx::array& x) {
  return mx::astype(x, mx::float32, cpu_stream());
}

void CpuPrimitive::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error(std::string("[kernels] ") + name() + " has no GPU implementation");
}

float* CpuPrimitive::allocate(mx::array& output) {
  output.set_data(mx::allocator::malloc(output.nbytes()));
  return output.data<float>();
}

float* CpuPrimitive::temporary(std::size_t n_floats) {
  // Two axes, since one holds no more than an int can count.
  constexpr std::size_t kRow = 4096;
  mx::array scratch({static_cast<int>((n_floats + kRow - 1) / kRow), static_cast<int>(kRow)}, mx::float32, nullptr, {});
  float* data = allocate(scratch);
  encoder().add_temporary(std::move(scratch));
  return data;
}

const float* CpuPrimitive::floats_of(const mx::array& a) {
  const float* data = a.data<float>();
  if (a.flags().row_contiguous || a.size() <= 1) return data;
  float* copy = temporary(a.size());
  queue([data, shape = a.shape(), strides = a.strides(), copy] {
    float* to = copy;
    copy_axes(data, shape, strides, 0, to);
  });
  return copy;
}

}  // namespace memoir::kernels
