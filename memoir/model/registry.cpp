#include "memoir/model/registry.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/kernels/weight_memory.h"
#include "memoir/model/families.h"
#include "memoir/model/model.h"

namespace memoir::model {
namespace {

using Make = std::unique_ptr<Model> (*)(const ModelConfig& config, Weights& weights);

constexpr std::string_view kRows = "KVCache";
constexpr std::string_view kWindows = "KVCache, RotatingKVCache";
constexpr std::string_view kChunks = "KVCache, ChunkedKVCache";
constexpr std::string_view kStates = "RecurrentCache";
constexpr std::string_view kHybrid = "KVCache, RecurrentCache";
constexpr std::string_view kLists = "CacheList of RecurrentCache, KVCache";

struct Family {
  FamilyInfo info;
  Make make;
};

constexpr std::array kFamilies = {
    Family{{"cohere2", "Cohere 2 (Command R7B, Command A)", kWindows, "cohere2"}, make_cohere2},
    Family{{"deepseek_v3", "DeepSeek-V3, R1", kRows, "deepseek2"}, make_deepseek_v3},
    Family{{"falcon_h1", "Falcon-H1", kLists, "falcon-h1"}, make_falcon_h1},
    Family{{"gemma3_text", "Gemma 3 (text)", kWindows, "gemma3"}, make_gemma3},
    Family{{"gemma4_text", "Gemma 4 (text)", kWindows, "gemma4"}, make_gemma4},
    Family{{"gpt_oss", "gpt-oss", kWindows, "gpt-oss"}, make_gpt_oss},
    Family{{"granitemoehybrid", "Granite 4 hybrids, dense and MoE", kHybrid, "granitehybrid"}, make_granite_hybrid},
    Family{{"lfm2", "LFM2", kHybrid, "lfm2"}, make_lfm2},
    Family{{"llama", "Llama 2 and 3, SmolLM2", kRows, "llama"}, make_llama},
    Family{{"llama4_text", "Llama 4 (text)", kChunks, "llama4"}, make_llama4},
    Family{{"mamba2", "Mamba 2, Codestral Mamba", kStates, "mamba2"}, make_mamba2},
    Family{{"mistral", "Mistral", kWindows, "llama"}, make_llama},
    Family{{"olmo3", "OLMo 3", kWindows, "olmo2"}, make_olmo3},
    Family{{"qwen2", "Qwen2, Qwen2.5", kWindows, "qwen2"}, make_qwen2},
    Family{{"qwen3", "Qwen3", kWindows, "qwen3"}, make_qwen3},
    Family{{"qwen3_5_moe_text", "Qwen3.5 MoE (text)", kHybrid, "qwen35moe"}, make_qwen3_5_moe},
    Family{{"qwen3_5_text", "Qwen3.5 (text)", kHybrid, "qwen35"}, make_qwen3_5},
    Family{{"qwen3_moe", "Qwen3-MoE", kWindows, "qwen3moe"}, make_qwen3_moe},
    Family{{"qwen3_next", "Qwen3-Next", kHybrid, "qwen3next"}, make_qwen3_next},
};

std::string known_types() {
  std::string types;
  for (const Family& family : kFamilies) types += (types.empty() ? "" : ", ") + std::string(family.info.model_type);
  return types;
}

const Family& find_family(const std::string& model_type, const std::string& path) {
  for (const Family& family : kFamilies) {
    if (family.info.model_type == model_type) return family;
  }
  throw UnsupportedError(path, "model_type", "unknown architecture '" + model_type + "', memoir has: " + known_types());
}

}  // namespace

std::vector<FamilyInfo> families() {
  std::vector<FamilyInfo> all;
  for (const Family& family : kFamilies) all.push_back(family.info);
  return all;
}

void check_supported(const std::string& model_type, const std::string& path) {
  find_family(model_type, path);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Weights& weights) {
  const kernels::WeightChunks chunks;
  std::unique_ptr<Model> model = find_family(config.model_type, config.path).make(config, weights);
  weights.finish();
  return model;
}

}  // namespace memoir::model
