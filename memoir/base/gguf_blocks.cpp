#include "memoir/base/gguf_blocks.h"

#include <bit>
#include <stdexcept>
#include <string>

#include "memoir/base/half.h"

namespace memoir {
namespace {

using Byte = std::uint8_t;

// Decodes n_blocks blocks at `in` into the values at `out`.
using DecodeBlocks = void (*)(const Byte* in, std::size_t n_blocks, GgufBlock block, float* out);

std::uint16_t load16(const Byte* in) {
  return static_cast<std::uint16_t>(in[0] | (in[1] << 8));
}

std::uint32_t load32(const Byte* in) {
  return load16(in) | (std::uint32_t{load16(in + 2)} << 16);
}

std::uint64_t load64(const Byte* in) {
  return load32(in) | (std::uint64_t{load32(in + 4)} << 32);
}

float load_half(const Byte* in) {
  return float16_to_float(load16(in));
}

void decode_f32(const Byte* in, float* out) {
  *out = std::bit_cast<float>(load32(in));
}

void decode_f16(const Byte* in, float* out) {
  *out = load_half(in);
}

void decode_bf16(const Byte* in, float* out) {
  *out = bfloat16_to_float(load16(in));
}

void decode_q4_0(const Byte* in, float* out) {
  const float d = load_half(in);
  const Byte* qs = in + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((qs[i] >> 4) - 8);
  }
}

void decode_q4_1(const Byte* in, float* out) {
  const float d = load_half(in);
  const float m = load_half(in + 2);
  const Byte* qs = in + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(qs[i] >> 4) + m;
  }
}

// The code of value i of a Q5_0 or Q5_1 block.
int code5(const Byte* qs, std::uint32_t qh, int i) {
  const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
  return low | static_cast<int>(((qh >> i) & 1U) << 4);
}

void decode_q5_0(const Byte* in, float* out) {
  const float d = load_half(in);
  const std::uint32_t qh = load32(in + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code5(in + 6, qh, i) - 16);
}

void decode_q5_1(const Byte* in, float* out) {
  const float d = load_half(in);
  const float m = load_half(in + 2);
  const std::uint32_t qh = load32(in + 4);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code5(in + 8, qh, i)) + m;
}

void decode_q8_0(const Byte* in, float* out) {
  const float d = load_half(in);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(in[2 + i]));
}

void decode_q2_k(const Byte* in, float* out) {
  const Byte* scales = in;
  const Byte* qs = in + 16;
  const float d = load_half(in + 80);
  const float dmin = load_half(in + 82);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(scales[group] & 15);
    const float min = dmin * static_cast<float>(scales[group] >> 4);
    const int shift = 2 * (group / 2 % 4);
    const Byte* bytes = qs + 32 * (group / 8) + 16 * (group % 2);
    for (int l = 0; l < 16; ++l) out[16 * group + l] = scale * static_cast<float>((bytes[l] >> shift) & 3) - min;
  }
}

void decode_q3_k(const Byte* in, float* out) {
  const Byte* hmask = in;
  const Byte* qs = in + 32;
  const Byte* scales = in + 96;
  const float d = load_half(in + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = (scales[group % 8] >> (4 * (group / 8))) & 15;
    const int high = (scales[8 + group % 4] >> (2 * (group / 4))) & 3;
    const float scale = d * static_cast<float>((low | (high << 4)) - 32);
    const int shift = 2 * (group / 2 % 4);
    const Byte* bytes = qs + 32 * (group / 8) + 16 * (group % 2);
    const Byte* masks = hmask + 16 * (group % 2);
    for (int l = 0; l < 16; ++l) {
      const int code = ((bytes[l] >> shift) & 3) | (((masks[l] >> (group / 2)) & 1) << 2);
      out[16 * group + l] = scale * static_cast<float>(code - 4);
    }
  }
}

struct ScaleAndMin {
  int scale;
  int min;
};

// Group j's 6-bit pair from the 12 bytes of a Q4_K or Q5_K block.
ScaleAndMin scale_and_min(const Byte* scales, int j) {
  if (j < 4) return {scales[j] & 63, scales[j + 4] & 63};
  return {(scales[j + 4] & 15) | ((scales[j - 4] >> 2) & 48), (scales[j + 4] >> 4) | ((scales[j] >> 2) & 48)};
}

void decode_q4_k(const Byte* in, float* out) {
  const float d = load_half(in);
  const float dmin = load_half(in + 2);
  for (int group = 0; group < 8; ++group) {
    const auto pair = scale_and_min(in + 4, group);
    const float scale = d * static_cast<float>(pair.scale);
    const float min = dmin * static_cast<float>(pair.min);
    const Byte* bytes = in + 16 + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int l = 0; l < 32; ++l) out[32 * group + l] = scale * static_cast<float>((bytes[l] >> shift) & 15) - min;
  }
}

