#include "memoir/model/layer_pattern.h"

#include <algorithm>

#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"

namespace memoir::model {

std::vector<std::string> layer_pattern(const ModelConfig& config, std::initializer_list<std::string_view> known,
                                       const std::function<std::string_view(int)>& otherwise) {
  constexpr std::string_view kKey = "layer_types";
  const ConfigFields fields = family_fields(config);
  std::vector<std::string> pattern;
  if (auto types = fields.strings(kKey)) {
    pattern = std::move(*types);
  } else {
    for (int i = 0; i < config.n_layers; ++i) pattern.emplace_back(otherwise(i));
  }
  if (pattern.size() != static_cast<std::size_t>(config.n_layers)) {
    fields.fail(kKey,
                "has " + std::to_string(pattern.size()) + " names for " + std::to_string(config.n_layers) + " layers");
  }
  for (const std::string& type : pattern) {
    if (std::ranges::find(known, type) == known.end()) {
      fields.refuse(kKey, "holds \"" + type + "\", which " + config.model_type + " can't be made of");
    }
  }
  return pattern;
}

std::vector<std::string> sliding_pattern(const ModelConfig& config, int period) {
  return layer_pattern(config, {kFullAttention, kSlidingAttention},
                       [period](int i) { return (i + 1) % period == 0 ? kFullAttention : kSlidingAttention; });
}

std::vector<std::string> sliding_pattern(const ModelConfig& config) {
  constexpr std::string_view kKey = "sliding_window_pattern";
  const ConfigFields fields = family_fields(config);
  const bool is_needed = fields.find("layer_types") == nullptr;
  return sliding_pattern(config, is_needed ? fields.size(kKey, kMaxLayers) : 1);
}

std::vector<bool> layers_with_experts(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const int step = fields.size("decoder_sparse_step", kMaxLayers);
  const auto without = fields.integers("mlp_only_layers", 0, kMaxLayers).value_or(std::vector<std::int64_t>());
  std::vector<bool> has_experts;
  for (int i = 0; i < config.n_layers; ++i) {
    has_experts.push_back(std::ranges::find(without, i) == without.end() && (i + 1) % step == 0);
  }
  return has_experts;
}

RopeConfig rope_of_type(const ModelConfig& config, std::string_view layer_type, const RopeConfig& otherwise) {
  const auto found = config.layer_ropes.find(std::string(layer_type));
  return found == config.layer_ropes.end() ? otherwise : found->second;
}

}  // namespace memoir::model
