#include "memoir/kernels/primitive.h"

#include <mlx/ops.h>
#include <mlx/stream.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

#include "memoir/kernels/allocated.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

// Copies an array to row-major order, axis by axis.
struct RowMajorCopy {
  const mx::Shape& shape;
  const mx::Strides& strides;
  std::size_t item_bytes;
  std::byte* to;

  void copy(const std::byte* from, std::size_t axis) {
    const std::ptrdiff_t stride = strides[axis] * static_cast<std::ptrdiff_t>(item_bytes);
    for (int i = 0; i < shape[axis]; ++i, from += stride) {
      if (axis + 1 < shape.size()) {
        copy(from, axis + 1);
      } else {
        std::memcpy(to, from, item_bytes);
        to += item_bytes;
      }
    }
  }
};

mx::Strides row_major_strides(const mx::Shape& shape) {
  mx::Strides strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

}  // namespace

namespace {

// At exit MLX's allocator frees all it holds, whether a stream still works with it or not: a pass that was scheduled
// ahead would go on in freed memory. This is made after MLX's own statics, and so destroyed before them.
class WaitAtExit {
 public:
  ~WaitAtExit() {
    const std::lock_guard lock(mutex_);
    for (const mx::Stream& stream : streams_) {
      try {
        mx::synchronize(stream);
      } catch (...) {
        // Work that failed is done with too.
      }
    }
  }

  void add(mx::Stream stream) {
    const std::lock_guard lock(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::vector<mx::Stream> streams_;
};

void wait_at_exit(mx::Stream stream) {
  thread_local int last_index = -1;
  if (last_index == stream.index) return;
  last_index = stream.index;
  static WaitAtExit streams;
  streams.add(stream);
}

}  // namespace

mx::cpu::CommandEncoder& CpuPrimitive::encoder() {
  wait_at_exit(stream());
  return mx::cpu::get_command_encoder(stream());
}

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
  output.set_data(allocated(output.nbytes()));
  return output.data<float>();
}

void CpuPrimitive::release_inputs(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  // MLX lets these handles go only after the evaluation.
  for (mx::array& output : outputs) {
    if (&output.inputs() != &inputs) output.inputs().clear();
  }
}

bool CpuPrimitive::is_takeable(const mx::array& input) {
  return input.is_donatable() && input.flags().row_contiguous;
}

void CpuPrimitive::take_over(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  take_over(inputs, 0, outputs, 0);
}

void CpuPrimitive::take_over(const std::vector<mx::array>& inputs, std::size_t first_input,
                             std::vector<mx::array>& outputs, std::size_t first_output) {
  release_inputs(inputs, outputs);
  for (std::size_t i = first_output; i < outputs.size(); ++i) {
    take_over_one(inputs[first_input + i - first_output], outputs[i]);
  }
}

void CpuPrimitive::take_over_one(const mx::array& input, mx::array& output) {
  if (is_takeable(input)) {
    output.copy_shared_buffer(input);
    return;
  }
  output.set_data(allocated(output.nbytes()));
  if (output.size() == 0) return;
  auto* to = reinterpret_cast<std::byte*>(output.data<std::uint8_t>());
  const auto* from = reinterpret_cast<const std::byte*>(input.data<std::uint8_t>());
  if (input.flags().row_contiguous) {
    queue([from, to, n_bytes = input.nbytes()] { std::memcpy(to, from, n_bytes); });
  } else {
    queue([from, to, shape = input.shape(), strides = input.strides(), item_bytes = input.itemsize()] {
      RowMajorCopy{shape, strides, item_bytes, to}.copy(from, 0);
    });
  }
}

float* CpuPrimitive::temporary(std::size_t n_floats) {
  // Two axes, since one holds no more than an int can count.
  constexpr std::size_t kRow = 4096;
  mx::array scratch({static_cast<int>((n_floats + kRow - 1) / kRow), static_cast<int>(kRow)}, mx::float32, nullptr, {});
  float* data = allocate(scratch);
  encoder().add_temporary(std::move(scratch));
  return data;
}

CpuPrimitive::Strided CpuPrimitive::rows_of(const mx::array& a, bool is_row_major) {
  const auto* data = reinterpret_cast<const std::byte*>(a.data<std::uint8_t>());
  const bool is_side_by_side = a.ndim() == 0 || a.shape(-1) == 1 || a.strides().back() == 1;
  const bool is_as_asked = is_row_major ? a.flags().row_contiguous : is_side_by_side;
  if (is_as_asked || a.size() <= 1) return {data, a.strides()};
  auto* copied = reinterpret_cast<std::byte*>(temporary((a.nbytes() + sizeof(float) - 1) / sizeof(float)));
  queue([data, shape = a.shape(), strides = a.strides(), item_bytes = a.itemsize(), copied] {
    RowMajorCopy{shape, strides, item_bytes, copied}.copy(data, 0);
  });
  return {copied, row_major_strides(a.shape())};
}

const float* CpuPrimitive::floats_of(const mx::array& a) {
  return static_cast<const float*>(rows_of(a, true).data);
}

}  // namespace memoir::kernels
