#include "memoir/model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "damaged_bytes.h"
#include "gguf_builder.h"
#include "memoir/base/error.h"
#include "memoir/engine/sampler.h"

namespace memoir::model {
namespace {

using nlohmann::json;
using test::GgufBuilder;

const std::string kData = MEMOIR_TEST_DATA;

json small_config() {
  return {{"model_type", "llama"},         {"num_hidden_layers", 4}, {"hidden_size", 48},
          {"intermediate_size", 80},       {"vocab_size", 160},      {"num_attention_heads", 4},
          {"num_key_value_heads", 2},      {"rms_norm_eps", 1e-5},   {"rope_theta", 500000.0},
          {"max_position_embeddings", 512}};
}

ModelConfig parse(const json& value) {
  return parse_config(value.dump(), "config.json");
}

ModelConfig parse_with(const std::string& key, const json& value) {
  json config = small_config();
  config[key] = value;
  return parse(config);
}

template <typename Error>
void expect_refused(const json& value, const std::string& key, const std::string& reason = "") {
  try {
    parse(value);
    ADD_FAILURE() << "accepted, expected an error about " << key;
  } catch (const Error& error) {
    EXPECT_EQ(error.path(), "config.json");
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

template <typename Error>
void expect_value_refused(const std::string& key, const json& value, const std::string& reason = "") {
  SCOPED_TRACE(value.dump());
  json config = small_config();
  config[key] = value;
  expect_refused<Error>(config, key, reason);
}

// The figures are those of the recipe the checkpoint was made from; both files describe the same model.
class LlamaSpellingTest : public testing::TestWithParam<const char*> {};

TEST_P(LlamaSpellingTest, ReadsTheRecipesValues) {
  const std::string path = kData + "/llama/" + GetParam();
  const ModelConfig config = parse_config(read_text_file(path), path);
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.path, path);
  EXPECT_EQ(config.n_layers, 4);
  EXPECT_EQ(config.hidden_size, 48);
  EXPECT_EQ(config.intermediate_size, 80);
  EXPECT_EQ(config.n_heads, 4);
  EXPECT_EQ(config.n_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 160);
  EXPECT_EQ(config.max_position, 512);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.hidden_act, "silu");
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.sliding_window.has_value());
  EXPECT_FALSE(config.quantization.has_value());
  EXPECT_EQ(config.rope.type, "llama3");
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.low_freq_factor, 1.0);
  EXPECT_EQ(config.rope.high_freq_factor, 4.0);
  EXPECT_EQ(config.rope.original_max_position, 64);
  EXPECT_EQ(config.rope.partial_rotary_factor, 1.0);
  EXPECT_EQ(config.eos_ids, std::vector<TokenId>{2});
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_EQ(config.raw["architectures"][0], "LlamaForCausalLM");
}

INSTANTIATE_TEST_SUITE_P(Spellings, LlamaSpellingTest, testing::Values("config.json", "config.alt.json"),
                         [](const auto& instance) { return instance.index == 0 ? "Hub" : "V5"; });

TEST(ConfigTest, ReadsMistralInBothSpellings) {
  for (const char* name : {"config.json", "config.alt.json"}) {
    const std::string path = kData + "/mistral/" + name;
    const ModelConfig config = parse_config(read_text_file(path), path);
    EXPECT_EQ(config.model_type, "mistral");
    EXPECT_EQ(config.sliding_window, 8);
    EXPECT_EQ(config.rope.type, "default");
    EXPECT_EQ(config.rope.theta, 30000.0);
  }
}

TEST(ConfigTest, ReadsTheDirectoryAndItsGenerationConfig) {
  const auto directory = std::filesystem::path(testing::TempDir()) / "memoir_config_test";
  std::filesystem::create_directories(directory);
  std::filesystem::remove(directory / "generation_config.json");
  std::ofstream(directory / "config.json") << small_config().dump();
  EXPECT_TRUE(read_config(directory).eos_ids.empty());

  std::ofstream(directory / "generation_config.json") << R"({"eos_token_id": [7, 2, 7], "bos_token_id": 3})";
  const ModelConfig config = read_config(directory);
  EXPECT_EQ(config.eos_ids, (std::vector<TokenId>{7, 2}));
  EXPECT_EQ(config.bos_id, 3);

  std::ofstream(directory / "generation_config.json") << R"({"eos_token_id": "x"})";
  try {
    read_config(directory);
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_EQ(error.path(), (directory / "generation_config.json").string());
    EXPECT_EQ(error.key(), "eos_token_id");
  }
  std::filesystem::remove_all(directory);
  EXPECT_THROW(read_config(directory), FileError);
}

