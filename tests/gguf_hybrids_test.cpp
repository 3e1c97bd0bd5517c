// GGUF files of recurrent and hybrid families against the Hugging Face directory with the same values, as
// gguf_families_test has it. The files that llama.cpp's converter itself makes of these goldens gave transformers'
// logits to 1.2e-4, and llama.cpp's to 1.4e-4.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <map>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/model/mtp_head.h"
#include "tests/gguf_twin.h"
#include "tests/golden.h"
#include "tests/mtp_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::GgufWriter;
using test::kPreNorm;
using test::stack_qwen_experts;
using test::Tensors;
using test::Twin;

void mixer_keys(const json& config, const std::string& architecture, test::GgufBuilder& keys) {
  const bool is_mamba2 = architecture == "mamba2";
  const auto number = [&](const char* own, const char* other) {
    return config[is_mamba2 ? own : other].get<std::uint32_t>();
  };
  const auto name = [&](const char* key) { return architecture + ".ssm." + key; };
  const std::uint32_t n_heads = number("num_heads", "mamba_n_heads");
  keys.integer(name("conv_kernel"), number("conv_kernel", "mamba_d_conv"))
      .integer(name("inner_size"), n_heads * number("head_dim", "mamba_d_head"))
      .integer(name("state_size"), number("state_size", "mamba_d_state"))
      .integer(name("time_step_rank"), n_heads)
      .integer(name("group_count"), number("n_groups", "mamba_n_groups"));
}

std::string block(int index) {
  return "blk." + std::to_string(index) + ".";
}

mx::array taken(Tensors& tensors, const std::string& name) {
  const mx::array tensor = tensors.at(name);
  tensors.erase(name);
  return tensor;
}

// What the converter does to the tensors of a Mamba 2 mixer.
void take_mixer(const std::string& module, const std::string& to, int n_groups, Tensors& tensors, GgufWriter& file) {
  if (!tensors.contains(module + "A_log")) return;
  const auto row = [](const mx::array& a) { return mx::reshape(a, {-1, 1}); };
  file.floats(to + "ssm_a", row(mx::negative(mx::exp(taken(tensors, module + "A_log")))));
  file.floats(to + "ssm_d", row(taken(tensors, module + "D")));
  file.floats(to + "ssm_dt.bias", taken(tensors, module + "dt_bias"));
  file.floats(to + "ssm_conv1d.weight", mx::squeeze(taken(tensors, module + "conv1d.weight"), 1));
  file.floats(to + "ssm_conv1d.bias", taken(tensors, module + "conv1d.bias"));
  file.floats(to + "ssm_in.weight", taken(tensors, module + "in_proj.weight"));
  file.floats(to + "ssm_out.weight", taken(tensors, module + "out_proj.weight"));
  if (!tensors.contains(module + "norm.weight")) return;
  file.floats(to + "ssm_norm.weight", mx::reshape(taken(tensors, module + "norm.weight"), {n_groups, -1}));
}

void mamba2_keys(const json& config, test::GgufBuilder& keys) {
  mixer_keys(config, "mamba2", keys);
  keys.number("mamba2.attention.layer_norm_rms_epsilon", config["layer_norm_epsilon"])
      .integer("mamba2.context_length", 1U << 20U)
      .integer("mamba2.feed_forward_length", 0)
      .integer("mamba2.attention.head_count", 0);
}

void take_mamba2(const json& config, Tensors& tensors, GgufWriter& file) {
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string layer = "backbone.layers." + std::to_string(i) + ".";
    take_mixer(layer + "mixer.", block(i), config["n_groups"], tensors, file);
    file.floats(block(i) + "attn_norm.weight", taken(tensors, layer + "norm.weight"));
  }
}

// The converter multiplies weights by the multipliers. Here there are none, so that the bits are the same.
void without_multipliers(json& config, Tensors&) {
  for (auto& [key, value] : config.items()) {
    if (key.ends_with("_multiplier")) value = 1.0;
    if (key.ends_with("_multipliers")) value = json(value.size(), 1.0);
  }
}

