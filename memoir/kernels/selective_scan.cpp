#include "memoir/kernels/selective_scan.h"

#include <mlx/ops.h>

#include <algorithm>
#include <stdexcept>

#include "memoir/kernels/cpu/selective_scan.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/recurrence_args.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr const char* kName = "selective_scan";

bool is_mamba_1(const SelectiveScan& input) {
  return input.x.ndim() == 3;
}

class SelectiveScanPrimitive : public RecurrentPrimitive {
 public:
  SelectiveScanPrimitive(mx::Stream stream, const SelectiveScan& input, const RecurrenceOptions& options)
      : RecurrentPrimitive(stream, options, input.x.shape(1)),
        has_state_(input.state.has_value()),
        has_d_(input.d.has_value()),
        has_dt_bias_(input.dt_bias.has_value()),
        has_softplus_(input.has_softplus),
        dt_limits_(input.dt_limits) {}
  DEFINE_NAME(SelectiveScan)

  // inputs: x, dt, a, b, c, d, dt_bias, state.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    const mx::array& x = next();
    cpu::SelectiveScanArgs args;
    args.is_diagonal = x.ndim() == 3;
    args.n_sequences = x.shape(0);
    args.n_tokens = x.shape(1);
    args.n_heads = args.is_diagonal ? 1 : x.shape(2);
    args.head_dim = x.shape(-1);
    args.x = token_rows(x);
    args.dt = token_rows(next());
    args.a = floats_of(next());
    const mx::array& b = next();
    args.n_groups = args.is_diagonal ? 1 : b.shape(2);
    args.state_dim = b.shape(-1);
    args.b = token_rows(b);
    args.c = token_rows(next());
    if (has_d_) args.d = floats_of(next());
    if (has_dt_bias_) args.dt_bias = floats_of(next());
    args.has_softplus = has_softplus_;
    args.is_clamped = dt_limits_.has_value();
    if (dt_limits_) {
      args.dt_min = dt_limits_->min;
      args.dt_max = dt_limits_->max;
    }
    args.y = allocate(outputs[0]);
    if (!args.is_diagonal) args.prepared = temporary(cpu::prepared_floats(args));
    queue_with(states_of(has_state_ ? &next() : nullptr, inputs, outputs),
               [args](const cpu::StateArgs& states) mutable {
                 args.states = states;
                 cpu::selective_scan(args);
               });
  }

 private:
  bool has_state_;
  bool has_d_;
  bool has_dt_bias_;
  bool has_softplus_;
  std::optional<SelectiveScan::Limits> dt_limits_;
};

RecurrenceShape shape_of(const SelectiveScan& input) {
  mx::Shape state = input.x.shape();
  state.erase(state.begin() + 1);
  state.push_back(input.b.shape(-1));
  return {input.x.shape(), input.x.dtype(), state, mx::float32};
}

void check_axes(const SelectiveScan& input) {
  const bool is_1 = is_mamba_1(input);
  const bool has_axes = (is_1 || input.x.ndim() == 4) && input.b.ndim() == input.x.ndim();
  const bool fits =
      has_axes && input.x.size() > 0 && input.b.size() > 0 && (is_1 || input.x.shape(2) % input.b.shape(2) == 0);
  if (!fits) {
    throw std::invalid_argument("[kernels.selective_scan] x has shape " + shape_text(input.x) + ", b " +
                                shape_text(input.b) +
                                ", expected (B,T,H,P) and (B,T,G,N) with H a multiple of G, or (B,T,C) and (B,T,N)");
  }
}