TEST(ConfigTest, FillsInWhatIsMissingOrNull) {
  json config = small_config();
  config.erase("num_key_value_heads");
  config["head_dim"] = nullptr;
  config["rope_scaling"] = nullptr;
  config["eos_token_id"] = nullptr;
  config.erase("rope_theta");
  const ModelConfig parsed = parse(config);
  EXPECT_EQ(parsed.n_kv_heads, 4);
  EXPECT_EQ(parsed.head_dim, 12);
  EXPECT_EQ(parsed.rope.theta, 10000.0);
  EXPECT_EQ(parsed.rope.type, "default");
  EXPECT_TRUE(parsed.eos_ids.empty());
  EXPECT_FALSE(parsed.bos_id.has_value());
}

TEST(ConfigTest, TiesEmbeddingsByFileThenByFamily) {
  EXPECT_TRUE(parse_with("tie_word_embeddings", true).tie_embeddings);
  EXPECT_FALSE(parse(small_config()).tie_embeddings);
  EXPECT_TRUE(parse_with("model_type", "gemma3_text").tie_embeddings);
}

TEST(ConfigTest, QwensWindowIsOffUnlessUsed) {
  json config = small_config();
  config["sliding_window"] = 32;
  EXPECT_EQ(parse(config).sliding_window, 32);
  config["model_type"] = "qwen2";
  EXPECT_EQ(parse(config).sliding_window, std::nullopt);
  config["use_sliding_window"] = true;
  EXPECT_EQ(parse(config).sliding_window, 32);
}

// MistralConfig's default in transformers; published files without a window say null.
TEST(ConfigTest, MistralWithoutTheKeyHasAWindowOf4096) {
  EXPECT_EQ(parse_with("model_type", "mistral").sliding_window, 4096);
  json config = small_config();
  config["model_type"] = "mistral";
  config["sliding_window"] = nullptr;
  EXPECT_EQ(parse(config).sliding_window, std::nullopt);
}

TEST(ConfigTest, EosMayBeAList) {
  EXPECT_EQ(parse_with("eos_token_id", {5, 6, 5}).eos_ids, (std::vector<TokenId>{5, 6}));
  expect_value_refused<FormatError>("eos_token_id", {5, "x"});
  expect_value_refused<FormatError>("eos_token_id", -1);
  expect_value_refused<FormatError>("eos_token_id", 1.5);
}

TEST(ConfigTest, ReadsOlderSpellingOfTheRopeType) {
  const auto rope = parse_with("rope_scaling", {{"type", "linear"}, {"factor", 4}}).rope;
  EXPECT_EQ(rope.type, "linear");
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.theta, 500000.0);
}

TEST(ConfigTest, ReadsYarn) {
  const auto rope = parse_with("rope_scaling", {{"rope_type", "yarn"},
                                                {"factor", 40.0},
                                                {"mscale", 1.0},
                                                {"mscale_all_dim", 0.5},
                                                {"beta_fast", 31},
                                                {"truncate", false}})
                        .rope;
  EXPECT_EQ(rope.mscale, 1.0);
  EXPECT_EQ(rope.mscale_all_dim, 0.5);
  EXPECT_EQ(rope.beta_fast, 31.0);
  EXPECT_EQ(rope.beta_slow, 1.0);
  EXPECT_FALSE(rope.truncate);
  EXPECT_FALSE(rope.attention_factor.has_value());
  EXPECT_EQ(rope.original_max_position, 512);
}

TEST(ConfigTest, ReadsLongrope) {
  json config = small_config();
  config["original_max_position_embeddings"] = 128;  // beside rope_scaling, as in Phi-3's files
  config["rope_scaling"] = {
      {"type", "su"}, {"short_factor", {1, 1, 1, 1, 1, 1}}, {"long_factor", {1, 1.5, 2, 2.5, 3, 3.5}}};
  const auto rope = parse(config).rope;
  EXPECT_EQ(rope.type, "longrope");
  EXPECT_EQ(rope.long_factors.size(), 6U);
  EXPECT_EQ(rope.factor, 4.0);
  config["rope_scaling"]["long_factor"] = {1, 2};
  expect_refused<FormatError>(config, "rope_scaling", "2 factors for 6 pairs");
}

