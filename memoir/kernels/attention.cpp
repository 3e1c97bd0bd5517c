#include "memoir/kernels/attention.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/attention_args.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/position_mask.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"
#include "memoir/kernels/weight.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.attention] " + what);
}

void check_shapes(const mx::array& q, const History& history) {
  check_history("kernels.attention", history);
  const mx::array& k = history.keys.data;
  if (q.ndim() != 4 || k.shape(0) != q.shape(0) || history.keys.dim() != q.shape(3) || k.shape(1) == 0 ||
      q.shape(1) % k.shape(1) != 0 || q.shape(2) == 0 || q.shape(1) == 0) {
    refuse("keys have shape " + shape_text(k) + " with rows of " + std::to_string(history.keys.dim()) + ", queries " +
           shape_text(q) + ": expected (B,Hkv,C,Dk) and (B,H,T,Dk), H a multiple of Hkv");
  }
  const int n_positions =
      history.ranges.empty() ? 0 : history.ranges.back().first_position + history.ranges.back().n_rows;
  if (n_positions < q.shape(2)) {
    refuse("the history ends at position " + std::to_string(n_positions) + ", expected at least T for queries " +
           shape_text(q));
  }
}

void check_options(const mx::array& q, const History& history, const AttentionOptions& options) {
  check_rules("attention", options, q.shape(1));
  if (!options.mask) return;
  const mx::array& mask = *options.mask;
  const auto is_one_of = [](int n, int wanted) { return n == 1 || n == wanted; };
  if (mask.ndim() != 4 || !is_one_of(mask.shape(0), q.shape(0)) || !is_one_of(mask.shape(1), q.shape(1)) ||
      mask.shape(2) != q.shape(2) || mask.shape(3) != history.n_rows()) {
    refuse("mask has shape " + shape_text(mask) + ", expected (B or 1,H or 1," + std::to_string(q.shape(2)) + "," +
           std::to_string(history.n_rows()) + ")");
  }
}

// The buffer's arrays, in types that the kernel reads.
KvForm append_inputs(const KvBuffer& buffer, std::vector<mx::array>& inputs) {
  const bool is_readable = is_float(buffer.dtype());
  for (mx::array& a : buffer.arrays()) inputs.push_back(is_readable ? a : as_float(a));
  const KvForm form(buffer);
  if (form.bits > 0) inputs[inputs.size() - form.n_arrays()] = buffer.data;  // codes stay what they are
  return form;
}

// Sequences that share a buffer, and their queries among all.
struct Group {
  KvForm keys;
  KvForm values;
  std::vector<KvRange> ranges;
  cpu::AttentionArgs seen;
  int query_begin;

  std::size_t n_arrays() const { return keys.n_arrays() + values.n_arrays(); }
};

class AttentionPrimitive : public CpuPrimitive {
 public:
  AttentionPrimitive(mx::Stream stream, std::vector<Group> groups, const AttentionOptions& options)
      : CpuPrimitive(stream),
        groups_(std::move(groups)),
        has_sinks_(options.sinks.has_value()),
        has_mask_(options.mask.has_value()) {}
  DEFINE_NAME(Attention)

