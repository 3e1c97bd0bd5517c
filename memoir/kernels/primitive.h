#pragma once

// The base of memoir's own MLX operations: they run on the CPU stream of the calling thread, in float32.
//
// An operation's inputs may have any strides: floats_of() finds their elements where they lie, or has them copied
// first, on the stream. MLX keeps inputs, outputs and temporaries alive until all that was queued has run.

#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>

#include <optional>
#include <utility>
#include <vector>

namespace memoir::kernels {

/// The stream that new operations of this thread are made on.
mlx::core::Stream cpu_stream();

/// x as float32: x itself where it is that already.
mlx::core::array as_float(const mlx::core::array& x);

class CpuPrimitive : public mlx::core::Primitive {
 public:
  using Primitive::Primitive;

  /// Throws std::runtime_error: there is none; the functions that make these operations choose MLX's own on a GPU.
  void eval_gpu(const std::vector<mlx::core::array>& inputs, std::vector<mlx::core::array>& outputs) override;

 protected:
  /// An output's memory, fresh.
  static float* allocate(mlx::core::array& output);

  /// Makes output i, of the shape and type of input i, hold that input's elements in row-major order, for each of the
  /// outputs: in its memory, if nothing else refers to that, else in a copy that is made when the work before it is
  /// done. Or the same for the outputs from first_output on and as many inputs from first_input on.
  void take_over(const std::vector<mlx::core::array>& inputs, std::vector<mlx::core::array>& outputs);
  void take_over(const std::vector<mlx::core::array>& inputs, std::size_t first_input,
                 std::vector<mlx::core::array>& outputs, std::size_t first_output);

  /// For take_over() and its like, in an operation of several outputs: lets go the handles on its inputs that each of
  /// the other outputs holds, without which an input would look as if it were in use elsewhere.
  static void release_inputs(const std::vector<mlx::core::array>& inputs, std::vector<mlx::core::array>& outputs);

  /// Whether nothing else refers to the input's memory, which holds it in row-major order.
  static bool is_takeable(const mlx::core::array& input);

  /// Scratch of n floats for what is queued next.
  float* temporary(std::size_t n_floats);

  /// Float32 elements in row-major order: where they lie, or in a copy that is made when the work before it is done.
  const float* floats_of(const mlx::core::array& a);

  /// Elements of any type whose last axis lies side by side.
  struct Strided {
    const void* data;
    mlx::core::Strides strides;  // in elements
  };

  /// The array's elements, where they lie if its last axis lies side by side (and, where is_row_major is asked for, all
  /// of it does), else in a row-major copy that is made when the work before it is done.
  Strided rows_of(const mlx::core::array& a, bool is_row_major = false);

  /// Queues `work` on the stream.
  template <typename Work>
  void queue(Work work) {
    encoder().dispatch(std::move(work));
  }

 private:
  void take_over_one(const mlx::core::array& input, mlx::core::array& output);

  mlx::core::cpu::CommandEncoder& encoder();
};

}  // namespace memoir::kernels