TEST(ConfigTest, ReadsRopeKeyedByLayerType) {
  const ModelConfig config = parse_with(
      "rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}});
  EXPECT_EQ(config.layer_ropes.at("sliding_attention").theta, 1e4);
  EXPECT_EQ(config.rope.type, "linear");
  EXPECT_EQ(config.rope.theta, 1e6);
}

TEST(ConfigTest, RefusesRopeThatCannotBe) {
  const auto refused = [](const json& rope, const std::string& key) {
    json config = small_config();
    config["rope_scaling"] = rope;
    expect_refused<FormatError>(config, "rope_scaling." + key);
  };
  refused({{"type", "linear"}}, "factor");
  refused({{"type", "linear"}, {"factor", 0}}, "factor");
  refused({{"type", "linear"}, {"factor", "2"}}, "factor");
  refused({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}, "low_freq_factor");
  refused({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}, "high_freq_factor");
  refused({{"type", "yarn"}, {"factor", 8}, {"beta_fast", 1}, {"beta_slow", 2}}, "beta_fast");
  refused({{"type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 0}},
          "original_max_position_embeddings");
  refused({{"type", "longrope"}, {"factor", 8}, {"short_factor", {1}}}, "long_factor");
  refused({{"type", 3}}, "type");
  json config = small_config();
  config["rope_scaling"] = {{"type", "spiral"}};
  expect_refused<UnsupportedError>(config, "rope_scaling.type", "spiral");
  expect_value_refused<FormatError>("rope_theta", -1);
  expect_value_refused<FormatError>("rope_theta", 0);
  expect_value_refused<FormatError>("partial_rotary_factor", 1.5);
  config = small_config();
  config["model_type"] = "qwen3_next";
  config["partial_rotary_factor"] = 0.1;
  expect_refused<FormatError>(config, "partial_rotary_factor", "rotates 25 of 256");
}

// A key that the classes of these types don't have (transformers 5.24).
TEST(ConfigTest, WholeHeadsTurnWhereTheClassKnowsNoPart) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "olmo3"}) {
    json config = small_config();
    config["model_type"] = type;
    config["partial_rotary_factor"] = 0.5;
    EXPECT_EQ(parse_config(config.dump(), "config.json").rope.partial_rotary_factor, 1.0) << type;
  }
}

TEST(ConfigTest, RefusesMissingKeysByName) {
  for (const char* key :
       {"model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"}) {
    json config = small_config();
    config.erase(key);
    expect_refused<FormatError>(config, key, "is missing");
    expect_value_refused<FormatError>(key, nullptr, "is missing");
  }
  expect_value_refused<FormatError>("max_position_embeddings", nullptr, "is missing");  // without the key: its default
}

TEST(ConfigTest, RefusesSizesThatCannotBe) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window"}) {
    for (const json& value :
         {json(0), json(-1), json(1e3), json(1ULL << 40), json(~0ULL), json("4"), json(true), json::array({4})}) {
      expect_value_refused<FormatError>(key, value);
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const json& value : {json(0), json(-1.0), json("x"), json(true)})
      expect_value_refused<FormatError>(key, value);
  }
  for (const char* key : {"tie_word_embeddings", "attention_bias", "mlp_bias"}) {
    for (const json& value : {json(0), json("true")}) expect_value_refused<FormatError>(key, value);
  }
  expect_value_refused<FormatError>("hidden_act", 1);
}

TEST(ConfigTest, SaysTheNumberThatTheFileHas) {
  try {
    parse_with("intermediate_size", ~0ULL);
    FAIL() << "it was taken";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("is 18446744073709551615, expected 1 to "), std::string::npos)
        << error.what();
  }
}

// One limit for all who count tokens: a model that loads can be sampled from.
TEST(ConfigTest, TheVocabularyHasTheSamplersLimit) {
  EXPECT_EQ(parse_with("vocab_size", kMaxVocab).vocab_size, kMaxVocab);
  expect_value_refused<FormatError>("vocab_size", kMaxVocab + 1);
  EXPECT_NO_THROW(engine::Sampler({}, kMaxVocab));
  EXPECT_THROW(engine::Sampler({}, kMaxVocab + 1), std::invalid_argument);
}

