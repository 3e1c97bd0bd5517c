// What the kernels of every instruction set are written with. Included as matmul_impl.h is.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {
namespace {

template <int kCount, typename Function>
[[gnu::always_inline]] inline void unrolled(const Function& function) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (function(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

template <typename S>
[[gnu::always_inline]] inline typename S::F load_elements(Element element, const std::byte* p) {
  if (element == Element::kF32) return S::load(reinterpret_cast<const float*>(p));
  const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
  return element == Element::kF16 ? S::load_f16(halves) : S::load_bf16(halves);
}

// These four bytes in each lane.
template <typename S>
[[gnu::always_inline]] inline typename S::I four_bytes(const std::int8_t* p) {
  std::int32_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return S::int_set(value);
}

// 16 elements, or n where that is fewer: the lanes past the end are zero, and not written.
template <typename S>
[[gnu::always_inline]] inline typename S::F load_some(const float* p, int n) {
  if (n >= 16) return S::load(p);
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof(float));
  return S::load(lanes);
}

template <typename S>
[[gnu::always_inline]] inline void store_some(float* p, int n, typename S::F a) {
  if (n >= 16) return S::store(p, a);
  float lanes[16];
  S::store(lanes, a);
  std::memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof(float));
}

}  // namespace
}  // namespace memoir::kernels::cpu
