#include "memoir/model/delta_mixer.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "memoir/kernels/mlp.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/gguf_keys.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr int kMaxWidth = 32;  // of kernels::ShortConvolution

void append_range(std::vector<int>& rows, int begin, int n) {
  const std::size_t size = rows.size();
  rows.resize(size + static_cast<std::size_t>(n));
  std::iota(rows.begin() + static_cast<std::ptrdiff_t>(size), rows.end(), begin);
}

// Of a matrix whose rows are blocks of one size, one for each key head: n rows of each, from `begin` on.
std::vector<int> rows_of_blocks(int n_blocks, int block_rows, int begin, int n) {
  std::vector<int> rows;
  for (int i = 0; i < n_blocks; ++i) append_range(rows, i * block_rows + begin, n);
  return rows;
}

kernels::Linear some_rows(const kernels::Weight& stored, const std::vector<int>& rows) {
  return {kernels::prepared(kernels::chosen_rows(stored, rows))};
}

// Of normalized queries.
float key_scale(const DeltaSizes& sizes) {
  return 1 / std::sqrt(static_cast<float>(sizes.key_dim));
}

mx::array float_vector(Weights& weights, const std::string& name, int size) {
  mx::array values = mx::astype(weights.vector(name, size), mx::float32);
  mx::eval(values);
  return values;
}

}  // namespace

DeltaSizes read_delta_sizes(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const DeltaSizes sizes{config.hidden_size,
                         fields.size("linear_num_key_heads", kMaxHeads),
                         fields.size("linear_num_value_heads", kMaxHeads),
                         fields.size("linear_key_head_dim", kMaxHeadDim),
                         fields.size("linear_value_head_dim", kMaxHeadDim),
                         fields.size("linear_conv_kernel_dim", kMaxWidth),
                         fields.boolean(kTiledValueHeads).value_or(false)};
  if (sizes.n_value_heads % sizes.n_key_heads != 0) {
    fields.fail("linear_num_value_heads", "is " + std::to_string(sizes.n_value_heads) +
                                              ", no multiple of linear_num_key_heads " +
                                              std::to_string(sizes.n_key_heads));
  }
  if (std::int64_t{sizes.n_key_heads} * sizes.key_dim > kMaxHiddenSize) {
    fields.fail("linear_key_head_dim", "is too large for " + std::to_string(sizes.n_key_heads) + " heads");
  }
  if (std::int64_t{sizes.n_value_heads} * sizes.value_dim > kMaxHiddenSize) {
    fields.fail("linear_value_head_dim", "is too large for " + std::to_string(sizes.n_value_heads) + " heads");
  }
  return sizes;
}

DeltaMixer::DeltaMixer(Weights& weights, const std::string& module, const DeltaSizes& sizes, double eps)
    : projections_(read_projections(weights, module, sizes)),
      rule_{sizes,
            {weights.convolution(module + ".conv1d.weight", sizes.channels(), sizes.width), std::nullopt, true},
            {weights.decay_rates(module + ".A_log", sizes.n_value_heads),
             float_vector(weights, module + ".dt_bias", sizes.n_value_heads)}},
      norm_(read_rms_norm(weights, module + ".norm", sizes.value_dim, eps)),
      out_(read_linear(weights, module + ".out_proj", sizes.hidden, sizes.values(), false)) {}

// Apart, or for each key head its query, its key, and the values and gates of its value heads.
std::pair<kernels::Linear, kernels::Linear> DeltaMixer::read_joined(Weights& weights, const std::string& module,
                                                                    const DeltaSizes& sizes) {
  if (weights.has(module + ".in_proj_z.weight") || weights.has(module + ".in_proj_qkv.weight")) {
    return {read_linear(weights, module + ".in_proj_qkv", sizes.channels(), sizes.hidden, false),
            read_linear(weights, module + ".in_proj_z", sizes.values(), sizes.hidden, false)};
  }
  const int n_heads = sizes.n_key_heads;
  const int n_values = sizes.values_per_key() * sizes.value_dim;
  const int block = 2 * (sizes.key_dim + n_values);
  const kernels::Weight all = weights.stored_matrix(module + ".in_proj_qkvz", {n_heads * block, sizes.hidden});
  std::vector<int> joined = rows_of_blocks(n_heads, block, 0, sizes.key_dim);
  for (const auto& [begin, n] : {std::pair(sizes.key_dim, sizes.key_dim), std::pair(2 * sizes.key_dim, n_values)}) {
    const std::vector<int> rows = rows_of_blocks(n_heads, block, begin, n);
    joined.insert(joined.end(), rows.begin(), rows.end());
  }
  return {some_rows(all, joined), some_rows(all, rows_of_blocks(n_heads, block, block - n_values, n_values))};
}

// Apart, or for each key head those of its value heads.
std::pair<kernels::Linear, kernels::Linear> DeltaMixer::read_rule_gates(Weights& weights, const std::string& module,
                                                                        const DeltaSizes& sizes) {
  if (weights.has(module + ".in_proj_a.weight") || weights.has(module + ".in_proj_b.weight")) {
    return {read_linear(weights, module + ".in_proj_b", sizes.n_value_heads, sizes.hidden, false),
            read_linear(weights, module + ".in_proj_a", sizes.n_value_heads, sizes.hidden, false)};
  }
  const int n = sizes.values_per_key();
  const kernels::Weight both = weights.stored_matrix(module + ".in_proj_ba", {2 * sizes.n_value_heads, sizes.hidden});
  return {some_rows(both, rows_of_blocks(sizes.n_key_heads, 2 * n, 0, n)),
          some_rows(both, rows_of_blocks(sizes.n_key_heads, 2 * n, n, n))};
}

