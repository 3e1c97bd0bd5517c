#include "memoir/model/mamba_mixer.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/kernels/mlp.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr int kMaxWidth = 32;        // of kernels::ShortConvolution
constexpr int kMaxStateSize = 4096;  // of each element of a head

// The inner width.
std::int64_t read_inner(const ConfigFields& fields, const ModelConfig& config, const MambaKeys& keys) {
  const double inner = std::floor(fields.positive(keys.expand).value_or(2) * config.hidden_size);
  if (inner < 1 || inner > static_cast<double>(kMaxHiddenSize)) fields.fail(keys.expand, "gives no width, or too much");
  return static_cast<std::int64_t>(inner);
}

int read_head_dim(const ConfigFields& fields, const MambaKeys& keys, std::int64_t inner, int n_heads) {
  const nlohmann::json* value = fields.find(keys.head_dim);
  if (value && *value != "auto") return fields.size(keys.head_dim, kMaxHeadDim);
  return static_cast<int>(std::max<std::int64_t>(inner / n_heads, 1));
}

// [min, max] of the time steps; nullopt: any.
std::optional<kernels::SelectiveScan::Limits> read_limits(const ModelConfig& config) {
  constexpr const char* kKey = "time_step_limit";
  const ConfigFields fields = family_fields(config);
  const nlohmann::json* limits = fields.find(kKey);
  if (!limits) return std::nullopt;
  if (!limits->is_array() || limits->size() != 2 || !(*limits)[0].is_number() || !(*limits)[1].is_number()) {
    fields.fail(kKey, "is not a list of two numbers");
  }
  const double low = (*limits)[0].get<double>();
  const double high = (*limits)[1].get<double>();
  if (!(low >= 0 && low <= high)) fields.fail(kKey, "is not two numbers from 0 on, the smaller first");
  if (low == 0 && std::isinf(high)) return std::nullopt;
  return kernels::SelectiveScan::Limits{static_cast<float>(low), static_cast<float>(high)};
}

mx::array float_vector(Weights& weights, const std::string& name, int size) {
  mx::array values = mx::astype(weights.vector(name, size), mx::float32);
  mx::eval(values);
  return values;
}

kernels::ShortConvolution read_convolution(Weights& weights, const std::string& module, const MambaSizes& sizes,
                                           bool has_bias) {
  kernels::ShortConvolution convolution{weights.convolution(module + ".weight", sizes.channels(), sizes.width),
                                        std::nullopt, true};
  if (has_bias) convolution.bias = typed_vector(weights.vector(module + ".bias", sizes.channels()));
  return convolution;
}

// The multiplier of each row of in_proj; nullopt if all are 1.
std::optional<mx::array> row_multipliers(const MambaSizes& sizes, const std::vector<float>& multipliers) {
  if (std::ranges::all_of(multipliers, [](float m) { return m == 1; })) return std::nullopt;
  const std::array<int, 5> n_rows = {sizes.inner(), sizes.inner(), sizes.group_columns(), sizes.group_columns(),
                                     sizes.n_heads};
  std::vector<mx::array> parts;
  for (std::size_t i = 0; i < n_rows.size(); ++i) parts.push_back(mx::full({n_rows[i]}, multipliers[i], mx::float32));
  return typed_vector(mx::concatenate(std::move(parts)));
}

std::optional<mx::array> read_norm_weight(Weights& weights, const std::string& module, const MambaSizes& sizes,
                                          MambaTraits::GroupNorm group_norm) {
  if (group_norm == MambaTraits::GroupNorm::kNone) return std::nullopt;
  return typed_vector(weights.vector(module + ".norm.weight", sizes.inner()));
}

}  // namespace