void falcon_keys(const json& config, test::GgufBuilder& keys) {
  mixer_keys(config, "falcon-h1", keys);
}

void take_mixers(const json& config, Tensors& tensors, GgufWriter& file) {
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    take_mixer("model.layers." + std::to_string(i) + ".mamba.", block(i), config["mamba_n_groups"], tensors, file);
  }
}

void take_falcon(const json& config, Tensors& tensors, GgufWriter& file) {
  take_mixers(config, tensors, file);
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string norm = "model.layers." + std::to_string(i) + ".pre_ff_layernorm.weight";
    file.floats(block(i) + "ffn_norm", taken(tensors, norm));  // without a suffix
  }
}

void granite_keys(const json& config, test::GgufBuilder& keys) {
  mixer_keys(config, "granitehybrid", keys);
  keys.number("granitehybrid.attention.scale", config["attention_multiplier"])
      .number("granitehybrid.embedding_scale", config["embedding_multiplier"])
      .number("granitehybrid.residual_scale", config["residual_multiplier"])
      .number("granitehybrid.logit_scale", config["logits_scaling"])
      .boolean("granitehybrid.rope.scaling.finetuned", false);
  if (config["num_local_experts"] == 0) return;
  keys.integer("granitehybrid.expert_count", config["num_local_experts"])
      .integer("granitehybrid.expert_used_count", config["num_experts_per_tok"])
      .integer("granitehybrid.expert_shared_feed_forward_length", config["shared_intermediate_size"]);
}

// Rows by turns, as for Llama.
mx::array permuted(const mx::array& a, int n_heads) {
  const int half = a.shape(0) / n_heads / 2;
  return mx::reshape(mx::swapaxes(mx::reshape(a, {n_heads, 2, half, a.shape(1)}), 1, 2), a.shape());
}

void take_granite(const json& config, Tensors& tensors, GgufWriter& file) {
  take_mixers(config, tensors, file);
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.";
    if (tensors.contains(attention + "q_proj.weight")) {
      for (const auto& [name, key] : {std::pair("q", "num_attention_heads"), std::pair("k", "num_key_value_heads")}) {
        mx::array& rows = tensors.at(attention + name + "_proj.weight");
        rows = permuted(rows, config[key]);
      }
    }
    const bool has_experts = config["num_local_experts"] != 0;
    const std::string suffix = has_experts ? "_shexp.weight" : ".weight";
    const auto split = [&](const std::string& module, int axis, const std::string& ending) {
      const std::vector<mx::array> halves = mx::split(taken(tensors, layer + module + ".input_linear.weight"), 2, axis);
      file.floats(block(i) + "ffn_gate" + ending, halves[0]);
      file.floats(block(i) + "ffn_up" + ending, halves[1]);
      file.floats(block(i) + "ffn_down" + ending, taken(tensors, layer + module + ".output_linear.weight"));
    };
    split("shared_mlp", 0, suffix);
    if (has_experts) split("block_sparse_moe", 1, "_exps.weight");
  }
}

void lfm2_keys(const json& config, test::GgufBuilder& keys) {
  keys.integer("lfm2.shortconv.l_cache", config["conv_L_cache"])
      .number("lfm2.attention.layer_norm_rms_epsilon", config["norm_eps"]);
}

void take_convolutions(const json&, Tensors& tensors, GgufWriter&) {
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("conv.conv.weight")) tensor = mx::squeeze(tensor, 1);
  }
}

void delta_keys(const json& config, const std::string& architecture, test::GgufBuilder& keys) {
  const auto name = [&](const char* key) { return architecture + "." + key; };
  const auto number = [&](const char* key) { return config[key].get<std::uint32_t>(); };
  const json& rope = config.contains("rope_parameters") ? config["rope_parameters"] : config;
  keys.integer(name("ssm.conv_kernel"), number("linear_conv_kernel_dim"))
      .integer(name("ssm.state_size"), number("linear_key_head_dim"))
      .integer(name("ssm.group_count"), number("linear_num_key_heads"))
      .integer(name("ssm.time_step_rank"), number("linear_num_value_heads"))
      .integer(name("ssm.inner_size"), number("linear_value_head_dim") * number("linear_num_value_heads"))
      .integer(name("full_attention_interval"), number("full_attention_interval"))
      .integer(name("rope.dimension_count"),
               static_cast<std::uint32_t>(rope["partial_rotary_factor"].get<double>() * number("head_dim")));
}

