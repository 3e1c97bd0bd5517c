// GGUF weights of every type against a Hugging Face directory with the same values. The values come from
// dequantize_blocks, which gguf_blocks_test holds to the gguf package; the rows of query and key heads are interleaved
// here as llama.cpp's converter does it (LlamaModel.permute).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cstring>
#include <map>
#include <random>

#include "memoir/base/error.h"
#include "memoir/base/gguf_blocks.h"
#include "memoir/base/half.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "memoir/model/model.h"
#include "tests/gguf_builder.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

constexpr int kHidden = 256;
constexpr int kIntermediate = 512;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int kVocab = 32;
constexpr int kLayers = 2;

struct BlockSize {
  std::size_t n_values;
  std::size_t n_bytes;
};

// Sizes as in ggml-common.h.
const std::map<GgufType, BlockSize> kBlocks = {
    {GgufType::kF32, {1, 4}},      {GgufType::kF16, {1, 2}},      {GgufType::kBF16, {1, 2}},
    {GgufType::kQ4_0, {32, 18}},   {GgufType::kQ4_1, {32, 20}},   {GgufType::kQ5_0, {32, 22}},
    {GgufType::kQ5_1, {32, 24}},   {GgufType::kQ8_0, {32, 34}},   {GgufType::kQ2_K, {256, 84}},
    {GgufType::kQ3_K, {256, 110}}, {GgufType::kQ4_K, {256, 144}}, {GgufType::kQ5_K, {256, 176}},
    {GgufType::kQ6_K, {256, 210}},
};

// Where the float16 fields of a block lie; the rest may be any bytes.
std::vector<std::size_t> half_fields(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
    case GgufType::kQ5_0:
    case GgufType::kQ8_0:
      return {0};
    case GgufType::kQ4_1:
    case GgufType::kQ5_1:
    case GgufType::kQ4_K:
    case GgufType::kQ5_K:
      return {0, 2};
    case GgufType::kQ2_K:
      return {80, 82};
    case GgufType::kQ3_K:
      return {108};
    case GgufType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

// Random codes with scales that keep values of a size a network can use.
std::vector<std::byte> random_blocks(GgufType type, std::size_t n_values, std::mt19937& random) {
  const BlockSize size = kBlocks.at(type);
  std::vector<std::byte> bytes(n_values / size.n_values * size.n_bytes);
  const auto small = [&](float scale) { return (static_cast<float>(random() % 2001) / 1000.0F - 1.0F) * scale; };
  if (size.n_values == 1) {
    for (std::size_t i = 0; i < n_values; ++i) {
      const float value = small(0.1F);
      const std::uint16_t half = type == GgufType::kF16 ? float_to_float16(value) : float_to_bfloat16(value);
      std::memcpy(bytes.data() + i * size.n_bytes, type == GgufType::kF32 ? static_cast<const void*>(&value) : &half,
                  size.n_bytes);
    }
    return bytes;
  }
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xFFU);
  for (std::size_t at = 0; at < bytes.size(); at += size.n_bytes) {
    for (const std::size_t field : half_fields(type)) {
      const std::uint16_t half = float_to_float16(small(size.n_values == 256 ? 2e-4F : 4e-3F));
      std::memcpy(bytes.data() + at + field, &half, 2);
    }
  }
  return bytes;
}

// The converter's order: row 2i + j of a head is row j * (D / 2) + i of Hugging Face's.
mx::array interleaved_to_hugging_face(const mx::array& rows, int n_heads) {
  const int width = rows.shape(1);
  return mx::reshape(mx::swapaxes(mx::reshape(rows, {n_heads, kHeadDim / 2, 2, width}), 1, 2), {-1, width});
}

