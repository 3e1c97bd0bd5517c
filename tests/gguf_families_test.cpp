// GGUF files of families other than Llama against the Hugging Face directory with the same values: the same bits.
// Names, keys and what is done to values are those of llama.cpp's converter (gguf-py's constants.py and
// tensor_mapping.py, convert_hf_to_gguf.py). llama.cpp itself, run on such float32 files, agreed to 3e-5, but for Gemma
// 3 (1.2e-2: its GELU is a table of float16) and gpt-oss (0.09: it rounds yarn's range, which the published model
// doesn't; rounded, 8e-6). The files that the converter itself makes of the hybrids' goldens gave transformers' logits
// to 1.2e-4, and llama.cpp's to 1.4e-4.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "memoir/model/model.h"
#include "tests/gguf_builder.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::Tensors;

constexpr std::uint32_t kTypeF32 = 0;
constexpr std::uint32_t kTypeMxfp4 = 39;

/// A GGUF file that is written tensor by tensor.
class GgufWriter {
 public:
  test::GgufBuilder keys;

  void floats(const std::string& name, mx::array a) {
    a = mx::contiguous(mx::astype(a, mx::float32));
    mx::eval(a);
    add(name, a.shape(), kTypeF32, a.data<std::byte>(), a.nbytes());
  }

  void blocks(const std::string& name, const mx::Shape& shape, const std::vector<std::byte>& bytes) {
    add(name, shape, kTypeMxfp4, bytes.data(), bytes.size());
  }

  void write(const test::fs::path& path) {
    keys.data_bytes = data_.size();
    std::vector<std::byte> bytes = keys.bytes();
    std::memcpy(bytes.data() + bytes.size() - data_.size(), data_.data(), data_.size());
    test::write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  void add(const std::string& name, const mx::Shape& shape, std::uint32_t type, const std::byte* bytes, std::size_t n) {
    keys.tensor(name, {shape.rbegin(), shape.rend()}, type, data_.size());
    data_.insert(data_.end(), bytes, bytes + n);
    data_.resize((data_.size() + 31) / 32 * 32);
  }

  std::vector<std::byte> data_;
};

// Modules whose names are the same in all of these families.
const std::map<std::string, std::string> kCommon = {
    {"input_layernorm", "attn_norm"},     {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},       {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},  {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},        {"mlp.gate", "ffn_gate_inp"},        {"mlp.router", "ffn_gate_inp"},
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},       {"lm_head", "output"},
};

struct Twin {
  std::string golden;                                // in tests/data
  std::string architecture;                          // of the GGUF
  std::map<std::string, std::string> names;          // besides kCommon
  std::function<void(json&, Tensors&)> change = {};  // so that llama.cpp could have the model
  std::function<void(const json&, test::GgufBuilder&)> add_keys = {};
  std::function<void(const json&, Tensors&, GgufWriter&)> take = {};  // writes tensors of its own and drops them
  bool sums_in_other_order = false;                                   // columns of a matrix come in another order
};

// Their number of key heads is written layer by layer.
bool has_layers_without_heads(const json& config) {
  return config["model_type"] == "lfm2" || config["model_type"] == "granitemoehybrid";
}

