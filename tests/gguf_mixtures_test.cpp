// GGUF files of DeepSeek-V3, Llama 4 and Gemma 4 against the Hugging Face directory with the same values: the same
// bits. Names, keys and what is done to values are those of llama.cpp's converter (conversion/deepseek.py, llama.py,
// gemma.py; before April 2025 convert_hf_to_gguf.py left DeepSeek's kv_b_proj whole).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/kernels/device.h"
#include "tests/gguf_twin.h"
#include "tests/golden.h"

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

// ---- Matrices that stay quantized ----

// Tensors drawn anew in other shapes, by the ends of their names; norms stay near 1.
void redraw(Tensors& tensors, const std::map<std::string, mx::Shape>& shapes) {
  std::uint64_t seed = 0;
  for (auto& [name, tensor] : tensors) {
    for (const auto& [ending, shape] : shapes) {
      if (!name.ends_with(ending)) continue;
      const bool is_norm = shape.size() == 1;
      const mx::array drawn = mx::random::normal(shape, mx::float32, mx::random::key(++seed));
      const float size = is_norm ? 0.1F : 1 / std::sqrt(static_cast<float>(shape.back()));
      tensor = mx::add(mx::multiply(drawn, mx::array(size)), mx::array(is_norm ? 1.0F : 0.0F));
      break;
    }
  }
}

// The golden with ranks and widths of whole blocks.
void widen_deepseek(json& config, Tensors& tensors) {
  config.update({{"q_lora_rank", 32}, {"kv_lora_rank", 32}, {"qk_nope_head_dim", 32}, {"qk_head_dim", 40}});
  config.update({{"moe_intermediate_size", 32}, {"intermediate_size", 64}});
  std::map<std::string, mx::Shape> shapes = {
      {"q_a_proj.weight", {32, 32}},    {"q_a_layernorm.weight", {32}},     {"q_b_proj.weight", {4 * 40, 32}},
      {"kv_a_layernorm.weight", {32}},  {"kv_b_proj.weight", {4 * 48, 32}}, {"mlp.gate_proj.weight", {64, 32}},
      {"mlp.up_proj.weight", {64, 32}}, {"mlp.down_proj.weight", {32, 64}}, {"kv_a_proj_with_mqa.weight", {40, 32}}};
  for (const char* part : {"gate", "up", "down"}) {
    const std::string ending = std::string(part) + "_proj.weight";
    shapes.emplace("shared_experts." + ending, mx::Shape{32, 32});
    for (int e = 0; e < config["n_routed_experts"]; ++e) {
      shapes.emplace("experts." + std::to_string(e) + "." + ending, mx::Shape{32, 32});
    }
  }
  redraw(tensors, shapes);
}

void widen_llama4(json& config, Tensors& tensors) {
  llama4_as_in_llama_cpp(config, tensors);
  config.update({{"intermediate_size", 32}, {"intermediate_size_mlp", 64}});
  redraw(tensors, {{"experts.gate_up_proj", {4, 32, 64}},
                   {"experts.down_proj", {4, 32, 32}},
                   {"shared_expert.gate_proj.weight", {32, 32}},
                   {"shared_expert.up_proj.weight", {32, 32}},
                   {"shared_expert.down_proj.weight", {32, 32}},
                   {"feed_forward.gate_proj.weight", {64, 32}},
                   {"feed_forward.up_proj.weight", {64, 32}},
                   {"feed_forward.down_proj.weight", {32, 64}}});
}

void widen_gemma4(json& config, Tensors& tensors) {
  config["hidden_size_per_layer_input"] = 32;
  const int n_layers = config["num_hidden_layers"];
  redraw(tensors, {{"embed_tokens_per_layer.weight", {config["vocab_size"].get<int>(), n_layers * 32}},
                   {"per_layer_model_projection.weight", {n_layers * 32, 32}},
                   {"per_layer_projection_norm.weight", {32}},
                   {"per_layer_input_gate.weight", {32, 32}},
                   {"per_layer_projection.weight", {32, 32}}});
}

