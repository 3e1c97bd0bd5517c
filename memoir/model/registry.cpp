#include <array>
#include <string>
#include <string_view>

#include "memoir/base/error.h"
#include "memoir/model/families.h"
#include "memoir/model/model.h"

namespace memoir::model {
namespace {

struct Family {
  std::string_view model_type;
  std::unique_ptr<Model> (*make)(const ModelConfig& config, Weights& weights);
};

constexpr std::array kFamilies = {
    Family{"cohere2", make_cohere2},
    Family{"deepseek_v3", make_deepseek_v3},
    Family{"falcon_h1", make_falcon_h1},
    Family{"gemma3_text", make_gemma3},
    Family{"gemma4_text", make_gemma4},
    Family{"gpt_oss", make_gpt_oss},
    Family{"granitemoehybrid", make_granite_hybrid},
    Family{"lfm2", make_lfm2},
    Family{"llama", make_llama},
    Family{"llama4_text", make_llama4},
    Family{"mamba2", make_mamba2},
    Family{"mistral", make_llama},
    Family{"olmo3", make_olmo3},
    Family{"qwen2", make_qwen2},
    Family{"qwen3", make_qwen3},
    Family{"qwen3_moe", make_qwen3_moe},
    Family{"qwen3_next", make_qwen3_next},
    Family{"qwen3_5_text", make_qwen3_5},
    Family{"qwen3_5_moe_text", make_qwen3_5_moe},
};

std::string known_types() {
  std::string types;
  for (const Family& family : kFamilies) types += (types.empty() ? "" : ", ") + std::string(family.model_type);
  return types;
}

const Family& find_family(const std::string& model_type, const std::string& path) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return family;
  }
  throw UnsupportedError(path, "model_type", "unknown architecture '" + model_type + "', memoir has: " + known_types());
}

}  // namespace

void check_supported(const std::string& model_type, const std::string& path) {
  find_family(model_type, path);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Weights& weights) {
  std::unique_ptr<Model> model = find_family(config.model_type, config.path).make(config, weights);
  weights.finish();
  return model;
}

}  // namespace memoir::model