void add_keys_of_all(const json& config, const std::string& architecture, test::GgufBuilder& keys) {
  const auto name = [&](const char* key) { return architecture + "." + key; };
  keys.string("general.architecture", architecture)
      .integer(name("block_count"), config["num_hidden_layers"])
      .integer(name("embedding_length"), config["hidden_size"])
      .integer(name("vocab_size"), config["vocab_size"]);
  if (!config.contains("num_attention_heads")) return;
  keys.integer(name("feed_forward_length"),
               config.value("block_auto_adjust_ff_dim", false) ? 48 : config["intermediate_size"].get<int>())
      .integer(name("attention.head_count"), config["num_attention_heads"])
      .integer(name("attention.key_length"), config.value("head_dim", 16))
      .integer(name("context_length"), config["max_position_embeddings"]);
  if (!has_layers_without_heads(config)) {
    keys.integer(name("attention.head_count_kv"), config["num_key_value_heads"]);
  } else {
    std::vector<std::uint32_t> n_heads;
    for (const std::string type : config["layer_types"]) {
      n_heads.push_back(type == "attention" || type == "full_attention" ? config["num_key_value_heads"].get<unsigned>()
                                                                        : 0U);
    }
    keys.integers(name("attention.head_count_kv"), n_heads);
  }
  const json& rope = config.contains("rope_theta") ? config : config["rope_parameters"];
  keys.number(name("rope.freq_base"), rope["rope_theta"]);
  if (config.contains("rms_norm_eps")) keys.number(name("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"]);
}

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight".
std::string gguf_name(const std::string& name, const Twin& twin) {
  const std::string suffix = name.substr(name.rfind('.'));
  std::string module = name.substr(0, name.rfind('.'));
  std::string layer;
  const std::string kLayers = "model.layers.";
  if (module.starts_with(kLayers)) {
    const std::size_t dot = module.find('.', kLayers.size());
    layer = "blk." + module.substr(kLayers.size(), dot - kLayers.size()) + ".";
    module = module.substr(dot + 1);
  }
  const auto own = twin.names.find(module);
  return layer + (own == twin.names.end() ? kCommon.at(module) : own->second) + suffix;
}

mx::array logits_of(const model::Model& model) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back((i * 37 + 11) % model.config().vocab_size);
  engine::Session session(model);
  const mx::array logits = session.forward(tokens, model::LogitRows::kAll);
  mx::eval(logits);
  return logits;
}

std::unique_ptr<model::Model> load_gguf(const test::fs::path& path) {
  GgufFile file = GgufFile::open(path);
  const model::ModelConfig config = model::config_from_gguf(file, model::check_supported);
  return model::make_model(config, *model::open_gguf_weights(std::move(file), config));
}

// ---- the families ----

void gemma_as_in_llama_cpp(json& config, Tensors&) {
  config["sliding_window_pattern"] = 6;
  config["query_pre_attn_scalar"] = config["head_dim"];
  config["rope_local_base_freq"] = 1e4;
}

void gemma_keys(const json& config, test::GgufBuilder& keys) {
  keys.integer("gemma3.attention.sliding_window", config["sliding_window"])
      .string("gemma3.rope.scaling.type", "linear")
      .number("gemma3.rope.scaling.factor", config["rope_scaling"]["factor"]);
}

// The converter adds the 1 that Gemma's norms have besides their weights.
void gemma_norms(const json&, Tensors& tensors, GgufWriter&) {
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("norm.weight")) tensor = mx::add(tensor, mx::array(1.0F));
  }
}

// In llama.cpp all layers have experts.
void experts_everywhere(json& config, Tensors& tensors) {
  config["mlp_only_layers"] = json::array();
  for (const int i : {0, 2}) {
    const auto name = [](int layer, const std::string& rest) {
      return "model.layers." + std::to_string(layer) + ".mlp." + rest + ".weight";
    };
    tensors.insert_or_assign(name(i, "gate"), tensors.at(name(i + 1, "gate")));
    for (const std::string layer : {"gate_proj", "up_proj", "down_proj"}) {
      tensors.erase(name(i, layer));
      for (int e = 0; e < 8; ++e) {
        const std::string from = "experts." + std::to_string((e + i + 1) % 8) + "." + layer;
        tensors.insert_or_assign(name(i, "experts." + std::to_string(e) + "." + layer), tensors.at(name(i + 1, from)));
      }
    }
  }
}

void qwen_expert_keys(const json& config, test::GgufBuilder& keys) {
  keys.integer("qwen3moe.expert_count", config["num_experts"])
      .integer("qwen3moe.expert_used_count", config["num_experts_per_tok"])
      .integer("qwen3moe.expert_feed_forward_length", config["moe_intermediate_size"]);
}

