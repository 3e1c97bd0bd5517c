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
    Family{"llama", make_llama},
    Family{"mistral", make_llama},
};

std::string known_types() {
  std::string types;
  for (const Family& family : kFamilies) types += (types.empty() ? "" : ", ") + std::string(family.model_type);
  return types;
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, Weights& weights) {
  for (const Family& family : kFamilies) {
    if (family.model_type != config.model_type) continue;
    std::unique_ptr<Model> model = family.make(config, weights);
    weights.finish();
    return model;
  }
  throw UnsupportedError(config.path, "model_type",
                         "unknown architecture '" + config.model_type + "', memoir has: " + known_types());
}

}  // namespace memoir::model
