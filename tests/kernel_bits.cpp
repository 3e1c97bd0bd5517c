// Prints a line for each case of each CPU kernel: its name and a hash of the bits that it gives, after checking that
// every instruction set of this machine gives the same ones (else it fails). Inputs are the same everywhere, so the
// output of two machines, of whatever processors, is to be the same: tools/arm.sh compares them. A NaN counts as one
// value; which of its bits are set is the processor's choice.
//
// The sets that were run go to standard error.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "memoir/base/half.h"
#include "memoir/kernels/cpu/gated_delta.h"
#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/selective_scan.h"
#include "memoir/kernels/cpu/short_convolution.h"
#include "tests/float_rows.h"

namespace memoir::kernels::cpu {
namespace {

using Floats = std::vector<float>;

// FNV-1a of 64 bits.
std::uint64_t hash_of(const Floats& values) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const float value : values) {
    const auto bits = std::isnan(value) ? std::uint32_t{0x7fc00000} : std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 0xff)) * 0x100000001b3U;
  }
  return hash;
}

bool is_same_everywhere = true;

// Runs one case in every set.
void print_case(const std::string& name, const std::function<Floats(const Kernels&)>& run) {
  const KernelList list = supported_kernels();
  std::uint64_t first = 0;
  for (int i = 0; i < list.n_sets; ++i) {
    choose_kernels(list.sets[i]->name);
    const std::uint64_t hash = hash_of(run(*list.sets[i]));
    if (i == 0) {
      first = hash;
      std::printf("%-44s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash));
    } else if (hash != first) {
      std::fprintf(stderr, "%s: %s differs from %s\n", name.c_str(), list.sets[i]->name, list.sets[0]->name);
      is_same_everywhere = false;
    }
  }
  choose_kernels("");
}

Floats random_floats(int n, float size, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<std::size_t>(n));
  for (float& value : values) value = test::random_float(random) * size;
  return values;
}

// From the smallest numbers to the largest, of both signs, infinity and NaN.
Floats wide_floats(int n, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<std::size_t>(n));
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = -values[1];
  values[3] = std::nanf("");
  values[4] = -0.0F;
  return values;
}

