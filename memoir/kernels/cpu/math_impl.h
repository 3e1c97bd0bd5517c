// Functions of a vector. Included as matmul_impl.h is.

#pragma once

#include <limits>

namespace memoir::kernels::cpu {
namespace {

// Lanes in halves: i + (i + 8), then 4, 2 and 1 apart.
template <typename S>
[[gnu::always_inline]] inline float sum_of_lanes(typename S::F a) {
  a = S::add(a, S::template swapped<8>(a));
  a = S::add(a, S::template swapped<4>(a));
  a = S::add(a, S::template swapped<2>(a));
  return S::first(S::add(a, S::template swapped<1>(a)));
}

template <typename S>
[[gnu::always_inline]] inline float max_of_lanes(typename S::F a) {
  a = S::max(a, S::template swapped<8>(a));
  a = S::max(a, S::template swapped<4>(a));
  a = S::max(a, S::template swapped<2>(a));
  return S::first(S::max(a, S::template swapped<1>(a)));
}

// e^x to about one unit in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial of degree 6 for e^r
// (the coefficients of Cephes' expf, netlib). 0 below -87, infinity above 88.7, NaN for NaN.
template <typename S>
[[gnu::always_inline]] inline typename S::F exp_of(typename S::F x) {
  using F = typename S::F;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const F magic = S::set(12582912.0F);
  const F shifted = S::fma(x, S::set(1.44269504F), magic);
  const F n = S::sub(shifted, magic);
  F r = S::fma(n, S::set(-0.693359375F), x);
  r = S::fma(n, S::set(2.12194440e-4F), r);
  F p = S::set(1.9875691500e-4F);
  p = S::fma(p, r, S::set(1.3981999507e-3F));
  p = S::fma(p, r, S::set(8.3334519073e-3F));
  p = S::fma(p, r, S::set(4.1665795894e-2F));
  p = S::fma(p, r, S::set(1.6666665459e-1F));
  p = S::fma(p, r, S::set(5.0000001201e-1F));
  const F y = S::add(S::fma(p, S::mul(r, r), r), S::set(1));
  // y * 2^n through the exponent's bits, which hold it: y < 1 for n = 128 and y > 1 for n = -126.
  const typename S::I bits = S::int_add(S::bits_of(shifted), S::int_set(-0x4b400000));
  const F scaled = S::from_bits(S::int_add(S::bits_of(y), S::template shift_left<23>(bits)));
  const F high = S::less(x, S::set(88.7F), scaled, S::mul(x, S::set(kInfinity)));
  return S::less(x, S::set(-87), S::zero(), high);
}

// 1 - 2 / (e^2x + 1): within 1e-7 of tanh, and exactly 1 or -1 far out.
template <typename S>
[[gnu::always_inline]] inline typename S::F tanh_of(typename S::F x) {
  const auto e = exp_of<S>(S::add(x, x));
  return S::sub(S::set(1), S::div(S::set(2), S::add(e, S::set(1))));
}

}  // namespace
}  // namespace memoir::kernels::cpu
