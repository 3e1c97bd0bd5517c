// DeepSeek-V3 (arXiv:2412.19437): latent attention, and experts chosen in groups beside shared ones.
//
// A cache holds for each token its latent vector (kv_lora_rank) and the turned part of its key (qk_rope_head_dim), one
// head for all: keys are the two side by side, and there are no values. What attention reads as values is the latent
// part of the keys. Queries are brought into the latent space before (through each head's part of kv_b_proj that
// makes keys) and what they gather out of it after (through the part that makes values), so that no head's own keys and
// values are ever made.

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr double kLatentNormEps = 1e-6;  // whatever rms_norm_eps is

struct LatentSizes {
  int hidden;
  int n_heads;
  std::optional<int> query_rank;  // nullopt: queries come from hidden directly
  int rank;                       // of keys and values
  int plain;                      // dimensions of a head's key that don't turn
  int turned;                     // and that do
  int value;
  bool has_bias;
};

LatentSizes read_sizes(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const auto query_rank = fields.integer("q_lora_rank", 1, kMaxHiddenSize);
  const LatentSizes sizes{config.hidden_size,
                          config.n_heads,
                          query_rank ? std::optional(static_cast<int>(*query_rank)) : std::nullopt,
                          fields.size("kv_lora_rank", kMaxHeadDim),
                          fields.size("qk_nope_head_dim", kMaxHeadDim),
                          fields.size("qk_rope_head_dim", kMaxHeadDim),
                          fields.size("v_head_dim", kMaxHeadDim),
                          config.attention_bias};
  if (sizes.turned % 2 != 0) {
    fields.fail("qk_rope_head_dim", "is " + std::to_string(sizes.turned) + ", an odd number: RoPE turns pairs");
  }
  constexpr std::int64_t kMaxWidth = 1 << 24;
  if (std::int64_t{sizes.n_heads} * (sizes.plain + sizes.value) > kMaxWidth) {
    fields.fail("v_head_dim", "is too large for " + std::to_string(sizes.n_heads) + " heads");
  }
  return sizes;
}

// kv_b_proj, [heads * (plain + value), rank], cut into the two parts of each head.
struct Unfolded {
  kernels::WeightStack keys;    // of [rank, plain]: brings queries to the latent space
  kernels::WeightStack values;  // of [value, rank]
};

mx::array dequantized(const kernels::Weight& weight) {
  if (!weight.quantization) return weight.data;
  const kernels::Quantization& q = *weight.quantization;
  return mx::dequantize(weight.data, q.scales, q.biases, q.group_size, q.bits);
}

Unfolded read_unfolded(Weights& weights, const std::string& module, const LatentSizes& sizes) {
  if (weights.has(module + ".embed_q.weight")) {  // MLX's form, cut already; GGUF files may have both
    weights.pass_over(module + ".kv_b_proj.");
    return {weights.stack(module + ".embed_q", {sizes.rank, sizes.plain, sizes.n_heads}),
            weights.stack(module + ".unembed_out", {sizes.value, sizes.rank, sizes.n_heads})};
  }
  const int n_rows = sizes.plain + sizes.value;
  const mx::array both =
      dequantized(weights.stored_matrix(module + ".kv_b_proj", {sizes.n_heads * n_rows, sizes.rank}));
  const auto rows = [&](int head, int begin, int end) {
    return mx::slice(both, mx::Shape{head * n_rows + begin, 0}, mx::Shape{head * n_rows + end, sizes.rank});
  };
  const auto keys = [&](int head) {
    return kernels::Weight{mx::contiguous(mx::transpose(rows(head, 0, sizes.plain)))};
  };
  const auto values = [&](int head) { return kernels::Weight{rows(head, sizes.plain, n_rows)}; };
  return {kernels::stacked(sizes.n_heads, keys), kernels::stacked(sizes.n_heads, values)};
}

mx::array columns(const mx::array& x, int begin, int end) {
  mx::Shape from(x.ndim(), 0);
  mx::Shape to = x.shape();
  from.back() = begin;
  to.back() = end;
  return mx::slice(x, from, to);
}

class LatentAttention {
 public:
  LatentAttention(Weights& weights, const std::string& module, const LatentSizes& sizes, float scale)
      : sizes_(sizes),
        query_down_(read_query_down(weights, module, sizes)),
        query_norm_(read_query_norm(weights, module, sizes)),
        query_(read_linear(weights, module + (sizes.query_rank ? ".q_b_proj" : ".q_proj"),
                           sizes.n_heads * (sizes.plain + sizes.turned), sizes.query_rank.value_or(sizes.hidden),
                           false)),
        latent_(read_linear(weights, module + ".kv_a_proj_with_mqa", sizes.rank + sizes.turned, sizes.hidden,
                            sizes.has_bias)),
        latent_norm_(read_rms_norm(weights, module + ".kv_a_layernorm", sizes.rank, kLatentNormEps)),
        unfolded_(read_unfolded(weights, module, sizes)),
        output_(read_linear(weights, module + ".o_proj", sizes.hidden, sizes.n_heads * sizes.value, sizes.has_bias)),
        options_{scale} {}

