#include "memoir/kernels/mixer_block.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/device.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/norm_args.h"
#include "memoir/kernels/recurrence_args.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument("[kernels." + std::string(function) + "] " + what);
}

// What both mixers remember of a call, to read what they have in common.
class MixerPrimitive : public RecurrentPrimitive {
 protected:
  MixerPrimitive(const std::optional<Norm>& norm, const ShortConvolution& convolution, const Linear& output,
                 const std::vector<MixerStates>& before, bool has_residual)
      : RecurrentPrimitive(cpu_stream(), {}, before.front().n_tokens),
        output_(output),
        has_bias_(convolution.bias.has_value()),
        has_residual_(has_residual) {
    if (norm) norm_.emplace(*norm);
    for (const MixerStates& states : before) n_tokens_.push_back(states.n_tokens);
  }

  auto floats() {
    return [this](const mx::array& a) { return floats_of(a); };
  }

  // x, and the norm's arrays.
  cpu::MixerEnds read_begin(ArrayReader& next) {
    const mx::array& x = next();
    cpu::MixerEnds ends;
    ends.n_sequences = x.shape(0);
    ends.n_tokens = x.shape(1);
    ends.x = floats_of(x);
    ends.has_norm = norm_.has_value();
    if (norm_) ends.norm = norm_->read(next, floats());
    return ends;
  }

  cpu::ShortConvolutionArgs read_convolution(ArrayReader& next) {
    const mx::array& weight = next();
    cpu::ShortConvolutionArgs args;
    args.width = weight.shape(0);
    args.n_channels = weight.shape(1);
    args.weight = floats_of(weight);
    if (has_bias_) args.bias = floats_of(next());
    args.has_silu = true;
    return args;
  }

  // The output's arrays, residual, then each sequence's states.
  void read_end(ArrayReader& next, std::vector<mx::array>& outputs, cpu::MixerEnds& ends) {
    ends.output = output_.read(next, floats());
    if (has_residual_) ends.residual = floats_of(next());
    ends.y = allocate(outputs[0]);
    int begin = 0;
    mx::array* states = &outputs[1];
    for (const int n_tokens : n_tokens_) {
      cpu::MixerSequence& sequence = ends.sequences.emplace_back(cpu::MixerSequence{begin, n_tokens});
      sequence.tail = state_in(&next(), *states++);
      sequence.state = state_in(&next(), *states++);
      begin += n_tokens;
    }
  }

 private:
  std::optional<NormReader> norm_;
  LinearReader output_;
  bool has_bias_;
  bool has_residual_;
  std::vector<int> n_tokens_;
};

class MambaBlockPrimitive : public MixerPrimitive {
 public:
  MambaBlockPrimitive(const MambaBlock& block, const std::vector<MixerStates>& before, bool has_residual)
      : MixerPrimitive(block.norm, block.convolution, block.output, before, has_residual), input_(block.input) {
    known_.scan.n_heads = block.n_heads;
    known_.scan.head_dim = block.head_dim;
    known_.scan.n_groups = block.n_groups;
    known_.scan.state_dim = block.state;
    known_.scan.is_clamped = block.limits.has_value();
    if (block.limits) {
      known_.scan.dt_min = block.limits->min;
      known_.scan.dt_max = block.limits->max;
    }
    known_.group_norm = block.group_norm;
    known_.eps = block.eps;
  }
  DEFINE_NAME(MambaBlock)

  // inputs: x, norm's arrays, input's, the convolution's, a, d, dt_bias, the group norm's weight, what read_end()
  // reads.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    release_inputs(inputs, outputs);
    ArrayReader next(inputs);
    cpu::MambaBlockArgs args = known_;
    args.ends = read_begin(next);
    args.input = input_.read(next, floats());
    args.convolution = read_convolution(next);
    args.scan.a = floats_of(next());
    args.scan.d = floats_of(next());
    args.scan.dt_bias = floats_of(next());
    if (args.group_norm != GroupNorm::kNone) args.norm_weight = floats_of(next());
    read_end(next, outputs, args.ends);
    queue([args = std::move(args)]() mutable { cpu::mamba_block(args); });
  }

 private:
  LinearReader input_;
  cpu::MambaBlockArgs known_;
};

class DeltaBlockPrimitive : public MixerPrimitive {
 public:
  DeltaBlockPrimitive(const DeltaBlock& block, const std::vector<MixerStates>& before, bool has_residual)
      : MixerPrimitive(block.norm, block.convolution, block.output, before, has_residual),
        joined_(block.joined),
        gates_(block.gates),
        decays_(block.decays),
        betas_(block.betas),
        norm_(block.value_norm) {
    known_.n_key_heads = block.n_key_heads;
    known_.n_value_heads = block.n_value_heads;
    known_.key_dim = block.key_dim;
    known_.value_dim = block.value_dim;
    known_.has_tiled_values = block.has_tiled_values;
    known_.normalizes = true;
    known_.scale = block.scale;
  }
  DEFINE_NAME(DeltaBlock)

