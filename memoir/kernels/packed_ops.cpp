#include "memoir/kernels/packed_ops.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/pool.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

// What the two operations share: they know a format, and only the CPU.
class PackedPrimitive : public mx::UnaryPrimitive {
 public:
  PackedPrimitive(mx::Stream stream, const cpu::PackedFormat& format) : UnaryPrimitive(stream), format_(format) {}

  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error(std::string("[kernels] ") + name() + " has no GPU implementation");
  }

 protected:
  // The output's memory, fresh.
  static float* allocate(mx::array& output) {
    output.set_data(mx::allocator::malloc(output.nbytes()));
    return output.data<float>();
  }

  // Queues `work` on the stream; MLX keeps inputs and output alive until it has run.
  template <typename Work>
  void queue(const std::vector<mx::array>& inputs, mx::array& output, Work work) {
    mx::cpu::CommandEncoder& encoder = mx::cpu::get_command_encoder(stream());
    for (const mx::array& input : inputs) encoder.set_input_array(input);
    encoder.set_output_array(output);
    encoder.dispatch(std::move(work));
  }

  cpu::PackedFormat format_;
};

class PackedLinear : public PackedPrimitive {
 public:
  using PackedPrimitive::PackedPrimitive;
  DEFINE_NAME(PackedLinear)

  // inputs: x [..., K] float32 row-contiguous, packed weight, and bias [N] float32 where there is one.
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& output) override {
    const mx::array& x = inputs[0];
    cpu::MatmulArgs args{format_, packed_bytes(inputs[1]),
                         static_cast<int>(x.size() / static_cast<std::size_t>(format_.n_columns))};
    args.x = x.data<float>();
    args.bias = inputs.size() > 2 ? inputs[2].data<float>() : nullptr;
    args.y = allocate(output);
    queue(inputs, output, [args] { cpu::matmul(args); });
  }
};

class PackedRows : public PackedPrimitive {
 public:
  using PackedPrimitive::PackedPrimitive;
  DEFINE_NAME(PackedRows)

  // inputs: ids [...] int32 row-contiguous, packed table.
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& output) override {
    const std::int32_t* ids = inputs[0].data<std::int32_t>();
    const auto n_ids = static_cast<int>(inputs[0].size());
    const std::byte* packed = packed_bytes(inputs[1]);
    float* out = allocate(output);
    queue(inputs, output, [=, format = format_] {
      cpu::run_parts(n_ids, [&](int i) {
        cpu::unpack_row(format, packed, ids[i], out + static_cast<std::ptrdiff_t>(i) * format.n_columns);
      });
    });
  }
};

mx::Stream cpu_stream() {
  return mx::default_stream(mx::Device(mx::Device::cpu));
}

}  // namespace

mx::array packed_linear(const mx::array& x, const Weight& w, const std::optional<mx::array>& bias) {
  const mx::Stream stream = cpu_stream();
  mx::Shape shape = x.shape();
  shape.back() = w.packed->n_rows;
  std::vector<mx::array> inputs = {mx::contiguous(mx::astype(x, mx::float32, stream), false, stream), w.data};
  if (bias) inputs.push_back(mx::contiguous(mx::astype(*bias, mx::float32, stream), false, stream));
  const mx::array y(std::move(shape), mx::float32, std::make_shared<PackedLinear>(stream, *w.packed),
                    std::move(inputs));
  return mx::astype(y, x.dtype(), stream);
}

mx::array packed_rows(const mx::array& ids, const Weight& table) {
  const mx::Stream stream = cpu_stream();
  mx::Shape shape = ids.shape();
  shape.push_back(table.packed->n_columns);
  return mx::array(std::move(shape), mx::float32, std::make_shared<PackedRows>(stream, *table.packed),
                   {mx::contiguous(mx::astype(ids, mx::int32, stream), false, stream), table.data});
}

}  // namespace memoir::kernels
