// The layouts that a model's tensors come in: as mlx-lm's convert writes them, quantized, with weights that predict
// further tokens beside them. Made here of the directories in Hugging Face's layout, and compared with those: the same
// bits where the values are the same. What mlx-lm changes is in its models/*.py, each "sanitize".

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/golden.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::Tensors;

// ---- What mlx-lm's convert does

bool is_convolution(const std::string& name) {
  return name.ends_with("conv1d.weight") || name.ends_with("conv.conv.weight");
}

void turn_convolutions(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (is_convolution(name)) tensor = mx::contiguous(mx::swapaxes(tensor, 1, 2));
  }
}

void add_one_to_norms(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    const bool is_norm = name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
    if (is_norm || name.ends_with("layernorm.weight")) tensor = mx::add(tensor, mx::array(1.0F));
  }
}

// Names with `part` in them, and what stands before it.
std::vector<std::string> prefixes_of(const Tensors& tensors, const std::string& part) {
  std::vector<std::string> prefixes;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(part)) prefixes.push_back(name.substr(0, name.size() - part.size()));
  }
  return prefixes;
}

mx::array taken(Tensors& tensors, const std::string& name) {
  const mx::array tensor = tensors.at(name);
  tensors.erase(name);
  return tensor;
}

void stack_experts(Tensors& tensors) {
  for (const std::string& mlp : prefixes_of(tensors, ".experts.0.up_proj.weight")) {
    for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
      std::vector<mx::array> all;
      for (int e = 0; tensors.contains(mlp + ".experts." + std::to_string(e) + "." + part + ".weight"); ++e) {
        all.push_back(taken(tensors, mlp + ".experts." + std::to_string(e) + "." + part + ".weight"));
      }
      tensors.insert_or_assign(mlp + ".switch_mlp." + part + ".weight", mx::stack(all));
    }
  }
}

// The halves of `from`.input_linear, along `axis`, and output_linear, under the names of `to`.
void split_linear(Tensors& tensors, const std::string& from, const std::string& to, int axis) {
  const std::vector<mx::array> halves = mx::split(taken(tensors, from + ".input_linear.weight"), 2, axis);
  tensors.insert_or_assign(to + ".gate_proj.weight", mx::contiguous(halves[0]));
  tensors.insert_or_assign(to + ".up_proj.weight", mx::contiguous(halves[1]));
  tensors.insert_or_assign(to + ".down_proj.weight", taken(tensors, from + ".output_linear.weight"));
}

void convert_qwen(json&, Tensors& tensors) {
  turn_convolutions(tensors);
  add_one_to_norms(tensors);
  stack_experts(tensors);
}

void convert_qwen_mm(json& config, Tensors& tensors) {
  Tensors renamed;
  const std::string kOld = "model.language_model.";
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(kOld)) renamed.emplace("language_model.model." + name.substr(kOld.size()), tensor);
  }
  tensors = renamed;
  convert_qwen(config, tensors);
}

void convert_granite(json&, Tensors& tensors) {
  turn_convolutions(tensors);
  const std::vector<std::string> mixtures = prefixes_of(tensors, ".block_sparse_moe.input_linear.weight");
  for (const std::string& layer : mixtures) {
    split_linear(tensors, layer + ".block_sparse_moe", layer + ".block_sparse_moe.switch_mlp", 1);
  }
  if (!mixtures.empty()) return;
  for (const std::string& layer : prefixes_of(tensors, ".shared_mlp.input_linear.weight")) {
    split_linear(tensors, layer + ".shared_mlp", layer + ".mlp", 0);
  }
}

void convert_others(json&, Tensors& tensors) {
  turn_convolutions(tensors);
}

