#include "memoir/kernels/attention.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/device.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"
#include "memoir/kernels/weight.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr int kRowAxis = 2;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.attention] " + what);
}

void check_ranges(const History& history) {
  int end = 0;
  for (const KvRange& range : history.ranges) {
    const bool lies_inside =
        range.n_rows > 0 && range.begin_row >= 0 && range.begin_row <= history.keys.shape(kRowAxis) - range.n_rows &&
        range.first_position >= end && range.first_position <= std::numeric_limits<int>::max() - range.n_rows;
    if (!lies_inside) {
      refuse("a range has " + std::to_string(range.n_rows) + " rows from row " + std::to_string(range.begin_row) +
             ", position " + std::to_string(range.first_position) + ": expected them inside keys " +
             shape_text(history.keys) + " and after position " + std::to_string(end));
    }
    end = range.first_position + range.n_rows;
  }
}

void check_shapes(const mx::array& q, const History& history) {
  const mx::array& k = history.keys;
  const mx::array& v = history.values;
  const bool ranks = q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4;
  if (!ranks || k.shape(0) != q.shape(0) || k.shape(3) != q.shape(3) || k.shape(1) == 0 ||
      q.shape(1) % k.shape(1) != 0 || q.shape(2) == 0 || q.shape(1) == 0) {
    refuse("keys have shape " + shape_text(k) + ", queries " + shape_text(q) +
           ": expected (B,Hkv,S,Dk) and (B,H,T,Dk), H a multiple of Hkv, S >= T");
  }
  if (v.shape(0) != k.shape(0) || v.shape(1) != k.shape(1) || v.shape(2) != k.shape(2)) {
    refuse("values have shape " + shape_text(v) + ", keys " + shape_text(k) + ": expected the same B, H and S");
  }
  check_ranges(history);
  const int n_positions =
      history.ranges.empty() ? 0 : history.ranges.back().first_position + history.ranges.back().n_rows;
  if (n_positions < q.shape(2)) {
    refuse("the history ends at position " + std::to_string(n_positions) + ", expected S >= T for queries " +
           shape_text(q));
  }
}

void check_options(const mx::array& q, const History& history, const AttentionOptions& options) {
  if (options.window && *options.window <= 0) {
    refuse("window is " + std::to_string(*options.window) + ", expected at least 1");
  }
  if (options.chunk && *options.chunk <= 0) {
    refuse("chunk is " + std::to_string(*options.chunk) + ", expected at least 1");
  }
  if (options.keep < 0) refuse("keep is " + std::to_string(options.keep) + ", expected at least 0");
  if (options.sinks && (options.sinks->ndim() != 1 || options.sinks->shape(0) != q.shape(1))) {
    refuse("sinks have shape " + shape_text(*options.sinks) + ", expected (" + std::to_string(q.shape(1)) + ")");
  }
  if (!options.mask) return;
  const mx::array& mask = *options.mask;
  const auto is_one_of = [](int n, int wanted) { return n == 1 || n == wanted; };
  if (mask.ndim() != 4 || !is_one_of(mask.shape(0), q.shape(0)) || !is_one_of(mask.shape(1), q.shape(1)) ||
      mask.shape(2) != q.shape(2) || mask.shape(3) != history.n_rows()) {
    refuse("mask has shape " + shape_text(mask) + ", expected (B or 1,H or 1," + std::to_string(q.shape(2)) + "," +
           std::to_string(history.n_rows()) + ")");
  }
}

bool is_dense_float(mx::Dtype dtype) {
  return dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
}

class AttentionPrimitive : public CpuPrimitive {
 public:
  AttentionPrimitive(mx::Stream stream, std::vector<KvRange> ranges, AttentionOptions options)
      : CpuPrimitive(stream), ranges_(std::move(ranges)), options_(std::move(options)) {
    has_sinks_ = options_.sinks.has_value();
    has_mask_ = options_.mask.has_value();
    options_.sinks.reset();  // they are among the inputs
    options_.mask.reset();
  }
  DEFINE_NAME(Attention)