MambaSizes read_mamba_sizes(const ModelConfig& config, const MambaKeys& keys, std::optional<int> inner) {
  const ConfigFields fields = family_fields(config);
  const std::int64_t width = inner ? *inner : read_inner(fields, config, keys);
  const int n_heads = fields.size(keys.n_heads, kMaxHeads);
  const MambaSizes sizes{config.hidden_size,
                         n_heads,
                         read_head_dim(fields, keys, width, n_heads),
                         fields.size(keys.n_groups, kMaxHeads),
                         fields.size(keys.state, kMaxStateSize),
                         fields.size(keys.width, kMaxWidth)};
  if (std::int64_t{n_heads} * sizes.head_dim != width) {
    fields.fail(keys.n_heads, std::to_string(n_heads) + " heads of " + std::to_string(sizes.head_dim) +
                                  " are not the inner width of " + std::to_string(width));
  }
  if (n_heads % sizes.n_groups != 0 || std::int64_t{sizes.n_groups} * sizes.state > kMaxIntermediateSize) {
    fields.fail(keys.n_groups, std::to_string(sizes.n_groups) + " does not divide " + keys.n_heads + " " +
                                   std::to_string(n_heads) + ", or gives too large a state");
  }
  return sizes;
}

MambaMixer::MambaMixer(Weights& weights, const std::string& module, const ModelConfig& config, const MambaSizes& sizes,
                       const MambaTraits& traits)
    : group_norm_(traits.group_norm),
      in_(read_linear(weights, module + ".in_proj", sizes.in_rows(), sizes.hidden, traits.has_in_bias)),
      multipliers_(row_multipliers(sizes, traits.multipliers)),
      scan_{sizes,
            read_convolution(weights, module + ".conv1d", sizes, traits.has_convolution_bias),
            weights.decay_rates(module + ".A_log", sizes.n_heads),
            float_vector(weights, module + ".D", sizes.n_heads),
            float_vector(weights, module + ".dt_bias", sizes.n_heads),
            read_limits(config)},
      plain_norm_(plain_norm(sizes.inner() / sizes.n_groups, config.rms_norm_eps)),
      norm_weight_(read_norm_weight(weights, module, sizes, traits.group_norm)),
      out_(read_linear(weights, module + ".out_proj", sizes.hidden, sizes.inner(), traits.has_out_bias)) {
  if (multipliers_ && traits.multiplies == MambaTraits::Multiplies::kInBias) {
    if (in_.bias) in_.bias = typed_vector(mx::multiply(*in_.bias, *multipliers_));
    multipliers_ = std::nullopt;
  }
  if (out_.bias) out_.bias = typed_vector(mx::multiply(*out_.bias, mx::array(traits.out_bias_multiplier)));
  if (read_gate(config) != kernels::Gate::kSilu) {  // of the convolution too
    throw UnsupportedError(config.path, "hidden_act", "'" + config.hidden_act + "' is not supported, expected silu");
  }
}

std::unique_ptr<cache::LayerCache> MambaMixer::make_cache() const {
  const MambaSizes& sizes = scan_.sizes;
  return std::make_unique<cache::RecurrentCache>(
      cache::RecurrentShape{sizes.width - 1, sizes.channels(), {sizes.n_heads, sizes.head_dim, sizes.state}});
}

std::optional<mx::array> MambaMixer::at_once(const mx::array& x, const kernels::Norm& norm, const Step& step,
                                             const CachePlace& place, const std::optional<mx::array>& residual) const {
  const MambaSizes& sizes = scan_.sizes;
  const std::optional<kernels::Norm> input_norm = norm;
  const kernels::MambaBlock block{input_norm,     in_,         scan_.convolution, sizes.n_heads, sizes.head_dim,
                                  sizes.n_groups, sizes.state, scan_.a,           scan_.d,       scan_.dt_bias,
                                  scan_.limits,   group_norm_, plain_norm_.eps,   norm_weight_,  out_};
  if (multipliers_ || !kernels::is_block(block, x)) return std::nullopt;
  return mix_at_once(x, step, place, [&](std::vector<kernels::MixerStates> before) {
    return kernels::mamba_block(x, block, std::move(before), residual);
  });
}