TEST(ConfigTest, RefusesHeadsThatDoNotFit) {
  json config = small_config();
  config["num_key_value_heads"] = 3;
  expect_refused<FormatError>(config, "num_attention_heads", "4 is not a multiple of num_key_value_heads 3");
  expect_value_refused<FormatError>("head_dim", 15, "odd number");
  config = small_config();
  config["num_attention_heads"] = 10;
  expect_refused<FormatError>(config, "head_dim", "is missing");
}

TEST(ConfigTest, ReadsTheTextPartOfAMultimodalConfig) {
  json text = small_config();
  text["model_type"] = "gemma3_text";
  const json whole = {{"model_type", "gemma3"},
                      {"text_config", text},
                      {"eos_token_id", {1, 106}},
                      {"quantization", {{"group_size", 64}, {"bits", 4}}}};
  const ModelConfig config = parse(whole);
  EXPECT_EQ(config.model_type, "gemma3_text");
  EXPECT_EQ(config.raw, text);
  EXPECT_EQ(config.eos_ids, (std::vector<TokenId>{1, 106}));
  EXPECT_TRUE(config.quantization.has_value());
}

TEST(ConfigTest, ReadsMlxQuantizationWithOverrides) {
  const json object = {{"group_size", 64},
                       {"bits", 4},
                       {"mode", "affine"},
                       {"model.embed_tokens", {{"group_size", 32}, {"bits", 8}}},
                       {"model.layers.0.mlp.down_proj", true},
                       {"lm_head", false}};
  for (const char* key : {"quantization", "quantization_config"}) {
    const auto quantization = parse_with(key, object).quantization;
    ASSERT_TRUE(quantization.has_value());
    EXPECT_EQ(quantization->group_size, 64);
    EXPECT_EQ(quantization->bits, 4);
    ASSERT_EQ(quantization->overrides.size(), 2U);
    EXPECT_EQ(quantization->overrides.at("model.embed_tokens"), (ModuleQuantization{32, 8}));
    EXPECT_EQ(quantization->overrides.at("lm_head"), std::nullopt);
  }
}

TEST(ConfigTest, RefusesOtherQuantizations) {
  for (const char* method : {"gptq", "awq", "fp8", "mxfp4", "bitsandbytes"}) {
    json config = small_config();
    config["quantization_config"] = {{"quant_method", method}, {"bits", 4}, {"group_size", 128}};
    expect_refused<UnsupportedError>(config, "quantization_config.quant_method", method);
  }
  const auto refused = [](const json& object, const std::string& key) {
    json config = small_config();
    config["quantization"] = object;
    expect_refused<UnsupportedError>(config, "quantization." + key);
  };
  refused({{"group_size", 16}, {"bits", 4}, {"mode", "nvfp4"}}, "mode");
  refused({{"group_size", 48}, {"bits", 4}}, "group_size");
  refused({{"group_size", 64}, {"bits", 7}}, "bits");
  refused({{"group_size", 64}, {"bits", 4}, {"lm_head", {{"group_size", 64}, {"bits", 8}, {"mode", "nvfp4"}}}},
          "lm_head.mode");
  json config = small_config();
  // mlx-lm raises an error for such a value of a module, too (nn.quantize: "must return a bool or a dict"), but for
  // null, which it takes for false.
  for (const json& value : {json("x"), json(nullptr), json(4), json::array({64, 4})}) {
    config["quantization"] = {{"group_size", 64}, {"bits", 4}, {"lm_head", value}};
    expect_refused<FormatError>(config, "quantization.lm_head", "expected an object, true or false");
  }
  config["quantization"] = {{"group_size", 64}, {"bits", 9}};
  expect_refused<FormatError>(config, "quantization.bits");
  config["quantization"] = {{"bits", 4}};
  expect_refused<FormatError>(config, "quantization.group_size");
  config["quantization"] = 4;
  expect_refused<FormatError>(config, "quantization");
}

TEST(ConfigTest, RefusesTextThatIsNoObject) {
  for (const char* text : {"", "{", "[]", "1", "null", "{\"a\":1,}", "\xff"}) {
    EXPECT_THROW(parse_config(text, "config.json"), FormatError) << text;
  }
}