  // inputs: queries [B, H, T, Dk], keys, values, and where there are any sinks [H], mask.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array& q = inputs[0];
    const float* queries = floats_of(q);
    float* out = allocate(outputs[0]);
    const float* sinks = has_sinks_ ? floats_of(inputs[3]) : nullptr;
    const mx::array* mask = has_mask_ ? &inputs.back() : nullptr;
    std::vector<cpu::AttentionArgs> sequences;
    for (int b = 0; b < q.shape(0); ++b) {
      cpu::AttentionArgs args = sequence(b, q, inputs[1], inputs[2]);
      args.queries = queries + static_cast<std::ptrdiff_t>(b) * q.shape(1) * q.shape(2) * q.shape(3);
      args.sinks = sinks;
      if (mask) set_mask(*mask, b, args);
      args.out = out + b * args.out_row_stride * q.shape(2);
      sequences.push_back(args);
    }
    queue([sequences = std::move(sequences), ranges = ranges_]() mutable {
      for (cpu::AttentionArgs& args : sequences) args.ranges = ranges;
      cpu::attention(sequences);
    });
  }

 private:
  static cpu::KvRows rows_of(const mx::array& a, int b) {
    const std::byte* data = reinterpret_cast<const std::byte*>(a.data<std::uint8_t>());
    const std::ptrdiff_t at = b * a.strides()[0] * static_cast<std::ptrdiff_t>(a.itemsize());
    return {a.shape(3), element_of(a.dtype()), data + at, a.strides()[1], a.strides()[2]};
  }

  cpu::AttentionArgs sequence(int b, const mx::array& q, const mx::array& keys, const mx::array& values) const {
    cpu::AttentionArgs args{};
    args.n_heads = q.shape(1);
    args.n_kv_heads = keys.shape(1);
    args.n_queries = q.shape(2);
    args.first_position = ranges_.back().first_position + ranges_.back().n_rows - q.shape(2);
    args.query_row_stride = q.shape(3);
    args.query_head_stride = static_cast<std::ptrdiff_t>(q.shape(2)) * q.shape(3);
    args.keys = rows_of(keys, b);
    args.values = rows_of(values, b);
    args.scale = options_.scale;
    args.soft_cap = options_.soft_cap;
    args.window = options_.window.value_or(0);
    args.keep = options_.keep;
    args.chunk = options_.chunk.value_or(0);
    args.is_causal = options_.is_causal;
    args.out_head_stride = values.shape(3);
    args.out_row_stride = static_cast<std::ptrdiff_t>(q.shape(1)) * values.shape(3);
    return args;
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

  std::vector<KvRange> ranges_;
  AttentionOptions options_;
  bool has_sinks_;
  bool has_mask_;
};

// Rows of the buffers that the kernel can read: elements of a row side by side.
mx::array readable(const mx::array& rows) {
  return is_dense_float(rows.dtype()) ? rows : as_float(rows);
}

mx::array cpu_attention(const mx::array& queries, const History& history, const AttentionOptions& options) {
  std::vector<mx::array> inputs = {as_float(queries), readable(history.keys), readable(history.values)};
  if (options.sinks) inputs.push_back(as_float(*options.sinks));
  if (options.mask) {
    const mx::array& mask = *options.mask;
    inputs.push_back(mx::contiguous(mask.dtype() == mx::bool_ ? mask : as_float(mask), false, cpu_stream()));
  }
  mx::Shape shape{queries.shape(0), queries.shape(2), queries.shape(1) * history.values.shape(3)};
  const mx::array y(std::move(shape), mx::float32,
                    std::make_shared<AttentionPrimitive>(cpu_stream(), history.ranges, options), std::move(inputs));
  return mx::astype(y, queries.dtype(), cpu_stream());
}