void qwen3_next_keys(const json& config, test::GgufBuilder& keys) {
  delta_keys(config, "qwen3next", keys);
  keys.integer("qwen3next.expert_count", config["num_experts"])
      .integer("qwen3next.expert_used_count", config["num_experts_per_tok"])
      .integer("qwen3next.expert_feed_forward_length", config["moe_intermediate_size"])
      .integer("qwen3next.expert_shared_feed_forward_length", config["shared_expert_intermediate_size"]);
}

void qwen3_5_keys(const json& config, test::GgufBuilder& keys) {
  delta_keys(config, "qwen35", keys);
}

void add_one_to_norms(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    const bool is_plain = name.ends_with("linear_attn.norm.weight") || !name.ends_with("norm.weight");
    if (!is_plain) tensor = mx::add(tensor, mx::array(1.0F));
  }
}

void take_qwen3_next(const json& config, Tensors& tensors, GgufWriter& file) {
  add_one_to_norms(tensors);
  stack_qwen_experts(config, tensors, file);
  const int n_heads = config["linear_num_key_heads"];
  const int key_dim = config["linear_key_head_dim"];
  const int n_values =
      config["linear_num_value_heads"].get<int>() / n_heads * config["linear_value_head_dim"].get<int>();
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string module = "model.layers." + std::to_string(i) + ".linear_attn.";
    mx::array& gate = tensors.at("model.layers." + std::to_string(i) + ".mlp.shared_expert_gate.weight");
    gate = mx::flatten(gate);
    if (!tensors.contains(module + "A_log")) continue;
    const mx::array all = taken(tensors, module + "in_proj_qkvz.weight");
    const int hidden = all.shape(1);
    const std::vector<mx::array> parts =
        mx::split(mx::reshape(all, {n_heads, -1, hidden}), {key_dim, 2 * key_dim, 2 * key_dim + n_values}, 1);
    const auto rows = [&](std::size_t part) { return mx::reshape(parts[part], {-1, hidden}); };
    file.floats(block(i) + "attn_qkv.weight", mx::concatenate({rows(0), rows(1), rows(2)}, 0));
    file.floats(block(i) + "attn_gate.weight", rows(3));
    file.floats(block(i) + "ssm_a", mx::negative(mx::exp(taken(tensors, module + "A_log"))));
    file.floats(block(i) + "ssm_dt.bias", taken(tensors, module + "dt_bias"));
    file.floats(block(i) + "ssm_conv1d.weight", mx::squeeze(taken(tensors, module + "conv1d.weight"), 1));
  }
}

// Qwen3.5's value heads come in another order: the first of each key head, the second of each, and so on.
void take_qwen3_5(const json& config, Tensors& tensors, GgufWriter& file) {
  add_one_to_norms(tensors);
  const int n_keys = config["linear_num_key_heads"];
  const int n_key_rows = 2 * n_keys * config["linear_key_head_dim"].get<int>();
  const auto tiled = [&](const mx::array& a, int axis) {
    mx::Shape shape = a.shape();
    shape[static_cast<std::size_t>(axis)] = n_keys;
    const int n_times = config["linear_num_value_heads"].get<int>() / n_keys;
    shape.insert(shape.begin() + axis + 1, {n_times, a.shape(axis) / n_keys / n_times});
    return mx::reshape(mx::swapaxes(mx::reshape(a, shape), axis, axis + 1), a.shape());
  };
  const auto with_tiled_values = [&](const mx::array& a) {
    const std::vector<mx::array> parts = mx::split(a, mx::Shape{n_key_rows}, 0);
    return mx::concatenate({parts[0], tiled(parts[1], 0)}, 0);
  };
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string module = "model.layers." + std::to_string(i) + ".linear_attn.";
    if (!tensors.contains(module + "A_log")) continue;
    const auto take = [&](const std::string& name) { return taken(tensors, module + name); };
    file.floats(block(i) + "attn_qkv.weight", with_tiled_values(take("in_proj_qkv.weight")));
    file.floats(block(i) + "attn_gate.weight", tiled(take("in_proj_z.weight"), 0));
    file.floats(block(i) + "ssm_beta.weight", tiled(take("in_proj_b.weight"), 0));
    file.floats(block(i) + "ssm_alpha.weight", tiled(take("in_proj_a.weight"), 0));
    file.floats(block(i) + "ssm_a", tiled(mx::negative(mx::exp(take("A_log"))), 0));
    file.floats(block(i) + "ssm_dt.bias", tiled(take("dt_bias"), 0));
    file.floats(block(i) + "ssm_conv1d.weight", with_tiled_values(mx::squeeze(take("conv1d.weight"), 1)));
    file.floats(block(i) + "ssm_out.weight", tiled(take("out_proj.weight"), 1));
  }
}