std::vector<std::byte> bytes_of(Element element, const Floats& values) {
  std::vector<std::byte> bytes(values.size() * element_bytes(element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = element == Element::kF16 ? float_to_float16(values[i]) : float_to_bfloat16(values[i]);
    if (element == Element::kF32) {
      std::memcpy(bytes.data() + i * 4, &values[i], 4);
    } else {
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
  }
  return bytes;
}

std::vector<std::uint32_t> random_words(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(n));
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  return words;
}

constexpr const char* kElementNames[] = {"f32", "f16", "bf16"};

// ---- Products

constexpr int kColumns = 256;
constexpr int kOutputs = 53;

std::vector<std::byte> packed_weights(const PackedFormat& format) {
  std::vector<std::byte> packed(format.size_bytes());
  if (!format.is_quantized()) {
    pack_dense(format, bytes_of(format.element, random_floats(kOutputs * kColumns, 1, 1)).data(), packed.data());
    return packed;
  }
  const std::vector<std::uint32_t> words = random_words(kOutputs * kColumns * format.bits / 32, 2);
  const int n_groups = kOutputs * format.n_groups();
  pack_quantized(format, words.data(), bytes_of(format.element, random_floats(n_groups, 0.1F, 3)).data(),
                 bytes_of(format.element, random_floats(n_groups, 1, 4)).data(), packed.data());
  return packed;
}

void print_product(const PackedFormat& format, int n_rows) {
  const std::vector<std::byte> packed = packed_weights(format);
  const Floats x = random_floats(n_rows * kColumns, 3, 5);
  const std::string name =
      "product " + std::string(kElementNames[static_cast<int>(format.element)]) +
      (format.is_quantized() ? " " + std::to_string(format.bits) + " bits group " + std::to_string(format.group_size) +
                                   (format.has_biases ? "" : " no biases")
                             : "") +
      " rows " + std::to_string(n_rows);
  print_case(name, [&](const Kernels& set) {
    Floats y(static_cast<std::size_t>(n_rows * kOutputs));
    std::vector<FixedBlock> fixed(static_cast<std::size_t>(n_rows * kColumns / kBlock));
    for (int row = 0; row < n_rows; ++row) {
      set.fix_row(kColumns, x.data() + static_cast<std::ptrdiff_t>(row) * kColumns,
                  fixed.data() + static_cast<std::ptrdiff_t>(row) * (kColumns / kBlock));
    }
    MatmulArgs args{format, packed.data(), n_rows};
    args.x = x.data();
    args.y = y.data();
    args.fixed = fixed.data();
    set.matmul_part(args, {0, format.n_tiles(), 0, n_rows});
    return y;
  });
}

void print_products() {
  for (const Element element : {Element::kF32, Element::kF16, Element::kBF16}) {
    for (const int n_rows : {1, 7}) print_product({kOutputs, kColumns, element}, n_rows);
    for (const int bits : {2, 3, 4, 5, 6, 8}) {
      for (const int group_size : {32, 64, 128}) {
        print_product({kOutputs, kColumns, element, bits, group_size}, 7);
      }
      print_product({kOutputs, kColumns, element, bits, 32, false}, 1);
    }
  }
}

void print_fixed_rows() {
  Floats x = random_floats(kColumns, 1, 6);
  for (std::size_t i = 0; i < 32; ++i) x[i] *= 1e30F;
  for (std::size_t i = 32; i < 64; ++i) x[i] *= 1e-36F;
  for (std::size_t i = 64; i < 96; ++i) x[i] *= 1e-42F;
  x[100] = std::numeric_limits<float>::infinity();
  x[140] = std::nanf("");
  print_case("fix_row", [&](const Kernels& set) {
    std::vector<FixedBlock> blocks(kColumns / kBlock);
    set.fix_row(kColumns, x.data(), blocks.data());
    Floats out;
    for (const FixedBlock& block : blocks) {
      for (const auto& digits : block.digits) out.insert(out.end(), digits, digits + kBlock);
      out.insert(out.end(), {block.scale, block.sum});
    }
    return out;
  });
}

// ---- Rows

void print_rows() {
  constexpr int kN = 1003;
  const Floats x = random_floats(kN, 12, 7);
  const Floats y = random_floats(kN, 1, 8);
  const Floats wide = wide_floats(kN, 9);
  const auto row_case = [](const std::string& name, const std::function<void(const Kernels&, float*)>& run) {
    print_case(name, [&](const Kernels& set) {
      Floats out(kN);
      run(set, out.data());
      return out;
    });
  };
  row_case("norm_row", [&](const Kernels& set, float* out) { set.norm_row({kN, 1e-6F, y.data()}, x.data(), out); });
  row_case("norm_row with a mean", [&](const Kernels& set, float* out) {
    set.norm_row({kN, 1e-5F, y.data(), x.data(), true}, x.data(), out);
  });
  for (const bool traditional : {false, true}) {
    row_case(traditional ? "rotate_row traditional" : "rotate_row", [&](const Kernels& set, float* out) {
      set.rotate_row({500, kN, traditional}, y.data(), x.data(), out);
    });
  }
  const ClampedGate clamped{1.702F, 7};
  for (const auto& [name, gates] : {std::pair{"", &x}, std::pair{" wide", &wide}}) {
    for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh, Gate::kSigmoid}) {
      row_case("gate_row " + std::to_string(static_cast<int>(gate)) + name,
               [&](const Kernels& set, float* out) { set.gate_row(gate, kN, gates->data(), y.data(), out); });
    }
    row_case(std::string("clamped_gate_row") + name,
             [&](const Kernels& set, float* out) { set.clamped_gate_row(clamped, kN, gates->data(), x.data(), out); });
    row_case(std::string("cap_row") + name,
             [&](const Kernels& set, float* out) { set.cap_row(30, kN, gates->data(), out); });
  }
}

// ---- Attention

struct AttentionCase {
  const char* name;
  int dim = 64;
  Element element = Element::kF32;
  int bits = 0;
  float soft_cap = 0;
  int window = 0;
  int keep = 0;
  bool has_sinks = false;
};