DeltaMixer::Projections DeltaMixer::read_projections(Weights& weights, const std::string& module,
                                                     const DeltaSizes& sizes) {
  auto [joined, gates] = read_joined(weights, module, sizes);
  auto [betas, decays] = read_rule_gates(weights, module, sizes);
  return {std::move(joined), std::move(gates), std::move(betas), std::move(decays)};
}

std::unique_ptr<cache::LayerCache> DeltaMixer::make_cache() const {
  const DeltaSizes& sizes = rule_.sizes;
  return std::make_unique<cache::RecurrentCache>(
      cache::RecurrentShape{sizes.width - 1, sizes.channels(), {sizes.n_value_heads, sizes.value_dim, sizes.key_dim}});
}

kernels::GatedDelta DeltaRule::input(const mx::array& convolved, const mx::array& decays, const mx::array& betas,
                                     const std::optional<mx::array>& state) const {
  const auto part = [&](int begin, int n, int size) {
    const mx::array some =
        mx::slice(convolved, {0, 0, begin}, {convolved.shape(0), convolved.shape(1), begin + n * size});
    return mx::reshape(some, {convolved.shape(0), convolved.shape(1), n, size});
  };
  kernels::GatedDelta input{part(0, sizes.n_key_heads, sizes.key_dim),
                            part(sizes.keys(), sizes.n_key_heads, sizes.key_dim),
                            part(2 * sizes.keys(), sizes.n_value_heads, sizes.value_dim),
                            decays,
                            betas,
                            state,
                            gates};
  input.normalizes = true;
  input.scale = key_scale(sizes);
  input.has_tiled_values = sizes.has_tiled_values;
  return input;
}

mx::array DeltaRule::operator()(const mx::array& joined, const mx::array& decays, const mx::array& betas,
                                cache::RecurrentCache& cache) const {
  const int n_tokens = joined.shape(1);
  const cache::RecurrentState before = cache.get(joined.shape(0), joined.dtype());
  const bool has_replay = cache.wants_replay(n_tokens, 2 * joined.nbytes() + decays.nbytes() + betas.nbytes());
  const kernels::RecurrenceOptions options{cache.capture_steps(n_tokens, has_replay)};
  const kernels::Recurrence convolved = kernels::short_convolution(joined, convolution, before.tail, options);
  const kernels::Recurrence passed = kernels::gated_delta(input(convolved.y, decays, betas, before.state), options);
  cache::StateReplay replay;
  if (has_replay) {
    replay = [rule = *this, joined, y = convolved.y, decays, betas](const cache::RecurrentState& start, int n) {
      const kernels::GatedDelta first =
          rule.input(first_tokens(y, n), first_tokens(decays, n), first_tokens(betas, n), start.state);
      return cache::RecurrentState{kernels::tail_behind(*start.tail, first_tokens(joined, n)),
                                   kernels::gated_delta(first).state};
    };
  }
  put_states(cache, n_tokens, convolved, &passed, std::move(replay));
  return passed.y;
}

std::optional<mx::array> DeltaMixer::at_once(const mx::array& x, const kernels::Norm& norm, const Step& step,
                                             const CachePlace& place, const mx::array& residual) const {
  const DeltaSizes& sizes = rule_.sizes;
  const std::optional<kernels::Norm> input_norm = norm;
  const kernels::DeltaBlock block{input_norm,
                                  projections_.joined,
                                  projections_.gates,
                                  projections_.decays,
                                  projections_.betas,
                                  rule_.convolution,
                                  sizes.n_key_heads,
                                  sizes.n_value_heads,
                                  sizes.key_dim,
                                  sizes.value_dim,
                                  sizes.has_tiled_values,
                                  rule_.gates,
                                  key_scale(sizes),
                                  norm_,
                                  out_};
  if (!kernels::is_block(block, x)) return std::nullopt;
  return mix_at_once(x, step, place, [&](std::vector<kernels::MixerStates> before) {
    return kernels::delta_block(x, block, std::move(before), residual);
  });
}

mx::array DeltaMixer::operator()(const mx::array& x, const kernels::Norm& norm, const Step& step,
                                 const CachePlace& place, const mx::array& residual) const {
  if (std::optional<mx::array> at_once = this->at_once(x, norm, step, place, residual)) return *at_once;
  const mx::array in = kernels::norm(x, norm);
  const mx::array passed =
      by_sequence(step,
                  {kernels::linear(in, projections_.joined), kernels::linear(in, projections_.decays),
                   kernels::linear(in, projections_.betas)},
                  [&](const std::vector<mx::array>& rows, cache::ModelCache& cache) {
                    return rule_(rows[0], rows[1], rows[2], recurrent_cache(cache, place));
                  });
  const mx::array y = mx::flatten(kernels::norm(passed, norm_), 2, 3);
  const mx::array gated = kernels::gate_product(kernels::linear(in, projections_.gates), y, kernels::Gate::kSilu);
  return kernels::linear(gated, out_, residual);
}

std::size_t DeltaMixer::size_bytes() const {
  return projections_.joined.size_bytes() + projections_.gates.size_bytes() + projections_.betas.size_bytes() +
         projections_.decays.size_bytes() + rule_.convolution.weight.nbytes() + rule_.gates.a.nbytes() +
         rule_.gates.dt_bias.nbytes() + norm_.weight.nbytes() + out_.size_bytes();
}

}  // namespace memoir::model
