#include "memoir/kernels/cpu/short_convolution.h"

#include <algorithm>
#include <array>

#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/recurrent_parts.h"

namespace memoir::kernels::cpu {
namespace {

// The input `back` tokens before the call's or the span's first (back >= 1), or null where that is zeros.
const float* tail_row(const ShortConvolutionArgs& args, int sequence, int back) {
  if (!args.states.initial) return nullptr;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(sequence) * (args.width - 1) + (args.width - 1 - back);
  return args.states.initial + row * args.n_channels;
}

// The input of a token; tokens before `begin` are in the tail.
const float* input_row(const ShortConvolutionArgs& args, int sequence, int token, int begin) {
  return token >= begin ? args.x.at(sequence, token) : tail_row(args, sequence, begin - token);
}

// The inputs before token `end`, as the tail of what follows it. Rows move to the front, one after the other: `tail`
// may be the initial one.
void copy_tail(const ShortConvolutionArgs& args, int sequence, int begin, int end, float* tail) {
  float* to = tail + static_cast<std::ptrdiff_t>(sequence) * (args.width - 1) * args.n_channels;
  for (int token = end - (args.width - 1); token < end; ++token, to += args.n_channels) {
    const float* from = input_row(args, sequence, token, begin);
    if (from) {
      std::copy_n(from, args.n_channels, to);
    } else {
      std::fill_n(to, args.n_channels, 0.0F);
    }
  }
}

void convolve_token(const ShortConvolutionArgs& args, int sequence, int token, int channel, int n) {
  const TokenSpan span = args.states.span(sequence, args.n_tokens);
  float* y = args.y + (static_cast<std::ptrdiff_t>(sequence) * args.n_tokens + token) * args.n_channels;
  if (token < span.begin || token >= span.end) {
    std::fill_n(y + channel, n, 0.0F);
    return;
  }
  std::array<const float*, kMaxConvolutionWidth> inputs;
  for (int j = 0; j < args.width; ++j) {
    inputs[static_cast<std::size_t>(j)] = input_row(args, sequence, token - (args.width - 1) + j, span.begin);
  }
  recurrent_kernels().convolve(args, inputs.data(), channel, n, y);
}

}  // namespace

void short_convolution(const ShortConvolutionArgs& args) {
  constexpr int kBlock = 512;  // channels whose inputs stay in L1 from token to token
  const int n_blocks = (args.n_channels + kBlock - 1) / kBlock;
  const int block = std::min(kBlock, args.n_channels);
  for_units(args.n_sequences * n_blocks * args.n_tokens, 4.0 * (args.width + 2) * block, 0, [&](int unit, float*) {
    const int token = unit % args.n_tokens;
    const int channel = unit / args.n_tokens % n_blocks * kBlock;
    convolve_token(args, unit / args.n_tokens / n_blocks, token, channel, std::min(kBlock, args.n_channels - channel));
  });
  for (int sequence = 0; sequence < args.n_sequences; ++sequence) {
    const TokenSpan span = args.states.span(sequence, args.n_tokens);
    for (int i = 0; i < args.states.n_captured; ++i) {
      const int end = std::clamp(args.states.steps[i], span.begin, span.end);
      copy_tail(args, sequence, span.begin, end, args.states.captured[i]);
    }
    copy_tail(args, sequence, span.begin, span.end, args.states.final);
  }
}

}  // namespace memoir::kernels::cpu