void check(const SelectiveScan& input, const RecurrenceOptions& options) {
  check_axes(input);
  const bool is_1 = is_mamba_1(input);
  const int n_rates = input.x.shape(2);  // heads, or channels
  const int state_dim = input.b.shape(-1);
  mx::Shape b = input.b.shape();
  b[0] = input.x.shape(0);
  b[1] = input.x.shape(1);
  check_shape(kName, "b", input.b, b);
  check_shape(kName, "c", input.c, b);
  check_shape(kName, "dt", input.dt, {b[0], b[1], n_rates});
  check_shape(kName, "a", input.a, is_1 ? mx::Shape{n_rates, state_dim} : mx::Shape{n_rates});
  for (const mx::array* a : {&input.x, &input.dt, &input.a, &input.b, &input.c}) check_is_float(kName, "an input", *a);
  if (input.d) check_shape(kName, "d", *input.d, {n_rates});
  if (input.dt_bias) check_shape(kName, "dt_bias", *input.dt_bias, {n_rates});
  if (input.state) {
    check_shape(kName, "state", *input.state, shape_of(input).state);
    check_dtype(kName, "state", *input.state, mx::float32);
  }
  if (input.dt_limits && !(input.dt_limits->min <= input.dt_limits->max)) {
    throw std::invalid_argument("[kernels.selective_scan] dt_limits are " + std::to_string(input.dt_limits->min) +
                                " and " + std::to_string(input.dt_limits->max) + ", expected the smaller first");
  }
  check_options(kName, options, b[0], b[1]);
}

mx::array as_float32(const mx::array& a) {
  return mx::astype(a, mx::float32);
}

mx::array steps_of(const SelectiveScan& input) {
  mx::array dt = as_float32(input.dt);
  if (input.dt_bias) dt = mx::add(dt, as_float32(*input.dt_bias));
  if (input.has_softplus) dt = mx::logaddexp(dt, mx::array(0.0F));
  if (input.dt_limits) dt = mx::clip(dt, mx::array(input.dt_limits->min), mx::array(input.dt_limits->max));
  return dt;
}

// Tokens [begin, end) of a part's arrays.
mx::array tokens_of(const mx::array& a, int begin, int end) {
  return CallPart{0, a.shape(0), begin, end}.of(a);
}

// [B, T, G, N] -> [B, H, T, N]: groups repeated for their heads.
mx::array by_head(const mx::array& a, int n_heads) {
  return mx::transpose(mx::repeat(a, n_heads / a.shape(2), 2), {0, 2, 1, 3});
}

// One block of tokens of Mamba 2 as matrix products (section 6 of its paper). steps: [B, L, H], decays their logarithms
// dt A; x: [B, L, H, P] times dt; b, c: [B, H, L, N]; state: [B, H, P, N].
std::pair<mx::array, mx::array> scan_block(const mx::array& decays, const mx::array& x, const mx::array& b,
                                           const mx::array& c, const mx::array& state) {
  const int n = x.shape(1);
  const mx::array sums = mx::cumsum(mx::transpose(decays, {0, 2, 1}), 2);  // [B, H, L]
  const mx::array rows = mx::expand_dims(sums, 3);
  const mx::array between = mx::subtract(rows, mx::expand_dims(sums, 2));  // [B, H, t, s]
  const mx::array is_before = mx::astype(mx::tri(n, n, 0, mx::float32), mx::bool_);
  const mx::array weights =
      mx::where(is_before, mx::exp(mx::where(is_before, between, mx::array(0.0F))), mx::array(0.0F));
  const mx::array inputs = mx::transpose(x, {0, 2, 1, 3});  // [B, H, L, P]
  const mx::array within = mx::matmul(mx::multiply(mx::matmul(c, mx::swapaxes(b, 2, 3)), weights), inputs);
  const mx::array before = mx::multiply(mx::matmul(c, mx::swapaxes(state, 2, 3)), mx::exp(rows));
  const mx::array y = mx::transpose(mx::add(within, before), {0, 2, 1, 3});
  const mx::array total = mx::slice(rows, {0, 0, n - 1, 0}, {rows.shape(0), rows.shape(1), n, 1});  // [B, H, 1, 1]
  const mx::array weighted = mx::multiply(inputs, mx::exp(mx::subtract(total, rows)));
  const mx::array added = mx::matmul(mx::swapaxes(weighted, 2, 3), b);
  return {y, mx::add(mx::multiply(mx::exp(total), state), added)};
}

