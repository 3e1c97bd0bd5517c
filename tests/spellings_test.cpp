// One model under every spelling of its configuration that checkpoints have: the same bits as under the spelling that
// families_test holds against transformers.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/golden.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::copied_model;
using test::edit_config;
using test::edit_tensors;
using test::TemporaryFolder;
using test::Tensors;

struct Spelling {
  std::string name;
  std::string golden;
  std::string config;  // in its folder
  std::function<void(json&)> change;
  std::function<void(Tensors&)> rename = {};
};

mx::array logits_of(const test::fs::path& path) {
  const model::LoadedModel loaded = model::load_model(path);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back((i * 37 + 11) % loaded.model->config().vocab_size);
  return test::logits_in_chunks(*loaded.model, tokens, tokens.size());
}

std::function<void(json&)> with(const char* key, json value) {
  return [key, value = std::move(value)](json& config) { config[key] = value; };
}

std::function<void(json&)> without(const char* key) {
  return [key](json& config) {
    ASSERT_TRUE(config.contains(key)) << key;
    config.erase(key);
  };
}

std::function<void(json&)> both(const std::function<void(json&)>& first, const std::function<void(json&)>& second) {
  return [first, second](json& config) {
    first(config);
    second(config);
  };
}

// The configuration as the text part of a whole, whose type it has not.
std::function<void(json&)> wrapped(const std::string& whole, bool has_type) {
  return [whole, has_type](json& config) {
    json text = config;
    if (!has_type) text.erase("model_type");
    config = {{"model_type", whole}, {"text_config", text}, {"vision_config", {{"hidden_size", 8}}}};
  };
}

// The text part alone, under the whole's name.
void unwrap(json& config) {
  json text = config["text_config"];
  text["model_type"] = config["model_type"];
  config = text;
}

// "model." -> "model.language_model."; beside them what another part has.
void rename_as_transformers(Tensors& tensors) {
  Tensors renamed;
  for (const auto& [name, tensor] : tensors) {
    renamed.emplace(name.starts_with("model.") ? "model.language_model." + name.substr(6) : name, tensor);
  }
  renamed.emplace("model.vision_tower.patch_embedding.weight", mx::ones({4, 4}));
  renamed.emplace("model.multi_modal_projector.linear_1.weight", mx::ones({4, 4}));
  tensors = renamed;
}

// As published by Mistral.
void rename_as_published(Tensors& tensors) {
  Tensors renamed;
  for (const auto& [name, tensor] : tensors) renamed.emplace("language_model." + name, tensor);
  renamed.emplace("vision_tower.patch_conv.weight", mx::ones({4, 4}));
  tensors = renamed;
}

