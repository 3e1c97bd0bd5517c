#include "memoir/kernels/attention_block.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/attention_args.h"
#include "memoir/kernels/cpu/attention_block.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/mlp_args.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/projection_args.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr const char* kName = "attention_block";

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.attention_block] " + what);
}

// What is remembered of a sequence: its form, and all that is known before its buffers are.
struct Group {
  KvForm keys;
  KvForm values;
  cpu::BlockSequence known;

  std::size_t n_arrays() const { return keys.n_arrays() + values.n_arrays(); }
};

class AttentionBlockPrimitive : public CpuPrimitive {
 public:
  AttentionBlockPrimitive(mx::Stream stream, const AttentionBlock& block, std::vector<Group> groups, bool has_residual)
      : CpuPrimitive(stream),
        projection_(block.norm, block.projection, block.turns),
        output_(block.output),
        groups_(std::move(groups)),
        has_sinks_(block.options.sinks.has_value()),
        has_residual_(has_residual) {
    if (!block.mlp) return;
    mlp_norm_.emplace(*block.mlp_norm);
    mlp_.emplace(*block.mlp);
  }
  DEFINE_NAME(AttentionBlock)

  // inputs: x, the projection's arrays, output's, then where there are any sinks, residual, the feed-forward's norm and
  // layers; last the arrays of each group's keys and values. outputs: y, those arrays.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const auto floats = [this](const mx::array& a) { return floats_of(a); };
    take_over(inputs, inputs.size() - (outputs.size() - 1), outputs, 1);
    ArrayReader next(inputs);
    const mx::array& x = next();
    ProjectionWork projection = projection_.read(x, next, floats);
    cpu::AttentionBlockArgs args;
    args.output = output_.read(next, floats);
    const float* sinks = has_sinks_ ? floats(next()) : nullptr;
    if (has_residual_) args.residual = floats(next());
    args.has_mlp = mlp_.has_value();
    if (mlp_) {
      args.mlp_norm = mlp_norm_->read(next, floats);
      args.mlp = mlp_->read(next, floats);
    }
    args.y = allocate(outputs[0]);
    mx::array* buffers = &outputs[1];
    for (const Group& group : groups_) {
      cpu::BlockSequence& sequence = args.sequences.emplace_back(group.known);
      sequence.keys = write_args(group.keys, buffers);
      sequence.values = write_args(group.values, buffers + group.keys.n_arrays());
      sequence.attention.n_heads = projection_.n_heads(0);
      sequence.attention.n_kv_heads = projection_.n_heads(1);
      sequence.attention.sinks = sinks;
      buffers += group.n_arrays();
    }
    queue([args = std::move(args), projection]() mutable {
      projection.bind();
      args.projection = projection.args;
      cpu::attention_block(args);
    });
  }

 private:
  ProjectionReader projection_;
  LinearReader output_;
  std::optional<NormReader> mlp_norm_;
  std::optional<GatedMlpReader> mlp_;
  std::vector<Group> groups_;
  bool has_sinks_;
  bool has_residual_;
};

void check_block(const mx::array& x, const AttentionBlock& block, const std::optional<mx::array>& residual) {
  check_projection(kName, x, block.norm, block.projection, block.turns);
  check_rules(kName, block.options, block.projection.n_heads);
  if (block.options.mask) refuse("there is a mask, expected none");
  if (block.output.columns() != block.projection.n_heads * block.projection.head_dim) {
    refuse("output has " + std::to_string(block.output.columns()) + " columns, expected " +
           std::to_string(block.projection.n_heads) + " heads of " + std::to_string(block.projection.head_dim));
  }
  mx::Shape shape = x.shape();
  shape.back() = block.output.rows();
  if (residual && residual->shape() != shape) {
    refuse("residual has shape " + shape_text(*residual) + ", expected (...," + std::to_string(block.output.rows()) +
           ") for x " + shape_text(x));
  }
  if ((block.mlp != nullptr) != (block.mlp_norm != nullptr))
    refuse("there is a feed-forward or its norm, expected both");
  if (!block.mlp) return;
  if (block.output.rows() != x.shape(2)) {
    refuse("output has " + std::to_string(block.output.rows()) + " rows, expected those of x " + shape_text(x) +
           " before a feed-forward");
  }
  check_mlp(kName, x, *block.mlp_norm, *block.mlp);
}

