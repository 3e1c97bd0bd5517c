// GGUF files of DeepSeek-V3, Llama 4 and Gemma 4 against the Hugging Face directory with the same values: the same
// bits. Names, keys and what is done to values are those of llama.cpp's converter (conversion/deepseek.py, llama.py,
// gemma.py; before April 2025 convert_hf_to_gguf.py left DeepSeek's kv_b_proj whole).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "tests/gguf_twin.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::GgufWriter;
using test::kPreNorm;
using test::Tensors;
using test::Twin;

mx::array taken(Tensors& tensors, const std::string& name) {
  const mx::array tensor = tensors.at(name);
  tensors.erase(name);
  return tensor;
}

mx::array rows(const mx::array& a, int axis, int begin, int end) {
  mx::Shape from(a.ndim(), 0);
  mx::Shape to = a.shape();
  from[static_cast<std::size_t>(axis)] = begin;
  to[static_cast<std::size_t>(axis)] = end;
  return mx::slice(a, from, to);
}

// ---- DeepSeek-V3 ----

const std::map<std::string, std::string> kDeepseekNames = {{"post_attention_layernorm", "ffn_norm"},
                                                           {"self_attn.q_a_proj", "attn_q_a"},
                                                           {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                                                           {"self_attn.q_b_proj", "attn_q_b"},
                                                           {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                                           {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                                                           {"self_attn.kv_b_proj", "attn_kv_b"},
                                                           {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                                                           {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                                                           {"mlp.shared_experts.down_proj", "ffn_down_shexp"}};

void deepseek_keys(const json& config, test::GgufBuilder& keys) {
  const json& rope = config["rope_scaling"];
  keys.integer("deepseek2.feed_forward_length", config["intermediate_size"])
      .integer("deepseek2.attention.head_count", config["num_attention_heads"])
      .integer("deepseek2.context_length", config["max_position_embeddings"])
      .number("deepseek2.rope.freq_base", config["rope_theta"])
      .number("deepseek2.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
      .integer("deepseek2.leading_dense_block_count", config["first_k_dense_replace"])
      .integer("deepseek2.attention.kv_lora_rank", config["kv_lora_rank"])
      .integer("deepseek2.expert_feed_forward_length", config["moe_intermediate_size"])
      .integer("deepseek2.expert_count", config["n_routed_experts"])
      .integer("deepseek2.expert_used_count", config["num_experts_per_tok"])
      .integer("deepseek2.expert_shared_count", config["n_shared_experts"])
      .number("deepseek2.expert_weights_scale", config["routed_scaling_factor"])
      .boolean("deepseek2.expert_weights_norm", true)
      .integer("deepseek2.expert_gating_func", 2)
      .integer("deepseek2.rope.dimension_count", config["qk_rope_head_dim"])
      .string("deepseek2.rope.scaling.type", "yarn")
      .number("deepseek2.rope.scaling.factor", rope["factor"])
      .integer("deepseek2.rope.scaling.original_context_length", rope["original_max_position_embeddings"])
      .number("deepseek2.rope.scaling.yarn_log_multiplier", 0.1F * rope["mscale_all_dim"].get<float>());
  if (config["q_lora_rank"].is_number()) keys.integer("deepseek2.attention.q_lora_rank", config["q_lora_rank"]);
}

void keys_of_whole_files(const json& config, test::GgufBuilder& keys) {
  deepseek_keys(config, keys);
  keys.integer("deepseek2.attention.head_count_kv", config["num_key_value_heads"])
      .integer("deepseek2.attention.key_length",
               config["qk_nope_head_dim"].get<unsigned>() + config["qk_rope_head_dim"].get<unsigned>())
      .integer("deepseek2.attention.value_length", config["v_head_dim"]);
}

void keys_of_split_files(const json& config, test::GgufBuilder& keys) {
  deepseek_keys(config, keys);
  const auto rank = config["kv_lora_rank"].get<unsigned>();
  const auto turned = config["qk_rope_head_dim"].get<unsigned>();
  keys.integer("deepseek2.attention.head_count_kv", 1)
      .integer("deepseek2.attention.key_length", rank + turned)
      .integer("deepseek2.attention.value_length", rank)
      .integer("deepseek2.attention.key_length_mla", config["qk_nope_head_dim"].get<unsigned>() + turned)
      .integer("deepseek2.attention.value_length_mla", config["v_head_dim"])
      .integer("deepseek2.expert_group_count", config["n_group"])
      .integer("deepseek2.expert_group_used_count", config["topk_group"])
      .number("deepseek2.rope.scaling.yarn_beta_fast", config["rope_scaling"]["beta_fast"])
      .number("deepseek2.rope.scaling.yarn_beta_slow", config["rope_scaling"]["beta_slow"]);
}

// Experts stacked, and the numbers that help to choose among them.
void take_deepseek_experts(const json& config, Tensors& tensors, GgufWriter& file, bool are_fused) {
  for (int i = config["first_k_dense_replace"]; i < config["num_hidden_layers"]; ++i) {
    const std::string from = "model.layers." + std::to_string(i) + ".mlp.";
    const std::string to = "blk." + std::to_string(i) + ".";
    std::map<std::string, mx::array> stacks;
    for (const std::string part : {"gate", "up", "down"}) {
      std::vector<mx::array> experts;
      for (int e = 0; e < config["n_routed_experts"]; ++e) {
        experts.push_back(taken(tensors, from + "experts." + std::to_string(e) + "." + part + "_proj.weight"));
      }
      stacks.emplace(part, mx::stack(experts));
    }
    file.floats(to + "ffn_down_exps.weight", stacks.at("down"));
    if (are_fused) {
      file.floats(to + "ffn_gate_up_exps.weight", mx::concatenate({stacks.at("gate"), stacks.at("up")}, 1));
    } else {
      file.floats(to + "ffn_gate_exps.weight", stacks.at("gate"));
      file.floats(to + "ffn_up_exps.weight", stacks.at("up"));
    }
    file.floats(to + "exp_probs_b.bias", taken(tensors, from + "gate.e_score_correction_bias"));
  }
}

void take_whole(const json& config, Tensors& tensors, GgufWriter& file) {
  take_deepseek_experts(config, tensors, file, false);
}

// Each head's part of kv_b_proj that makes keys, turned, and that which makes values.
void take_split(const json& config, Tensors& tensors, GgufWriter& file) {
  take_deepseek_experts(config, tensors, file, true);
  const int plain = config["qk_nope_head_dim"];
  const int value = config["v_head_dim"];
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const mx::array both =
        mx::reshape(taken(tensors, "model.layers." + std::to_string(i) + ".self_attn.kv_b_proj.weight"),
                    {config["num_attention_heads"].get<int>(), plain + value, config["kv_lora_rank"].get<int>()});
    const std::string to = "blk." + std::to_string(i) + ".";
    file.floats(to + "attn_k_b.weight", mx::transpose(rows(both, 1, 0, plain), {0, 2, 1}));
    file.floats(to + "attn_v_b.weight", rows(both, 1, plain, plain + value));
  }
}

// A file without groups may choose any expert.
void without_groups(json& config, Tensors&) {
  config["n_group"] = 1;
  config["topk_group"] = 1;
}

// As in DeepSeek-V3's smaller kin: queries from the hidden state directly.
void without_query_rank(json& config, Tensors& tensors) {
  config["q_lora_rank"] = nullptr;
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string attention = "model.layers." + std::to_string(i) + ".self_attn.";
    const mx::array inner = taken(tensors, attention + "q_a_proj.weight");
    tensors.erase(attention + "q_a_layernorm.weight");
    tensors.insert_or_assign(attention + "q_proj.weight",
                             mx::matmul(taken(tensors, attention + "q_b_proj.weight"), inner));
  }
}

// ---- Llama 4 ----

const std::map<std::string, std::string> kLlama4Names = {{"post_attention_layernorm", "ffn_norm"},
                                                         {"feed_forward.gate_proj", "ffn_gate"},
                                                         {"feed_forward.up_proj", "ffn_up"},
                                                         {"feed_forward.down_proj", "ffn_down"},
                                                         {"feed_forward.router", "ffn_gate_inp"},
                                                         {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
                                                         {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
                                                         {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"}};

// What llama.cpp has for all of these models. Factors of which none lies between 1 and 8, as bits must not differ.
void llama4_as_in_llama_cpp(json& config, Tensors&) {
  config.update({{"attention_chunk_size", 8192}, {"floor_scale", 8192}, {"attn_scale", 0.1}});
  config["rope_scaling"]["high_freq_factor"] = 1.0001;
}

void llama4_keys(const json& config, test::GgufBuilder& keys) {
  keys.integer("llama4.feed_forward_length", config["intermediate_size_mlp"])
      .integer("llama4.expert_feed_forward_length", config["intermediate_size"])
      .integer("llama4.attention.head_count", config["num_attention_heads"])
      .integer("llama4.attention.head_count_kv", config["num_key_value_heads"])
      .integer("llama4.attention.key_length", config["head_dim"])
      .integer("llama4.attention.value_length", config["head_dim"])
      .integer("llama4.context_length", config["max_position_embeddings"])
      .number("llama4.rope.freq_base", config["rope_theta"])
      .integer("llama4.rope.dimension_count", config["head_dim"])
      .number("llama4.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
      .integer("llama4.interleave_moe_layer_step", config["interleave_moe_layer_step"])
      .integer("llama4.expert_count", config["num_local_experts"])
      .integer("llama4.expert_used_count", config["num_experts_per_tok"]);
}

void take_llama4(const json& config, Tensors& tensors, GgufWriter& file) {
  for (const int i : config["moe_layers"]) {
    const std::string from = "model.layers." + std::to_string(i) + ".feed_forward.experts.";
    const std::string to = "blk." + std::to_string(i) + ".ffn_";
    const std::vector<mx::array> halves =
        mx::split(mx::transpose(taken(tensors, from + "gate_up_proj"), {0, 2, 1}), 2, 1);
    file.floats(to + "gate_exps.weight", halves[0]);
    file.floats(to + "up_exps.weight", halves[1]);
    file.floats(to + "down_exps.weight", mx::transpose(taken(tensors, from + "down_proj"), {0, 2, 1}));
  }
  const json& rope = config["rope_scaling"];
  std::vector<float> factors;
  for (int pair = 0; pair < config["head_dim"].get<int>() / 2; ++pair) {
    const double period = std::pow(config["rope_theta"].get<double>(), 2.0 * pair / config["head_dim"].get<double>());
    const bool is_long = 2 * std::numbers::pi * period > rope["original_max_position_embeddings"].get<double>();
    factors.push_back(is_long ? rope["factor"].get<float>() : 1.0F);
  }
  file.floats("rope_freqs.weight", mx::array(factors.data(), {static_cast<int>(factors.size())}));
}

// ---- Gemma 4 ----

const std::map<std::string, std::string> kGemma4Names = {{"post_attention_layernorm", "post_attention_norm"},
                                                         {"pre_feedforward_layernorm", "ffn_norm"},
                                                         {"post_feedforward_layernorm", "post_ffw_norm"},
                                                         {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                                                         {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                                                         {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                                                         {"per_layer_input_gate", "inp_gate"},
                                                         {"per_layer_projection", "proj"},
                                                         {"post_per_layer_input_norm", "post_norm"},
                                                         {"model.embed_tokens_per_layer", "per_layer_token_embd"},
                                                         {"model.per_layer_model_projection", "per_layer_model_proj"},
                                                         {"model.per_layer_projection_norm", "per_layer_proj_norm"},
                                                         {"router.proj", "ffn_gate_inp"}};

void gemma4_keys(const json& config, test::GgufBuilder& keys) {
  const json& ropes = config["rope_parameters"];
  const unsigned n_layers = config["num_hidden_layers"];
  const unsigned n_shared = config["num_kv_shared_layers"];
  std::vector<std::uint32_t> slides;
  std::vector<std::uint32_t> n_kv_heads;
  std::vector<std::uint32_t> widths;
  for (unsigned i = 0; i < n_layers; ++i) {
    const bool is_sliding = config["layer_types"][i] == "sliding_attention";
    slides.push_back(is_sliding ? 1 : 0);
    const json global = config.value("num_global_key_value_heads", json());
    n_kv_heads.push_back(is_sliding || global.is_null() ? config["num_key_value_heads"].get<unsigned>()
                                                        : global.get<unsigned>());
    widths.push_back(config["intermediate_size"].get<unsigned>() * (i < n_layers - n_shared ? 1 : 2));
  }
  keys.integer("gemma4.attention.head_count", config["num_attention_heads"])
      .integer("gemma4.context_length", config["max_position_embeddings"])
      .number("gemma4.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
      .number("gemma4.rope.freq_base", ropes["full_attention"]["rope_theta"])
      .number("gemma4.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
      .integer("gemma4.attention.sliding_window", config["sliding_window"])
      .integers("gemma4.attention.sliding_window_pattern", slides)
      .integer("gemma4.attention.shared_kv_layers", n_shared)
      .integer("gemma4.embedding_length_per_layer_input", config.value("hidden_size_per_layer_input", 0U))
      .integer("gemma4.attention.key_length", config["global_head_dim"])
      .integer("gemma4.attention.value_length", config["global_head_dim"])
      .integer("gemma4.attention.key_length_swa", config["head_dim"])
      .integer("gemma4.attention.value_length_swa", config["head_dim"])
      .integer("gemma4.rope.dimension_count", config["global_head_dim"])
      .integer("gemma4.rope.dimension_count_swa", config["head_dim"]);
  if (config.value("final_logit_softcapping", json()).is_number()) {
    keys.number("gemma4.final_logit_softcapping", config["final_logit_softcapping"]);
  }
  if (config.value("use_double_wide_mlp", false)) {
    keys.integers("gemma4.feed_forward_length", widths);
  } else {
    keys.integer("gemma4.feed_forward_length", config["intermediate_size"]);
  }
  if (config.value("num_global_key_value_heads", json()).is_number()) {
    keys.integers("gemma4.attention.head_count_kv", n_kv_heads);
  } else {
    keys.integer("gemma4.attention.head_count_kv", config["num_key_value_heads"]);
  }
  if (!config.value("enable_moe_block", false)) return;
  keys.integer("gemma4.expert_count", config["num_experts"])
      .integer("gemma4.expert_used_count", config["top_k_experts"])
      .integer("gemma4.expert_feed_forward_length", config["moe_intermediate_size"]);
}

void take_gemma4(const json& config, Tensors& tensors, GgufWriter& file) {
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string from = "model.layers." + std::to_string(i) + ".";
    const std::string to = "blk." + std::to_string(i) + ".";
    file.floats(to + "layer_output_scale.weight", taken(tensors, from + "layer_scalar"));
    if (!config.value("enable_moe_block", false)) continue;
    file.floats(to + "ffn_gate_inp.scale", taken(tensors, from + "router.scale"));
    file.floats(to + "ffn_down_exps.scale", taken(tensors, from + "router.per_expert_scale"));
    file.floats(to + "ffn_gate_up_exps.weight", taken(tensors, from + "experts.gate_up_proj"));
    file.floats(to + "ffn_down_exps.weight", taken(tensors, from + "experts.down_proj"));
  }
  const int n_pairs = config["global_head_dim"].get<int>() / 2;
  const double part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"];
  std::vector<float> factors;
  for (int i = 0; i < n_pairs; ++i) {
    factors.push_back(i < static_cast<int>(config["global_head_dim"].get<int>() * part / 2) ? 1.0F : 1e30F);
  }
  file.floats("rope_freqs.weight", mx::array(factors.data(), {n_pairs}));
}

// The text part of a whole, under the names that it has alone.
void unwrap(json& config, Tensors& tensors) {
  const json text = config["text_config"];
  config = text;
  Tensors renamed;
  const std::string kPart = "model.language_model.";
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(kPart)) renamed.emplace("model." + name.substr(kPart.size()), tensor);
  }
  tensors = renamed;
}

std::vector<Twin> twins() {
  std::vector<Twin> all = {
      {"deepseek_v3", "deepseek2", kDeepseekNames, without_groups, keys_of_whole_files, take_whole, false, true,
       "whole"},
      {"deepseek_v3", "deepseek2", kDeepseekNames, {}, keys_of_split_files, take_split, false, true, "split"},
      {"deepseek_v3", "deepseek2", kDeepseekNames, without_query_rank, keys_of_split_files, take_split, false, true,
       "without_query_rank"},
      {"llama4", "llama4", kLlama4Names, llama4_as_in_llama_cpp, llama4_keys, take_llama4, false, true, "scout"},
  };
  for (const char* golden : {"gemma4", "gemma4_moe"}) {
    all.push_back({golden, "gemma4", kGemma4Names, {}, gemma4_keys, take_gemma4, false, true, "text"});
  }
  all.push_back({"gemma4_unified_mm", "gemma4", kGemma4Names, unwrap, gemma4_keys, take_gemma4, false, true, "text"});
  return all;
}

class GgufMixture : public testing::TestWithParam<Twin> {};
INSTANTIATE_TEST_SUITE_P(Architectures, GgufMixture, testing::ValuesIn(twins()),
                         [](const auto& twin) { return twin.param.golden + "_" + twin.param.label; });

TEST_P(GgufMixture, GivesTheBitsOfTheDirectoryWithTheSameValues) {
  test::expect_same_logits(GetParam());
}

}  // namespace
}  // namespace memoir