void widen_gemma4_experts(json& config, Tensors& tensors) {
  config["moe_intermediate_size"] = 32;
  redraw(tensors, {{"experts.gate_up_proj", {4, 64, 32}}, {"experts.down_proj", {4, 32, 32}}});
}

// What all have.
std::set<std::string> in_block(int index, std::initializer_list<const char*> names) {
  std::set<std::string> all = {"token_embd.weight"};
  for (const char* name : names) all.insert("blk." + std::to_string(index) + "." + name + ".weight");
  return all;
}

std::vector<Twin> quantized_twins() {
  const auto none_chosen_anew = [](json& config, Tensors& tensors) {
    without_groups(config, tensors);
    widen_deepseek(config, tensors);
  };
  const auto queries_directly = [](json& config, Tensors& tensors) {
    widen_deepseek(config, tensors);
    without_query_rank(config, tensors);
  };
  const std::vector<std::pair<Twin, std::set<std::string>>> models = {
      {{"deepseek_v3", "deepseek2", kDeepseekNames, none_chosen_anew, keys_of_whole_files, take_whole, false, true,
        "whole"},
       in_block(3, {"attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_output", "ffn_gate_exps", "ffn_up_exps",
                    "ffn_down_exps", "ffn_down_shexp"})},
      {{"deepseek_v3", "deepseek2", kDeepseekNames, widen_deepseek, keys_of_split_files, take_split, false, true,
        "split"},
       in_block(3, {"attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_b", "attn_v_b", "attn_output", "ffn_gate_up_exps",
                    "ffn_down_exps", "ffn_gate_shexp"})},
      {{"deepseek_v3", "deepseek2", kDeepseekNames, queries_directly, keys_of_split_files, take_split, false, true,
        "without_query_rank"},
       in_block(1, {"attn_q", "ffn_gate", "ffn_up", "ffn_down"})},
      {{"llama4", "llama4", kLlama4Names, widen_llama4, llama4_keys, take_llama4, false, true, "scout"},
       in_block(3, {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
                    "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"})},
      {{"gemma4", "gemma4", kGemma4Names, widen_gemma4, gemma4_keys, take_gemma4, false, true, "text"},
       in_block(3,
                {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "inp_gate", "proj"})},
      {{"gemma4_moe", "gemma4", kGemma4Names, widen_gemma4_experts, gemma4_keys, take_gemma4, false, true, "text"},
       in_block(5, {"attn_q", "attn_k", "attn_output", "ffn_gate_up_exps", "ffn_down_exps", "ffn_gate"})},
  };
  std::vector<Twin> all;
  for (const std::uint32_t type : {test::kTypeQ8_0, test::kTypeQ4_0}) {
    for (const auto& [model, coded] : models) {
      all.push_back(model);
      all.back().codes = test::Codes{type};
      all.back().coded = coded;
      all.back().label += type == test::kTypeQ8_0 ? "_Q8_0" : "_Q4_0";
    }
  }
  return all;
}

class QuantizedGgufMixture : public testing::TestWithParam<Twin> {};
INSTANTIATE_TEST_SUITE_P(Architectures, QuantizedGgufMixture, testing::ValuesIn(quantized_twins()),
                         [](const auto& twin) { return twin.param.golden + "_" + twin.param.label; });

// The directory has the values of the codes in float32; codes are multiplied with activations of 16 bits.
TEST_P(QuantizedGgufMixture, GivesTheLogitsOfTheDirectoryWithTheSameValues) {
  const test::TemporaryFolder folder;
  const test::fs::path directory = test::make_twin(folder, GetParam());
  const mx::array expected = test::logits_of(*model::load_model(directory).model);
  const mx::array logits = test::logits_of(*test::load_gguf(directory / "model.gguf"));
  const auto largest = [](const mx::array& a) { return mx::max(mx::abs(a)).item<float>(); };
  EXPECT_GT(largest(expected), 0.5F);
  EXPECT_LT(largest(mx::subtract(logits, expected)), 2e-3F * largest(expected));
}