  // inputs: queries [B, H, T, Dk], those of each group's keys and values, and where there are any sinks [H], mask.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array& q = inputs[0];
    const Strided queries = rows_of(q);
    float* out = allocate(outputs[0]);
    const float* sinks = has_sinks_ ? floats_of(inputs[inputs.size() - (has_mask_ ? 2 : 1)]) : nullptr;
    std::vector<cpu::AttentionArgs> sequences;
    std::vector<std::vector<KvRange>> ranges;
    const mx::array* buffers = &inputs[1];
    for (const Group& group : groups_) {
      const Rows keys = sequences_of(group.keys, buffers);
      const Rows values = sequences_of(group.values, buffers + group.keys.n_arrays());
      for (int b = 0; b < q.shape(0); ++b) {
        cpu::AttentionArgs args = group.seen;
        args.n_heads = q.shape(1);
        args.n_kv_heads = buffers[0].shape(1);
        args.out_head_stride = group.values.dim;
        args.out_row_stride = static_cast<std::ptrdiff_t>(args.n_heads) * group.values.dim;
        args.keys = keys.of_sequence(b);
        args.values = values.of_sequence(b);
        args.query_head_stride = queries.strides[1];
        args.query_row_stride = queries.strides[2];
        args.queries =
            static_cast<const float*>(queries.data) + b * queries.strides[0] + group.query_begin * queries.strides[2];
        args.sinks = sinks;
        if (has_mask_) set_mask(inputs.back(), b, args);
        args.out = out + (static_cast<std::ptrdiff_t>(b) * q.shape(2) + group.query_begin) * args.out_row_stride;
        sequences.push_back(args);
        ranges.push_back(group.ranges);
      }
      buffers += group.n_arrays();
    }
    queue([sequences = std::move(sequences), ranges = std::move(ranges)]() mutable {
      for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i].ranges = ranges[i];
      cpu::attention(sequences);
    });
  }

 private:
  // The rows of all sequences.
  struct Rows {
    cpu::KvRows first;
    std::ptrdiff_t bytes;        // from a sequence's data to the next one's
    std::ptrdiff_t scale_bytes;  // and scales and biases

    cpu::KvRows of_sequence(int b) const {
      const auto moved = [b](const void* data, std::ptrdiff_t n_bytes) {
        return data ? static_cast<const std::byte*>(data) + b * n_bytes : nullptr;
      };
      cpu::KvRows rows = first;
      rows.data = moved(rows.data, bytes);
      rows.scales = moved(rows.scales, scale_bytes);
      rows.biases = moved(rows.biases, scale_bytes);
      return rows;
    }
  };

  Rows sequences_of(const KvForm& format, const mx::array* inputs) {
    const Strided data = rows_of(inputs[0]);
    Rows rows{};
    rows.first = {format.dim, cpu::Element::kF32, data.data, data.strides[1], data.strides[2]};
    rows.bytes = data.strides[0] * static_cast<std::ptrdiff_t>(inputs[0].itemsize());
    if (format.bits == 0) {
      rows.first.element = element_of(inputs[0].dtype());
      return rows;
    }
    const Strided scales = rows_of(inputs[1], true);
    const Strided biases = rows_of(inputs[2], true);
    rows.first.element = element_of(inputs[1].dtype());
    rows.first.bits = format.bits;
    rows.first.group_size = format.group_size;
    rows.first.scales = scales.data;
    rows.first.biases = biases.data;
    rows.first.scale_head_stride = scales.strides[1];
    rows.first.scale_row_stride = scales.strides[2];
    rows.scale_bytes = scales.strides[0] * static_cast<std::ptrdiff_t>(inputs[1].itemsize());
    return rows;
  }

  static void set_mask(const mx::array& mask, int b, cpu::AttentionArgs& args) {
    const bool is_bool = mask.dtype() == mx::bool_;
    const std::ptrdiff_t n_columns = mask.shape(3);
    args.mask_element = is_bool ? cpu::MaskElement::kBool : cpu::MaskElement::kF32;
    args.mask_query_stride = n_columns;
    args.mask_head_stride = mask.shape(1) == 1 ? 0 : n_columns * mask.shape(2);
    const std::ptrdiff_t at = mask.shape(0) == 1 ? 0 : b * n_columns * mask.shape(2) * mask.shape(1);
    args.mask = mask.data<std::uint8_t>() + at * static_cast<std::ptrdiff_t>(mask.itemsize());
  }

  std::vector<Group> groups_;
  bool has_sinks_;
  bool has_mask_;
};

// Of one history for all sequences, or one for each.
mx::array cpu_attention(const mx::array& queries, std::span<const SequenceHistory> sequences,
                        const AttentionOptions& options) {
  std::vector<mx::array> inputs = {as_float(queries)};
  std::vector<Group> groups;
  int query_begin = 0;
  for (const SequenceHistory& s : sequences) {
    const KvForm keys = append_inputs(s.history.keys, inputs);
    const KvForm values = append_inputs(s.history.values, inputs);
    const AttentionOptions seen = narrowed(options, s.history);
    groups.push_back({keys, values, s.history.ranges, seen_args(seen, s.history.ranges, s.n_queries), query_begin});
    query_begin += s.n_queries;
  }
  if (options.sinks) inputs.push_back(as_float(*options.sinks));
  if (options.mask) {
    const mx::array& mask = *options.mask;
    inputs.push_back(mx::contiguous(mask.dtype() == mx::bool_ ? mask : as_float(mask), false, cpu_stream()));
  }
  mx::Shape shape{queries.shape(0), queries.shape(2), queries.shape(1) * groups[0].values.dim};
  const mx::array y(std::move(shape), mx::float32,
                    std::make_shared<AttentionPrimitive>(cpu_stream(), std::move(groups), options), std::move(inputs));
  return mx::astype(y, queries.dtype(), cpu_stream());
}

// [T, S] bool: which rows each query sees by position.
mx::array seen_by_position(const History& history, int n_queries, const AttentionOptions& options) {
  std::vector<int> positions;
  for (const KvRange& range : history.ranges) {
    for (int i = 0; i < range.n_rows; ++i) positions.push_back(range.first_position + i);
  }
  const int n_rows = static_cast<int>(positions.size());
  const int end = positions.back() + 1;
  const mx::array row = mx::array(positions.data(), {1, n_rows}, mx::int32);
  const mx::array query = mx::expand_dims(mx::arange(end - n_queries, end), 1);
  return kernels::position_mask(query, row, {options.window, options.keep, options.chunk, options.is_causal});
}