  // inputs: x, norm's arrays, those of joined, gates, decays, betas, of the convolution, of the rule's gates, of the
  // value norm, what read_end() reads.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    release_inputs(inputs, outputs);
    ArrayReader next(inputs);
    cpu::DeltaBlockArgs args;
    args.rule = known_;
    args.ends = read_begin(next);
    args.joined = joined_.read(next, floats());
    args.gates = gates_.read(next, floats());
    args.decays = decays_.read(next, floats());
    args.betas = betas_.read(next, floats());
    args.convolution = read_convolution(next);
    args.rule.a = floats_of(next());
    args.rule.dt_bias = floats_of(next());
    args.norm = norm_.read(next, floats());
    read_end(next, outputs, args.ends);
    queue([args = std::move(args)]() mutable { cpu::delta_block(args); });
  }

 private:
  LinearReader joined_;
  LinearReader gates_;
  LinearReader decays_;
  LinearReader betas_;
  NormReader norm_;
  cpu::GatedDeltaArgs known_;
};

void append_arrays(const ShortConvolution& convolution, std::vector<mx::array>& arrays) {
  arrays.push_back(as_float(convolution.weight));
  if (convolution.bias) arrays.push_back(as_float(*convolution.bias));
}

void check_rows(const char* function, const char* name, const Linear& layer, int n_rows) {
  if (layer.rows() == n_rows) return;
  refuse(function,
         std::string(name) + " has " + std::to_string(layer.rows()) + " rows, expected " + std::to_string(n_rows));
}

// The sizes that both have in common. n_values: columns of what the output is made of.
void check_mixer(const char* function, const mx::array& x, const std::optional<Norm>& norm,
                 const ShortConvolution& convolution, int n_channels, const Linear& output, int n_values) {
  if (x.ndim() != 3 || x.size() == 0) refuse(function, "x has shape " + shape_text(x) + ", expected (B,T,hidden)");
  if (norm) check_norm(function, *norm, x.shape(2));
  const mx::array& weight = convolution.weight;
  if (weight.ndim() != 2 || weight.shape(0) > cpu::kMaxConvolutionWidth || !convolution.has_silu) {
    refuse(function, "the convolution has a weight of shape " + shape_text(weight) +
                         (convolution.has_silu ? "" : " and no SiLU") + ", expected one with SiLU of at most " +
                         std::to_string(cpu::kMaxConvolutionWidth) + " rows");
  }
  check_shape(function, "the convolution's weight", weight, {weight.shape(0), n_channels});
  if (convolution.bias) check_shape(function, "the convolution's bias", *convolution.bias, {n_channels});
  if (output.columns() != n_values) {
    refuse(function,
           "output has " + std::to_string(output.columns()) + " columns, expected " + std::to_string(n_values));
  }
}

// tail, state: shapes without the sequences.
void check_sequences(const char* function, const mx::array& x, const std::vector<MixerStates>& before, mx::Shape tail,
                     mx::Shape state) {
  if (before.empty() || (before.size() > 1 && x.shape(0) != 1)) {
    refuse(function, std::to_string(before.size()) + " sequences for x " + shape_text(x) +
                         ", expected one, or several in a batch of one");
  }
  tail.insert(tail.begin(), x.shape(0));
  state.insert(state.begin(), x.shape(0));
  int n_tokens = 0;
  for (const MixerStates& states : before) {
    check_shape(function, "a tail", states.tail, tail);
    check_shape(function, "a state", states.state, state);
    check_dtype(function, "a tail", states.tail, mx::float32);
    check_dtype(function, "a state", states.state, mx::float32);
    if (states.n_tokens < 1 || states.n_tokens > x.shape(1) - n_tokens) {
      refuse(function, "the sequences have more or fewer tokens than x " + shape_text(x));
    }
    n_tokens += states.n_tokens;
  }
  if (n_tokens != x.shape(1)) refuse(function, "the sequences have fewer tokens than x " + shape_text(x));
}

void check_residual(const char* function, const mx::array& x, const Linear& output,
                    const std::optional<mx::array>& residual) {
  if (residual) check_shape(function, "residual", *residual, {x.shape(0), x.shape(1), output.rows()});
}

void check_block(const mx::array& x, const MambaBlock& block, const std::vector<MixerStates>& before) {
  constexpr const char* kName = "mamba_block";
  const int inner = block.n_heads * block.head_dim;
  const int n_channels = inner + 2 * block.n_groups * block.state;
  if (block.n_groups < 1 || block.n_heads % block.n_groups != 0) {
    refuse(kName, std::to_string(block.n_heads) + " heads in " + std::to_string(block.n_groups) + " groups");
  }
  check_mixer(kName, x, block.norm, block.convolution, n_channels, block.output, inner);
  check_columns(kName, x, block.input);
  check_rows(kName, "input", block.input, inner + n_channels + block.n_heads);
  for (const mx::array* a : {&block.a, &block.d, &block.dt_bias})
    check_shape(kName, "a, d or dt_bias", *a, {block.n_heads});
  if (block.group_norm != GroupNorm::kNone) {
    if (!block.norm_weight) refuse(kName, "the group norm has no weight");
    check_shape(kName, "the group norm's weight", *block.norm_weight, {inner});
  }
  check_sequences(kName, x, before, {block.convolution.weight.shape(0) - 1, n_channels},
                  {block.n_heads, block.head_dim, block.state});
}