  // x: normed. Returns the attention's output + residual.
  mx::array operator()(const mx::array& x, const Step& step, std::size_t index, const mx::array& residual) const {
    const kernels::Turns& turns = step.turns.front();
    const mx::array queries = cut_heads(
        kernels::linear(query_down_ ? kernels::norm(kernels::linear(x, *query_down_), *query_norm_) : x, query_),
        sizes_.n_heads);
    const int n_query = sizes_.plain + sizes_.turned;
    const mx::array latent_queries = kernels::linear_of_heads(columns(queries, 0, sizes_.plain), unfolded_.keys);
    const mx::array turned_queries = kernels::rope(columns(queries, sizes_.plain, n_query), turns);

    const mx::array joined = kernels::linear(x, latent_);
    const mx::array latent = kernels::norm(columns(joined, 0, sizes_.rank), latent_norm_);
    const mx::array turned =
        kernels::rope(cut_heads(columns(joined, sizes_.rank, sizes_.rank + sizes_.turned), 1), turns);
    Histories histories =
        update(step, index, mx::concatenate({cut_heads(latent, 1), turned}, -1), columns(turned, 0, 0));
    for (auto& [n_queries, history] : histories) history.values = latent_part(history.keys);
    const mx::array gathered =
        kernels::attention(mx::concatenate({latent_queries, turned_queries}, -1), histories, options_);
    const mx::array values = kernels::linear_of_heads(cut_heads(gathered, sizes_.n_heads), unfolded_.values);
    return kernels::linear(join_heads(values), output_, residual);
  }

  KeyPositions key_positions() const { return {0, sizes_.rank}; }

  std::size_t size_bytes() const {
    return (query_down_ ? query_down_->size_bytes() : 0) + query_.size_bytes() + latent_.size_bytes() +
           unfolded_.keys.size_bytes() + unfolded_.values.size_bytes() + output_.size_bytes();
  }

 private:
  static std::optional<kernels::Linear> read_query_down(Weights& weights, const std::string& module,
                                                        const LatentSizes& sizes) {
    if (!sizes.query_rank) return std::nullopt;
    return read_linear(weights, module + ".q_a_proj", *sizes.query_rank, sizes.hidden, sizes.has_bias);
  }

  static std::optional<kernels::Norm> read_query_norm(Weights& weights, const std::string& module,
                                                      const LatentSizes& sizes) {
    if (!sizes.query_rank) return std::nullopt;
    return read_rms_norm(weights, module + ".q_a_layernorm", *sizes.query_rank, kLatentNormEps);
  }

  // A view of the rows' beginnings.
  kernels::KvBuffer latent_part(const kernels::KvBuffer& keys) const {
    if (!keys.quantization) return {columns(keys.data, 0, sizes_.rank)};
    const kernels::Quantization& q = *keys.quantization;
    const int n_groups = sizes_.rank / q.group_size;
    return {
        columns(keys.data, 0, sizes_.rank * q.bits / 32),
        kernels::Quantization{columns(q.scales, 0, n_groups), columns(q.biases, 0, n_groups), q.group_size, q.bits}};
  }

  LatentSizes sizes_;
  std::optional<kernels::Linear> query_down_;
  std::optional<kernels::Norm> query_norm_;
  kernels::Linear query_;
  kernels::Linear latent_;
  kernels::Norm latent_norm_;
  Unfolded unfolded_;
  kernels::Linear output_;
  kernels::AttentionOptions options_;
};

kernels::Routing read_routing(Weights& weights, const ModelConfig& config, const std::string& module, int n_experts) {
  const ConfigFields fields = family_fields(config);
  kernels::Routing routing;
  routing.score = kernels::Routing::Score::kSigmoid;
  routing.n_chosen = fields.size("num_experts_per_tok", kMaxExperts);
  routing.is_normalized = fields.required_boolean("norm_topk_prob");
  routing.added_to_sum = 1e-20F;
  routing.scale = static_cast<float>(fields.required_number("routed_scaling_factor"));
  routing.n_groups = fields.size("n_group", kMaxExperts);
  routing.n_chosen_groups = fields.size("topk_group", kMaxExperts);
  const int n_groups = routing.n_groups;
  if (n_experts % n_groups != 0 || n_experts / n_groups < 2) {
    fields.fail("n_group", "is " + std::to_string(n_groups) + " for " + std::to_string(n_experts) + " experts");
  }
  if (routing.n_chosen_groups > n_groups) {
    fields.fail("topk_group", "is " + std::to_string(routing.n_chosen_groups) + " of " + std::to_string(n_groups));
  }
  if (routing.n_chosen > n_experts / n_groups * routing.n_chosen_groups) {
    fields.fail("num_experts_per_tok", "is more than the " + std::to_string(routing.n_chosen_groups) + " groups have");
  }
  routing.choice_biases =
      typed_vector(mx::astype(weights.vector(module + ".gate.e_score_correction_bias", n_experts), mx::float32));
  return routing;
}