// Python's json module writes these tokens; transformers 5 the tagged form.
TEST(ConfigTest, RefusesAnInfiniteEpsilon) {
  const json config = small_config();
  std::string text = config.dump();
  text.insert(text.size() - 1, R"(, "time_step_limit": [0.0, Infinity], "rms_norm_eps": Infinity)");
  EXPECT_THROW(parse_config(text, "config.json"), FormatError);  // the second rms_norm_eps counts
}

TEST(ConfigTest, DamagedTextGivesAnErrorOrAConfig) {
  const auto open = [](const std::vector<std::byte>& bytes) {
    try {
      parse_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "config.json");
    } catch (const InputError&) {
    }
  };
  for (const char* name : {"/llama/config.json", "/llama/config.alt.json"}) {
    test::for_each_truncation(test::file_bytes(kData + name), open);
    test::for_each_damage(test::file_bytes(kData + name), open);
  }
}

// ---- GGUF ----

GgufBuilder small_gguf() {
  GgufBuilder file;
  file.string("general.architecture", "llama").integer("llama.block_count", 4).integer("llama.embedding_length", 48);
  file.integer("llama.feed_forward_length", 80).integer("llama.attention.head_count", 4);
  file.integer("llama.context_length", 512).number("llama.attention.layer_norm_rms_epsilon", 0.5F);
  file.number("llama.rope.freq_base", 30000.0F);
  return file;
}

// An architecture whose heads may turn in part.
GgufBuilder other_gguf() {
  GgufBuilder file;
  file.string("general.architecture", "phi3").integer("phi3.block_count", 4).integer("phi3.embedding_length", 48);
  file.integer("phi3.feed_forward_length", 80).integer("phi3.attention.head_count", 4);
  file.integer("phi3.context_length", 512).integer("phi3.vocab_size", 160);
  return file;
}

ModelConfig from_gguf(const GgufBuilder& builder) {
  return config_from_gguf(GgufFile(test::source_of(builder.bytes())));
}

template <typename Error>
void expect_gguf_refused(const GgufBuilder& builder, const std::string& key) {
  try {
    from_gguf(builder);
    ADD_FAILURE() << "accepted, expected an error about " << key;
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), key) << error.what();
  }
}

TEST(ConfigGgufTest, ReadsTheMetadata) {
  GgufBuilder file = small_gguf();
  file.integer("llama.attention.head_count_kv", 2).integer("llama.attention.key_length", 16);
  file.integer("llama.rope.dimension_count", 16).integer("llama.vocab_size", 160).integer("llama.expert_count", 8);
  file.integer("tokenizer.ggml.bos_token_id", 1).integer("tokenizer.ggml.eos_token_id", 2);
  file.integer("tokenizer.ggml.eot_token_id", 9).boolean("llama.attention.causal", true);
  const ModelConfig config = from_gguf(file);
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.n_layers, 4);
  EXPECT_EQ(config.hidden_size, 48);
  EXPECT_EQ(config.intermediate_size, 80);
  EXPECT_EQ(config.n_heads, 4);
  EXPECT_EQ(config.n_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 160);
  EXPECT_EQ(config.max_position, 512);
  EXPECT_EQ(config.rms_norm_eps, 0.5);
  EXPECT_EQ(config.sliding_window, std::nullopt);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_EQ(config.rope.theta, 30000.0);
  EXPECT_EQ(config.rope.partial_rotary_factor, 1.0);
  EXPECT_EQ(config.eos_ids, (std::vector<TokenId>{2, 9}));
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_EQ(config.raw["expert_count"], 8);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_FALSE(config.quantization.has_value());
}

TEST(ConfigGgufTest, FillsInWhatIsMissing) {
  GgufBuilder file = small_gguf();
  file.strings("tokenizer.ggml.tokens", {"a", "b", "c"}).integer("tokenizer.ggml.eos_token_id", ~0U);
  const ModelConfig config = from_gguf(file);
  EXPECT_EQ(config.n_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 12);
  EXPECT_EQ(config.vocab_size, 3);
  EXPECT_EQ(config.rope.partial_rotary_factor, 1.0);
  EXPECT_TRUE(config.eos_ids.empty());
}

