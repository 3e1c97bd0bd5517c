#include "memoir/model/gemma4_assistant.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <string>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/kernels/device.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/gemma4_layers.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::model {
namespace {

constexpr const char* kModelType = "gemma4_assistant";
constexpr const char* kTargetType = "gemma4_text";
constexpr const char* kTargetSize = "backbone_hidden_size";

// Where a layer finds keys and values among Step::histories.
constexpr std::size_t kSliding = 0;
constexpr std::size_t kFull = 1;

ConfigFields outer_fields(const ModelConfig& config) {
  return {config.outer, config.path};
}

Gemma4Keys read_reading_keys(const ModelConfig& config) {
  Gemma4Keys keys = read_gemma4_keys(config);
  for (Gemma4LayerKeys& layer : keys.layers) layer.source = layer.is_sliding ? kSliding : kFull;
  keys.input_size = 0;
  return keys;
}

// With the window that its layers look through.
ModelConfig with_window(ModelConfig config, std::optional<int> n_visible) {
  if (!config.sliding_window || *config.sliding_window < 2) {
    throw UnsupportedError(config.path, "text_config.sliding_window", "leaves an assistant nothing to see");
  }
  config.sliding_window = n_visible.value_or(*config.sliding_window - 1);
  return config;
}

std::string rope_text(const RopeConfig& rope) {
  return rope.type + " with theta " + std::to_string(rope.theta) + ", of " +
         std::to_string(rope.partial_rotary_factor) + " of a head, factor " + std::to_string(rope.factor);
}

// The first layer of the kind; null if there is none.
const Gemma4LayerKeys* find_layer(const Gemma4Keys& keys, bool is_sliding) {
  for (const Gemma4LayerKeys& layer : keys.layers) {
    if (layer.is_sliding == is_sliding) return &layer;
  }
  return nullptr;
}

class Fit {
 public:
  explicit Fit(const ModelConfig& assistant) : path_(assistant.path) {}

  template <typename T>
  void same(const std::string& key, const T& mine, const T& theirs) const {
    if (mine == theirs) return;
    refuse(key, "is " + text(mine) + ", the model's is " + text(theirs));
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw UnsupportedError(path_, key, what + ": the assistant was made for another model");
  }

 private:
  static std::string text(int value) { return std::to_string(value); }
  static std::string text(const std::string& value) { return value; }

  std::string path_;
};

}  // namespace