// Multiplies weights by the multipliers of the configuration, but not by key_multiplier, nor the values'.
void convert_falcon(json& config, Tensors& tensors) {
  turn_convolutions(tensors);
  const auto multiplier = [&](const char* key) { return mx::array(config[key].get<float>()); };
  const int inner = config["mamba_d_ssm"];
  const int group = config["mamba_n_groups"].get<int>() * config["mamba_d_state"].get<int>();
  std::vector<mx::array> rows;
  const std::vector<int> n_rows = {inner, inner, group, group, config["mamba_n_heads"]};
  for (std::size_t i = 0; i < n_rows.size(); ++i) {
    rows.push_back(mx::full({n_rows[i], 1}, config["ssm_multipliers"][i].get<float>(), mx::float32));
  }
  const std::vector<std::pair<std::string, mx::array>> factors = {
      {"embed_tokens.weight", multiplier("embedding_multiplier")},
      {"lm_head.weight", multiplier("lm_head_multiplier")},
      {"q_proj.weight", multiplier("attention_in_multiplier")},
      {"k_proj.weight", multiplier("attention_in_multiplier")},
      {"o_proj.weight", multiplier("attention_out_multiplier")},
      {"out_proj.weight", multiplier("ssm_out_multiplier")},
      {"gate_proj.weight", mx::array(config["mlp_multipliers"][0].get<float>())},
      {"down_proj.weight", mx::array(config["mlp_multipliers"][1].get<float>())},
      {"in_proj.weight", mx::multiply(multiplier("ssm_in_multiplier"), mx::concatenate(rows, 0))}};
  for (auto& [name, tensor] : tensors) {
    for (const auto& [ending, factor] : factors) {
      if (!name.ends_with(ending)) continue;
      tensor = mx::multiply(tensor, factor);
      break;
    }
  }
}

struct Layout {
  std::string golden;
  std::function<void(json&, Tensors&)> convert;
};

std::vector<Layout> layouts() {
  return {{"qwen3_next", convert_qwen},    {"qwen3_5", convert_qwen},
          {"qwen3_5_mm", convert_qwen_mm}, {"granitemoehybrid", convert_granite},
          {"falcon_h1", convert_falcon},   {"granitemoehybrid_dense", convert_granite},
          {"mamba2", convert_others},      {"lfm2", convert_others}};
}

void edit(const test::fs::path& model, const std::function<void(json&, Tensors&)>& change) {
  test::edit_tensors(model, [&](Tensors& tensors) {
    test::edit_config(model, [&](json& config) { change(config, tensors); });
    for (auto& [name, tensor] : tensors) mx::eval(tensor);
  });
}

// With float32 rows, so that it is the weights that are compared.
mx::array logits_of(const test::fs::path& path, const std::string& golden) {
  const model::LoadedModel loaded = model::load_model(path);
  const std::vector<TokenId> prompt = test::tokens_of(test::expected_of(golden).at("prompt"));
  return test::logits_in_chunks(*loaded.model, prompt, 16, {.dtype = mx::float32});
}

// In the spelling that is plain JSON.
test::fs::path copied(const test::TemporaryFolder& folder, const std::string& golden) {
  return test::copied_model(folder, golden, golden == "mamba2" ? "config.alt.json" : "config.json");
}

class MlxLayout : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Models, MlxLayout, testing::ValuesIn(layouts()),
                         [](const auto& layout) { return layout.param.golden; });

TEST_P(MlxLayout, GivesTheBitsOfHuggingFaces) {
  const test::TemporaryFolder folder;
  const std::string& golden = GetParam().golden;
  const test::fs::path path = copied(folder, golden);
  const mx::array before = logits_of(path, golden);
  edit(path, GetParam().convert);
  const mx::array after = logits_of(path, golden);
  if (golden == "falcon_h1") {  // products are rounded elsewhere
    EXPECT_LT(test::max_difference(after, test::expected_of(golden).at("logits")), test::kTolerance);
  } else {
    EXPECT_TRUE(mx::array_equal(after, before).item<bool>()) << test::max_difference(after, before);
  }
}