TEST(ConfigGgufTest, TensorsTellTiesAndBiases) {
  GgufBuilder file = small_gguf();
  file.integer("llama.vocab_size", 160);
  file.tensor("output.weight", {8}, 0, 0).tensor("blk.0.attn_q.bias", {8}, 0, 32);
  file.data_bytes = 64;
  const ModelConfig config = from_gguf(file);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
}

TEST(ConfigGgufTest, ReadsRopeScaling) {
  GgufBuilder file = small_gguf();
  file.integer("llama.vocab_size", 160).string("llama.rope.scaling.type", "yarn");
  file.number("llama.rope.scaling.factor", 4.0F).integer("llama.rope.scaling.original_context_length", 128);
  const auto rope = from_gguf(file).rope;
  EXPECT_EQ(rope.type, "yarn");
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.original_max_position, 128);
}

// llama.cpp, src/llama-model.cpp: rope_scaling("linear") is the type where the file has none, and rope.scale_linear the
// factor where rope.scaling.factor is missing; src/llama-context.cpp: type none means a factor of 1.
TEST(ConfigGgufTest, AFactorWithoutATypeIsLinear) {
  GgufBuilder base = small_gguf();
  base.integer("llama.vocab_size", 160);
  const auto rope = [&](const auto& add) {
    GgufBuilder file = base;
    add(file);
    return from_gguf(file).rope;
  };
  const auto newer = rope([](GgufBuilder& file) { file.number("llama.rope.scaling.factor", 4); });
  EXPECT_EQ(newer.type, "linear");
  EXPECT_EQ(newer.factor, 4.0);
  const auto older = rope([](GgufBuilder& file) { file.number("llama.rope.scale_linear", 2); });
  EXPECT_EQ(older.type, "linear");
  EXPECT_EQ(older.factor, 2.0);
  const auto both =
      rope([](GgufBuilder& file) { file.number("llama.rope.scale_linear", 2).number("llama.rope.scaling.factor", 4); });
  EXPECT_EQ(both.factor, 4.0);
  EXPECT_EQ(rope([](GgufBuilder& file) { file.number("llama.rope.scaling.factor", 1); }).type, "default");
  const auto none = rope(
      [](GgufBuilder& file) { file.number("llama.rope.scaling.factor", 4).string("llama.rope.scaling.type", "none"); });
  EXPECT_EQ(none.type, "default");
  EXPECT_EQ(none.factor, 1.0);
}

// llama.cpp: yarn's factor on queries and keys is attn_factor * (1 + 0.1 ln(factor)) (ggml's rope_yarn), longrope's is
// attn_factor, and the other types' too, which memoir's rotation does not have.
TEST(ConfigGgufTest, AttentionFactorsAreReadOrRefused) {
  const auto with = [](const char* type, float attention_factor) {
    GgufBuilder file = small_gguf();
    file.integer("llama.vocab_size", 160).string("llama.rope.scaling.type", type);
    file.number("llama.rope.scaling.factor", 4).number("llama.rope.scaling.attn_factor", attention_factor);
    return file;
  };
  EXPECT_NEAR(from_gguf(with("yarn", 0.5F)).rope.attention_factor.value(), 0.5 * (1 + 0.1 * std::log(4.0)), 1e-12);
  EXPECT_EQ(from_gguf(with("longrope", 1.25F)).rope.attention_factor, 1.25);
  EXPECT_EQ(from_gguf(with("linear", 1)).rope.attention_factor, std::nullopt);
  expect_gguf_refused<UnsupportedError>(with("linear", 1.25F), "llama.rope.scaling.attn_factor");
  expect_gguf_refused<UnsupportedError>(with("none", 1.25F), "llama.rope.scaling.attn_factor");
  expect_gguf_refused<FormatError>(with("yarn", 0), "llama.rope.scaling.attn_factor");
}

// llama.cpp's llama_model_llama::load_arch_hparams reads no window; that of phi3, for one, does.
TEST(ConfigGgufTest, AWindowCountsInOtherArchitecturesThanLlama) {
  GgufBuilder file = small_gguf();
  file.integer("llama.vocab_size", 160).integer("llama.attention.sliding_window", 128);
  EXPECT_EQ(from_gguf(file).sliding_window, std::nullopt);
  GgufBuilder other = other_gguf();
  other.integer("phi3.attention.sliding_window", 128);
  EXPECT_EQ(from_gguf(other).sliding_window, 128);
}