Gemma4Assistant::Gemma4Assistant(const ModelConfig& config, Weights& weights, std::optional<int> n_visible)
    : config_(config),
      target_hidden_(outer_fields(config).size(kTargetSize, kMaxHiddenSize)),
      norm_(read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      embedding_(weights.matrix("model.embed_tokens", config.vocab_size, config.hidden_size)),
      before_(read_linear(weights, "pre_projection", config.hidden_size, 2 * target_hidden_, false)),
      after_(read_linear(weights, "post_projection", target_hidden_, config.hidden_size, false)) {
  if (!config.tie_embeddings) {
    throw UnsupportedError(config.path, "tie_word_embeddings", "is false, expected an assistant that ties them");
  }
  Gemma4Keys keys = read_reading_keys(config);
  if (keys.has_experts)
    throw UnsupportedError(config.path, "text_config.enable_moe_block", "an assistant has no experts");
  ropes_ = make_gemma4_ropes(config, keys.layers);
  const ModelConfig reading = with_window(config, n_visible);
  for (int i = 0; i < config.n_layers; ++i) layers_.push_back(make_gemma4_layer(weights, reading, keys, i));
  clusters_ = read_clusters(weights);
  weights.finish();
}

std::optional<Gemma4Assistant::Clusters> Gemma4Assistant::read_clusters(Weights& weights) const {
  const ConfigFields fields = outer_fields(config_);
  if (!fields.boolean("use_ordered_embeddings").value_or(false)) return std::nullopt;
  const int n = fields.size("num_centroids", kMaxVocab);
  const int n_chosen = fields.size("centroid_intermediate_top_k", kMaxVocab);
  if (config_.vocab_size % n != 0) {
    fields.fail("num_centroids",
                std::to_string(n) + " does not divide vocab_size " + std::to_string(config_.vocab_size));
  }
  if (n_chosen > n) {
    fields.fail("centroid_intermediate_top_k", "is " + std::to_string(n_chosen) + " of " + std::to_string(n));
  }
  const mx::array tokens = weights.indices("masked_embedding.token_ordering", config_.vocab_size, config_.vocab_size);
  mx::array by_cluster = mx::reshape(tokens, {n, config_.vocab_size / n});
  mx::eval(by_cluster);  // another thread may run the assistant
  return Clusters{read_linear(weights, "masked_embedding.centroids", n, config_.hidden_size, false), by_cluster,
                  n_chosen};
}

void Gemma4Assistant::check_fits(const Model& target) const {
  const ModelConfig& theirs = target.config();
  const Fit fit(config_);
  if (theirs.model_type != kTargetType) {
    fit.refuse("model_type", std::string("is ") + kModelType + ", the model's is " + theirs.model_type);
  }
  fit.same(kTargetSize, target_hidden_, theirs.hidden_size);
  fit.same("text_config.vocab_size", config_.vocab_size, theirs.vocab_size);
  const Gemma4Keys mine = read_gemma4_keys(config_);
  const Gemma4Keys target_keys = read_gemma4_keys(theirs);
  for (const bool is_sliding : {true, false}) {
    const std::string kind = is_sliding ? "sliding_attention" : "full_attention";
    const Gemma4LayerKeys* layer = find_layer(mine, is_sliding);
    if (!layer) continue;
    const Gemma4LayerKeys* source = find_layer(target_keys, is_sliding);
    if (!source) fit.refuse("text_config.layer_types", "has " + kind + ", the model has none");
    const char* head_dim = is_sliding ? "text_config.head_dim" : "text_config.global_head_dim";
    fit.same(head_dim, layer->head_dim, source->head_dim);
    fit.same("text_config.num_key_value_heads", layer->n_kv_heads, source->n_kv_heads);
    fit.same("text_config.rope_parameters." + kind, rope_text(config_.layer_ropes.at(kind)),
             rope_text(theirs.layer_ropes.at(kind)));
    if (is_sliding) fit.same("text_config.sliding_window", *config_.sliding_window, theirs.sliding_window.value_or(0));
  }
}

Gemma4Assistant::Guess Gemma4Assistant::guess(const mx::array& embedding, const mx::array& hidden,
                                              const SharedHistories& shared, int position) const {
  Step step{mx::array(0), {}};
  for (const kernels::Rope& rope : ropes_) step.turns.push_back(kernels::make_turns(rope, position, 1));
  step.histories.emplace(kSliding, Histories{{1, shared.sliding}});
  step.histories.emplace(kFull, Histories{{1, shared.full}});
  mx::array x = kernels::linear(mx::concatenate({embedding, mx::astype(hidden, embedding.dtype())}, 2), before_);
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->forward(x, step, i);
  const mx::array h = kernels::norm(x, norm_);
  return {logits(h), kernels::linear(h, after_)};
}

// h: [1, 1, hidden].
mx::array Gemma4Assistant::logits(const mx::array& h) const {
  if (!clusters_) return mx::reshape(kernels::linear(h, {embedding_}), {-1});
  const mx::array fits = mx::reshape(kernels::linear(h, clusters_->centroids), {-1});
  const mx::array best = mx::slice(mx::argsort(mx::negative(fits)), {0}, {clusters_->n_chosen});
  const mx::array ids = mx::flatten(mx::take(clusters_->tokens, best, 0));
  const mx::array rows = kernels::embed(ids, embedding_, mx::float32);  // [n, hidden]
  const mx::array own = mx::matmul(rows, mx::astype(mx::reshape(h, {-1}), mx::float32));
  const mx::array others = mx::full({config_.vocab_size}, mx::subtract(mx::min(own), mx::array(1.0F)));
  return mx::put_along_axis(others, ids, own, 0);
}

std::size_t Gemma4Assistant::size_bytes() const {
  std::size_t n_bytes = norm_.weight.nbytes() + embedding_.size_bytes() + before_.size_bytes() + after_.size_bytes();
  for (const auto& layer : layers_) n_bytes += layer->size_bytes();
  if (clusters_) n_bytes += clusters_->centroids.size_bytes() + clusters_->tokens.nbytes();
  return n_bytes;
}

bool is_gemma4_assistant(const fs::path& directory) {
  if (!fs::is_directory(existing_status(directory)) || !entry_exists(directory / "config.json")) return false;
  const fs::path path = directory / "config.json";
  const nlohmann::json config = parse_json(read_text_file(path), path.string());
  if (!config.is_object()) return false;
  const nlohmann::json model_type = config.value("model_type", nlohmann::json());
  if (model_type == kModelType) return true;
  // Else what stands under text_config would be taken for a model.
  if (!config.contains(kTargetSize) || !config.contains("text_config")) return false;
  throw UnsupportedError(path.string(), "model_type",
                         (model_type.is_null() ? "is missing" : "is " + json_text(nlohmann::ordered_json(model_type))) +
                             ", expected \"" + kModelType + "\", which a " + kTargetSize +
                             " beside a text_config belongs to");
}

std::unique_ptr<Gemma4Assistant> load_gemma4_assistant(const fs::path& directory, std::optional<int> n_visible) {
  const ModelConfig config = read_config(directory);
  if (!config.outer.is_object()) throw FormatError(config.path, "text_config", "is missing");
  if (config.model_type != kTargetType) {
    throw UnsupportedError(config.path, "text_config.model_type",
                           "is \"" + config.model_type + "\", expected \"" + kTargetType + "\"");
  }
  return std::make_unique<Gemma4Assistant>(config, *open_safetensors_weights(directory, config), n_visible);
}

SharedLayers shared_layers(const Model& target) {
  const ModelConfig& config = target.config();
  if (config.model_type != kTargetType) {
    throw UnsupportedError(config.path, "model_type", "an assistant needs a Gemma 4 model to read");
  }
  Gemma4Keys keys = read_gemma4_keys(config);
  read_gemma4_sharing(config, keys);
  std::optional<std::size_t> sliding;
  std::optional<std::size_t> full;
  for (std::size_t i = 0; i < keys.layers.size(); ++i) {
    if (!keys.layers[i].source) (keys.layers[i].is_sliding ? sliding : full) = i;
  }
  if (!sliding || !full) {
    throw UnsupportedError(config.path, "layer_types", "an assistant needs layers of both kinds to read");
  }
  return {*sliding, *full};
}

}  // namespace memoir::model
