#pragma once

// Decodes the block types of a GGUF tensor: to float32, or to the packed form that MLX multiplies with. No MLX.
//
// Layouts (source: ggml, src/ggml-common.h and src/ggml-quants.c). All little-endian, d, m, dmin float16. x is a
// value, q its code; "half h, step s, byte l" means that value 128h + 32s + l is in byte 32h + l.
//
//   type  values bytes  fields in order                         value
//   Q4_0   32     18    d, qs[16]                               d * (q - 8)      q: 0-15 low nibbles, 16-31 high ones
//   Q4_1   32     20    d, m, qs[16]                            d * q + m        q as Q4_0
//   Q5_0   32     22    d, qh[4], qs[16]                        d * (q - 16)     low 4 bits as Q4_0, 5th: bit i of qh
//   Q5_1   32     24    d, m, qh[4], qs[16]                     d * q + m        q as Q5_0
//   Q8_0   32     34    d, qs[32]                               d * q            q signed
//   Q2_K  256     84    scales[16], qs[64], d, dmin             d * sc * q - dmin * mn
//           q: 2 bits from 2s of byte l of half h; every 16 values sc is the low nibble, mn the high one of a scale
//   Q3_K  256    110    hmask[32], qs[64], scales[12], d        d * (sc - 32) * (q - 4)
//           q: 2 bits as Q2_K, the 3rd is bit 4h + s of hmask[l]; sc: 6 bits every 16 values: value group j has its
//           low 4 in nibble j / 8 of byte j % 8, its high 2 in bits 2 * (j / 4) of byte 8 + j % 4
//   Q4_K  256    144    d, dmin, scales[12], qs[128]            d * sc * q - dmin * mn
//           q: value 64c + 32n + l is nibble n of byte 32c + l; sc and mn: 6 bits every 32 values: groups 0-3 in bytes
//           j and j + 4; groups 4-7 low 4 in the nibbles of byte j + 4, high 2 in the top of bytes j - 4 and j
//   Q5_K  256    176    d, dmin, scales[12], qh[32], qs[128]    as Q4_K, the 5th bit of group j is bit j of qh[l]
//   Q6_K  256    210    ql[128], qh[64], scales[16] int8, d     d * sc * (q - 32)
//           q: value 128h + 64n + k has its low 4 in nibble n of ql[64h + k], its high 2 in bits 2s of byte l of half h
//           in qh; sc every 16 values
//   F32, F16, BF16: one value a block.
//
// Exactness: every product above has at most 23 significant bits, so it is exact in float32 and the value is rounded
// once, at the sum. The result does not depend on whether the compiler fuses multiply and add.
// No state, any thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "memoir/base/gguf.h"

namespace memoir {

/// Whether dequantize_blocks takes the type: all of the table above; not the integer types and F64.
bool can_dequantize(GgufType type);

/// Decodes whole blocks, in order. `in` must hold a whole number of blocks and `out` exactly their values, and the type
/// must be one can_dequantize takes; else std::invalid_argument.
void dequantize_blocks(GgufType type, std::span<const std::byte> in, std::span<float> out);

/// Values per scale and bias in the packed form: one GGUF block.
inline constexpr std::int64_t kAffineGroup = 32;

/// What a block of a type with a packed form is made of: a scale, float16; a bias, where it has one, float16; the
/// codes: of five bits first the highest ones, bit i of 32 belongs to code i; then of four bits, or the four others,
/// byte i has code i in its low half and code 16 + i in its high one; of eight bits one after the other, less 128.
struct AffineBlock {
  int bits;
  bool has_bias;  // else it follows from the scale, see unpack_affine()

  std::size_t bias_offset() const { return 2; }
  std::size_t codes_offset() const { return has_bias ? 4 : 2; }
};

/// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0; nullopt for a type that has no packed form.
std::optional<AffineBlock> affine_block(GgufType type);

/// Whether scale and bias of every block can be held, as unpack_affine() has it. Throws as it does.
bool is_affine(GgufType type, std::span<const std::byte> in);

/// Where unpack_affine writes n_blocks blocks.
struct AffineRows {
  std::span<std::uint32_t> words;   // n_blocks * bits: 32 codes of `bits` bits each, value i in bits
                                    // (i * bits) % 32 and up of word i * bits / 32
  std::span<std::uint16_t> scales;  // n_blocks, float16
  std::span<std::uint16_t> biases;  // n_blocks, float16
};

/// Splits whole blocks into MLX's affine form with groups of 32, where a value is scale * code + bias and codes are
/// unsigned:
///   Q4_0: scale d, bias -8d.  Q5_0: scale d, bias -16d.  Q4_1, Q5_1: scale d, bias m.
///   Q8_0: scale d, code q + 128, bias -128d.
/// -8d, -16d and -128d are exact in float16 (a power of two) unless they overflow. So scale * code + bias computed in
/// float32 is the value dequantize_blocks gives; computed in float16 it may be rounded twice. Returns false when a bias
/// or scale is infinite or NaN (|d| > 8188 in Q4_0, > 4094 in Q5_0, > 511.75 in Q8_0); `out` is then partly written and
/// the tensor has to be dequantized. Trained weights never get there. Throws std::invalid_argument when the type has no
/// packed form or a size does not fit.
[[nodiscard]] bool unpack_affine(GgufType type, std::span<const std::byte> in, const AffineRows& out);

/// Bits per code of a type whose blocks of 256 values are eight groups of 32 with a scale and a bias each: Q4_K 4, Q5_K
/// 5; nullopt for others.
std::optional<int> grouped_bits(GgufType type);

/// Where split_groups writes n_groups groups.
struct SplitGroups {
  std::span<std::byte> codes;  // n_groups * bits * 4: as a block of AffineBlock has them
  std::span<float> scales;     // n_groups: d * sc
  std::span<float> biases;     // n_groups: -dmin * mn
};

/// Splits whole blocks of Q4_K or Q5_K into their groups, scales and biases exact. Returns false when one is infinite
/// or NaN. Throws std::invalid_argument for another type or where a size does not fit.
[[nodiscard]] bool split_groups(GgufType type, std::span<const std::byte> in, const SplitGroups& out);

/// The codes of groups, as a block of AffineBlock has them, in the words of AffineRows. bits: 4, 5 or 8; as many words
/// as codes take; else std::invalid_argument.
void unpack_codes(int bits, std::span<const std::byte> codes, std::span<std::uint32_t> words);

}  // namespace memoir