TEST(ConfigGgufTest, AttentionThatIsNotCausalIsRefused) {
  GgufBuilder file = small_gguf();
  file.integer("llama.vocab_size", 160).boolean("llama.attention.causal", false);
  expect_gguf_refused<UnsupportedError>(file, "llama.attention.causal");
}

// The number of rotated dimensions must survive the division: transformers' int(head_dim * factor).
TEST(ConfigGgufTest, RotatedDimensionsComeBackExactly) {
  for (std::uint32_t head_dim = 2; head_dim <= 256; head_dim += 2) {
    for (std::uint32_t rotated = 2; rotated <= head_dim; rotated += 2) {
      GgufBuilder file = other_gguf();
      file.integer("phi3.attention.key_length", head_dim).integer("phi3.rope.dimension_count", rotated);
      const ModelConfig config = from_gguf(file);
      EXPECT_EQ(static_cast<std::uint32_t>(config.head_dim * config.rope.partial_rotary_factor), rotated) << head_dim;
    }
  }
}

TEST(ConfigGgufTest, SpellsArchitecturesAsHuggingFace) {
  GgufBuilder file;
  file.string("general.architecture", "qwen3moe").integer("qwen3moe.block_count", 2);
  file.integer("qwen3moe.embedding_length", 32).integer("qwen3moe.feed_forward_length", 64);
  file.integer("qwen3moe.context_length", 512).integer("qwen3moe.vocab_size", 160);
  file.integers("qwen3moe.attention.head_count", {4, 4});
  const ModelConfig config = from_gguf(file);
  EXPECT_EQ(config.model_type, "qwen3_moe");
  EXPECT_EQ(config.n_heads, 4);
}

TEST(ConfigGgufTest, RefusesWhatCannotBe) {
  expect_gguf_refused<FormatError>(GgufBuilder(), "general.architecture");
  expect_gguf_refused<FormatError>(small_gguf(), "llama.vocab_size");
  GgufBuilder base = small_gguf();
  base.integer("llama.vocab_size", 160);
  const auto with = [&](const std::string& key, std::uint32_t value) {
    GgufBuilder file = base;
    return file.integer(key, value);
  };
  expect_gguf_refused<FormatError>(with("llama.attention.head_count_kv", 3), "llama.attention.head_count");
  expect_gguf_refused<FormatError>(with("llama.attention.head_count_kv", 0), "llama.attention.head_count_kv");
  expect_gguf_refused<FormatError>(with("llama.attention.key_length", 15), "llama.attention.key_length");
  expect_gguf_refused<FormatError>(with("llama.attention.key_length", ~0U), "llama.attention.key_length");
  expect_gguf_refused<FormatError>(with("llama.rope.dimension_count", 14), "llama.rope.dimension_count");
  // llama.cpp: "invalid n_rot".
  expect_gguf_refused<UnsupportedError>(with("llama.rope.dimension_count", 6), "llama.rope.dimension_count");
  GgufBuilder odd = other_gguf();
  odd.integer("phi3.rope.dimension_count", 5);
  expect_gguf_refused<FormatError>(odd, "phi3.rope.dimension_count");
  expect_gguf_refused<FormatError>(with("tokenizer.ggml.bos_token_id", kMaxVocab + 1), "tokenizer.ggml.bos_token_id");
  expect_gguf_refused<FormatError>(with("llama.rope.scaling.type", 5), "llama.rope.scaling.type");
  expect_gguf_refused<FormatError>(with("tokenizer.ggml.eos_token_id", 1U << 30), "tokenizer.ggml.eos_token_id");
  GgufBuilder file = base;
  file.string("llama.rope.scaling.type", "spiral");
  expect_gguf_refused<UnsupportedError>(file, "llama.rope.scaling.type");
  file = base;
  file.integers("llama.attention.head_count_kv", {4, 2});
  expect_gguf_refused<UnsupportedError>(file, "llama.attention.head_count_kv");
  file = base;
  file.number("llama.rope.scaling.factor", 0.0F).string("llama.rope.scaling.type", "linear");
  expect_gguf_refused<FormatError>(file, "llama.rope.scaling.factor");
}

}  // namespace
}  // namespace memoir::model
