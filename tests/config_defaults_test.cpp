// Configurations that leave keys out, or spell them otherwise, against what transformers' configuration classes
// understand (tests/data/config_defaults).

#include "memoir/model/config_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/model/config.h"
#include "memoir/model/layer_pattern.h"

namespace memoir::model {
namespace {

using nlohmann::json;

const std::string kData = MEMOIR_TEST_DATA;

json all_cases() {
  return json::parse(read_text_file(kData + "/config_defaults/defaults.json"));
}

ModelConfig parse(const json& value) {
  return parse_config(value.dump(), "config.json");
}

// Said in another way in `understood`: compared as parts of a ModelConfig, or a rule for what the file can't know.
const std::set<std::string> kSaidOtherwise = {"rope_theta",
                                              "rope_scaling",
                                              "rope_parameters",
                                              "rope_local_base_freq",
                                              "partial_rotary_factor",
                                              "full_attention_interval",
                                              "sliding_window_pattern",
                                              "global_head_dim",
                                              "mamba_d_head",
                                              "eos_token_id",
                                              "bos_token_id",
                                              "sliding_window"};

void expect_same_rope(const RopeConfig& rope, const RopeConfig& expected) {
  EXPECT_EQ(rope.type, expected.type);
  EXPECT_EQ(rope.theta, expected.theta);
  EXPECT_EQ(rope.factor, expected.factor);
  EXPECT_EQ(rope.partial_rotary_factor, expected.partial_rotary_factor);
  EXPECT_EQ(rope.original_max_position, expected.original_max_position);
  EXPECT_EQ(rope.truncate, expected.truncate);
}

void expect_same(const ModelConfig& config, const ModelConfig& expected) {
  EXPECT_EQ(config.model_type, expected.model_type);
  EXPECT_EQ(config.n_layers, expected.n_layers);
  EXPECT_EQ(config.hidden_size, expected.hidden_size);
  EXPECT_EQ(config.intermediate_size, expected.intermediate_size);
  EXPECT_EQ(config.n_heads, expected.n_heads);
  EXPECT_EQ(config.n_kv_heads, expected.n_kv_heads);
  EXPECT_EQ(config.head_dim, expected.head_dim);
  EXPECT_EQ(config.vocab_size, expected.vocab_size);
  EXPECT_EQ(config.max_position, expected.max_position);
  EXPECT_EQ(config.rms_norm_eps, expected.rms_norm_eps);
  EXPECT_EQ(config.tie_embeddings, expected.tie_embeddings);
  EXPECT_EQ(config.attention_bias, expected.attention_bias);
  EXPECT_EQ(config.mlp_bias, expected.mlp_bias);
  EXPECT_EQ(config.hidden_act, expected.hidden_act);
  EXPECT_EQ(config.sliding_window, expected.sliding_window);
  expect_same_rope(config.rope, expected.rope);
  if (config.model_type == "llama" || config.model_type == "mistral") return;  // no default ids
  EXPECT_EQ(config.eos_ids, expected.eos_ids);
  EXPECT_EQ(config.bos_id, expected.bos_id);
}

TEST(ConfigDefaults, AreThoseOfTransformers) {
  const json cases = all_cases();
  ASSERT_GT(cases.size(), 100U);
  for (const auto& [name, one] : cases.items()) {
    SCOPED_TRACE(name);
    const json& understood = one["understood"];
    const ModelConfig config = parse(one["given"]);
    expect_same(config, parse(understood));
    for (const auto& [key, value] : config_defaults(understood["model_type"].get<std::string>()).items()) {
      if (kSaidOtherwise.contains(key)) continue;
      const char* other = key == "num_experts" && !understood.contains(key) ? "num_local_experts" : key.c_str();
      const bool class_has_none = !understood.contains(other) && value == false;
      EXPECT_TRUE(class_has_none || config.family_keys[key] == understood.value(other, json()))
          << key << " is " << config.family_keys[key];
    }
  }
}

TEST(ConfigDefaults, APatternMayBeANumber) {
  const json cases = all_cases();
  for (const char* name : {"gemma3_text", "gemma3_text_pattern", "cohere2", "cohere2_pattern", "gemma3"}) {
    const json& understood = cases[name]["understood"];
    EXPECT_EQ(json(sliding_pattern(parse(cases[name]["given"]))), understood["layer_types"]) << name;
    EXPECT_EQ(json(sliding_pattern(parse(understood))), understood["layer_types"]) << name;
  }
}

TEST(ConfigDefaults, TheNameOfTheWholeMeansItsTextPart) {
  const json cases = all_cases();
  for (const auto& [name, one] : cases.items()) {
    if (!one["given"].contains("text_config")) continue;
    SCOPED_TRACE(name);
    json flat = one["given"]["text_config"];
    flat["model_type"] = one["given"]["model_type"];
    expect_same(parse(flat), parse(one["understood"]));
    json nested = {{"model_type", "anything"}, {"text_config", flat}};
    expect_same(parse(nested), parse(one["understood"]));
  }
}

// The class's token is for files that name none: others would end texts at a word of theirs.
TEST(ConfigDefaults, TokensOfOtherFilesComeBeforeTheDefault) {
  const auto directory = std::filesystem::path(testing::TempDir()) / "memoir_config_defaults_test";
  std::filesystem::create_directories(directory);
  json config = all_cases()["llama4_text"]["given"];
  std::ofstream(directory / "config.json") << config.dump();
  EXPECT_EQ(read_config(directory).eos_ids, std::vector<TokenId>{2});
  EXPECT_EQ(read_config(directory).bos_id, 1);
  std::ofstream(directory / "generation_config.json")
      << R"({"eos_token_id": [200001, 200008], "bos_token_id": 200000})";
  EXPECT_EQ(read_config(directory).eos_ids, (std::vector<TokenId>{200001, 200008}));
  EXPECT_EQ(read_config(directory).bos_id, 200000);
  config["eos_token_id"] = nullptr;  // which overrides the default
  std::ofstream(directory / "config.json") << config.dump();
  std::filesystem::remove(directory / "generation_config.json");
  EXPECT_TRUE(read_config(directory).eos_ids.empty());
  std::filesystem::remove_all(directory);
}

TEST(ConfigDefaults, RopeKeyedByLayerTypeMayBeWrong) {
  json config = all_cases()["gemma3_text"]["given"];
  config["rope_parameters"] = {{"full_attention", 5}};
  try {
    parse(config);
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_EQ(error.key(), "rope_parameters.full_attention");
  }
  config["rope_parameters"] = {{"full_attention", nullptr}, {"sliding_attention", nullptr}};
  EXPECT_EQ(parse(config).rope.theta, 1e6);
  EXPECT_TRUE(parse(config).layer_ropes.empty());
}

}  // namespace
}  // namespace memoir::model