std::vector<Twin> twins() {
  return {
      {"mamba2",
       "mamba2",
       {{"backbone.embeddings", "token_embd"}, {"backbone.norm_f", "output_norm"}},
       {},
       mamba2_keys,
       take_mamba2},
      {"falcon_h1",
       "falcon-h1",
       {{"model.final_layernorm", "output_norm"},
        {"feed_forward.gate_proj", "ffn_gate"},
        {"feed_forward.up_proj", "ffn_up"},
        {"feed_forward.down_proj", "ffn_down"}},
       without_multipliers,
       falcon_keys,
       take_falcon},
      {"granitemoehybrid",
       "granitehybrid",
       {{"post_attention_layernorm", "ffn_norm"}, {"block_sparse_moe.router.layer", "ffn_gate_inp"}},
       {},
       granite_keys,
       take_granite},
      {"granitemoehybrid_dense", "granitehybrid", kPreNorm, {}, granite_keys, take_granite},
      {"lfm2",
       "lfm2",
       {{"model.embedding_norm", "token_embd_norm"},
        {"operator_norm", "attn_norm"},
        {"self_attn.out_proj", "attn_output"},
        {"self_attn.q_layernorm", "attn_q_norm"},
        {"self_attn.k_layernorm", "attn_k_norm"},
        {"conv.in_proj", "shortconv.in_proj"},
        {"conv.conv", "shortconv.conv"},
        {"conv.out_proj", "shortconv.out_proj"},
        {"ffn_norm", "ffn_norm"},
        {"feed_forward.w1", "ffn_gate"},
        {"feed_forward.w3", "ffn_up"},
        {"feed_forward.w2", "ffn_down"}},
       {},
       lfm2_keys,
       take_convolutions},
      {"qwen3_next",
       "qwen3next",
       {{"post_attention_layernorm", "post_attention_norm"},
        {"linear_attn.in_proj_ba", "ssm_ba"},
        {"linear_attn.norm", "ssm_norm"},
        {"linear_attn.out_proj", "ssm_out"},
        {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
        {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
        {"mlp.shared_expert.down_proj", "ffn_down_shexp"}},
       {},
       qwen3_next_keys,
       take_qwen3_next},
      {"qwen3_5",
       "qwen35",
       {{"post_attention_layernorm", "post_attention_norm"}, {"linear_attn.norm", "ssm_norm"}},
       {},
       qwen3_5_keys,
       take_qwen3_5,
       true},
  };
}

class GgufHybrid : public testing::TestWithParam<Twin> {};
INSTANTIATE_TEST_SUITE_P(Architectures, GgufHybrid, testing::ValuesIn(twins()),
                         [](const auto& twin) { return twin.param.golden; });

TEST_P(GgufHybrid, GivesTheBitsOfTheDirectoryWithTheSameValues) {
  test::expect_same_logits(GetParam());
}

// ---- Heads that predict further tokens: a block behind the model's, as convert_hf_to_gguf.py has it

// The head's tensors of tests/data/mtp, by the file's names, in block n_layers.
void add_head(const Twin& twin, const json& config, GgufWriter& file, int n_head_layers) {
  const int n_layers = config["num_hidden_layers"];
  Tensors tensors = mx::load_safetensors((test::data("mtp") / (twin.golden + ".safetensors")).string()).first;
  add_one_to_norms(tensors);
  for (const char* name : {"mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"}) {
    tensors.at(name) = mx::add(tensors.at(name), mx::array(1.0F));
  }
  Tensors of_layer;
  const std::string kLayer = "mtp.layers.0.";
  const std::map<std::string, std::string> kOthers = {{"mtp.fc.weight", "nextn.eh_proj.weight"},
                                                      {"mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"},
                                                      {"mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"},
                                                      {"mtp.norm.weight", "nextn.shared_head_norm.weight"}};
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(kLayer)) {
      of_layer.emplace("model.layers.0." + name.substr(kLayer.size()), tensor);
    } else {
      file.floats(block(n_layers) + kOthers.at(name), tensor);
    }
  }
  if (of_layer.contains("model.layers.0.mlp.gate.weight")) {
    for (const std::string part : {"gate", "up", "down"}) {
      std::vector<mx::array> experts;
      for (int e = 0; e < config["num_experts"]; ++e) {
        experts.push_back(
            taken(of_layer, "model.layers.0.mlp.experts." + std::to_string(e) + "." + part + "_proj.weight"));
      }
      file.floats(block(n_layers) + "ffn_" + part + "_exps.weight", mx::stack(experts));
    }
    mx::array& gate = of_layer.at("model.layers.0.mlp.shared_expert_gate.weight");
    gate = mx::flatten(gate);
  }
  for (const auto& [name, tensor] : of_layer) {
    file.floats(block(n_layers) + test::gguf_name(name, twin).substr(block(0).size()), tensor);
  }
  file.keys.integer(twin.architecture + ".nextn_predict_layers", n_head_layers);
}