struct TwinOptions {
  GgufType type = GgufType::kF32;
  bool is_tied = false;
  bool is_llama3 = false;    // Llama 3's RoPE: in the GGUF rope_freqs.weight
  float linear_factor = 1;   // in the GGUF rope.scaling.factor without a type
  bool has_ones = false;     // a rope_freqs.weight in the GGUF that changes nothing
  std::string extra = {};    // a vector that only the GGUF has
  std::string without = {};  // a vector that the GGUF lacks
  std::string damaged = {};  // a matrix of the GGUF whose first block gets
  std::vector<std::byte> block = {};
};

/// The same weights as a GGUF file and as a directory.
class TwinModels {
 public:
  TwinModels(const test::TemporaryFolder& folder, TwinOptions options)
      : gguf_(folder.path() / "model.gguf"),
        directory_(folder.path() / "twin"),
        options_(std::move(options)),
        random_(static_cast<unsigned>(options_.type)) {
    test::fs::create_directory(directory_);
    add_metadata();
    matrix("token_embd", "model.embed_tokens", kVocab, kHidden);
    vector("output_norm", "model.norm", kHidden);
    if (!options_.is_tied) matrix("output", "lm_head", kVocab, kHidden);
    if (options_.is_llama3) add_rope_freqs();
    if (options_.has_ones) floats("rope_freqs.weight", std::vector<float>(kHeadDim / 2, 1));
    if (!options_.extra.empty()) floats(options_.extra, std::vector<float>(kHidden, 7));
    for (int i = 0; i < kLayers; ++i) add_layer(i);
    write();
  }

  GgufFile open_gguf() const { return GgufFile::open(gguf_); }
  const test::fs::path& directory() const { return directory_; }

