#include "memoir/kernels/gated_delta.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <stdexcept>

#include "memoir/kernels/cpu/gated_delta.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/recurrence_args.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr const char* kName = "gated_delta";

class GatedDeltaPrimitive : public RecurrentPrimitive {
 public:
  GatedDeltaPrimitive(mx::Stream stream, const GatedDelta& input, const RecurrenceOptions& options)
      : RecurrentPrimitive(stream, options, input.values.shape(1)),
        has_state_(input.state.has_value()),
        has_gates_(input.gates.has_value()),
        normalizes_(input.normalizes),
        eps_(input.eps),
        scale_(input.scale),
        has_tiled_values_(input.has_tiled_values) {}
  DEFINE_NAME(GatedDelta)

  // inputs: queries, keys, values, decays, betas, the gates' arrays, state.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    cpu::GatedDeltaArgs args;
    const mx::array& queries = next();
    const mx::array& keys = next();
    const mx::array& values = next();
    args.n_sequences = values.shape(0);
    args.n_tokens = values.shape(1);
    args.n_key_heads = keys.shape(2);
    args.n_value_heads = values.shape(2);
    args.key_dim = keys.shape(3);
    args.value_dim = values.shape(3);
    args.queries = token_rows(queries);
    args.keys = token_rows(keys);
    args.values = token_rows(values);
    args.decays = token_rows(next());
    args.betas = token_rows(next());
    if (has_gates_) {
      args.a = floats_of(next());
      args.dt_bias = floats_of(next());
    }
    args.normalizes = normalizes_;
    args.eps = eps_;
    args.scale = scale_;
    args.has_tiled_values = has_tiled_values_;
    args.y = allocate(outputs[0]);
    args.prepared = temporary(cpu::prepared_floats(args));
    queue_with(states_of(has_state_ ? &next() : nullptr, inputs, outputs),
               [args](const cpu::StateArgs& states) mutable {
                 args.states = states;
                 cpu::gated_delta(args);
               });
  }

 private:
  bool has_state_;
  bool has_gates_;
  bool normalizes_;
  float eps_;
  float scale_;
  bool has_tiled_values_;
};

void check(const GatedDelta& input, const RecurrenceOptions& options) {
  if (input.keys.ndim() != 4 || input.values.ndim() != 4) {
    throw std::invalid_argument("[kernels.gated_delta] keys has shape " + shape_text(input.keys) + ", values " +
                                shape_text(input.values) + ", expected (B,T,Hk,Dk) and (B,T,Hv,Dv)");
  }
  const int n_sequences = input.values.shape(0);
  const int n_tokens = input.values.shape(1);
  const int n_heads = input.values.shape(2);
  const mx::Shape keys{n_sequences, n_tokens, input.keys.shape(2), input.keys.shape(3)};
  check_shape(kName, "keys", input.keys, keys);
  check_shape(kName, "queries", input.queries, keys);
  if (keys[2] < 1 || keys[3] < 1 || n_heads < 1 || input.values.shape(3) < 1 || n_heads % keys[2] != 0) {
    throw std::invalid_argument("[kernels.gated_delta] keys has shape " + shape_text(input.keys) + ", values " +
                                shape_text(input.values) + ": expected Hv to be a multiple of Hk, and no empty axis");
  }
  check_shape(kName, "decays", input.decays, {n_sequences, n_tokens, n_heads});
  check_shape(kName, "betas", input.betas, {n_sequences, n_tokens, n_heads});
  for (const mx::array* a : {&input.queries, &input.keys, &input.values, &input.decays, &input.betas}) {
    check_is_float(kName, "an input", *a);
  }
  if (input.gates) {
    check_shape(kName, "a", input.gates->a, {n_heads});
    check_shape(kName, "dt_bias", input.gates->dt_bias, {n_heads});
  }
  if (input.state) {
    check_shape(kName, "state", *input.state, {n_sequences, n_heads, input.values.shape(3), keys[3]});
    check_dtype(kName, "state", *input.state, mx::float32);
  }
  check_options(kName, options, n_sequences, n_tokens);
}

RecurrenceShape shape_of(const GatedDelta& input) {
  const mx::array& values = input.values;
  const mx::Shape state{values.shape(0), values.shape(2), values.shape(3), input.keys.shape(3)};
  return {values.shape(), values.dtype(), state, mx::float32};
}

mx::array as_float32(const mx::array& a) {
  return mx::astype(a, mx::float32);
}

mx::array normalized(const mx::array& x, float eps) {
  return mx::multiply(x, mx::rsqrt(mx::add(mx::sum(mx::square(x), -1, true), mx::array(eps))));
}

}  // namespace

Recurrence composed_gated_delta(const GatedDelta& input, const RecurrenceOptions& options) {
  mx::array queries = as_float32(input.queries);
  mx::array keys = as_float32(input.keys);
  if (input.normalizes) {
    queries = normalized(queries, input.eps);
    keys = normalized(keys, input.eps);
  }
  queries = mx::multiply(queries, mx::array(input.scale));
  if (input.has_tiled_values) {  // MLX's kernel shares a key head between neighbours: heads in turn have one each
    const int n_times = input.values.shape(2) / keys.shape(2);
    queries = mx::tile(queries, {1, 1, n_times, 1});
    keys = mx::tile(keys, {1, 1, n_times, 1});
  }
  mx::array decays = as_float32(input.decays);
  mx::array betas = as_float32(input.betas);
  if (input.gates) {
    const mx::array step = mx::logaddexp(mx::add(decays, as_float32(input.gates->dt_bias)), mx::array(0.0F));
    decays = mx::multiply(as_float32(input.gates->a), step);
    betas = mx::sigmoid(betas);
  }
  decays = mx::exp(decays);
  const mx::array values = as_float32(input.values);
  const mx::Dtype dtype = input.values.dtype();
  return run_in_parts(shape_of(input), options, input.state, [&](const CallPart& part, const mx::array& state) {
    const std::vector<mx::array> result = mx::fast::gated_delta_update(part.of(queries), part.of(keys), part.of(values),
                                                                       part.of(decays), part.of(betas), state);
    return std::pair(mx::astype(result[0], dtype), result[1]);
  });
}

Recurrence gated_delta(const GatedDelta& input, const RecurrenceOptions& options) {
  check(input, options);
  if (!on_cpu()) return composed_gated_delta(input, options);
  std::vector<mx::array> inputs;
  for (const mx::array* a : {&input.queries, &input.keys, &input.values, &input.decays, &input.betas}) {
    inputs.push_back(as_float(*a));
  }
  if (input.gates) {
    inputs.push_back(as_float(input.gates->a));
    inputs.push_back(as_float(input.gates->dt_bias));
  }
  if (input.state) inputs.push_back(*input.state);
  return make_recurrence(shape_of(input), options, std::make_shared<GatedDeltaPrimitive>(cpu_stream(), input, options),
                         std::move(inputs));
}

}  // namespace memoir::kernels