class GgufHead : public testing::TestWithParam<std::string> {
 protected:
  Twin twin(int n_head_layers) const {
    Twin twin;
    for (const Twin& one : twins()) {
      if (one.golden == GetParam()) twin = one;
    }
    twin.n_more_blocks = n_head_layers;
    twin.take = [plain = twin, n_head_layers](const json& config, Tensors& tensors, GgufWriter& file) {
      plain.take(config, tensors, file);
      add_head(plain, config, file, n_head_layers);
    };
    return twin;
  }

  test::TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Models, GgufHead, testing::Values("qwen3_next", "qwen3_5"),
                         [](const auto& param) { return param.param; });

TEST_P(GgufHead, GivesTheBitsOfTheDirectoryWithTheSameValues) {
  const test::fs::path file = test::make_twin(folder_, twin(1)) / "model.gguf";
  const test::fs::path directory = test::model_with_head(folder_.path() / "with_head", GetParam());
  const auto model = model::load_model(directory).model;
  const auto states_of = [&](const test::fs::path& path) {
    const auto head = model::load_mtp_head(path);
    cache::ModelCache cache = head->make_cache();
    const mx::array ids = mx::reshape(mx::astype(mx::arange(3, 40), mx::int32), {1, -1});
    const mx::array embeddings = model->embed(ids);
    return head->forward(embeddings, mx::negative(embeddings), cache);
  };
  EXPECT_TRUE(mx::array_equal(states_of(file), states_of(directory)).item<bool>());
  EXPECT_NO_THROW(test::load_gguf(file));  // the model passes it over
}

TEST_P(GgufHead, OneOfSeveralLayersIsRefusedByItsKey) {
  const test::fs::path file = test::make_twin(folder_, twin(2)) / "model.gguf";
  try {
    model::load_mtp_head(file);
    FAIL();
  } catch (const UnsupportedError& error) {
    EXPECT_MENTIONS(std::string(error.what()), "nextn_predict_layers: the head has 2 layers, expected one");
  }
}

}  // namespace
}  // namespace memoir
