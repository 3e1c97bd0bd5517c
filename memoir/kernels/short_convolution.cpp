#include "memoir/kernels/short_convolution.h"

#include <mlx/ops.h>

#include <stdexcept>

#include "memoir/kernels/cpu/short_convolution.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/recurrence_args.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr const char* kName = "short_convolution";

class ShortConvolutionPrimitive : public RecurrentPrimitive {
 public:
  ShortConvolutionPrimitive(mx::Stream stream, const ShortConvolution& spec, bool has_tail, int n_tokens,
                            const RecurrenceOptions& options)
      : RecurrentPrimitive(stream, options, n_tokens),
        has_bias_(spec.bias.has_value()),
        has_silu_(spec.has_silu),
        has_tail_(has_tail) {}
  DEFINE_NAME(ShortConvolution)

  // inputs: x, weight, bias, tail.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    const mx::array& x = next();
    const mx::array& weight = next();
    cpu::ShortConvolutionArgs args;
    args.n_sequences = x.shape(0);
    args.n_tokens = x.shape(1);
    args.n_channels = x.shape(2);
    args.width = weight.shape(0);
    args.x = token_rows(x);
    args.weight = floats_of(weight);
    if (has_bias_) args.bias = floats_of(next());
    args.has_silu = has_silu_;
    args.y = allocate(outputs[0]);
    queue_with(states_of(has_tail_ ? &next() : nullptr, inputs, outputs), [args](const cpu::StateArgs& states) mutable {
      args.states = states;
      cpu::short_convolution(args);
    });
  }

 private:
  bool has_bias_;
  bool has_silu_;
  bool has_tail_;
};

void check(const mx::array& x, const ShortConvolution& spec, const std::optional<mx::array>& tail,
           const RecurrenceOptions& options) {
  const bool has_axes = x.ndim() == 3 && spec.weight.ndim() == 2;
  if (!has_axes || x.shape(2) < 1 || spec.weight.shape(1) != x.shape(2) || spec.weight.shape(0) < 1 ||
      spec.weight.shape(0) > cpu::kMaxConvolutionWidth) {
    throw std::invalid_argument("[kernels.short_convolution] x has shape " + shape_text(x) + ", weight " +
                                shape_text(spec.weight) + ", expected (B,T,C) and (K,C) with K from 1 to " +
                                std::to_string(cpu::kMaxConvolutionWidth));
  }
  check_is_float(kName, "x", x);
  check_is_float(kName, "weight", spec.weight);
  if (spec.bias) check_shape(kName, "bias", *spec.bias, {x.shape(2)});
  if (tail) {
    check_shape(kName, "tail", *tail, {x.shape(0), spec.weight.shape(0) - 1, x.shape(2)});
    check_dtype(kName, "tail", *tail, x.dtype());
  }
  check_options(kName, options, x.shape(0), x.shape(1));
}

RecurrenceShape shape_of(const mx::array& x, const ShortConvolution& spec) {
  return {x.shape(), x.dtype(), {x.shape(0), spec.weight.shape(0) - 1, x.shape(2)}, x.dtype()};
}

// A copy, so that a tail doesn't keep the whole call's inputs in memory.
mx::array last_of(const mx::array& joined, int n_tail) {
  const int end = joined.shape(1);
  return mx::contiguous(CallPart{0, joined.shape(0), end - n_tail, end}.of(joined));
}

}  // namespace

Recurrence composed_short_convolution(const mx::array& x, const ShortConvolution& spec,
                                      const std::optional<mx::array>& tail, const RecurrenceOptions& options) {
  const int n_channels = x.shape(2);
  const int n_tail = spec.weight.shape(0) - 1;
  const mx::array weight =
      mx::astype(mx::contiguous(mx::expand_dims(mx::transpose(spec.weight), 2)), x.dtype());  // [C, K, 1]
  return run_in_parts(shape_of(x, spec), options, tail, [&](const CallPart& part, const mx::array& before) {
    const mx::array joined = mx::concatenate({before, part.of(x)}, 1);
    mx::array y = mx::conv1d(joined, weight, 1, 0, 1, n_channels);
    if (spec.bias) y = mx::add(y, mx::astype(*spec.bias, y.dtype()));
    if (spec.has_silu) y = mx::multiply(y, mx::sigmoid(y));
    return std::pair(y, last_of(joined, n_tail));
  });
}

Recurrence short_convolution(const mx::array& x, const ShortConvolution& spec, const std::optional<mx::array>& tail,
                             const RecurrenceOptions& options) {
  check(x, spec, tail, options);
  if (!on_cpu()) return composed_short_convolution(x, spec, tail, options);
  std::vector<mx::array> inputs = {as_float(x), as_float(spec.weight)};
  if (spec.bias) inputs.push_back(as_float(*spec.bias));
  const bool has_tail = tail && tail->size() > 0;
  if (has_tail) inputs.push_back(as_float(*tail));
  return make_recurrence(shape_of(x, spec), options,
                         std::make_shared<ShortConvolutionPrimitive>(cpu_stream(), spec, has_tail, x.shape(1), options),
                         std::move(inputs));
}

mx::array tail_behind(const mx::array& tail, const mx::array& x) {
  return last_of(mx::concatenate({tail, x}, 1), tail.shape(1));
}

}  // namespace memoir::kernels
