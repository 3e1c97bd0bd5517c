#include "memoir/model/gguf_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

namespace memoir::model {
namespace {

struct Name {
  std::string_view gguf;
  std::string_view hugging_face;
};

// Names of modules, or of tensors that have a name of their own: of the model, and of those inside "blk.<i>." /
// "model.layers.<i>.".
constexpr std::array kTop = {Name{"token_embd", "model.embed_tokens"}, Name{"output_norm", "model.norm"},
                             Name{"output", "lm_head"}};
constexpr std::array kFalconTop = {Name{"token_embd", "model.embed_tokens"},
                                   Name{"output_norm", "model.final_layernorm"}, Name{"output", "lm_head"}};
constexpr std::array kLfm2Top = {Name{"token_embd", "model.embed_tokens"},
                                 Name{"token_embd_norm", "model.embedding_norm"}, Name{"output", "lm_head"}};
constexpr std::array kMamba2Top = {Name{"token_embd", "backbone.embeddings"}, Name{"output_norm", "backbone.norm_f"},
                                   Name{"output", "lm_head"}};
constexpr std::array kAttention = {Name{"attn_norm", "input_layernorm"}, Name{"attn_q", "self_attn.q_proj"},
                                   Name{"attn_k", "self_attn.k_proj"}, Name{"attn_v", "self_attn.v_proj"},
                                   Name{"attn_output", "self_attn.o_proj"}};
constexpr std::array kDense = {Name{"ffn_gate", "mlp.gate_proj"}, Name{"ffn_up", "mlp.up_proj"},
                               Name{"ffn_down", "mlp.down_proj"}};
constexpr std::array kPreNorm = {Name{"ffn_norm", "post_attention_layernorm"}};
constexpr std::array kHeadNorms = {Name{"attn_q_norm", "self_attn.q_norm"}, Name{"attn_k_norm", "self_attn.k_norm"}};
constexpr std::array kGemmaNorms = {Name{"post_attention_norm", "post_attention_layernorm"},
                                    Name{"ffn_norm", "pre_feedforward_layernorm"},
                                    Name{"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr std::array kQwenExperts = {
    Name{"ffn_gate_inp", "mlp.gate"}, Name{"ffn_gate_exps", "mlp.switch_mlp.gate_proj"},
    Name{"ffn_gate_up_exps", "mlp.switch_mlp.gate_up_proj"}, Name{"ffn_up_exps", "mlp.switch_mlp.up_proj"},
    Name{"ffn_down_exps", "mlp.switch_mlp.down_proj"}};
constexpr std::array kGptOss = {Name{"post_attention_norm", "post_attention_layernorm"},
                                Name{"attn_sinks.weight", "self_attn.sinks"},
                                Name{"ffn_gate_inp", "mlp.router"},
                                Name{"ffn_gate_exps", "mlp.experts.gate_proj"},
                                Name{"ffn_up_exps", "mlp.experts.up_proj"},
                                Name{"ffn_down_exps", "mlp.experts.down_proj"}};

// In the first block of those that predict further tokens, what its layer does not have.
constexpr std::array kNextn = {Name{"nextn.eh_proj", "fc"}, Name{"nextn.enorm", "pre_fc_norm_embedding"},
                               Name{"nextn.hnorm", "pre_fc_norm_hidden"}, Name{"nextn.shared_head_norm", "norm"}};

constexpr std::array kLfm2 = {Name{"attn_norm", "operator_norm"},
                              Name{"attn_q", "self_attn.q_proj"},
                              Name{"attn_k", "self_attn.k_proj"},
                              Name{"attn_v", "self_attn.v_proj"},
                              Name{"attn_output", "self_attn.out_proj"},
                              Name{"attn_q_norm", "self_attn.q_layernorm"},
                              Name{"attn_k_norm", "self_attn.k_layernorm"},
                              Name{"shortconv.in_proj", "conv.in_proj"},
                              Name{"shortconv.conv", "conv.conv"},
                              Name{"shortconv.out_proj", "conv.out_proj"},
                              Name{"ffn_norm", "ffn_norm"},
                              Name{"ffn_gate", "feed_forward.w1"},
                              Name{"ffn_up", "feed_forward.w3"},
                              Name{"ffn_down", "feed_forward.w2"}};

constexpr std::array kOlmoNorms = {Name{"post_attention_norm", "post_attention_layernorm"},
                                   Name{"post_ffw_norm", "post_feedforward_layernorm"}};

// A mixer's, inside its module.
constexpr std::array kMamba = {Name{"ssm_in", "in_proj"},   Name{"ssm_conv1d", "conv1d"},   Name{"ssm_norm", "norm"},
                               Name{"ssm_out", "out_proj"}, Name{"ssm_dt.bias", "dt_bias"}, Name{"ssm_a", "A_log"},
                               Name{"ssm_d", "D"}};
constexpr std::array kDelta = {
    Name{"attn_qkv", "in_proj_qkv"}, Name{"attn_gate", "in_proj_z"}, Name{"ssm_in", "in_proj_qkvz"},
    Name{"ssm_ba", "in_proj_ba"},    Name{"ssm_beta", "in_proj_b"},  Name{"ssm_alpha", "in_proj_a"},
    Name{"ssm_conv1d", "conv1d"},    Name{"ssm_norm", "norm"},       Name{"ssm_out", "out_proj"},
    Name{"ssm_dt.bias", "dt_bias"},  Name{"ssm_a", "A_log"}};
constexpr std::array kMamba2Norm = {Name{"attn_norm", "norm"}};
constexpr std::array kPostAttention = {Name{"post_attention_norm", "post_attention_layernorm"}};
constexpr std::array kSharedExpert = {
    Name{"ffn_gate_inp_shexp", "mlp.shared_expert_gate"}, Name{"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    Name{"ffn_up_shexp", "mlp.shared_expert.up_proj"}, Name{"ffn_down_shexp", "mlp.shared_expert.down_proj"}};
// The norm has no suffix there.
constexpr std::array kFalconMlp = {Name{"ffn_norm", "pre_ff_layernorm.weight"},
                                   Name{"ffn_gate", "feed_forward.gate_proj"}, Name{"ffn_up", "feed_forward.up_proj"},
                                   Name{"ffn_down", "feed_forward.down_proj"}};
constexpr std::array kGraniteMoe = {Name{"ffn_gate_inp", "block_sparse_moe.router.layer"},
                                    Name{"ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"},
                                    Name{"ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"},
                                    Name{"ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"},
                                    Name{"ffn_gate_shexp", "shared_mlp.gate_proj"},
                                    Name{"ffn_up_shexp", "shared_mlp.up_proj"},
                                    Name{"ffn_down_shexp", "shared_mlp.down_proj"}};

constexpr std::array kLatent = {Name{"attn_q_a", "self_attn.q_a_proj"},
                                Name{"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                Name{"attn_q_b", "self_attn.q_b_proj"},
                                Name{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                Name{"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                Name{"attn_kv_b", "self_attn.kv_b_proj"},
                                Name{"attn_k_b", "self_attn.embed_q"},
                                Name{"attn_v_b", "self_attn.unembed_out"}};
constexpr std::array kDeepseekExperts = {Name{"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
                                         Name{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                         Name{"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                         Name{"ffn_down_shexp", "mlp.shared_experts.down_proj"}};
constexpr std::array kLlama4 = {Name{"ffn_gate", "feed_forward.gate_proj"},
                                Name{"ffn_up", "feed_forward.up_proj"},
                                Name{"ffn_down", "feed_forward.down_proj"},
                                Name{"ffn_gate_inp", "feed_forward.router"},
                                Name{"ffn_gate_exps", "feed_forward.experts.gate_proj"},
                                Name{"ffn_up_exps", "feed_forward.experts.up_proj"},
                                Name{"ffn_down_exps", "feed_forward.experts.down_proj"},
                                Name{"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
                                Name{"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
                                Name{"ffn_down_shexp", "feed_forward.shared_expert.down_proj"}};
constexpr std::array kGemma4Top = {Name{"token_embd", "model.embed_tokens"},
                                   Name{"output_norm", "model.norm"},
                                   Name{"output", "lm_head"},
                                   Name{"per_layer_token_embd", "model.embed_tokens_per_layer"},
                                   Name{"per_layer_model_proj", "model.per_layer_model_projection"},
                                   Name{"per_layer_proj_norm", "model.per_layer_projection_norm"}};
constexpr std::array kGemma4 = {Name{"layer_output_scale.weight", "layer_scalar"},
                                Name{"inp_gate", "per_layer_input_gate"},
                                Name{"proj", "per_layer_projection"},
                                Name{"post_norm", "post_per_layer_input_norm"},
                                Name{"ffn_gate_inp.scale", "router.scale"},
                                Name{"ffn_gate_inp", "router.proj"},
                                Name{"ffn_down_exps.scale", "router.per_expert_scale"},
                                Name{"ffn_gate_up_exps", "experts.switch_glu.gate_up_proj"},
                                Name{"ffn_gate_exps", "experts.switch_glu.gate_proj"},
                                Name{"ffn_up_exps", "experts.switch_glu.up_proj"},
                                Name{"ffn_down_exps", "experts.switch_glu.down_proj"},
                                Name{"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                Name{"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                Name{"post_ffw_norm_2", "post_feedforward_layernorm_2"}};

using Names = std::span<const Name>;

struct NamesInside {
  Names names;
  std::string_view module = "";  // put before Hugging Face's
};

struct Family {
  std::string_view model_type;
  std::array<NamesInside, 6> names;  // of a layer's modules, some of them empty
  Names top = kTop;
  std::string_view layers = "model.layers.";
};

constexpr std::array kFamilies = {
    Family{"llama", {{{kAttention}, {kPreNorm}, {kDense}}}},
    Family{"qwen2", {{{kAttention}, {kPreNorm}, {kDense}}}},
    Family{"qwen3", {{{kAttention}, {kPreNorm}, {kDense}, {kHeadNorms}}}},
    Family{"qwen3_moe", {{{kAttention}, {kPreNorm}, {kHeadNorms}, {kQwenExperts}}}},
    Family{"qwen3_next",
           {{{kAttention}, {kPostAttention}, {kHeadNorms}, {kDelta, "linear_attn."}, {kQwenExperts}, {kSharedExpert}}}},
    Family{"qwen3_5_text", {{{kAttention}, {kPostAttention}, {kHeadNorms}, {kDelta, "linear_attn."}, {kDense}}}},
    Family{"qwen3_5_moe_text",
           {{{kAttention}, {kPostAttention}, {kHeadNorms}, {kDelta, "linear_attn."}, {kQwenExperts}, {kSharedExpert}}}},
    Family{"gemma3_text", {{{kAttention}, {kGemmaNorms}, {kDense}, {kHeadNorms}}}},
    Family{"gemma4_text", {{{kAttention}, {kGemmaNorms}, {kDense}, {kHeadNorms}, {kGemma4}}}, kGemma4Top},
    Family{"deepseek_v3", {{{kAttention}, {kPreNorm}, {kDense}, {kLatent}, {kQwenExperts}, {kDeepseekExperts}}}},
    Family{"llama4_text", {{{kAttention}, {kPreNorm}, {kLlama4}}}},
    Family{"gpt_oss", {{{kAttention}, {kGptOss}}}},
    Family{"cohere2", {{{kAttention}, {kDense}}}},
    Family{"olmo3", {{{kAttention}, {kHeadNorms}, {kOlmoNorms}, {kDense}}}},
    Family{"lfm2", {{{kLfm2}}}, kLfm2Top},
    Family{"mamba2", {{{kMamba2Norm}, {kMamba, "mixer."}}}, kMamba2Top, "backbone.layers."},
    Family{"falcon_h1", {{{kAttention}, {kMamba, "mamba."}, {kFalconMlp}}}, kFalconTop},
    Family{"granitemoehybrid", {{{kAttention}, {kMamba, "mamba."}, {kPreNorm}, {kDense}, {kGraniteMoe}}}},
};

const Family* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return found == kFamilies.end() ? nullptr : &*found;
}

// "attn_q.weight" -> "self_attn.q_proj.weight"; a name of its own before a module with a suffix. Empty: none.
std::string find_name(Names names, std::string_view gguf_name) {
  const auto whole = std::ranges::find(names, gguf_name, &Name::gguf);
  if (whole != names.end()) return std::string(whole->hugging_face);
  const std::size_t suffix = gguf_name.rfind('.');
  if (suffix == std::string_view::npos) return "";
  const auto module = std::ranges::find(names, gguf_name.substr(0, suffix), &Name::gguf);
  if (module == names.end()) return "";
  return std::string(module->hugging_face) + std::string(gguf_name.substr(suffix));
}

}  // namespace

bool has_gguf_names(std::string_view model_type) {
  return find_family(model_type) != nullptr;
}

std::optional<std::string> name_of_gguf_tensor(const std::string& gguf_name, const ModelConfig& config) {
  if (gguf_name == "rope_freqs.weight") return gguf_name;  // which Hugging Face's files do not have
  const Family* family = find_family(config.model_type);
  if (family == nullptr) return std::nullopt;
  if (std::string top = find_name(family->top, gguf_name); !top.empty()) return top;
  constexpr std::string_view kBlock = "blk.";
  const std::size_t dot = gguf_name.find('.', kBlock.size());
  if (!gguf_name.starts_with(kBlock) || dot == std::string::npos) return std::nullopt;
  std::string index = gguf_name.substr(kBlock.size(), dot - kBlock.size());
  const std::string_view inner = std::string_view(gguf_name).substr(dot + 1);
  int number = 0;
  std::from_chars(index.data(), index.data() + index.size(), number);
  // Blocks behind the model's own predict further tokens.
  const bool is_further = number >= config.n_layers && config.raw.contains("nextn_predict_layers");
  if (is_further) {
    index = std::to_string(number - config.n_layers);
    const std::string name = index == "0" ? find_name(kNextn, inner) : "";
    if (!name.empty()) return "mtp." + name;
  }
  const std::string layers = is_further ? "mtp.layers." : std::string(family->layers);
  for (const auto& [names, module] : family->names) {
    const std::string name = find_name(names, inner);
    if (!name.empty()) return layers + index + "." + std::string(module) + name;
  }
  return is_further ? std::optional(layers + index + "." + std::string(inner)) : std::nullopt;
}

}  // namespace memoir::model