Floats attention_of(const AttentionCase& c, int n_queries) {
  constexpr int kHeads = 6, kKvHeads = 2, kRowCount = 200, kGroup = 32;
  const Floats queries = random_floats(kHeads * n_queries * c.dim, 2, 10);
  const Floats sinks = random_floats(kHeads, 1, 11);
  const int n = kKvHeads * kRowCount * c.dim;
  const auto rows_of = [&](std::vector<std::byte>& data, std::vector<std::byte>& scales, std::vector<std::byte>& biases,
                           unsigned seed) {
    KvRows rows{c.dim, c.element, nullptr, std::ptrdiff_t{kRowCount} * c.dim, c.dim};
    if (c.bits == 0) {
      data = bytes_of(c.element, random_floats(n, 1, seed));
    } else {
      const std::vector<std::uint32_t> words = random_words(n * c.bits / 32, seed);
      data.resize(words.size() * 4);
      std::memcpy(data.data(), words.data(), data.size());
      scales = bytes_of(c.element, random_floats(n / kGroup, 1.0F / static_cast<float>(1 << c.bits), seed + 1));
      biases = bytes_of(c.element, random_floats(n / kGroup, 1, seed + 2));
      rows.row_stride = c.dim * c.bits / 32;
      rows.head_stride = kRowCount * rows.row_stride;
      rows.bits = c.bits;
      rows.group_size = kGroup;
      rows.scales = scales.data();
      rows.biases = biases.data();
      rows.scale_row_stride = c.dim / kGroup;
      rows.scale_head_stride = kRowCount * rows.scale_row_stride;
    }
    rows.data = data.data();
    return rows;
  };
  std::vector<std::byte> stored[6];
  const std::vector<KvRange> ranges = {{0, 0, kRowCount}};
  Floats out(queries.size());
  AttentionArgs args{};
  args.n_heads = kHeads;
  args.n_kv_heads = kKvHeads;
  args.n_queries = n_queries;
  args.first_position = kRowCount - n_queries;
  args.queries = queries.data();
  args.query_head_stride = std::ptrdiff_t{n_queries} * c.dim;
  args.query_row_stride = c.dim;
  args.keys = rows_of(stored[0], stored[1], stored[2], 20);
  args.values = rows_of(stored[3], stored[4], stored[5], 30);
  args.ranges = ranges;
  args.scale = 0.3F;
  args.soft_cap = c.soft_cap;
  args.window = c.window;
  args.keep = c.keep;
  args.sinks = c.has_sinks ? sinks.data() : nullptr;
  args.out = out.data();
  args.out_head_stride = c.dim;
  args.out_row_stride = std::ptrdiff_t{kHeads} * c.dim;
  attention({&args, 1});
  return out;
}

void print_attention() {
  std::vector<AttentionCase> cases = {{"f32"},
                                      {"f32 of 20", 20},
                                      {"f16", 64, Element::kF16},
                                      {"bf16", 64, Element::kBF16},
                                      {"bf16 of 72", 72, Element::kBF16},
                                      {"capped", 64, Element::kF32, 0, 2},
                                      {"window", 64, Element::kF16, 0, 0, 50, 4},
                                      {"sinks", 64, Element::kF32, 0, 0, 0, 0, true},
                                      {"2 bits", 64, Element::kF16, 2},
                                      {"3 bits", 64, Element::kF32, 3},
                                      {"4 bits", 64, Element::kF16, 4},
                                      {"5 bits", 64, Element::kBF16, 5},
                                      {"6 bits", 64, Element::kF16, 6},
                                      {"8 bits", 64, Element::kF32, 8}};
  for (const AttentionCase& c : cases) {
    for (const int n_queries : {1, 3, 40}) {
      print_case("attention " + std::string(c.name) + " queries " + std::to_string(n_queries),
                 [&](const Kernels&) { return attention_of(c, n_queries); });
    }
  }
}

// ---- Recurrences: two sequences, from a state

constexpr int kSequences = 2;
constexpr int kTokens = 9;

TokenRows token_rows(const Floats& values, int n_heads, int dim) {
  return {values.data(), std::ptrdiff_t{kTokens} * n_heads * dim, std::ptrdiff_t{n_heads} * dim, dim};
}

// y and the states after.
Floats joined(Floats y, const Floats& states) {
  y.insert(y.end(), states.begin(), states.end());
  return y;
}

Floats gated_delta_of(bool normalizes) {
  constexpr int kKeyHeads = 2, kValueHeads = 4, kKeyDim = 40, kValueDim = 37;
  constexpr int kAllTokens = kSequences * kTokens;
  const Floats queries = random_floats(kAllTokens * kKeyHeads * kKeyDim, 1, 40);
  const Floats keys = random_floats(kAllTokens * kKeyHeads * kKeyDim, 0.3F, 41);
  const Floats values = random_floats(kAllTokens * kValueHeads * kValueDim, 1, 42);
  const Floats decays = random_floats(kAllTokens * kValueHeads, 4, 43);
  const Floats betas = random_floats(kAllTokens * kValueHeads, 4, 44);
  const Floats a = random_floats(kValueHeads, 1, 45);
  const Floats dt_bias = random_floats(kValueHeads, 1, 46);
  Floats state = random_floats(kSequences * kValueHeads * kValueDim * kKeyDim, 1, 47);
  Floats y(values.size());
  GatedDeltaArgs args;
  args.n_sequences = kSequences;
  args.n_tokens = kTokens;
  args.n_key_heads = kKeyHeads;
  args.n_value_heads = kValueHeads;
  args.key_dim = kKeyDim;
  args.value_dim = kValueDim;
  args.queries = token_rows(queries, kKeyHeads, kKeyDim);
  args.keys = token_rows(keys, kKeyHeads, kKeyDim);
  args.values = token_rows(values, kValueHeads, kValueDim);
  args.decays = token_rows(decays, kValueHeads, 1);
  args.betas = token_rows(betas, kValueHeads, 1);
  args.a = a.data();
  args.dt_bias = dt_bias.data();
  args.normalizes = normalizes;
  args.scale = 0.25F;
  args.states.initial = args.states.final = state.data();
  args.y = y.data();
  Floats prepared(prepared_floats(args));
  args.prepared = prepared.data();
  gated_delta(args);
  return joined(std::move(y), state);
}