void decode_q5_k(const Byte* in, float* out) {
  const float d = load_half(in);
  const float dmin = load_half(in + 2);
  const Byte* qh = in + 16;
  for (int group = 0; group < 8; ++group) {
    const auto pair = scale_and_min(in + 4, group);
    const float scale = d * static_cast<float>(pair.scale);
    const float min = dmin * static_cast<float>(pair.min);
    const Byte* bytes = in + 48 + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int l = 0; l < 32; ++l) {
      const int code = ((bytes[l] >> shift) & 15) | (((qh[l] >> group) & 1) << 4);
      out[32 * group + l] = scale * static_cast<float>(code) - min;
    }
  }
}

void decode_q6_k(const Byte* in, float* out) {
  const Byte* ql = in;
  const Byte* qh = in + 128;
  const Byte* scales = in + 192;
  const float d = load_half(in + 208);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[group]));
    const int half = group / 8;
    const Byte* low = ql + 64 * half + 16 * (group % 4);
    const Byte* high = qh + 32 * half + 16 * (group % 2);
    const int low_shift = 4 * (group / 4 % 2);
    const int high_shift = 2 * (group / 2 % 4);
    for (int l = 0; l < 16; ++l) {
      const int code = ((low[l] >> low_shift) & 15) | (((high[l] >> high_shift) & 3) << 4);
      out[16 * group + l] = scale * static_cast<float>(code - 32);
    }
  }
}

// The loop over blocks for a function that decodes one; a template, so that the function is inlined into it.
template <auto kDecodeBlock>
void decode_all(const Byte* in, std::size_t n_blocks, GgufBlock block, float* out) {
  for (std::size_t i = 0; i < n_blocks; ++i, in += block.size_bytes, out += block.n_elements) kDecodeBlock(in, out);
}

DecodeBlocks decoder(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return decode_all<decode_f32>;
    case GgufType::kF16:
      return decode_all<decode_f16>;
    case GgufType::kBF16:
      return decode_all<decode_bf16>;
    case GgufType::kQ4_0:
      return decode_all<decode_q4_0>;
    case GgufType::kQ4_1:
      return decode_all<decode_q4_1>;
    case GgufType::kQ5_0:
      return decode_all<decode_q5_0>;
    case GgufType::kQ5_1:
      return decode_all<decode_q5_1>;
    case GgufType::kQ8_0:
      return decode_all<decode_q8_0>;
    case GgufType::kQ2_K:
      return decode_all<decode_q2_k>;
    case GgufType::kQ3_K:
      return decode_all<decode_q3_k>;
    case GgufType::kQ4_K:
      return decode_all<decode_q4_k>;
    case GgufType::kQ5_K:
      return decode_all<decode_q5_k>;
    case GgufType::kQ6_K:
      return decode_all<decode_q6_k>;
    default:
      return nullptr;
  }
}

// The number of whole blocks in `in`.
std::size_t count_blocks(const char* function, GgufType type, std::span<const std::byte> in) {
  const auto block_bytes = static_cast<std::size_t>(gguf_block(type)->size_bytes);
  if (in.size() % block_bytes != 0) {
    throw std::invalid_argument(std::string(function) + " " + std::to_string(in.size()) +
                                " bytes are not whole blocks of " + gguf_type_name(type));
  }
  return in.size() / block_bytes;
}

// Eight bytes with a code in each low nibble, as one word of eight codes.
std::uint32_t pack_nibbles(std::uint64_t codes) {
  codes = (codes | (codes >> 4)) & 0x00FF00FF00FF00FFULL;
  codes = (codes | (codes >> 8)) & 0x0000FFFF0000FFFFULL;
  return static_cast<std::uint32_t>(codes | (codes >> 16));
}

// The 16 bytes of a Q4 block as four words.
void unpack_codes4(const Byte* qs, std::uint32_t* words) {
  constexpr std::uint64_t kLowNibbles = 0x0F0F0F0F0F0F0F0FULL;
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t bytes = load64(qs + 8 * i);
    words[i] = pack_nibbles(bytes & kLowNibbles);
    words[i + 2] = pack_nibbles((bytes >> 4) & kLowNibbles);
  }
}

