#include "memoir/kernels/rope.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/rows.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

class RopePrimitive : public CpuPrimitive {
 public:
  RopePrimitive(mx::Stream stream, const cpu::RopeArgs& args) : CpuPrimitive(stream), args_(args) {}
  DEFINE_NAME(Rope)

  // inputs: x [B, H, T, D], table [T, n_dims].
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array& x = inputs[0];
    // Each head is a sequence of its own with a single head.
    cpu::HeadsArgs args;
    args.n_sequences = x.shape(0) * x.shape(1);
    args.n_tokens = x.shape(2);
    args.n_heads = 1;
    args.rope = args_;
    args.turns = floats_of(inputs[1]);
    args.x = floats_of(x);
    args.row_stride = x.shape(3);
    args.out = allocate(outputs[0]);
    queue([args] { cpu::split_heads(args); });
  }

 private:
  cpu::RopeArgs args_;
};

// What turns, multiplied; the rest of each head as it is.
mx::array magnified(const mx::array& x, const Rope& rope) {
  const mx::array factor = mx::astype(mx::array(rope.magnitude), x.dtype());
  if (rope.n_dims == x.shape(3)) return mx::multiply(x, factor);
  const std::vector<mx::array> parts = mx::split(x, mx::Shape{rope.n_dims}, -1);
  return mx::concatenate({mx::multiply(parts[0], factor), parts[1]}, -1);
}

mx::array turn_table(const Rope& rope, const std::vector<PositionRun>& runs, int n_tokens) {
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(n_tokens) * static_cast<std::size_t>(rope.n_dims));
  for (const PositionRun& run : runs) {
    for (int t = 0; t < run.n_tokens; ++t) {
      const auto position = static_cast<float>((static_cast<double>(run.first) + t) * rope.scale);
      for (const float period : rope.periods) {
        const float angle = position * (1 / period);
        table.push_back(std::cos(angle) * rope.magnitude);
        table.push_back(std::sin(angle) * rope.magnitude);
      }
    }
  }
  return mx::array(table.data(), {n_tokens, rope.n_dims}, mx::float32);
}

// By MLX's kernel, which knows runs of positions alone.
mx::array fast_rope(const mx::array& x, const Turns& turns) {
  const Rope& spec = turns.rope;
  const mx::array periods(spec.periods.data(), {spec.n_dims / 2}, mx::float32);
  const mx::array in = spec.magnitude == 1 ? x : magnified(x, spec);
  const auto turned = [&](const mx::array& rows, int first) {
    return mx::fast::rope(rows, spec.n_dims, spec.traditional, std::nullopt, static_cast<float>(spec.scale), first,
                          periods);
  };
  if (turns.runs.size() == 1) return turned(in, turns.runs[0].first);
  std::vector<mx::array> outputs;
  int begin = 0;
  for (const PositionRun& run : turns.runs) {
    const mx::Shape start{0, 0, begin, 0};
    begin += run.n_tokens;
    const mx::Shape stop{x.shape(0), x.shape(1), begin, x.shape(3)};
    outputs.push_back(turned(mx::slice(in, start, stop), run.first));
  }
  return mx::concatenate(std::move(outputs), 2);
}

void check_rope(const Rope& rope) {
  if (rope.n_dims <= 0 || rope.n_dims % 2 != 0 || rope.periods.size() != static_cast<std::size_t>(rope.n_dims) / 2) {
    throw std::invalid_argument("[kernels.make_turns] n_dims is " + std::to_string(rope.n_dims) + " with " +
                                std::to_string(rope.periods.size()) +
                                " periods, expected an even number and half as many");
  }
}

}  // namespace

std::vector<float> rope_periods(int n_dims, double base) {
  std::vector<float> periods;
  for (int i = 0; i < n_dims; i += 2)
    periods.push_back(static_cast<float>(std::pow(base, static_cast<double>(i) / n_dims)));
  return periods;
}

Turns make_turns(const Rope& rope, const std::vector<PositionRun>& runs) {
  check_rope(rope);
  int n_tokens = 0;
  for (const PositionRun& run : runs) {
    if (run.first < 0 || run.n_tokens < 0) {
      throw std::invalid_argument("[kernels.make_turns] a run has " + std::to_string(run.n_tokens) +
                                  " tokens from position " + std::to_string(run.first) + ", expected at least 0");
    }
    n_tokens += run.n_tokens;
  }
  return {rope, runs, n_tokens, on_cpu() ? turn_table(rope, runs, n_tokens) : mx::array(0.0F)};
}

Turns make_turns(const Rope& rope, int offset, int n_tokens) {
  return make_turns(rope, {PositionRun{offset, n_tokens}});
}

mx::array rope(const mx::array& x, const Turns& turns) {
  const Rope& spec = turns.rope;
  if (x.ndim() != 4 || x.shape(2) != turns.n_tokens || spec.n_dims > x.shape(3)) {
    throw std::invalid_argument("[kernels.rope] x has shape " + shape_text(x) + ", expected (B,H," +
                                std::to_string(turns.n_tokens) + ",D) with D >= " + std::to_string(spec.n_dims));
  }
  if (on_cpu() && x.size() > 0) {
    const cpu::RopeArgs args{spec.n_dims, x.shape(3), spec.traditional};
    const mx::array y(x.shape(), mx::float32, std::make_shared<RopePrimitive>(cpu_stream(), args),
                      {as_float(x), turns.table});
    return mx::astype(y, x.dtype(), cpu_stream());
  }
  return fast_rope(x, turns);
}

mx::array turned_on(const mx::array& x, const Rope& rope, int shift) {
  check_rope(rope);
  if (x.ndim() != 4) {
    throw std::invalid_argument("[kernels.turned_on] x has shape " + shape_text(x) + ", expected (B,H,T,D)");
  }
  Rope same_magnitude = rope;
  same_magnitude.magnitude = 1;
  const std::vector<PositionRun> run = {{shift, 1}};
  const Turns turns{same_magnitude, run, 1, on_cpu() ? turn_table(same_magnitude, run, 1) : mx::array(0.0F)};
  // Each row as a sequence of one token: all turn by the same.
  const mx::array rows = mx::reshape(x, {-1, 1, 1, x.shape(3)});
  return mx::reshape(kernels::rope(rows, turns), x.shape());
}

}  // namespace memoir::kernels