mx::array MambaMixer::operator()(const mx::array& x, const kernels::Norm& norm, const Step& step,
                                 const CachePlace& place, const std::optional<mx::array>& residual) const {
  if (std::optional<mx::array> y = at_once(x, norm, step, place, residual)) return *y;
  mx::array joined = kernels::linear(kernels::norm(x, norm), in_);
  if (multipliers_) joined = mx::multiply(joined, mx::astype(*multipliers_, joined.dtype()));
  const auto columns = [&](int begin, int n) {
    return mx::slice(joined, {0, 0, begin}, {joined.shape(0), joined.shape(1), begin + n});
  };
  const MambaSizes& sizes = scan_.sizes;
  const mx::array y = by_sequence(
      step, {columns(sizes.inner(), sizes.channels()), columns(sizes.inner() + sizes.channels(), sizes.n_heads)},
      [&](const std::vector<mx::array>& rows, cache::ModelCache& cache) {
        return scan_(rows[0], rows[1], recurrent_cache(cache, place));
      });
  return kernels::linear(gated(columns(0, sizes.inner()), y), out_, residual);
}

kernels::SelectiveScan MambaScan::input(const mx::array& convolved, const mx::array& dt,
                                        const std::optional<mx::array>& state) const {
  const auto part = [&](int begin, int n, int size) {
    const mx::array some =
        mx::slice(convolved, {0, 0, begin}, {convolved.shape(0), convolved.shape(1), begin + n * size});
    return mx::reshape(some, {convolved.shape(0), convolved.shape(1), n, size});
  };
  return {part(0, sizes.n_heads, sizes.head_dim),
          dt,
          a,
          part(sizes.inner(), sizes.n_groups, sizes.state),
          part(sizes.inner() + sizes.group_columns(), sizes.n_groups, sizes.state),
          state,
          d,
          dt_bias,
          true,
          limits};
}

mx::array MambaScan::operator()(const mx::array& inputs, const mx::array& dt, cache::RecurrentCache& cache) const {
  const int n_tokens = inputs.shape(1);
  const cache::RecurrentState before = cache.get(inputs.shape(0), inputs.dtype());
  const bool has_replay = cache.wants_replay(n_tokens, 2 * inputs.nbytes() + dt.nbytes());
  const kernels::RecurrenceOptions options{cache.capture_steps(n_tokens, has_replay)};
  const kernels::Recurrence convolved = kernels::short_convolution(inputs, convolution, before.tail, options);
  const kernels::Recurrence passed = kernels::selective_scan(input(convolved.y, dt, before.state), options);
  cache::StateReplay replay;
  if (has_replay) {
    replay = [scan = *this, inputs, y = convolved.y, dt](const cache::RecurrentState& start, int n) {
      const kernels::SelectiveScan first = scan.input(first_tokens(y, n), first_tokens(dt, n), start.state);
      return cache::RecurrentState{kernels::tail_behind(*start.tail, first_tokens(inputs, n)),
                                   kernels::selective_scan(first).state};
    };
  }
  put_states(cache, n_tokens, convolved, &passed, std::move(replay));
  return mx::flatten(passed.y, 2, 3);
}

mx::array MambaMixer::gated(const mx::array& gate, const mx::array& y) const {
  const bool is_before = group_norm_ == MambaTraits::GroupNorm::kBeforeGate;
  const mx::array product = kernels::gate_product(gate, is_before ? normed(y) : y, kernels::Gate::kSilu);
  return group_norm_ == MambaTraits::GroupNorm::kBehindGate ? normed(product) : product;
}

mx::array MambaMixer::normed(const mx::array& y) const {
  const mx::array groups =
      mx::reshape(y, {y.shape(0), y.shape(1), scan_.sizes.n_groups, scan_.sizes.inner() / scan_.sizes.n_groups});
  return mx::multiply(mx::flatten(kernels::norm(groups, plain_norm_), 2, 3), mx::astype(*norm_weight_, y.dtype()));
}

std::size_t MambaMixer::size_bytes() const {
  std::size_t n_bytes = in_.size_bytes() + out_.size_bytes() + scan_.convolution.weight.nbytes() + scan_.a.nbytes() +
                        scan_.d.nbytes() + scan_.dt_bias.nbytes();
  for (const auto& a : {multipliers_, scan_.convolution.bias, norm_weight_}) {
    if (a) n_bytes += a->nbytes();
  }
  return n_bytes;
}

}  // namespace memoir::model
