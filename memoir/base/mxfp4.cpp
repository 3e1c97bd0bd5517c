#include "memoir/base/mxfp4.h"

#include <array>
#include <stdexcept>

namespace memoir {
namespace {

constexpr std::size_t kBytes = kMxfp4Group / 2;
constexpr unsigned kLargestExponent = 251;

// Twice the value of each 4-bit float, plus 16.
constexpr std::array<std::uint8_t, 16> kCodes = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// 2^(e - 128) as bfloat16: below 2^-126 a multiple of 2^-133.
std::uint16_t scale_bits(unsigned e) {
  return static_cast<std::uint16_t>(e >= 2 ? (e - 1) << 7 : 0x20U << e);
}

// -16 * 2^(e - 128).
std::uint16_t bias_bits(unsigned e) {
  return static_cast<std::uint16_t>(0x8000U | ((e + 3) << 7));
}

std::array<std::uint8_t, kMxfp4Group> group_codes(const std::byte* bytes, Mxfp4Order order) {
  std::array<std::uint8_t, kMxfp4Group> codes;
  const bool is_pairs = order == Mxfp4Order::kPairs;
  for (std::size_t j = 0; j < kBytes; ++j) {
    const auto byte = std::to_integer<std::uint8_t>(bytes[j]);
    codes[is_pairs ? 2 * j : j] = kCodes[byte & 15U];
    codes[is_pairs ? 2 * j + 1 : j + kBytes] = kCodes[byte >> 4];
  }
  return codes;
}

void write_words(const std::array<std::uint8_t, kMxfp4Group>& codes, std::uint32_t* words) {
  std::uint64_t buffer = 0;
  int n_buffered = 0;
  for (const std::uint8_t code : codes) {
    buffer |= std::uint64_t{code} << n_buffered;
    n_buffered += kMxfp4AffineBits;
    if (n_buffered < 32) continue;
    *words++ = static_cast<std::uint32_t>(buffer);
    buffer >>= 32;
    n_buffered -= 32;
  }
}

}  // namespace

bool mxfp4_to_affine(const Mxfp4Groups& groups, const Mxfp4Affine& out) {
  const std::size_t n_groups = out.scales.size();
  if (out.biases.size() != n_groups || out.words.size() != n_groups * kMxfp4AffineBits) {
    throw std::invalid_argument("[mxfp4_to_affine] words, scales and biases are of different numbers of groups");
  }
  for (std::size_t g = 0; g < n_groups; ++g) {
    const auto e = std::to_integer<unsigned>(groups.exponents[g * groups.exponent_stride]);
    if (e > kLargestExponent) return false;
    out.scales[g] = scale_bits(e);
    out.biases[g] = bias_bits(e);
    write_words(group_codes(groups.codes + g * groups.code_stride, groups.order),
                out.words.data() + g * kMxfp4AffineBits);
  }
  return true;
}

}  // namespace memoir