// [T, S] bool: which rows each query sees by position.
mx::array position_mask(const History& history, int n_queries, const AttentionOptions& options) {
  std::vector<int> positions;
  for (const KvRange& range : history.ranges) {
    for (int i = 0; i < range.n_rows; ++i) positions.push_back(range.first_position + i);
  }
  const int n_rows = static_cast<int>(positions.size());
  const int end = positions.back() + 1;
  const mx::array row = mx::array(positions.data(), {1, n_rows}, mx::int32);
  const mx::array query = mx::expand_dims(mx::arange(end - n_queries, end), 1);
  mx::array mask = mx::ones({n_queries, n_rows}, mx::bool_);
  if (options.is_causal) mask = mx::less_equal(row, query);
  if (options.window) {
    const mx::array near = mx::less(query, mx::add(row, mx::array(*options.window)));
    mask = mx::logical_and(mask, mx::logical_or(near, mx::less(row, mx::array(options.keep))));
  }
  if (options.chunk) {
    const mx::array chunk(*options.chunk);
    mask = mx::logical_and(mask, mx::equal(mx::floor_divide(row, chunk), mx::floor_divide(query, chunk)));
  }
  return mask;
}

bool is_plain(const History& history, const AttentionOptions& options) {
  if (options.chunk || options.mask || !options.is_causal || history.ranges.size() > 1) return false;
  return !options.window || history.n_rows() <= *options.window;
}

// Whether by position and by mask, as one mask for MLX.
mx::array whole_mask(const mx::array& queries, const History& history, const AttentionOptions& options) {
  const mx::array seen = position_mask(history, queries.shape(2), options);
  if (!options.mask) return seen;
  if (options.mask->dtype() == mx::bool_) return mx::logical_and(seen, *options.mask);
  const mx::array added = mx::astype(*options.mask, queries.dtype());
  return mx::where(seen, added, mx::astype(mx::array(-std::numeric_limits<float>::infinity()), queries.dtype()));
}

// MLX's fused kernels don't cap: its plain operations.
mx::array capped_attention(const mx::array& queries, const History& history, const AttentionOptions& options) {
  const int group = queries.shape(1) / history.keys.shape(1);
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

mx::array composed_attention(const mx::array& queries, const History& history, const AttentionOptions& options) {
  if (options.soft_cap > 0) return capped_attention(queries, history, options);
  const std::optional<mx::array> sinks =
      options.sinks ? std::optional<mx::array>(mx::astype(*options.sinks, queries.dtype())) : std::nullopt;
  if (is_plain(history, options)) {
    return mx::fast::scaled_dot_product_attention(queries, history.key_rows(), history.value_rows(), options.scale,
                                                  queries.shape(2) > 1 ? "causal" : "", std::nullopt, sinks);
  }
  return mx::fast::scaled_dot_product_attention(queries, history.key_rows(), history.value_rows(), options.scale,
                                                "array", whole_mask(queries, history, options), sinks);
}

mx::array rows_by_position(const mx::array& buffer, const std::vector<KvRange>& ranges) {
  std::vector<mx::array> parts;
  for (const KvRange& range : ranges) {
    const mx::Shape start{0, 0, range.begin_row, 0};
    const mx::Shape stop{buffer.shape(0), buffer.shape(1), range.begin_row + range.n_rows, buffer.shape(3)};
    parts.push_back(mx::slice(buffer, start, stop));
  }
  if (parts.size() == 1) return parts[0];
  return parts.empty() ? mx::slice(buffer, {0, 0, 0, 0}, {buffer.shape(0), buffer.shape(1), 0, buffer.shape(3)})
                       : mx::concatenate(parts, kRowAxis);
}

}  // namespace

int History::n_rows() const {
  int n = 0;
  for (const KvRange& range : ranges) n += range.n_rows;
  return n;
}

mx::array History::key_rows() const {
  return rows_by_position(keys, ranges);
}

mx::array History::value_rows() const {
  return rows_by_position(values, ranges);
}

mx::array attention(const mx::array& queries, const History& history, const AttentionOptions& options) {
  check_shapes(queries, history);
  check_options(queries, history, options);
  if (on_cpu()) return cpu_attention(queries, history, options);
  const mx::array heads = composed_attention(queries, history, options);  // [B, H, T, Dv]
  return mx::reshape(mx::transpose(heads, {0, 2, 1, 3}),
                     {heads.shape(0), heads.shape(2), heads.shape(1) * heads.shape(3)});
}

}  // namespace memoir::kernels