Mixture read_mixture(Weights& weights, const ModelConfig& config, const std::string& module) {
  const ConfigFields fields = family_fields(config);
  const int n_experts = fields.size("n_routed_experts", kMaxExperts);
  const int intermediate = fields.size("moe_intermediate_size", kMaxHiddenSize);
  const int n_shared = fields.size("n_shared_experts", kMaxExperts);
  if (std::int64_t{n_shared} * intermediate > kMaxIntermediateSize) fields.fail("n_shared_experts", "are too many");
  return {read_linear(weights, module + ".gate", n_experts, config.hidden_size, false),
          read_routing(weights, config, module, n_experts),
          read_experts(weights, module, module + ".switch_mlp", {n_experts, config.hidden_size, intermediate},
                       read_gate(config)),
          read_gated_mlp(weights, module + ".shared_experts", config, n_shared * intermediate)};
}

class DeepseekLayer : public DecoderLayer {
 public:
  DeepseekLayer(Weights& weights, const ModelConfig& config, const LatentSizes& sizes, int index, float scale)
      : attention_norm_(read_norm(weights, config, index, ".input_layernorm")),
        attention_(weights, layer_module(index) + ".self_attn", sizes, scale),
        mlp_norm_(read_norm(weights, config, index, ".post_attention_layernorm")) {
    const auto n_dense = family_fields(config).integer("first_k_dense_replace", 0, kMaxLayers).value_or(0);
    const std::string module = layer_module(index) + ".mlp";
    if (index < n_dense) {
      mlp_ = read_gated_mlp(weights, module, config, config.intermediate_size);
    } else {
      mixture_ = read_mixture(weights, config, module);
    }
  }

  std::optional<KeyPositions> key_positions() const override { return attention_.key_positions(); }

  // Values are a part of the keys' rows, which codes can't be cut out of.
  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    if (options.quantization) {
      throw std::invalid_argument("[model.make_cache] latent rows are not quantized, expected a floating type");
    }
    return cache::make_kv_cache(std::nullopt, std::nullopt, options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array y = attention_(kernels::norm(x, attention_norm_), step, index, x);
    return mlp_ ? kernels::gated_mlp(y, mlp_norm_, *mlp_, y) : mix(kernels::norm(y, mlp_norm_), *mixture_, y);
  }

  std::size_t size_bytes() const override {
    return 2 * attention_norm_.weight.nbytes() + attention_.size_bytes() +
           (mlp_ ? mlp_->size_bytes() : mixture_->size_bytes());
  }

 private:
  static kernels::Norm read_norm(Weights& weights, const ModelConfig& config, int index, const char* name) {
    return read_rms_norm(weights, layer_module(index) + name, config.hidden_size, config.rms_norm_eps);
  }

  kernels::Norm attention_norm_;
  LatentAttention attention_;
  kernels::Norm mlp_norm_;
  std::optional<kernels::GatedMlp> mlp_;
  std::optional<Mixture> mixture_;  // instead of mlp_
};

// Values that transformers' code doesn't ask for, since it has no other.
void check_supported_keys(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const auto only = [&](const char* key, const std::string& wanted) {
    const auto value = fields.string(key);
    if (value && *value != wanted) fields.refuse(key, "is '" + *value + "', expected " + wanted);
  };
  only("scoring_func", "sigmoid");
  only("topk_method", "noaux_tc");
  if (const auto step = fields.integer("moe_layer_freq", 0, kMaxLayers); step && *step != 1) {
    fields.refuse("moe_layer_freq", "is " + std::to_string(*step) + ", expected 1");
  }
}

// 1 / sqrt(head), and with yarn times the square of its factor for all dimensions.
float attention_scale(const ModelConfig& config) {
  double scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const double all = config.rope.mscale_all_dim.value_or(0);
  if (config.rope.type != "default" && all != 0 && config.rope.factor > 1) {
    const double magnitude = 0.1 * all * std::log(config.rope.factor) + 1;
    scale *= magnitude * magnitude;
  }
  return static_cast<float>(scale);
}

}  // namespace

std::unique_ptr<Model> make_deepseek_v3(const ModelConfig& config, Weights& weights) {
  check_supported_keys(config);
  const LatentSizes sizes = read_sizes(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    layers.push_back(std::make_unique<DeepseekLayer>(weights, config, sizes, i, attention_scale(config)));
  }
  // Layers that predict further tokens, which lie behind the model's own.
  const auto n_predicting = family_fields(config).integer("num_nextn_predict_layers", 0, kMaxLayers).value_or(0);
  for (int i = config.n_layers; i < config.n_layers + n_predicting; ++i) {
    if (weights.has(layer_module(i) + ".eh_proj.weight")) weights.pass_over(layer_module(i) + ".");
  }
  weights.pass_over("mtp.");  // the same in GGUF files
  kernels::Rope rope = make_rope(config.rope, sizes.turned, config.path);
  rope.traditional = family_fields(config).boolean("rope_interleave").value_or(true);
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      std::vector{std::move(rope)}, std::move(layers));
}

}  // namespace memoir::model