void check_block(const mx::array& x, const DeltaBlock& block, const std::vector<MixerStates>& before) {
  constexpr const char* kName = "delta_block";
  const int n_values = block.n_value_heads * block.value_dim;
  const int n_channels = 2 * block.n_key_heads * block.key_dim + n_values;
  if (block.n_key_heads < 1 || block.n_value_heads % block.n_key_heads != 0) {
    refuse(kName, std::to_string(block.n_value_heads) + " value heads for " + std::to_string(block.n_key_heads) +
                      " key heads");
  }
  check_mixer(kName, x, block.norm, block.convolution, n_channels, block.output, n_values);
  for (const Linear* layer : {&block.joined, &block.gates, &block.decays, &block.betas})
    check_columns(kName, x, *layer);
  check_rows(kName, "joined", block.joined, n_channels);
  check_rows(kName, "gates", block.gates, n_values);
  check_rows(kName, "decays", block.decays, block.n_value_heads);
  check_rows(kName, "betas", block.betas, block.n_value_heads);
  check_shape(kName, "a", block.rule_gates.a, {block.n_value_heads});
  check_shape(kName, "dt_bias", block.rule_gates.dt_bias, {block.n_value_heads});
  check_norm(kName, block.value_norm, block.value_dim);
  check_sequences(kName, x, before, {block.convolution.weight.shape(0) - 1, n_channels},
                  {block.n_value_heads, block.value_dim, block.key_dim});
}

// inputs: all but what read_end() reads.
template <typename Primitive, typename Block>
MixerOutput run_block(const mx::array& x, const Block& block, std::vector<MixerStates> before,
                      const std::optional<mx::array>& residual, std::vector<mx::array> inputs) {
  const auto primitive = std::make_shared<Primitive>(block, before, residual.has_value());
  append_arrays(block.output, inputs);
  if (residual) inputs.push_back(as_float(*residual));
  std::vector<mx::Shape> shapes = {{x.shape(0), x.shape(1), block.output.rows()}};
  for (MixerStates& states : before) {
    shapes.push_back(states.tail.shape());
    shapes.push_back(states.state.shape());
    inputs.push_back(std::move(states.tail));
    inputs.push_back(std::move(states.state));
  }
  const std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
  const std::vector<mx::array> outputs = mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
  MixerOutput result{outputs[0], {}};
  for (std::size_t i = 0; i < before.size(); ++i) {
    result.states.push_back({before[i].n_tokens, outputs[2 * i + 1], outputs[2 * i + 2]});
  }
  return result;
}

}  // namespace

bool is_block(const MambaBlock& block, const mx::array& x) {
  return on_cpu() && x.dtype() == mx::float32 && block.input.weight.packed && block.output.weight.packed &&
         block.convolution.weight.shape(0) > 1;
}

bool is_block(const DeltaBlock& block, const mx::array& x) {
  for (const Linear* layer : {&block.joined, &block.gates, &block.decays, &block.betas, &block.output}) {
    if (!layer->weight.packed) return false;
  }
  return on_cpu() && x.dtype() == mx::float32 && block.convolution.weight.shape(0) > 1;
}

MixerOutput mamba_block(const mx::array& x, const MambaBlock& block, std::vector<MixerStates> before,
                        const std::optional<mx::array>& residual) {
  check_block(x, block, before);
  check_residual("mamba_block", x, block.output, residual);
  std::vector<mx::array> inputs = {x};
  if (block.norm) append_arrays(*block.norm, inputs);
  append_arrays(block.input, inputs);
  append_arrays(block.convolution, inputs);
  for (const mx::array* a : {&block.a, &block.d, &block.dt_bias}) inputs.push_back(as_float(*a));
  if (block.group_norm != GroupNorm::kNone) inputs.push_back(as_float(*block.norm_weight));
  return run_block<MambaBlockPrimitive>(x, block, std::move(before), residual, std::move(inputs));
}

MixerOutput delta_block(const mx::array& x, const DeltaBlock& block, std::vector<MixerStates> before,
                        const std::optional<mx::array>& residual) {
  check_block(x, block, before);
  check_residual("delta_block", x, block.output, residual);
  std::vector<mx::array> inputs = {x};
  if (block.norm) append_arrays(*block.norm, inputs);
  for (const Linear* layer : {&block.joined, &block.gates, &block.decays, &block.betas}) append_arrays(*layer, inputs);
  append_arrays(block.convolution, inputs);
  inputs.push_back(as_float(block.rule_gates.a));
  inputs.push_back(as_float(block.rule_gates.dt_bias));
  append_arrays(block.value_norm, inputs);
  return run_block<DeltaBlockPrimitive>(x, block, std::move(before), residual, std::move(inputs));
}

}  // namespace memoir::kernels