 private:
  void add_metadata() {
    builder_.string("general.architecture", "llama")
        .integer("llama.block_count", kLayers)
        .integer("llama.embedding_length", kHidden)
        .integer("llama.feed_forward_length", kIntermediate)
        .integer("llama.attention.head_count", kHeads)
        .integer("llama.attention.head_count_kv", kKvHeads)
        .integer("llama.context_length", 128)
        .integer("llama.vocab_size", kVocab)
        .number("llama.rope.freq_base", 10000)
        .number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    if (options_.linear_factor != 1) builder_.number("llama.rope.scaling.factor", options_.linear_factor);
    nlohmann::json config = {{"model_type", "llama"},
                             {"num_hidden_layers", kLayers},
                             {"hidden_size", kHidden},
                             {"intermediate_size", kIntermediate},
                             {"num_attention_heads", kHeads},
                             {"num_key_value_heads", kKvHeads},
                             {"max_position_embeddings", 128},
                             {"vocab_size", kVocab},
                             {"rope_theta", 10000.0},
                             {"rms_norm_eps", 1e-5},
                             {"tie_word_embeddings", options_.is_tied},
                             {"hidden_act", "silu"}};
    if (options_.linear_factor != 1) {
      config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", options_.linear_factor}};
    }
    if (options_.is_llama3) {
      config["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", 8.0},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 64}};
    }
    test::write_file(directory_ / "config.json", config.dump());
  }

  void add_layer(int i) {
    const std::string from = "blk." + std::to_string(i) + ".";
    const std::string to = "model.layers." + std::to_string(i) + ".";
    vector(from + "attn_norm", to + "input_layernorm", kHidden);
    matrix(from + "attn_q", to + "self_attn.q_proj", kHeads * kHeadDim, kHidden, kHeads);
    matrix(from + "attn_k", to + "self_attn.k_proj", kKvHeads * kHeadDim, kHidden, kKvHeads);
    matrix(from + "attn_v", to + "self_attn.v_proj", kKvHeads * kHeadDim, kHidden);
    matrix(from + "attn_output", to + "self_attn.o_proj", kHidden, kHeads * kHeadDim);
    vector(from + "ffn_norm", to + "post_attention_layernorm", kHidden);
    matrix(from + "ffn_gate", to + "mlp.gate_proj", kIntermediate, kHidden);
    matrix(from + "ffn_up", to + "mlp.up_proj", kIntermediate, kHidden);
    matrix(from + "ffn_down", to + "mlp.down_proj", kHidden, kIntermediate);
  }

  // What llama.cpp's converter computes for rope type llama3 (LlamaModel.generate_extra_tensors).
  void add_rope_freqs() {
    std::vector<float> factors;
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double wavelength = 2 * 3.14159265358979323846 * std::pow(10000.0, 2.0 * i / kHeadDim);
      const double low = 64.0 / 1.0;
      const double high = 64.0 / 4.0;
      const double smooth = (64.0 / wavelength - 1.0) / (4.0 - 1.0);
      factors.push_back(static_cast<float>(wavelength < high  ? 1.0
                                           : wavelength > low ? 8.0
                                                              : 1.0 / ((1.0 - smooth) / 8.0 + smooth)));
    }
    floats("rope_freqs.weight", factors);
  }

  void floats(const std::string& name, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensor(name, {values.size()}, GgufType::kF32, bytes);
  }

  void tensor(const std::string& name, const std::vector<std::uint64_t>& dims, GgufType type,
              const std::vector<std::byte>& bytes) {
    builder_.tensor(name, dims, static_cast<std::uint32_t>(type), data_.size());
    data_.insert(data_.end(), bytes.begin(), bytes.end());
    data_.resize((data_.size() + 31) / 32 * 32);
  }

  void matrix(const std::string& from, const std::string& to, int rows, int columns, int n_heads = 0) {
    const GgufType type = options_.type;
    const auto n_values = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
    std::vector<std::byte> bytes = random_blocks(type, n_values, random_);
    if (from == options_.damaged) std::copy(options_.block.begin(), options_.block.end(), bytes.begin());
    tensor(from + ".weight", {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)}, type, bytes);
    std::vector<float> values(n_values);
    dequantize_blocks(type, bytes, values);
    mx::array weight(values.data(), {rows, columns}, mx::float32);
    if (n_heads > 0) weight = interleaved_to_hugging_face(weight, n_heads);
    tensors_.insert_or_assign(to + ".weight", mx::contiguous(weight));
  }

  void vector(const std::string& from, const std::string& to, int size) {
    std::vector<float> values;
    for (int i = 0; i < size; ++i) values.push_back(0.5F + static_cast<float>(random_() % 1000) / 1000.0F);
    if (from != options_.without) floats(from + ".weight", values);
    tensors_.insert_or_assign(to + ".weight", mx::array(values.data(), {size}, mx::float32));
  }

  void write() {
    builder_.data_bytes = data_.size();
    std::vector<std::byte> bytes = builder_.bytes();
    std::copy(data_.begin(), data_.end(), bytes.end() - static_cast<std::ptrdiff_t>(data_.size()));
    test::write_file(gguf_, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    mx::save_safetensors((directory_ / "model.safetensors").string(), tensors_);
  }

  test::fs::path gguf_;
  test::fs::path directory_;
  TwinOptions options_;
  std::mt19937 random_;
  test::GgufBuilder builder_;
  std::vector<std::byte> data_;
  test::Tensors tensors_;
};

// With float32 rows, so that it is the weights that are compared.
mx::array logits_of(const model::Model& model) {
  engine::Session session(model, {.dtype = mx::float32});
  return mx::astype(session.forward(std::vector<TokenId>{3, 1, 4, 1, 5, 9, 2, 6, 5, 31}, model::LogitRows::kAll),
                    mx::float32);
}

struct Loaded {
  std::unique_ptr<model::Model> model;
  std::vector<std::string> notes;
};

Loaded load_gguf(GgufFile opened) {
  auto file = std::make_shared<const GgufFile>(std::move(opened));
  const model::ModelConfig config = model::config_from_gguf(*file);
  const auto weights = model::open_gguf_weights(std::move(file), config);
  return {model::make_model(config, *weights), weights->notes()};
}

float largest_difference(const mx::array& a, const mx::array& b) {
  return mx::max(mx::abs(mx::subtract(a, b))).item<float>();
}