// The 20 bytes of a Q5 block's codes as five words.
void unpack_codes5(const Byte* in, std::uint32_t* words) {
  const std::uint32_t qh = load32(in);
  std::uint64_t buffer = 0;
  for (int i = 0, n_bits = 0; i < 32; ++i) {
    buffer |= static_cast<std::uint64_t>(code5(in + 4, qh, i)) << n_bits;
    n_bits += 5;
    if (n_bits < 32) continue;
    *words++ = static_cast<std::uint32_t>(buffer);
    buffer >>= 32;
    n_bits -= 32;
  }
}

// The 32 signed codes of a Q8_0 block as eight words of unsigned ones: q + 128 flips the sign bit.
void unpack_codes8(const Byte* qs, std::uint32_t* words) {
  for (int i = 0; i < 8; ++i) words[i] = load32(qs + 4 * i) ^ 0x80808080U;
}

bool is_finite(std::uint16_t half) {
  return (half & 0x7C00U) != 0x7C00U;
}

// The bias of a block: in the block after d, or a multiple of d.
std::uint16_t affine_bias(const AffineBlock& form, const Byte* block) {
  if (form.has_bias) return load16(block + form.bias_offset());
  return float_to_float16(load_half(block) * -static_cast<float>(1 << (form.bits - 1)));
}

void unpack_group(int bits, const Byte* codes, std::uint32_t* words) {
  if (bits == 4) return unpack_codes4(codes, words);
  if (bits == 5) return unpack_codes5(codes, words);
  unpack_codes8(codes, words);
}

// Throws for a type without one.
AffineBlock form_of(const char* function, GgufType type) {
  const std::optional<AffineBlock> form = affine_block(type);
  if (!form) throw std::invalid_argument(std::string(function) + " " + gguf_type_name(type) + " has no packed form");
  return *form;
}

}  // namespace

bool can_dequantize(GgufType type) {
  return decoder(type) != nullptr;
}

void dequantize_blocks(GgufType type, std::span<const std::byte> in, std::span<float> out) {
  const DecodeBlocks decode = decoder(type);
  if (decode == nullptr) {
    throw std::invalid_argument("[gguf.dequantize_blocks] can't decode " + gguf_type_name(type));
  }
  const GgufBlock block = *gguf_block(type);
  const std::size_t n_blocks = count_blocks("[gguf.dequantize_blocks]", type, in);
  const auto n_elements = static_cast<std::size_t>(block.n_elements);
  if (out.size() % n_elements != 0 || out.size() / n_elements != n_blocks) {
    throw std::invalid_argument("[gguf.dequantize_blocks] room for " + std::to_string(out.size()) + " values, " +
                                std::to_string(n_blocks) + " blocks of " + std::to_string(n_elements));
  }
  decode(reinterpret_cast<const Byte*>(in.data()), n_blocks, block, out.data());
}

std::optional<AffineBlock> affine_block(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
      return AffineBlock{4, false};
    case GgufType::kQ4_1:
      return AffineBlock{4, true};
    case GgufType::kQ5_0:
      return AffineBlock{5, false};
    case GgufType::kQ5_1:
      return AffineBlock{5, true};
    case GgufType::kQ8_0:
      return AffineBlock{8, false};
    default:
      return std::nullopt;
  }
}

bool is_affine(GgufType type, std::span<const std::byte> in) {
  const AffineBlock form = form_of("[gguf.is_affine]", type);
  const std::size_t n_blocks = count_blocks("[gguf.is_affine]", type, in);
  const auto block_bytes = static_cast<std::size_t>(gguf_block(type)->size_bytes);
  const Byte* block = reinterpret_cast<const Byte*>(in.data());
  for (std::size_t i = 0; i < n_blocks; ++i, block += block_bytes) {
    if (!is_finite(load16(block)) || !is_finite(affine_bias(form, block))) return false;
  }
  return true;
}

bool unpack_affine(GgufType type, std::span<const std::byte> in, const AffineRows& out) {
  const AffineBlock form = form_of("[gguf.unpack_affine]", type);
  const std::size_t n_blocks = count_blocks("[gguf.unpack_affine]", type, in);
  const auto words_per_block = static_cast<std::size_t>(form.bits);
  if (out.words.size() % words_per_block != 0 || out.words.size() / words_per_block != n_blocks ||
      out.scales.size() != n_blocks || out.biases.size() != n_blocks) {
    throw std::invalid_argument("[gguf.unpack_affine] room for " + std::to_string(out.words.size()) + " words, " +
                                std::to_string(out.scales.size()) + " scales and " + std::to_string(out.biases.size()) +
                                " biases, " + std::to_string(n_blocks) + " blocks");
  }
  const auto block_bytes = static_cast<std::size_t>(gguf_block(type)->size_bytes);
  const Byte* block = reinterpret_cast<const Byte*>(in.data());
  std::uint32_t* words = out.words.data();
  for (std::size_t i = 0; i < n_blocks; ++i, block += block_bytes, words += words_per_block) {
    out.scales[i] = load16(block);
    out.biases[i] = affine_bias(form, block);
    if (!is_finite(out.scales[i]) || !is_finite(out.biases[i])) return false;
    unpack_group(form.bits, block + form.codes_offset(), words);
  }
  return true;
}

