#include "memoir/kernels/cpu/kv_write.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "memoir/base/half.h"
#include "memoir/kernels/cpu/pool.h"

namespace memoir::kernels::cpu {
namespace {

constexpr int kMaxGroup = 128;

void store_elements(Element element, int n, const float* x, std::byte* out) {
  if (element == Element::kF32) {
    std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  auto* halves = reinterpret_cast<std::uint16_t*>(out);
  for (int i = 0; i < n; ++i) {
    halves[i] = element == Element::kF16 ? float_to_finite_float16(x[i]) : float_to_bfloat16(x[i]);
  }
}

float rounded(Element element, float x) {
  if (element == Element::kF16) return float16_to_float(float_to_finite_float16(x));
  if (element == Element::kBF16) return bfloat16_to_float(float_to_bfloat16(x));
  return x;
}

struct GroupScale {
  float scale;
  float bias;
};

GroupScale scale_of(int n, const float* x, float n_steps) {
  float low = std::numeric_limits<float>::infinity();
  float high = -low;
  for (int i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const bool is_low_edge = std::abs(low) > std::abs(high);
  const float step = std::max((high - low) / n_steps, 1e-7F);
  const float scale = is_low_edge ? step : -step;
  const float edge = is_low_edge ? low : high;
  const float code = std::rint(edge / scale);
  if (code == 0) return {scale, 0};
  return {edge / code, edge};
}

// n codes of `bits` bits each, low bits first, to whole words: n is a multiple of 32.
void store_codes(int bits, int n, const std::uint32_t* codes, std::uint32_t* words) {
  std::uint64_t pending = 0;
  int n_pending = 0;
  for (int i = 0; i < n; ++i) {
    pending |= static_cast<std::uint64_t>(codes[i]) << n_pending;
    n_pending += bits;
    if (n_pending < 32) continue;
    *words++ = static_cast<std::uint32_t>(pending);
    pending >>= 32;
    n_pending -= 32;
  }
}

struct QuantizedRow {
  std::uint32_t* words;
  std::byte* scales;
  std::byte* biases;
};

void store_quantized(const KvRows& rows, const float* x, const QuantizedRow& out) {
  const auto n_steps = static_cast<float>((1 << rows.bits) - 1);
  const std::size_t size = element_bytes(rows.element);
  for (int g = 0; g < rows.dim / rows.group_size; ++g) {
    float group[kMaxGroup];
    std::uint32_t codes[kMaxGroup];
    for (int i = 0; i < rows.group_size; ++i) group[i] = rounded(rows.element, x[g * rows.group_size + i]);
    const GroupScale s = scale_of(rows.group_size, group, n_steps);
    for (int i = 0; i < rows.group_size; ++i) {
      const float code = std::rint((group[i] - s.bias) / s.scale);
      codes[i] = static_cast<std::uint32_t>(std::min(std::max(code, 0.0F), n_steps));
    }
    store_codes(rows.bits, rows.group_size, codes, out.words + g * rows.group_size * rows.bits / 32);
    store_elements(rows.element, 1, &s.scale, out.scales + static_cast<std::size_t>(g) * size);
    store_elements(rows.element, 1, &s.bias, out.biases + static_cast<std::size_t>(g) * size);
  }
}

std::byte* element_pointer(const void* data, std::ptrdiff_t index, std::size_t size) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + index * static_cast<std::ptrdiff_t>(size);
}

void write_head(const KvWriteArgs& args, std::ptrdiff_t sequence, std::ptrdiff_t head) {
  const KvRows& rows = args.rows;
  const std::size_t size = element_bytes(rows.element);
  const std::ptrdiff_t data_at = sequence * args.sequence_stride + head * rows.head_stride;
  const std::ptrdiff_t scale_at = sequence * args.scale_sequence_stride + head * rows.scale_head_stride;
  const float* x = args.x + sequence * args.x_sequence_stride + head * args.x_head_stride;
  for (const RowRun& run : args.runs) {
    for (std::ptrdiff_t row = run.begin_row; row < run.begin_row + run.n_rows; ++row, x += args.x_row_stride) {
      if (rows.bits == 0) {
        store_elements(rows.element, rows.dim, x, element_pointer(rows.data, data_at + row * rows.row_stride, size));
        continue;
      }
      const std::ptrdiff_t at = scale_at + row * rows.scale_row_stride;
      auto* words = reinterpret_cast<std::uint32_t*>(
          element_pointer(rows.data, data_at + row * rows.row_stride, sizeof(std::uint32_t)));
      store_quantized(rows, x, {words, element_pointer(rows.scales, at, size), element_pointer(rows.biases, at, size)});
    }
  }
}

}  // namespace

void write_rows(const KvWriteArgs& args) {
  if (args.rows.dim == 0) return;
  const auto write = [&](int i) { write_head(args, i / args.n_heads, i % args.n_heads); };
  const int n = args.n_sequences * args.n_heads;
  // A decode step's rows are written sooner than another thread wakes.
  constexpr int kManyElements = 32768;
  if (static_cast<std::int64_t>(n) * args.n_tokens * args.rows.dim >= kManyElements) return run_parts(n, write);
  for (int i = 0; i < n; ++i) write(i);
}

}  // namespace memoir::kernels::cpu