void check_sequences(const mx::array& x, const AttentionBlock& block, const std::vector<SequenceRows>& sequences) {
  if (sequences.empty() || (sequences.size() > 1 && x.shape(0) != 1)) {
    refuse(std::to_string(sequences.size()) + " sequences for x " + shape_text(x) +
           ", expected one, or several in a batch of one");
  }
  int n_tokens = 0;
  for (const SequenceRows& s : sequences) {
    check_history("kernels.attention_block", {s.buffers.keys, s.buffers.values, s.ranges});
    check_runs(kName, s.buffers, s.n_tokens, s.runs);
    for (const KvBuffer* buffer : {&s.buffers.keys, &s.buffers.values}) {
      const mx::array& data = buffer->data;
      if (data.shape(0) != x.shape(0) || data.shape(1) != block.projection.n_kv_heads ||
          buffer->dim() != block.projection.head_dim || !is_float(buffer->dtype())) {
        refuse("a buffer has shape " + shape_text(data) + " with rows of " + std::to_string(buffer->dim()) + " " +
               dtype_text(buffer->dtype()) + ", expected (" + std::to_string(x.shape(0)) + "," +
               std::to_string(block.projection.n_kv_heads) + ",C,*) with rows of " +
               std::to_string(block.projection.head_dim));
      }
    }
    const int n_positions = s.ranges.empty() ? 0 : s.ranges.back().first_position + s.ranges.back().n_rows;
    if (n_positions < s.n_tokens) {
      refuse("the history ends at position " + std::to_string(n_positions) + ", expected at least " +
             std::to_string(s.n_tokens));
    }
    n_tokens += s.n_tokens;
  }
  if (n_tokens != x.shape(1)) {
    refuse("the sequences have " + std::to_string(n_tokens) + " tokens, expected " + std::to_string(x.shape(1)));
  }
}

std::vector<Group> groups_of(const AttentionBlock& block, const std::vector<SequenceRows>& sequences) {
  std::vector<Group> groups;
  int begin = 0;
  for (const SequenceRows& s : sequences) {
    Group group{KvForm(s.buffers.keys), KvForm(s.buffers.values), {}};
    group.known.begin = begin;
    group.known.n_tokens = s.n_tokens;
    group.known.runs = s.runs;
    group.known.ranges = s.ranges;
    const AttentionOptions seen = narrowed(block.options, {s.buffers.keys, s.buffers.values, {}, s.window, s.keep});
    group.known.attention = seen_args(seen, s.ranges, s.n_tokens);
    groups.push_back(std::move(group));
    begin += s.n_tokens;
  }
  return groups;
}

}  // namespace

bool is_block(const AttentionBlock& block, const mx::array& x) {
  return on_cpu() && x.dtype() == mx::float32 && is_packed(block.projection) && block.output.weight.packed &&
         !block.options.mask && (!block.mlp || is_packed(*block.mlp));
}

BlockOutput attention_block(const mx::array& x, const AttentionBlock& block, std::vector<SequenceRows> sequences,
                            const std::optional<mx::array>& residual) {
  check_block(x, block, residual);
  check_sequences(x, block, sequences);
  std::vector<mx::array> inputs = {x};
  append_arrays(block.norm, block.projection, block.turns, inputs);
  append_arrays(block.output, inputs);
  if (block.options.sinks) inputs.push_back(as_float(*block.options.sinks));
  if (residual) inputs.push_back(as_float(*residual));
  if (block.mlp) {
    append_arrays(*block.mlp_norm, inputs);
    append_arrays(*block.mlp, inputs);
  }
  mx::Shape shape = x.shape();
  shape.back() = block.output.rows();
  std::vector<mx::Shape> shapes = {std::move(shape)};
  std::vector<mx::Dtype> dtypes = {mx::float32};
  for (const SequenceRows& s : sequences) {
    for (mx::array& a : arrays_of(s.buffers.keys, s.buffers.values)) {
      shapes.push_back(a.shape());
      dtypes.push_back(a.dtype());
      inputs.push_back(std::move(a));
    }
  }
  const auto primitive =
      std::make_shared<AttentionBlockPrimitive>(cpu_stream(), block, groups_of(block, sequences), residual.has_value());
  const std::vector<mx::array> outputs = mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
  BlockOutput result{outputs[0], {}};
  const mx::array* arrays = &outputs[1];
  for (const SequenceRows& s : sequences) {
    const KvBuffer keys = with_arrays(s.buffers.keys, arrays);
    arrays += KvForm(s.buffers.keys).n_arrays();
    result.buffers.push_back({keys, with_arrays(s.buffers.values, arrays)});
    arrays += KvForm(s.buffers.values).n_arrays();
  }
  return result;
}

}  // namespace memoir::kernels