namespace {

// Bit `bit` of eight bytes, as the bits of one.
std::uint64_t gathered_bits(std::uint64_t bytes, int bit) {
  return ((bytes >> bit & 0x0101010101010101ULL) * 0x0102040810204080ULL) >> 56;
}

void store64(std::uint64_t value, Byte* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<Byte>(value >> (8 * i));
}

// Group `group` of a block: the fifth bits are in qh, if there is one, the others in half of the nibbles of 32 bytes.
void split_group(const Byte* qh, const Byte* qs, int group, Byte* codes) {
  constexpr std::uint64_t kLowNibbles = 0x0F0F0F0F0F0F0F0FULL;
  if (qh != nullptr) {
    for (int i = 0; i < 4; ++i) *codes++ = static_cast<Byte>(gathered_bits(load64(qh + 8 * i), group));
  }
  const Byte* bytes = qs + 32 * (group / 2);
  const auto nibbles = [&](int i) { return load64(bytes + i) >> (4 * (group % 2)) & kLowNibbles; };
  store64(nibbles(0) | nibbles(16) << 4, codes);
  store64(nibbles(8) | nibbles(24) << 4, codes + 8);
}

}  // namespace

std::optional<int> grouped_bits(GgufType type) {
  if (type == GgufType::kQ4_K) return 4;
  if (type == GgufType::kQ5_K) return 5;
  return std::nullopt;
}

bool split_groups(GgufType type, std::span<const std::byte> in, const SplitGroups& out) {
  constexpr std::size_t kGroups = 8;
  const std::optional<int> bits = grouped_bits(type);
  if (!bits) throw std::invalid_argument("[gguf.split_groups] " + gguf_type_name(type) + " has no such groups");
  const std::size_t n_groups = kGroups * count_blocks("[gguf.split_groups]", type, in);
  const std::size_t group_bytes = static_cast<std::size_t>(*bits) * 4;
  if (out.codes.size() != n_groups * group_bytes || out.scales.size() != n_groups || out.biases.size() != n_groups) {
    throw std::invalid_argument("[gguf.split_groups] room for " + std::to_string(out.codes.size()) +
                                " bytes of codes, " + std::to_string(out.scales.size()) + " scales and " +
                                std::to_string(out.biases.size()) + " biases, " + std::to_string(n_groups) + " groups");
  }
  const auto block_bytes = static_cast<std::size_t>(gguf_block(type)->size_bytes);
  const Byte* block = reinterpret_cast<const Byte*>(in.data());
  auto* codes = reinterpret_cast<Byte*>(out.codes.data());
  for (std::size_t first = 0; first < n_groups; first += kGroups, block += block_bytes) {
    if (!is_finite(load16(block)) || !is_finite(load16(block + 2))) return false;
    const float d = load_half(block);
    const float dmin = load_half(block + 2);
    const Byte* qh = *bits == 5 ? block + 16 : nullptr;
    const Byte* qs = block + (*bits == 5 ? 48 : 16);
    for (std::size_t j = 0; j < kGroups; ++j, codes += group_bytes) {
      const auto group = static_cast<int>(j);
      const auto pair = scale_and_min(block + 4, group);
      out.scales[first + j] = d * static_cast<float>(pair.scale);
      out.biases[first + j] = -(dmin * static_cast<float>(pair.min));
      split_group(qh, qs, group, codes);
    }
  }
  return true;
}

void unpack_codes(int bits, std::span<const std::byte> codes, std::span<std::uint32_t> words) {
  const auto n_words = static_cast<std::size_t>(bits);
  if ((bits != 4 && bits != 5 && bits != 8) || words.size() % n_words != 0 || codes.size() != words.size() * 4) {
    throw std::invalid_argument("[gguf.unpack_codes] " + std::to_string(codes.size()) + " bytes of codes of " +
                                std::to_string(bits) + " bits, room for " + std::to_string(words.size()) + " words");
  }
  const Byte* in = reinterpret_cast<const Byte*>(codes.data());
  for (std::size_t i = 0; i < words.size(); i += n_words) unpack_group(bits, in + i * 4, words.data() + i);
}

}  // namespace memoir