bool is_dense(GgufType type) {
  return type == GgufType::kF32 || type == GgufType::kF16 || type == GgufType::kBF16;
}

class GgufModel : public testing::TestWithParam<GgufType> {};

INSTANTIATE_TEST_SUITE_P(Types, GgufModel,
                         testing::Values(GgufType::kF32, GgufType::kF16, GgufType::kBF16, GgufType::kQ4_0,
                                         GgufType::kQ4_1, GgufType::kQ5_0, GgufType::kQ5_1, GgufType::kQ8_0,
                                         GgufType::kQ2_K, GgufType::kQ3_K, GgufType::kQ4_K, GgufType::kQ5_K,
                                         GgufType::kQ6_K),
                         [](const auto& type) { return gguf_type_name(type.param); });

TEST_P(GgufModel, RowsAreFloat16WhereTheEmbeddingsAreQuantizedUnlessAnotherTypeIsAskedFor) {
  const test::TemporaryFolder folder;
  const TwinModels twins(folder, {.type = GetParam()});
  const Loaded loaded = load_gguf(twins.open_gguf());
  const auto type_of_rows = [&](const cache::CacheOptions& options) {
    engine::Session session(*loaded.model, options);
    session.forward(std::vector<TokenId>{3, 1}, model::LogitRows::kLast);
    return session.cache().state().at(0).dtype();
  };
  const bool is_quantized = !is_dense(GetParam()) && loaded.notes.empty();
  EXPECT_EQ(type_of_rows({}), is_quantized ? mx::float16 : mx::float32);
  EXPECT_EQ(type_of_rows({.dtype = mx::float32}), mx::float32);
  EXPECT_EQ(type_of_rows({.dtype = mx::bfloat16}), mx::bfloat16);
}

TEST_P(GgufModel, LogitsAreThoseOfTheSameValuesInADirectory) {
  const test::TemporaryFolder folder;
  const TwinModels twins(folder, {.type = GetParam()});
  const mx::array expected = logits_of(*model::load_model(twins.directory()).model);
  const Loaded loaded = load_gguf(twins.open_gguf());
  const mx::array actual = logits_of(*loaded.model);
  // K-quants that become float16 have a relative error of 5e-4 in each weight. Dense weights are exact, and codes are
  // multiplied with activations of 16 bits.
  const bool is_converted = !loaded.notes.empty();
  const float spread = mx::max(mx::abs(expected)).item<float>();
  EXPECT_GT(spread, 0.05F);
  EXPECT_LT(largest_difference(actual, expected), spread * (is_converted           ? 5e-3F
                                                            : is_dense(GetParam()) ? 1e-5F
                                                                                   : 5e-4F));
}

TEST_P(GgufModel, ReportsTypesThatBecameFloat16AndKeepsTheOthers) {
  const test::TemporaryFolder folder;
  const TwinModels twins(folder, {.type = GetParam()});
  const Loaded loaded = load_gguf(twins.open_gguf());
  const std::set<GgufType> kept = {GgufType::kF32,  GgufType::kF16,  GgufType::kBF16, GgufType::kQ4_0, GgufType::kQ4_1,
                                   GgufType::kQ5_0, GgufType::kQ5_1, GgufType::kQ8_0, GgufType::kQ4_K, GgufType::kQ5_K};
  if (kept.contains(GetParam())) {
    EXPECT_TRUE(loaded.notes.empty());
  } else {
    EXPECT_EQ(loaded.notes,
              (std::vector<std::string>{"16 tensors of type " + gguf_type_name(GetParam()) + " became float16"}));
  }
}

TEST(GgufLlama, TiedEmbeddingsAndRopeFactorsAreRead) {
  const test::TemporaryFolder folder;
  const TwinModels twins(folder, {.is_tied = true, .is_llama3 = true});
  const mx::array expected = logits_of(*model::load_model(twins.directory()).model);
  EXPECT_LT(largest_difference(logits_of(*load_gguf(twins.open_gguf()).model), expected), 1e-4F);
}