Floats selective_scan_of(bool is_diagonal) {
  const int n_heads = is_diagonal ? 1 : 5;
  constexpr int kHeadDim = 37, kStateDim = 19, kAllTokens = kSequences * kTokens;
  const int n_rates = is_diagonal ? kHeadDim : n_heads;
  const Floats x = random_floats(kAllTokens * n_heads * kHeadDim, 1, 50);
  const Floats dt = random_floats(kAllTokens * n_rates, 4, 51);
  Floats a = random_floats(is_diagonal ? kHeadDim * kStateDim : n_heads, 3, 52);
  for (float& rate : a) rate = -std::abs(rate);
  const Floats b = random_floats(kAllTokens * kStateDim, 1, 53);
  const Floats c = random_floats(kAllTokens * kStateDim, 1, 54);
  const Floats d = random_floats(n_rates, 1, 55);
  const Floats dt_bias = random_floats(n_rates, 1, 56);
  Floats state = random_floats(kSequences * n_heads * kHeadDim * kStateDim, 1, 57);
  Floats y(x.size());
  SelectiveScanArgs args;
  args.n_sequences = kSequences;
  args.n_tokens = kTokens;
  args.n_heads = n_heads;
  args.head_dim = kHeadDim;
  args.n_groups = 1;
  args.state_dim = kStateDim;
  args.is_diagonal = is_diagonal;
  args.x = token_rows(x, n_heads, kHeadDim);
  args.dt = token_rows(dt, n_rates, 1);
  args.b = token_rows(b, 1, kStateDim);
  args.c = token_rows(c, 1, kStateDim);
  args.a = a.data();
  args.d = d.data();
  args.dt_bias = dt_bias.data();
  args.states.initial = args.states.final = state.data();
  args.y = y.data();
  Floats prepared(prepared_floats(args) + 1);
  args.prepared = prepared.data();
  selective_scan(args);
  return joined(std::move(y), state);
}

Floats short_convolution_of(int width) {
  constexpr int kChannels = 75;
  const Floats x = random_floats(kSequences * kTokens * kChannels, 2, 60);
  const Floats weight = random_floats(width * kChannels, 1, 61);
  const Floats bias = random_floats(kChannels, 1, 62);
  Floats state = random_floats(kSequences * (width - 1) * kChannels, 2, 63);
  Floats y(x.size());
  ShortConvolutionArgs args;
  args.n_sequences = kSequences;
  args.n_tokens = kTokens;
  args.n_channels = kChannels;
  args.width = width;
  args.x = token_rows(x, 1, kChannels);
  args.weight = weight.data();
  args.bias = bias.data();
  args.has_silu = true;
  args.states.initial = args.states.final = state.data();
  args.y = y.data();
  short_convolution(args);
  return joined(std::move(y), state);
}

void print_recurrences() {
  print_case("gated_delta", [](const Kernels&) { return gated_delta_of(false); });
  print_case("gated_delta normalized", [](const Kernels&) { return gated_delta_of(true); });
  print_case("selective_scan", [](const Kernels&) { return selective_scan_of(false); });
  print_case("selective_scan diagonal", [](const Kernels&) { return selective_scan_of(true); });
  for (const int width : {3, 4}) {
    print_case("short_convolution " + std::to_string(width),
               [&](const Kernels&) { return short_convolution_of(width); });
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu

int main() {
  using namespace memoir::kernels::cpu;
  const KernelList list = supported_kernels();
  for (int i = 0; i < list.n_sets; ++i) std::fprintf(stderr, "%s%s", i > 0 ? ", " : "sets: ", list.sets[i]->name);
  std::fprintf(stderr, "\n");
  print_fixed_rows();
  print_products();
  print_rows();
  print_attention();
  print_recurrences();
  return is_same_everywhere ? 0 : 1;
}
