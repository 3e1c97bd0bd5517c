#include "memoir/kernels/cpu/attention_block.h"

#include "memoir/kernels/cpu/pieces.h"

namespace memoir::kernels::cpu {
namespace {

// What lies between the calls.
struct Between {
  float* heads[3];  // queries, keys, values: [B, heads, T, head_dim]
  float* attended;  // [B * T, heads * head_dim]
};

std::size_t floats_of(std::size_t n_rows, const LinearArgs& linear) {
  return n_rows * static_cast<std::size_t>(linear.format.n_rows);
}

Between place(AttentionBlockArgs& args, Pieces& pieces) {
  ProjectionArgs& p = args.projection;
  const auto n_rows = static_cast<std::size_t>(p.n_sequences) * static_cast<std::size_t>(p.n_tokens);
  const auto n_hidden = n_rows * static_cast<std::size_t>(p.parts[0].linear.format.n_columns);
  Between between{};
  std::size_t n_joined = 0;
  for (std::size_t i = 0; i < p.parts.size(); ++i) {
    between.heads[i] = pieces.take(floats_of(n_rows, p.parts[i].linear));
    p.parts[i].out = between.heads[i];
    n_joined += floats_of(n_rows, p.parts[i].linear);
  }
  if (p.norm) p.normed = pieces.take(n_hidden);
  p.joined = pieces.take(n_joined);
  between.attended = pieces.take(floats_of(n_rows, p.parts[0].linear));
  if (!args.has_mlp) return between;
  args.mlp.normed = pieces.take(floats_of(n_rows, args.output));
  args.mlp.inner = pieces.take(floats_of(n_rows, args.mlp.gates));
  args.mlp.inner_ups = pieces.take(floats_of(n_rows, args.mlp.gates));
  return between;
}

void write(KvWriteArgs& args, const ProjectionArgs& p, const BlockSequence& sequence, const float* heads) {
  args.n_sequences = p.n_sequences;
  args.n_tokens = sequence.n_tokens;
  args.x_row_stride = args.rows.dim;
  args.x_head_stride = args.x_row_stride * p.n_tokens;
  args.x_sequence_stride = args.x_head_stride * args.n_heads;
  args.x = heads + sequence.begin * args.x_row_stride;
  args.runs = sequence.runs;
  write_rows(args);
}

void add_attention(const ProjectionArgs& p, const BlockSequence& sequence, const Between& between,
                   std::vector<AttentionArgs>& all) {
  const auto moved = [](KvRows rows, const KvWriteArgs& write, int b) {
    const auto size = static_cast<std::ptrdiff_t>(rows.bits > 0 ? sizeof(std::uint32_t) : element_bytes(rows.element));
    const auto scale_size = static_cast<std::ptrdiff_t>(element_bytes(rows.element));
    rows.data = static_cast<const std::byte*>(rows.data) + b * write.sequence_stride * size;
    if (rows.bits == 0) return rows;
    rows.scales = static_cast<const std::byte*>(rows.scales) + b * write.scale_sequence_stride * scale_size;
    rows.biases = static_cast<const std::byte*>(rows.biases) + b * write.scale_sequence_stride * scale_size;
    return rows;
  };
  for (int b = 0; b < p.n_sequences; ++b) {
    AttentionArgs args = sequence.attention;
    const std::ptrdiff_t dim = sequence.keys.rows.dim;
    args.n_queries = sequence.n_tokens;
    args.query_row_stride = dim;
    args.query_head_stride = dim * p.n_tokens;
    args.queries = between.heads[0] + b * args.query_head_stride * args.n_heads + sequence.begin * dim;
    args.keys = moved(sequence.keys.rows, sequence.keys, b);
    args.values = moved(sequence.values.rows, sequence.values, b);
    args.ranges = sequence.ranges;
    args.out_head_stride = dim;
    args.out_row_stride = dim * args.n_heads;
    args.out = between.attended + (static_cast<std::ptrdiff_t>(b) * p.n_tokens + sequence.begin) * args.out_row_stride;
    all.push_back(args);
  }
}

}  // namespace

void attention_block(AttentionBlockArgs& args) {
  thread_local Scratch memory;
  thread_local std::vector<AttentionArgs> attentions;
  ProjectionArgs& p = args.projection;
  Pieces pieces;
  place(args, pieces);
  pieces.place_in(memory);
  const Between between = place(args, pieces);
  project_heads(p);
  attentions.clear();
  for (BlockSequence& sequence : args.sequences) {
    write(sequence.keys, p, sequence, between.heads[1]);
    write(sequence.values, p, sequence, between.heads[2]);
    add_attention(p, sequence, between, attentions);
  }
  attention(attentions);
  const int n_rows = p.n_sequences * p.n_tokens;
  MatmulArgs output = product(args.output, n_rows, between.attended, args.y);
  output.residual = args.residual;
  matmul({&output, 1});
  if (!args.has_mlp) return;
  args.mlp.n_rows = n_rows;
  args.mlp.x = args.mlp.residual = args.mlp.y = args.y;
  args.mlp.norm = &args.mlp_norm;
  gated_mlp(args.mlp);
}

}  // namespace memoir::kernels::cpu