// Codes of 4 bits, routers' of 8, against the values that they stand for.
TEST_P(MlxLayout, QuantizedAgreesWithItsValues) {
  const std::string& golden = GetParam().golden;
  if (golden == "lfm2") GTEST_SKIP() << "its matrices have no whole groups of columns";
  const test::TemporaryFolder folder;
  const test::fs::path path = copied(folder, golden);
  edit(path, GetParam().convert);
  int n_quantized = 0;
  Tensors codes;
  edit(path, [&](json&, Tensors& tensors) {
    for (const std::string& module : prefixes_of(tensors, ".weight")) {
      const mx::array weight = tensors.at(module + ".weight");
      if (weight.ndim() < 2 || weight.shape(-1) % 32 != 0 || is_convolution(module + ".weight")) continue;
      const int bits = module.ends_with(".gate") || module.ends_with("router.layer") ? 8 : 4;
      const std::vector<mx::array> parts = mx::quantize(weight, 32, bits);
      codes.insert_or_assign(module + ".weight", parts[0]);
      codes.insert_or_assign(module + ".scales", parts[1]);
      codes.insert_or_assign(module + ".biases", parts[2]);
      tensors.insert_or_assign(module + ".weight", mx::dequantize(parts[0], parts[1], parts[2], 32, bits));
      ++n_quantized;
    }
  });
  const mx::array expected = logits_of(path, golden);
  edit(path, [&](json& config, Tensors& tensors) {
    config["quantization"] = {{"group_size", 32}, {"bits", 4}};
    for (const auto& [name, tensor] : codes) tensors.insert_or_assign(name, tensor);
    for (const std::string& module : prefixes_of(codes, ".scales")) {
      if (!module.ends_with(".gate") && !module.ends_with("router.layer")) continue;
      config["quantization"][module] = {{"group_size", 32}, {"bits", 8}};
    }
  });
  EXPECT_GT(n_quantized, 1);
  // Codes are multiplied with activations of 16 bits, an error that random gated delta layers let grow.
  const bool has_delta_layers = golden.starts_with("qwen3_next") || golden.starts_with("qwen3_5");
  const float tolerance = has_delta_layers ? 5e-2F : test::kTolerance;
  EXPECT_LT(test::max_difference(logits_of(path, golden), expected), tolerance);
}

TEST(Layouts, WeightsThatPredictFurtherTokensArePassedOver) {
  for (const std::string golden : {"qwen3_next", "qwen3_5", "qwen3_5_mm"}) {
    const test::TemporaryFolder folder;
    const test::fs::path path = test::copied_model(folder, golden);
    edit(path, [](json&, Tensors& tensors) {
      tensors.insert_or_assign("mtp.fc.weight", mx::zeros({32, 64}));
      tensors.insert_or_assign("mtp.layers.0.input_layernorm.weight", mx::zeros({32}));
    });
    EXPECT_EQ(test::load_error(path), "no error") << golden;
  }
}

// ---- Keys that don't fit

struct Wrong {
  std::string golden;
  std::string key;
  json value;
  std::string mentions;
};

TEST(HybridConfigs, AKeyThatDoesNotFitIsNamed) {
  const std::vector<Wrong> all = {
      {"qwen3_next", "linear_num_value_heads", 3, "linear_num_value_heads"},
      {"qwen3_next", "linear_key_head_dim", 0, "linear_key_head_dim"},
      {"qwen3_next", "linear_conv_kernel_dim", 64, "linear_conv_kernel_dim"},
      {"qwen3_next", "layer_types", {"linear_attention"}, "layer_types"},
      {"qwen3_next", "num_experts_per_tok", 9, "num_experts_per_tok"},
      {"qwen3_next", "shared_expert_intermediate_size", "16", "shared_expert_intermediate_size"},
      {"qwen3_5", "hidden_act", "gelu_pytorch_tanh", "hidden_act"},
      {"falcon_h1", "mlp_multipliers", {1.0}, "mlp_multipliers"},
      {"falcon_h1", "ssm_multipliers", {1, 1, 1, 1, "1"}, "ssm_multipliers"},
      {"falcon_h1", "mamba_d_head", 15, "mamba_n_heads"},
      {"falcon_h1", "mamba_d_ssm", -1, "mamba_d_ssm"},
      {"falcon_h1", "mamba_n_groups", 3, "mamba_n_groups"},
      {"falcon_h1", "key_multiplier", "1", "key_multiplier"},
      {"falcon_h1", "time_step_limit", {2, 1}, "time_step_limit"},
      {"granitemoehybrid", "logits_scaling", 0, "logits_scaling"},
      {"granitemoehybrid", "mamba_expand", 3, "mamba_n_heads"},
      {"granitemoehybrid", "num_local_experts", -1, "num_local_experts"},
      {"granitemoehybrid", "layer_types", {"mamba", "mamba", "mamba", "mamba", "sliding"}, "layer_types"},
  };
  for (const Wrong& wrong : all) {
    const test::TemporaryFolder folder;
    const test::fs::path path = test::copied_model(folder, wrong.golden);
    test::edit_config(path, [&](json& config) { config[wrong.key] = wrong.value; });
    const std::string error = test::load_error(path);
    EXPECT_MENTIONS(error, "config.json");
    EXPECT_MENTIONS(error, wrong.mentions);
    EXPECT_NE(error, "no error") << wrong.golden << " " << wrong.key;
  }
}

}  // namespace
}  // namespace memoir