void stack_qwen_experts(const json& config, Tensors& tensors, GgufWriter& file) {
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    for (const std::string part : {"gate", "up", "down"}) {
      std::vector<mx::array> experts;
      for (int e = 0; e < config["num_experts"]; ++e) {
        const std::string name =
            "model.layers." + std::to_string(i) + ".mlp.experts." + std::to_string(e) + "." + part + "_proj.weight";
        experts.push_back(tensors.at(name));
        tensors.erase(name);
      }
      file.floats("blk." + std::to_string(i) + ".ffn_" + part + "_exps.weight", mx::stack(experts));
    }
  }
}

void gpt_oss_keys(const json& config, test::GgufBuilder& keys) {
  const json& rope = config["rope_scaling"];
  keys.integer("gpt-oss.attention.sliding_window", config["sliding_window"])
      .string("gpt-oss.rope.scaling.type", "yarn")
      .number("gpt-oss.rope.scaling.factor", rope["factor"])
      .integer("gpt-oss.rope.scaling.original_context_length", rope["original_max_position_embeddings"])
      .integer("gpt-oss.expert_count", config["num_local_experts"])
      .integer("gpt-oss.expert_used_count", config["num_experts_per_tok"]);
}

// Published blocks have values 2j and 2j + 1 in byte j, GGUF's j and j + 16, behind the exponent.
std::vector<std::byte> gguf_blocks(mx::array blocks, mx::array scales) {
  blocks = mx::contiguous(blocks);
  scales = mx::contiguous(scales);
  mx::eval(blocks, scales);
  std::vector<std::byte> bytes;
  for (std::size_t g = 0; g < scales.size(); ++g) {
    bytes.push_back(scales.data<std::byte>()[g]);
    const auto* codes = blocks.data<std::uint8_t>() + g * 16;
    const auto code = [&](unsigned i) { return static_cast<unsigned>(codes[i / 2] >> (i % 2 * 4)) & 15U; };
    for (unsigned j = 0; j < 16; ++j) bytes.push_back(static_cast<std::byte>(code(j) | code(j + 16) << 4));
  }
  return bytes;
}

// Gates and ups, which are rows by turns, apart.
void split_gpt_oss_experts(const json& config, Tensors& tensors, GgufWriter& file) {
  const int n = config["num_local_experts"];
  const int hidden = config["hidden_size"];
  const int inner = config["intermediate_size"];
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string to = "blk." + std::to_string(i) + ".ffn_";
    const auto taken = [&](const std::string& name) {
      const mx::array tensor = tensors.at(layer + name);
      tensors.erase(layer + name);
      return tensor;
    };
    const auto every_other = [](const mx::array& a, int begin) {
      mx::Shape start(a.ndim(), 0);
      mx::Shape step(a.ndim(), 1);
      start[1] = begin;
      step[1] = 2;
      return mx::slice(a, start, a.shape(), step);
    };
    const mx::array both = taken("mlp.experts.gate_up_proj_blocks");
    const mx::array scales = taken("mlp.experts.gate_up_proj_scales");
    const mx::array biases = taken("mlp.experts.gate_up_proj_bias");
    for (const int part : {0, 1}) {
      const std::string name = to + (part == 0 ? "gate" : "up") + "_exps";
      file.blocks(name + ".weight", {n, inner, hidden},
                  gguf_blocks(every_other(both, part), every_other(scales, part)));
      file.floats(name + ".bias", every_other(biases, part));
    }
    const mx::array down = taken("mlp.experts.down_proj_blocks");
    file.blocks(to + "down_exps.weight", {n, hidden, inner}, gguf_blocks(down, taken("mlp.experts.down_proj_scales")));
    file.floats(to + "down_exps.bias", taken("mlp.experts.down_proj_bias"));
    file.floats("blk." + std::to_string(i) + ".attn_sinks.weight", taken("self_attn.sinks"));
  }
}