// RoPE numbers that stand among the other keys, as one set of parameters.
void gather_rope(json& config) {
  json rope = config.value("rope_scaling", json());
  if (!rope.is_object()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = config["rope_theta"];
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
}

// Of Gemma 3: the numbers of one kind of layer among the parameters, those of the other beside them.
void leave_local_rope(json& config) {
  json& rope = config["rope_parameters"];
  config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"];
  rope["sliding_attention"] = nullptr;
}

std::vector<Spelling> flat_names() {
  std::vector<Spelling> all;
  for (const auto& [golden, type] : std::map<std::string, std::string>{{"gemma3", "gemma3"},
                                                                       {"gemma4", "gemma4"},
                                                                       {"gemma4_moe", "gemma4"},
                                                                       {"llama4", "llama4"},
                                                                       {"qwen3_5", "qwen3_5"},
                                                                       {"qwen3_5_moe", "qwen3_5_moe"}}) {
    all.push_back({golden + "_under_the_name_of_the_whole", golden, "config.json", with("model_type", type)});
    all.push_back({golden + "_wrapped", golden, "config.json", wrapped(type, true), rename_as_transformers});
    all.push_back(
        {golden + "_wrapped_without_a_type", golden, "config.alt.json", wrapped(type, false), rename_as_published});
    all.push_back({golden + "_with_names_of_a_whole", golden, "config.json", [](json&) {}, rename_as_transformers});
  }
  for (const char* golden : {"gemma3_mm", "gemma4_mm", "gemma4_unified_mm", "llama4_mm", "qwen3_5_mm"}) {
    all.push_back({std::string(golden) + "_unwrapped", golden, "config.json", unwrap});
    all.push_back({std::string(golden) + "_second_unwrapped", golden, "config.alt.json", unwrap});
  }
  return all;
}

std::vector<Spelling> spellings() {
  std::vector<Spelling> all = flat_names();
  const std::vector<Spelling> more = {
      {"mistral_in_mistral3", "mistral", "config.json", wrapped("mistral3", true), rename_as_published},
      {"mistral_in_mistral3_without_a_type", "mistral", "config.alt.json", wrapped("mistral3", false),
       rename_as_transformers},
      {"llama_in_llava", "llama", "config.json", wrapped("llava", true), rename_as_published},
      {"cohere2_in_cohere2_vision", "cohere2", "config.json", wrapped("cohere2_vision", false), rename_as_transformers},
      {"lfm2_in_lfm2_vl", "lfm2", "config.json", wrapped("lfm2_vl", false), rename_as_transformers},
      {"llama_rope_parameters", "llama", "config.json", gather_rope},
      {"mistral_rope_parameters", "mistral", "config.json", gather_rope},
      {"deepseek_v3_rope_parameters", "deepseek_v3", "config.json", gather_rope},
      {"gpt_oss_rope_parameters", "gpt_oss", "config.json", gather_rope},
      {"cohere2_rope_parameters", "cohere2", "config.json", gather_rope},
      {"llama4_rope_parameters", "llama4", "config.json", gather_rope},
      {"gemma3_null_among_rope_parameters", "gemma3", "config.alt.json", leave_local_rope},
      {"gemma3_rope_parameters_of_full_layers", "gemma3", "config.json", gather_rope},
      {"qwen3_5_interval", "qwen3_5", "config.json", without("layer_types")},
      {"qwen3_5_moe_interval", "qwen3_5_moe", "config.json",
       both(without("layer_types"), with("full_attention_interval", 3))},
      {"qwen3_next_interval", "qwen3_next", "config.json",
       both(with("layer_types", nullptr), with("full_attention_interval", 3))},
      {"cohere2_pattern", "cohere2", "config.json",
       both(with("layer_types", nullptr), with("sliding_window_pattern", 2))},
      {"gpt_oss_pattern", "gpt_oss", "config.json", without("layer_types")},
      {"gpt_oss_num_experts", "gpt_oss", "config.json", both(without("num_local_experts"), with("num_experts", 4))},
      {"granite_older_layer_types", "granitemoehybrid", "config.json",
       both(with("layer_types", nullptr),
            with("layers_block_type", {"mamba", "attention", "mamba", "mamba", "attention"}))},
      {"lfm2_full_attn_idxs", "lfm2", "config.json",
       both(with("layer_types", nullptr), with("full_attn_idxs", {2, 4}))},
      {"lfm2_block_ff_dim", "lfm2", "config.json", both(without("intermediate_size"), with("block_ff_dim", 60))},
      {"lfm2_tie_embedding", "lfm2", "config.json",
       both(with("tie_word_embeddings", false), with("tie_embedding", true))},
      {"deepseek_v3_num_local_experts", "deepseek_v3", "config.json",
       both(without("n_routed_experts"), with("num_local_experts", 8))},
      {"llama4_no_rope_interval", "llama4", "config.json",
       both(with("layer_types", nullptr),
            both(with("no_rope_layers", json::array()), with("no_rope_layer_interval", 4)))},
      {"llama4_temperature_as_a_number", "llama4", "config.json", with("attn_temperature_tuning", 4)},
  };
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class SpellingTest : public testing::TestWithParam<Spelling> {};
INSTANTIATE_TEST_SUITE_P(Configurations, SpellingTest, testing::ValuesIn(spellings()),
                         [](const auto& spelling) { return spelling.param.name; });

TEST_P(SpellingTest, GivesTheSameBits) {
  const Spelling& spelling = GetParam();
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, spelling.golden, spelling.config);
  edit_config(path, spelling.change);
  if (spelling.rename) edit_tensors(path, spelling.rename);
  EXPECT_TRUE(mx::array_equal(logits_of(path), logits_of(test::data(spelling.golden))).item<bool>());
}

// Numbers other than 0 mean yes.
TEST(Llama4Config, ATemperatureOfZeroIsNone) {
  std::vector<mx::array> logits;
  for (const json& value : {json(0), json(false), json(true)}) {
    const TemporaryFolder folder;
    const test::fs::path path = copied_model(folder, "llama4");
    edit_config(path, with("attn_temperature_tuning", value));
    logits.push_back(logits_of(path));
  }
  EXPECT_TRUE(mx::array_equal(logits[0], logits[1]).item<bool>());
  EXPECT_FALSE(mx::array_equal(logits[0], logits[2]).item<bool>());
}

}  // namespace
}  // namespace memoir