// As on a GPU: in 16 bits, where a near tie between experts may fall the other way. No part of a layer comes out in
// another type than the rest.
TEST_P(QuantizedGgufMixture, IsComputedInOneTypeWhereOperationsAreComposed) {
  const test::TemporaryFolder folder;
  const test::fs::path directory = test::make_twin(folder, GetParam());
  const mx::array expected = test::logits_of(*model::load_model(directory).model);
  kernels::compose_on_cpu(true);
  const std::unique_ptr<model::Model> model = test::load_gguf(directory / "model.gguf");
  const std::vector<TokenId> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  engine::Session session(*model);
  EXPECT_EQ(session.forward(tokens, model::LogitRows::kAll).dtype(), mx::bfloat16);
  const mx::array logits = mx::astype(test::logits_of(*model), mx::float32);
  kernels::compose_on_cpu(false);
  const float mean = mx::mean(mx::abs(mx::subtract(logits, expected))).item<float>();
  EXPECT_LT(mean, 0.05F * mx::subtract(mx::max(expected), mx::min(expected)).item<float>());
}

// ---- What is refused ----

struct Refusal {
  std::string message;                         // a part of it
  std::set<std::string> without = {};          // keys or tensors of the right file
  std::map<std::string, unsigned> other = {};  // keys with another value
  std::function<void(GgufWriter&)> add = {};
};

// Of gemma4_text, instead of its own.
std::function<void(GgufWriter&)> factors(int n, float value) {
  return [=](GgufWriter& file) { file.floats("rope_freqs.weight", mx::full({n}, value)); };
}

void expect_refused(const std::string& name, const std::vector<Refusal>& refusals) {
  const std::vector<Twin> all = twins();
  const auto right = std::ranges::find(all, name, [](const Twin& twin) { return twin.golden + "_" + twin.label; });
  ASSERT_NE(right, all.end());
  for (const Refusal& refusal : refusals) {
    GgufWriter file;
    file.left_out = refusal.without;
    file.keys.left_out.insert(refusal.without.begin(), refusal.without.end());
    for (const auto& [key, value] : refusal.other) file.keys.left_out.insert(key);
    Twin twin = *right;
    twin.take = [&](const json& config, Tensors& tensors, GgufWriter& taker) {
      right->take(config, tensors, taker);
      taker.keys.left_out.clear();
      for (const auto& [key, value] : refusal.other) taker.keys.integer(key, value);
      if (!refusal.add) return;
      const std::set<std::string> left_out = std::exchange(taker.left_out, {});
      refusal.add(taker);
      taker.left_out = left_out;
    };
    const test::TemporaryFolder folder;
    const test::fs::path path = test::make_twin(folder, twin, file) / "model.gguf";
    try {
      test::load_gguf(path);
      ADD_FAILURE() << "no error: " << refusal.message;
    } catch (const InputError& error) {
      EXPECT_MENTIONS(std::string(error.what()), refusal.message);
      EXPECT_MENTIONS(std::string(error.what()), path.string());
    }
  }
}

TEST(GgufMixtureRefusals, DeepseekNamesWhatItLacks) {
  const std::string arch = "deepseek2.";
  expect_refused("deepseek_v3_split",
                 {{"deepseek2.expert_gating_func: is not 2", {arch + "expert_gating_func"}},
                  {"deepseek2.expert_gating_func: is not 2", {}, {{arch + "expert_gating_func", 1}}},  // a softmax
                  {"deepseek2.attention.temperature_scale: is there", {}, {{arch + "attention.temperature_scale", 1}}},
                  {"kv_lora_rank: is missing", {arch + "attention.kv_lora_rank"}},
                  {"key_length: is missing", {arch + "attention.key_length", arch + "attention.key_length_mla"}},
                  {"n_routed_experts: is missing", {arch + "expert_count"}},
                  {"num_experts_per_tok: is missing", {arch + "expert_used_count"}},
                  {"moe_intermediate_size: is missing", {arch + "expert_feed_forward_length"}},
                  {"blk.2.ffn_gate_inp.weight: has shape (8,32), expected (12,32)", {}, {{arch + "expert_count", 12}}},
                  {"n_group: is 3", {}, {{arch + "expert_group_count", 3}}},
                  {"layers.2.self_attn.unembed_out", {"blk.2.attn_v_b.weight"}},
                  {"layers.3.mlp.switch_mlp.down_proj", {"blk.3.ffn_down_exps.weight"}}});
  expect_refused("deepseek_v3_whole", {{"layers.1.self_attn.kv_b_proj", {"blk.1.attn_kv_b.weight"}}});
}

