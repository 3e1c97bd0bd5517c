#include "memoir/kernels/cpu/mixer_block.h"

#include <array>
#include <cstddef>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pieces.h"
#include "memoir/kernels/cpu/row_parts.h"

namespace memoir::kernels::cpu {
namespace {

std::size_t product_of(int n_rows, int n) {
  return static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n);
}

// Calls `use` with each buffer that the block takes, twice: `place` says which, the second time where they are.
template <typename Place>
auto placed(const Place& place) {
  thread_local Scratch memory;
  Pieces pieces;
  place(pieces);
  pieces.place_in(memory);
  return place(pieces);
}

const float* normed_input(const MixerEnds& ends, float* normed) {
  if (!ends.has_norm) return ends.x;
  norm_rows(ends.norm, ends.n_rows(), ends.x, normed);
  return normed;
}

// Columns from `first` on of a sequence's rows, which are `width` wide.
TokenRows columns_of(const MixerEnds& ends, const MixerSequence& sequence, const float* rows, int width, int first = 0,
                     int head_dim = 0) {
  const std::ptrdiff_t stride = width;
  return {rows + sequence.begin * stride + first, stride * ends.n_tokens, stride, head_dim};
}

void put_out(const MixerEnds& ends, const float* mixed) {
  MatmulArgs output = product(ends.output, ends.n_rows(), mixed, ends.y);
  output.residual = ends.residual;
  matmul({&output, 1});
}

void convolve(const MixerEnds& ends, const MixerSequence& sequence, const TokenRows& x, ShortConvolutionArgs& args,
              float* convolved) {
  args.n_sequences = ends.n_sequences;
  args.n_tokens = sequence.n_tokens;
  args.x = x;
  args.states = sequence.tail;
  args.y = convolved + static_cast<std::ptrdiff_t>(sequence.begin) * args.n_channels;
  short_convolution(args);
}

void norm_groups(const MambaBlockArgs& args, int inner, float* row) {
  const int n = inner / args.scan.n_groups;
  for (int first = 0; first < inner; first += n) {
    kernels().norm_row({n, args.eps, args.norm_weight + first}, row + first, row + first);
  }
}

// y through the gate, which begins each row of `joined`.
void gate_scanned(const MambaBlockArgs& args, int inner, const float* joined, int width, float* y) {
  for_rows(args.ends.n_rows(), inner, [&](std::ptrdiff_t row) {
    float* to = y + row * inner;
    if (args.group_norm == GroupNorm::kBeforeGate) norm_groups(args, inner, to);
    kernels().gate_row(Gate::kSilu, inner, joined + row * width, to, to);
    if (args.group_norm == GroupNorm::kBehindGate) norm_groups(args, inner, to);
  });
}

}  // namespace

void mamba_block(MambaBlockArgs& args) {
  MixerEnds& ends = args.ends;
  const int n_rows = ends.n_rows();
  const int inner = args.scan.n_heads * args.scan.head_dim;
  const int n_channels = args.convolution.n_channels;
  const int width = args.input.format.n_rows;
  args.scan.n_sequences = ends.n_sequences;
  args.scan.n_tokens = ends.n_tokens;
  struct Between {
    float *normed, *joined, *convolved, *scanned, *prepared;
  };
  const Between between = placed([&](Pieces& pieces) {
    return Between{ends.has_norm ? pieces.take(product_of(n_rows, args.input.format.n_columns)) : nullptr,
                   pieces.take(product_of(n_rows, width)), pieces.take(product_of(n_rows, n_channels)),
                   pieces.take(product_of(n_rows, inner)), pieces.take(prepared_floats(args.scan))};
  });
  MatmulArgs input = product(args.input, n_rows, normed_input(ends, between.normed), between.joined);
  matmul({&input, 1});
  for (const MixerSequence& sequence : ends.sequences) {
    const auto convolved = [&](int first, int size) {
      return columns_of(ends, sequence, between.convolved, n_channels, first, size);
    };
    convolve(ends, sequence, columns_of(ends, sequence, between.joined, width, inner), args.convolution,
             between.convolved);
    SelectiveScanArgs& scan = args.scan;
    scan.n_tokens = sequence.n_tokens;
    scan.x = convolved(0, scan.head_dim);
    scan.b = convolved(inner, scan.state_dim);
    scan.c = convolved(inner + scan.n_groups * scan.state_dim, scan.state_dim);
    scan.dt = columns_of(ends, sequence, between.joined, width, inner + n_channels);
    scan.states = sequence.state;
    scan.prepared = between.prepared;
    scan.y = between.scanned + static_cast<std::ptrdiff_t>(sequence.begin) * inner;
    selective_scan(scan);
  }
  gate_scanned(args, inner, between.joined, width, between.scanned);
  put_out(ends, between.scanned);
}

void delta_block(DeltaBlockArgs& args) {
  MixerEnds& ends = args.ends;
  GatedDeltaArgs& rule = args.rule;
  const int n_rows = ends.n_rows();
  const int n_channels = args.convolution.n_channels;
  const int n_keys = rule.n_key_heads * rule.key_dim;
  const int n_values = rule.n_value_heads * rule.value_dim;
  rule.n_sequences = ends.n_sequences;
  rule.n_tokens = ends.n_tokens;
  struct Between {
    float *normed, *joined, *gates, *decays, *betas, *convolved, *passed, *prepared;
  };
  const Between between = placed([&](Pieces& pieces) {
    return Between{ends.has_norm ? pieces.take(product_of(n_rows, args.joined.format.n_columns)) : nullptr,
                   pieces.take(product_of(n_rows, n_channels)),
                   pieces.take(product_of(n_rows, n_values)),
                   pieces.take(product_of(n_rows, rule.n_value_heads)),
                   pieces.take(product_of(n_rows, rule.n_value_heads)),
                   pieces.take(product_of(n_rows, n_channels)),
                   pieces.take(product_of(n_rows, n_values)),
                   pieces.take(prepared_floats(rule))};
  });
  const float* x = normed_input(ends, between.normed);
  std::array<MatmulArgs, 4> products = {
      product(args.joined, n_rows, x, between.joined), product(args.gates, n_rows, x, between.gates),
      product(args.decays, n_rows, x, between.decays), product(args.betas, n_rows, x, between.betas)};
  matmul(products);
  for (const MixerSequence& sequence : ends.sequences) {
    const auto convolved = [&](int first, int size) {
      return columns_of(ends, sequence, between.convolved, n_channels, first, size);
    };
    convolve(ends, sequence, columns_of(ends, sequence, between.joined, n_channels), args.convolution,
             between.convolved);
    rule.n_tokens = sequence.n_tokens;
    rule.queries = convolved(0, rule.key_dim);
    rule.keys = convolved(n_keys, rule.key_dim);
    rule.values = convolved(2 * n_keys, rule.value_dim);
    rule.decays = columns_of(ends, sequence, between.decays, rule.n_value_heads);
    rule.betas = columns_of(ends, sequence, between.betas, rule.n_value_heads);
    rule.states = sequence.state;
    rule.prepared = between.prepared;
    rule.y = between.passed + static_cast<std::ptrdiff_t>(sequence.begin) * n_values;
    gated_delta(rule);
  }
  for_rows(n_rows, n_values, [&](std::ptrdiff_t row) {
    float* y = between.passed + row * n_values;
    for (int head = 0; head < n_values; head += rule.value_dim) kernels().norm_row(args.norm, y + head, y + head);
    kernels().gate_row(Gate::kSilu, n_values, between.gates + row * n_values, y, y);
  });
  put_out(ends, between.passed);
}

}  // namespace memoir::kernels::cpu
