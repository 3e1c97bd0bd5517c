#include "memoir/kernels/weight.h"

#include <mlx/allocator.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/kernels/device.h"
#include "memoir/kernels/shape.h"
#include "memoir/kernels/weight_memory.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

mx::Dtype dtype_of(cpu::Element element) {
  switch (element) {
    case cpu::Element::kF16:
      return mx::float16;
    case cpu::Element::kBF16:
      return mx::bfloat16;
    case cpu::Element::kF32:
      break;
  }
  return mx::float32;
}

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.prepared] " + what);
}

std::string described(const mx::array& a) {
  return shape_text(a) + " " + dtype_text(a.dtype());
}

void check_quantization(const mx::array& data, const Quantization& quantization) {
  const int group_size = quantization.group_size;
  const int bits = quantization.bits;
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    refuse("group_size is " + std::to_string(group_size) + ", expected 32, 64 or 128");
  }
  if (bits < 2 || bits > 8 || bits == 7) {
    refuse("bits is " + std::to_string(bits) + ", expected 2, 3, 4, 5, 6 or 8");
  }
  if (data.dtype() != mx::uint32) refuse("the codes are " + described(data) + ", expected uint32");
  const std::int64_t n_bits = std::int64_t{data.shape(1)} * 32;
  const std::int64_t n_columns = n_bits / bits;
  if (n_bits % bits != 0 || n_columns % group_size != 0 || n_columns > std::numeric_limits<int>::max()) {
    refuse("codes " + described(data) + " of " + std::to_string(bits) + " bits are no whole groups of " +
           std::to_string(group_size));
  }
  const std::vector<std::int64_t> expected = {data.shape(0), n_columns / group_size};
  for (const mx::array* part : {&quantization.scales, &quantization.biases}) {
    const std::vector<std::int64_t> shape(part->shape().begin(), part->shape().end());
    if (shape == expected && is_float(part->dtype())) continue;
    refuse(std::string(part == &quantization.scales ? "scales" : "biases") + " are " + described(*part) +
           ", expected " + shape_text(expected) + " of a float type for codes " + described(data));
  }
}

// Of a weight as it is stored. The kernels index by these shapes without a look.
void check_weight(const Weight& weight) {
  const mx::array& data = weight.data;
  if (data.ndim() != 2 || data.shape(0) < 1 || data.shape(1) < 1) {
    refuse("the weight is " + described(data) + ", expected [rows, columns], at least one of each");
  }
  if (weight.quantization) return check_quantization(data, *weight.quantization);
  if (!is_float(data.dtype())) refuse("the weight is " + described(data) + ", expected float32, float16 or bfloat16");
}

// Rows that were cut out or chosen are copied here and not at each use, nor on another thread than the one that loads,
// where MLX doesn't evaluate what this one left lazy.
Weight evaluated(Weight weight) {
  weight.data = mx::contiguous(weight.data);
  mx::eval(weight.data);
  if (weight.quantization) {
    Quantization& q = *weight.quantization;
    q.scales = mx::contiguous(q.scales);
    q.biases = mx::contiguous(q.biases);
    mx::eval(q.scales, q.biases);
  }
  return weight;
}

}  // namespace

cpu::Element element_of(mx::Dtype dtype) {
  if (dtype == mx::float16) return cpu::Element::kF16;
  return dtype == mx::bfloat16 ? cpu::Element::kBF16 : cpu::Element::kF32;
}

int Weight::columns() const {
  if (packed) return packed->n_columns;
  if (!quantization) return data.shape(1);
  return static_cast<int>(static_cast<std::int64_t>(data.shape(1)) * 32 / quantization->bits);
}

mx::Dtype Weight::dtype() const {
  if (packed) return dtype_of(packed->element);
  return quantization ? quantization->scales.dtype() : data.dtype();
}

std::size_t Weight::size_bytes() const {
  std::size_t n_bytes = data.nbytes();
  if (quantization) n_bytes += quantization->scales.nbytes() + quantization->biases.nbytes();
  return n_bytes;
}

bool has_implied_biases(const Quantization& q) {
  if (q.biases.dtype() != q.scales.dtype()) return false;
  const mx::array scales = mx::contiguous(q.scales);
  const mx::array biases = mx::contiguous(q.biases);
  mx::eval(scales, biases);
  return cpu::has_implied_biases(element_of(scales.dtype()), q.bits, scales.size(), packed_bytes(scales),
                                 packed_bytes(biases));
}

cpu::PackedFormat packed_format(const Weight& weight) {
  check_weight(weight);
  cpu::PackedFormat format{weight.rows(), weight.columns(), element_of(weight.dtype())};
  if (weight.quantization) {
    format.bits = weight.quantization->bits;
    format.group_size = weight.quantization->group_size;
  }
  return format;
}

void pack(const Weight& weight, const cpu::PackedFormat& format, std::byte* out) {
  const mx::array data = mx::contiguous(weight.data);
  mx::eval(data);
  if (!weight.quantization) return cpu::pack_dense(format, packed_bytes(data), out);
  const mx::array scales = mx::contiguous(weight.quantization->scales);
  const mx::array biases = mx::contiguous(mx::astype(weight.quantization->biases, scales.dtype()));
  mx::eval(scales, biases);
  cpu::pack_quantized(format, data.data<std::uint32_t>(), packed_bytes(scales), packed_bytes(biases), out);
}

Weight some_rows(const Weight& weight, int begin, int end, int step) {
  const auto some = [&](const mx::array& a) {
    return mx::slice(a, mx::Shape{begin, 0}, mx::Shape{end, a.shape(1)}, mx::Shape{step, 1});
  };
  Weight part{some(weight.data)};
  if (!weight.quantization) return part;
  const Quantization& q = *weight.quantization;
  part.quantization = Quantization{some(q.scales), some(q.biases), q.group_size, q.bits};
  return part;
}

Weight chosen_rows(const Weight& weight, const std::vector<int>& rows) {
  const mx::array indices(rows.data(), {static_cast<int>(rows.size())}, mx::int32);
  const auto some = [&](const mx::array& a) { return mx::take(a, indices, 0); };
  Weight part{some(weight.data)};
  if (!weight.quantization) return part;
  const Quantization& q = *weight.quantization;
  part.quantization = Quantization{some(q.scales), some(q.biases), q.group_size, q.bits};
  return part;
}

bool is_float(mx::Dtype dtype) {
  return dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
}

const std::byte* packed_bytes(const mx::array& data) {
  return reinterpret_cast<const std::byte*>(data.data<std::uint8_t>());
}

Weight prepared(Weight weight) {
  if (weight.packed) return weight;
  cpu::PackedFormat format = packed_format(weight);
  if (!on_cpu()) return evaluated(std::move(weight));
  format.has_biases = !weight.quantization || !has_implied_biases(*weight.quantization);
  mx::array packed = weight_memory(format.size_bytes());
  pack(weight, format, const_cast<std::byte*>(packed_bytes(packed)));
  return {std::move(packed), std::nullopt, format};
}

}  // namespace memoir::kernels