TEST(GgufMixtureRefusals, Llama4NamesWhatItLacks) {
  const std::string arch = "llama4.";
  expect_refused("llama4_scout",
                 {{"llama4.attention.sliding_window: is there", {}, {{arch + "attention.sliding_window", 8192}}},
                  {"llama4.expert_feed_forward_length: is missing", {arch + "expert_feed_forward_length"}},
                  {"llama4.feed_forward_length: is missing", {arch + "feed_forward_length"}},
                  {"num_experts: is missing", {arch + "expert_count"}},
                  {"num_experts_per_tok: is missing", {arch + "expert_used_count"}},
                  {"num_experts_per_tok: is 5", {}, {{arch + "expert_used_count", 5}}},  // of four
                  {"interleave_moe_layer_step: is missing", {arch + "interleave_moe_layer_step"}},
                  {"blk.1.ffn_gate_inp.weight: has shape (4,32), expected (5,32)", {}, {{arch + "expert_count", 5}}},
                  {"layers.3.feed_forward.experts.gate_up_proj: missing", {"blk.3.ffn_gate_exps.weight"}},
                  {"layers.5.feed_forward.shared_expert.up_proj", {"blk.5.ffn_up_shexp.weight"}}});
}

TEST(GgufMixtureRefusals, Gemma4NamesWhatItLacks) {
  const std::string arch = "gemma4.";
  const std::string ropes = "rope_freqs.weight";
  const auto uneven = [&](GgufWriter& file) {
    file.keys.integers(arch + "feed_forward_length", {32, 32, 64, 32, 64, 64});
  };
  expect_refused("gemma4_text",
                 {{"rope_freqs.weight: missing", {ropes}},
                  {"rope_freqs.weight: holds other numbers", {ropes}, {}, factors(16, 2)},
                  {"rope_freqs.weight: is not of type F32 with 16 numbers", {ropes}, {}, factors(8, 1)},
                  {"gemma4.rope.scaling.type: is \"linear\"", {}, {{arch + "rope.scaling.factor", 4}}},
                  {"gemma4.rope.dimension_count_swa: is not all", {}, {{arch + "rope.dimension_count_swa", 8}}},
                  {"gemma4.attention.key_length_swa: is missing", {arch + "attention.key_length_swa"}},
                  {"gemma4.attention.key_length: is missing", {arch + "attention.key_length"}},
                  {"gemma4.feed_forward_length: is missing", {arch + "feed_forward_length"}},
                  {"gemma4.feed_forward_length: differs in other layers", {arch + "feed_forward_length"}, {}, uneven},
                  {"num_kv_shared_layers: is 6",
                   {},
                   {{arch + "attention.shared_kv_layers", 6}, {arch + "feed_forward_length", 32}}},
                  {"layers.4.per_layer_input_gate", {"blk.4.inp_gate.weight"}}});
  expect_refused("gemma4_moe_text",
                 {{"num_experts: is missing", {arch + "expert_count"}},
                  {"top_k_experts: is missing", {arch + "expert_used_count"}},
                  {"moe_intermediate_size: is missing", {arch + "expert_feed_forward_length"}},
                  {"layers.2.router.per_expert_scale: missing", {"blk.2.ffn_down_exps.scale"}},
                  {"blk.0.ffn_down_exps.scale: has shape (4), expected (8)", {}, {{arch + "expert_count", 8}}}});
}

}  // namespace
}  // namespace memoir