void cohere_keys(const json& config, test::GgufBuilder& keys) {
  keys.number("cohere2.attention.layer_norm_epsilon", config["layer_norm_eps"])
      .number("cohere2.logit_scale", config["logit_scale"])
      .integer("cohere2.attention.sliding_window", config["sliding_window"])
      .string("cohere2.rope.scaling.type", "none");
}

// ---- hybrids ----

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

const std::map<std::string, std::string> kPreNorm = {{"post_attention_layernorm", "ffn_norm"}};

std::vector<Twin> twins() {
  return {
      {"qwen2", "qwen2", kPreNorm},
      {"qwen3", "qwen3", kPreNorm},
      {"qwen3_moe", "qwen3moe", kPreNorm, experts_everywhere, qwen_expert_keys, stack_qwen_experts},
      {"gemma3",
       "gemma3",
       {{"post_attention_layernorm", "post_attention_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"}},
       gemma_as_in_llama_cpp,
       gemma_keys,
       gemma_norms},
      {"gpt_oss_mxfp4",
       "gpt-oss",
       {{"post_attention_layernorm", "post_attention_norm"}},
       {},
       gpt_oss_keys,
       split_gpt_oss_experts},
      {"cohere2", "cohere2", {}, [](json& config, Tensors&) { config["sliding_window_pattern"] = 4; }, cohere_keys},
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

class GgufFamily : public testing::TestWithParam<Twin> {
 protected:
  // The twin directory, and beside it the file.
  test::fs::path make(const test::TemporaryFolder& folder) const {
    const Twin& twin = GetParam();
    const test::fs::path directory =
        test::copied_model(folder, twin.golden, twin.golden == "mamba2" ? "config.alt.json" : "config.json");
    GgufWriter file;
    test::edit_tensors(directory, [&](Tensors& tensors) {
      test::edit_config(directory, [&](json& config) {
        if (twin.change) twin.change(config, tensors);
        add_keys_of_all(config, twin.architecture, file.keys);
        if (twin.add_keys) twin.add_keys(config, file.keys);
        Tensors rest = tensors;
        if (twin.take) twin.take(config, rest, file);
        for (const auto& [name, tensor] : rest) file.floats(gguf_name(name, twin), tensor);
      });
    });
    file.write(directory / "model.gguf");
    return directory;
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, GgufFamily, testing::ValuesIn(twins()),
                         [](const auto& twin) { return twin.param.golden; });

TEST_P(GgufFamily, GivesTheBitsOfTheDirectoryWithTheSameValues) {
  const test::TemporaryFolder folder;
  const test::fs::path directory = make(folder);
  const mx::array expected = logits_of(*model::load_model(directory).model);
  const mx::array logits = logits_of(*load_gguf(directory / "model.gguf"));
  if (GetParam().sums_in_other_order) {
    EXPECT_TRUE(mx::allclose(logits, expected, 0, 1e-3).item<bool>());
  } else {
    EXPECT_TRUE(mx::array_equal(logits, expected).item<bool>());
  }
}

TEST(GgufFamilies, AnArchitectureWhoseNamesAreNotKnownIsSaidSo) {
  const test::TemporaryFolder folder;
  GgufWriter file;
  file.keys.string("general.architecture", "deepseek2")
      .integer("deepseek2.block_count", 1)
      .integer("deepseek2.embedding_length", 32)
      .integer("deepseek2.feed_forward_length", 32)
      .integer("deepseek2.attention.head_count", 2)
      .integer("deepseek2.context_length", 64)
      .integer("deepseek2.vocab_size", 16);
  file.write(folder.path() / "model.gguf");
  try {
    model::load_model(folder.path() / "model.gguf");
    FAIL() << "no error";
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(error.key(), "general.architecture");
  }
}

}  // namespace
}  // namespace memoir