// llama.cpp turns pair i by position * freq_scale / factors[i] (ggml_rope_cache_init): both count.
TEST(GgufLlama, ALinearFactorCountsWithAndWithoutRopeFactors) {
  for (const bool has_ones : {false, true}) {
    const test::TemporaryFolder folder;
    const TwinModels twins(folder, {.linear_factor = 4, .has_ones = has_ones});
    const mx::array expected = logits_of(*model::load_model(twins.directory()).model);
    EXPECT_LT(largest_difference(logits_of(*load_gguf(twins.open_gguf()).model), expected), 1e-4F) << has_ones;
    test::edit_config(twins.directory(), [](nlohmann::json& config) { config.erase("rope_scaling"); });
    const mx::array unscaled = logits_of(*model::load_model(twins.directory()).model);
    EXPECT_GT(largest_difference(unscaled, expected), 1e-3F);
  }
}

std::string load_error(const TwinOptions& options) {
  const test::TemporaryFolder folder;
  const TwinModels twins(folder, options);
  try {
    load_gguf(twins.open_gguf());
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(GgufLlama, ATensorUnderHuggingFacesNameIsNotTheModels) {
  const std::string beside = load_error({.extra = "model.norm.weight"});
  EXPECT_MENTIONS(beside, "1 tensors that this model does not have: model.norm.weight");
  const std::string instead = load_error({.extra = "model.norm.weight", .without = "output_norm"});
  EXPECT_MENTIONS(instead, "model.norm.weight: missing");
}

TEST(GgufLlama, ATensorOfNoKnownNameIsNamed) {
  EXPECT_MENTIONS(load_error({.extra = "blk.0.attn_sinks.weight"}), "does not have: blk.0.attn_sinks.weight");
  EXPECT_MENTIONS(load_error({.extra = "strange"}), "does not have: strange");
}

// A block of Q8_0 with this scale and all codes equal. -128 * 600, its bias in the packed form, is more than float16's
// largest number, 65504.
std::vector<std::byte> q8_0_block(float scale, int code) {
  std::vector<std::byte> block(34, static_cast<std::byte>(code));
  const std::uint16_t half = float_to_float16(scale);
  std::memcpy(block.data(), &half, 2);
  return block;
}

TEST(GgufLlama, ValuesThatFitFloat16AreReadWhereThePackedFormDoesNot) {
  const test::TemporaryFolder folder;
  const TwinModels twins(folder, {.type = GgufType::kQ8_0, .damaged = "blk.1.ffn_up", .block = q8_0_block(600, 100)});
  const mx::array expected = logits_of(*model::load_model(twins.directory()).model);
  const Loaded loaded = load_gguf(twins.open_gguf());
  EXPECT_EQ(loaded.notes, (std::vector<std::string>{"1 tensors of type Q8_0 became float16"}));
  const float spread = mx::max(mx::abs(expected)).item<float>();
  EXPECT_LT(largest_difference(logits_of(*loaded.model), expected), spread * 5e-3F);
}

TEST(GgufLlama, ValuesThatDoNotFitFloat16AreAnErrorWithTheTensor) {
  EXPECT_MENTIONS(load_error({.type = GgufType::kQ8_0, .damaged = "blk.1.ffn_up", .block = q8_0_block(600, 120)}),
                  "blk.1.ffn_up.weight: holds 72000, which does not fit float16");
  std::vector<std::byte> infinite = q8_0_block(1, 1);
  infinite[0] = std::byte{0};
  infinite[1] = std::byte{0x7C};
  EXPECT_MENTIONS(load_error({.type = GgufType::kQ8_0, .damaged = "blk.0.attn_q", .block = infinite}),
                  "blk.0.attn_q.weight: holds inf");
}

}  // namespace
}  // namespace memoir
