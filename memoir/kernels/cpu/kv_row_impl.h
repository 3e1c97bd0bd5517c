// Rows of keys and values as float32, whatever form the cache keeps them in. Included as matmul_impl.h is.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

// How 16 consecutive codes of kBits bits, low bits first as in MLX's form, come out of the 2 * kBits bytes they fill:
// lane i takes the two bytes that hold its code, shifted down.
template <int kBits>
struct CodePattern {
  std::uint8_t bytes[4 * kLanes];
  std::int32_t shifts[kLanes];

  constexpr CodePattern() : bytes(), shifts() {
    constexpr std::uint8_t kNone = 128;
    for (int i = 0; i < kLanes; ++i) {
      const int first = i * kBits / 8;
      bytes[4 * i] = static_cast<std::uint8_t>(first);
      bytes[4 * i + 1] = first + 1 < 2 * kBits ? static_cast<std::uint8_t>(first + 1) : kNone;
      bytes[4 * i + 2] = bytes[4 * i + 3] = kNone;
      shifts[i] = i * kBits % 8;
    }
  }
};

template <typename S, int kBits>
[[gnu::always_inline]] inline typename S::F codes_at(const std::byte* bytes) {
  static constexpr CodePattern<kBits> kPattern;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::memcpy(&low, bytes, std::min(2 * kBits, 8));
  if constexpr (2 * kBits > 8) std::memcpy(&high, bytes + 8, 2 * kBits - 8);
  const typename S::I lanes = S::bytes_to_lanes(low, high, kPattern.bytes);
  const typename S::I shifted = S::shift_right_lanes(lanes, S::int_load(kPattern.shifts));
  return S::to_float(S::int_and(shifted, S::int_set((1 << kBits) - 1)));
}

template <typename S, int kBits>
void unpack_codes(const KvRows& rows, const std::byte* codes, std::ptrdiff_t scale_at, float* out) {
  const std::ptrdiff_t at = scale_at * static_cast<std::ptrdiff_t>(element_bytes(rows.element));
  const auto* scales = static_cast<const std::byte*>(rows.scales) + at;
  const auto* biases = static_cast<const std::byte*>(rows.biases) + at;
  for (std::size_t g = 0; g < static_cast<std::size_t>(rows.dim / rows.group_size); ++g) {
    const typename S::F scale = S::set(element_at(rows.element, scales, g));
    const typename S::F bias = S::set(element_at(rows.element, biases, g));
    for (int i = 0; i < rows.group_size; i += kLanes, codes += 2 * kBits, out += kLanes) {
      S::store(out, S::fma(codes_at<S, kBits>(codes), scale, bias));
    }
  }
}

template <typename S>
void unpack_row(const KvRows& rows, const std::byte* codes, std::ptrdiff_t scale_at, float* out) {
  switch (rows.bits) {
    case 2:
      return unpack_codes<S, 2>(rows, codes, scale_at, out);
    case 3:
      return unpack_codes<S, 3>(rows, codes, scale_at, out);
    case 4:
      return unpack_codes<S, 4>(rows, codes, scale_at, out);
    case 5:
      return unpack_codes<S, 5>(rows, codes, scale_at, out);
    case 6:
      return unpack_codes<S, 6>(rows, codes, scale_at, out);
    default:
      return unpack_codes<S, 8>(rows, codes, scale_at, out);
  }
}

// Row `row` of a head as float32: where it lies, or in `buffer` (dim floats, rounded up to lanes and filled with
// zeros).
template <typename S>
const float* float_row(const KvRows& rows, int head, int row, float* buffer) {
  const std::ptrdiff_t at = head * rows.head_stride + row * rows.row_stride;
  if (rows.bits > 0) {
    const std::ptrdiff_t scale_at = head * rows.scale_head_stride + row * rows.scale_row_stride;
    const auto* words = static_cast<const std::uint32_t*>(rows.data) + at;
    unpack_row<S>(rows, reinterpret_cast<const std::byte*>(words), scale_at, buffer);
    return buffer;
  }
  if (rows.element == Element::kF32) return static_cast<const float*>(rows.data) + at;
  const auto* halves = static_cast<const std::uint16_t*>(rows.data) + at;
  const auto load = [&](const std::uint16_t* p) __attribute__((always_inline)) {
    return rows.element == Element::kF16 ? S::load_f16(p) : S::load_bf16(p);
  };
  int i = 0;
  for (; i + kLanes <= rows.dim; i += kLanes) S::store(buffer + i, load(halves + i));
  if (i == rows.dim) return buffer;
  std::uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, halves + i, static_cast<std::size_t>(rows.dim - i) * sizeof(std::uint16_t));
  S::store(buffer + i, load(lanes));
  return buffer;
}

}  // namespace
}  // namespace memoir::kernels::cpu