// Whether a query sees all rows before its own, which are then as many from the end as there are queries behind it.
bool is_plain(const History& history, int n_queries, const AttentionOptions& options) {
  if (options.chunk || options.mask || !options.is_causal || history.ranges.empty()) return false;
  const KvRange& last = history.ranges.back();
  if (n_queries > 1 && last.n_rows < n_queries) return false;
  return !options.window ||
         last.first_position + last.n_rows - history.ranges.front().first_position <= *options.window;
}

// What the only query sees, numbered in the order in which it lies: softmax doesn't mind the order, and a ring's rows
// are one view of its buffer, not a copy.
History seen_alone(const History& history, const AttentionOptions& options) {
  const KvRange& last = history.ranges.back();
  const int query = last.first_position + last.n_rows - 1;
  const int chunk_begin = options.chunk ? query / *options.chunk * *options.chunk : 0;
  const int window_begin = options.window ? std::max(0, query - *options.window + 1) : 0;
  std::vector<KvRange> seen;
  for (const KvRange& range : history.ranges) {
    const auto add = [&](int begin, int end) {
      const int first = std::max(begin, range.first_position);
      const int n = std::min(end, range.first_position + range.n_rows) - first;
      if (n > 0) seen.push_back({0, range.begin_row + first - range.first_position, n});
    };
    add(chunk_begin, std::min(options.keep, window_begin));
    add(std::max(chunk_begin, window_begin), query + 1);
  }
  std::ranges::sort(seen, {}, &KvRange::begin_row);
  std::vector<KvRange> joined;
  int position = 0;
  for (const KvRange& range : seen) {
    if (!joined.empty() && joined.back().begin_row + joined.back().n_rows == range.begin_row) {
      joined.back().n_rows += range.n_rows;
    } else {
      joined.push_back({position, range.begin_row, range.n_rows});
    }
    position += range.n_rows;
  }
  return {history.keys, history.values, std::move(joined)};
}

// Whether by position and by mask, as one mask for MLX.
mx::array whole_mask(const mx::array& queries, const History& history, const AttentionOptions& options) {
  const mx::array seen = seen_by_position(history, queries.shape(2), options);
  if (!options.mask) return seen;
  if (options.mask->dtype() == mx::bool_) return mx::logical_and(seen, *options.mask);
  const mx::array added = mx::astype(*options.mask, queries.dtype());
  return mx::where(seen, added, mx::astype(mx::array(-std::numeric_limits<float>::infinity()), queries.dtype()));
}

// MLX's fused kernels don't cap: its plain operations.
mx::array capped_attention(const mx::array& queries, const History& history, const AttentionOptions& options) {
  const int group = queries.shape(1) / history.keys.data.shape(1);
  const mx::array keys = mx::repeat(history.key_rows(), group, 1);
  const mx::array values = mx::repeat(history.value_rows(), group, 1);
  const auto scalar = [&](float value) { return mx::astype(mx::array(value), queries.dtype()); };
  const mx::array cap = scalar(options.soft_cap);
  mx::array scores = mx::matmul(mx::multiply(queries, scalar(options.scale)), mx::swapaxes(keys, 2, 3));
  scores = mx::multiply(cap, mx::tanh(mx::divide(scores, cap)));
  const mx::array mask = whole_mask(queries, history, options);
  scores = mask.dtype() == mx::bool_ ? mx::where(mask, scores, scalar(-std::numeric_limits<float>::infinity()))
                                     : mx::add(scores, mask);
  if (!options.sinks) return mx::matmul(mx::softmax(scores, -1, true), values);
  const mx::array sinks = mx::astype(mx::reshape(*options.sinks, {1, -1, 1, 1}), scores.dtype());
  mx::Shape shape = scores.shape();
  shape.back() = 1;
  const mx::array weights = mx::softmax(mx::concatenate({mx::broadcast_to(sinks, shape), scores}, -1), -1, true);
  const mx::Shape start{0, 0, 0, 1};
  return mx::matmul(mx::slice(weights, start, weights.shape()), values);
}

// In the rows' type: queries are few, and all rows would be copied into a wider one at each step.
mx::array composed_attention(const mx::array& heads, const History& history, const AttentionOptions& options) {
  if (heads.shape(2) == 1 && options.is_causal && !options.mask && (options.window || options.chunk)) {
    AttentionOptions all = options;
    all.window = all.chunk = std::nullopt;
    return composed_attention(heads, seen_alone(history, options), all);
  }
  const mx::Dtype rows = history.keys.dtype();
  const mx::array queries = is_float(rows) ? mx::astype(heads, rows) : heads;
  if (options.soft_cap > 0) return capped_attention(queries, history, options);
  const std::optional<mx::array> sinks =
      options.sinks ? std::optional<mx::array>(mx::astype(*options.sinks, queries.dtype())) : std::nullopt;
  if (is_plain(history, queries.shape(2), options)) {
    return mx::fast::scaled_dot_product_attention(queries, history.key_rows(), history.value_rows(), options.scale,
                                                  queries.shape(2) > 1 ? "causal" : "", std::nullopt, sinks);
  }
  return mx::fast::scaled_dot_product_attention(queries, history.key_rows(), history.value_rows(), options.scale,
                                                "array", whole_mask(queries, history, options), sinks);
}

}  // namespace