std::pair<mx::array, mx::array> scan_2(const SelectiveScan& input, const CallPart& part, const mx::array& dt,
                                       mx::array state) {
  constexpr int kBlock = 64;
  const mx::array x = as_float32(part.of(input.x));
  const mx::array steps = part.of(dt);
  const mx::array decays = mx::multiply(steps, as_float32(input.a));
  const mx::array scaled = mx::multiply(x, mx::expand_dims(steps, 3));
  const mx::array b = as_float32(part.of(input.b));
  const mx::array c = as_float32(part.of(input.c));
  std::vector<mx::array> outputs;
  for (int begin = 0; begin < x.shape(1); begin += kBlock) {
    const int end = std::min(begin + kBlock, x.shape(1));
    auto [y, next] =
        scan_block(tokens_of(decays, begin, end), tokens_of(scaled, begin, end),
                   by_head(tokens_of(b, begin, end), x.shape(2)), by_head(tokens_of(c, begin, end), x.shape(2)), state);
    outputs.push_back(std::move(y));
    state = std::move(next);
  }
  mx::array y = mx::concatenate(std::move(outputs), 1);
  if (input.d) y = mx::add(y, mx::multiply(mx::expand_dims(as_float32(*input.d), 1), x));
  return {y, state};
}

std::pair<mx::array, mx::array> scan_1(const SelectiveScan& input, const CallPart& part, const mx::array& dt,
                                       mx::array state) {
  const mx::array x = as_float32(part.of(input.x));
  const mx::array steps = mx::expand_dims(part.of(dt), 3);  // [B, T, C, 1]
  const mx::array decays = mx::exp(mx::multiply(steps, as_float32(input.a)));
  const mx::array b = mx::expand_dims(as_float32(part.of(input.b)), 2);  // [B, T, 1, N]
  const mx::array added = mx::multiply(mx::multiply(steps, mx::expand_dims(x, 3)), b);
  const mx::array c = mx::expand_dims(as_float32(part.of(input.c)), 3);  // [B, T, N, 1]
  std::vector<mx::array> outputs;
  for (int t = 0; t < x.shape(1); ++t) {
    const auto at = [t](const mx::array& a) { return mx::squeeze(tokens_of(a, t, t + 1), 1); };
    state = mx::add(mx::multiply(at(decays), state), at(added));
    outputs.push_back(mx::expand_dims(mx::squeeze(mx::matmul(state, at(c)), 2), 1));
  }
  mx::array y = mx::concatenate(std::move(outputs), 1);
  if (input.d) y = mx::add(y, mx::multiply(as_float32(*input.d), x));
  return {y, state};
}

}  // namespace

Recurrence composed_selective_scan(const SelectiveScan& input, const RecurrenceOptions& options) {
  const mx::array dt = steps_of(input);
  return run_in_parts(shape_of(input), options, input.state, [&](const CallPart& part, const mx::array& state) {
    auto [y, next] = is_mamba_1(input) ? scan_1(input, part, dt, state) : scan_2(input, part, dt, state);
    return std::pair(mx::astype(y, input.x.dtype()), next);
  });
}

Recurrence selective_scan(const SelectiveScan& input, const RecurrenceOptions& options) {
  check(input, options);
  if (!on_cpu()) return composed_selective_scan(input, options);
  std::vector<mx::array> inputs;
  for (const mx::array* a : {&input.x, &input.dt, &input.a, &input.b, &input.c}) inputs.push_back(as_float(*a));
  for (const std::optional<mx::array>* a : {&input.d, &input.dt_bias}) {
    if (*a) inputs.push_back(as_float(**a));
  }
  if (input.state) inputs.push_back(*input.state);
  return make_recurrence(shape_of(input), options,
                         std::make_shared<SelectiveScanPrimitive>(cpu_stream(), input, options), std::move(inputs));
}

}  // namespace memoir::kernels