cpu::AttentionArgs seen_args(const AttentionOptions& options, const std::vector<KvRange>& ranges, int n_queries) {
  cpu::AttentionArgs args{};
  args.n_queries = n_queries;
  args.first_position = ranges.back().first_position + ranges.back().n_rows - n_queries;
  args.scale = options.scale;
  args.soft_cap = options.soft_cap;
  args.window = options.window.value_or(0);
  args.keep = options.keep;
  args.chunk = options.chunk.value_or(0);
  args.is_causal = options.is_causal;
  return args;
}

void check_rules(const char* function, const AttentionOptions& options, int n_heads) {
  const auto refuse = [function](const std::string& what) {
    throw std::invalid_argument("[kernels." + std::string(function) + "] " + what);
  };
  if (options.window && *options.window <= 0) {
    refuse("window is " + std::to_string(*options.window) + ", expected at least 1");
  }
  if (options.chunk && *options.chunk <= 0) {
    refuse("chunk is " + std::to_string(*options.chunk) + ", expected at least 1");
  }
  if (options.keep < 0) refuse("keep is " + std::to_string(options.keep) + ", expected at least 0");
  if (options.sinks && (options.sinks->ndim() != 1 || options.sinks->shape(0) != n_heads)) {
    refuse("sinks have shape " + shape_text(*options.sinks) + ", expected (" + std::to_string(n_heads) + ")");
  }
}

AttentionOptions narrowed(const AttentionOptions& options, const History& history) {
  AttentionOptions result = options;
  if (!history.window) return result;
  if (!options.window) result.keep = history.keep;
  result.window = std::min(options.window.value_or(*history.window), *history.window);
  return result;
}

mx::array attention(const mx::array& queries, const History& history, const AttentionOptions& options) {
  check_shapes(queries, history);
  check_options(queries, history, options);
  if (on_cpu()) return cpu_attention(queries, std::vector<SequenceHistory>{{queries.shape(2), history}}, options);
  const mx::array heads =
      mx::astype(composed_attention(queries, history, narrowed(options, history)), queries.dtype());  // [B, H, T, Dv]
  return mx::reshape(mx::transpose(heads, {0, 2, 1, 3}),
                     {heads.shape(0), heads.shape(2), heads.shape(1) * heads.shape(3)});
}

mx::array attention(const mx::array& queries, const std::vector<SequenceHistory>& sequences,
                    const AttentionOptions& options) {
  if (sequences.size() == 1 && queries.ndim() == 4 && sequences[0].n_queries == queries.shape(2)) {
    return attention(queries, sequences[0].history, options);
  }
  if (options.mask) refuse("there is a mask, expected none with several sequences");
  if (queries.ndim() != 4 || queries.shape(0) != 1 || sequences.empty()) {
    refuse("queries have shape " + shape_text(queries) + " for " + std::to_string(sequences.size()) +
           " sequences, expected (1,H,T,Dk) and at least one");
  }
  std::vector<mx::array> rows;  // each sequence's queries
  int end = 0;
  for (const SequenceHistory& s : sequences) {
    if (s.n_queries < 1 || s.n_queries > queries.shape(2) - end) {
      refuse("a sequence has " + std::to_string(s.n_queries) + " queries, expected at least 1 and all together " +
             std::to_string(queries.shape(2)));
    }
    rows.push_back(mx::slice(queries, {0, 0, end, 0}, {1, queries.shape(1), end + s.n_queries, queries.shape(3)}));
    check_shapes(rows.back(), s.history);
    check_options(rows.back(), s.history, options);
    if (s.history.values.dim() != sequences[0].history.values.dim()) {
      refuse("values have rows of " + std::to_string(s.history.values.dim()) + " and " +
             std::to_string(sequences[0].history.values.dim()) + ", expected the same for all sequences");
    }
    end += s.n_queries;
  }
  if (end != queries.shape(2)) {
    refuse("the sequences have " + std::to_string(end) + " queries, expected " + std::to_string(queries.shape(2)));
  }
  if (on_cpu()) return cpu_attention(queries, sequences, options);
  std::vector<mx::array> outputs;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    outputs.push_back(attention(rows[i], sequences[i].history, options));
  }
  return mx::concatenate(outputs, 1);
}

}  // namespace memoir::kernels
