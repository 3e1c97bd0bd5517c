#include "memoir/model/mtp_head.h"

#include <mlx/ops.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/model/families.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::model {

cache::ModelCache MtpHead::make_cache() const {
  std::vector<std::unique_ptr<cache::LayerCache>> layers;
  layers.push_back(parts_.layer->make_cache(with_row_type({}, parts_.join.weight)));
  return cache::ModelCache(std::move(layers));
}

mx::array MtpHead::forward(const mx::array& embeddings, const mx::array& hidden, cache::ModelCache& cache) const {
  const int n_slots = embeddings.shape(1);
  Step step{mx::array(0), {{&cache, 0, n_slots, cache.offset()}}};
  step.turns.push_back(make_turns(parts_.rope, step.sequences));
  const mx::array both = mx::concatenate({kernels::norm(embeddings, parts_.embedding_norm),
                                          kernels::norm(mx::astype(hidden, embeddings.dtype()), parts_.hidden_norm)},
                                         2);
  return kernels::norm(parts_.layer->forward(kernels::linear(both, parts_.join), step, 0), parts_.norm);
}

std::size_t MtpHead::size_bytes() const {
  return parts_.embedding_norm.weight.nbytes() + parts_.hidden_norm.weight.nbytes() + parts_.join.size_bytes() +
         parts_.layer->size_bytes() + parts_.norm.weight.nbytes();
}

std::unique_ptr<MtpHead> load_mtp_head(const fs::path& path) {
  const bool is_directory = fs::is_directory(existing_status(path));
  const auto gguf = is_directory ? nullptr : std::make_shared<const GgufFile>(GgufFile::open(path));
  const ModelConfig config = gguf ? config_from_gguf(*gguf, check_supported) : read_config(path, check_supported);
  constexpr std::array<std::string_view, 3> kFamilies = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"};
  std::unique_ptr<Weights> weights;
  if (std::ranges::find(kFamilies, config.model_type) != kFamilies.end()) {
    weights = gguf ? open_gguf_weights(gguf, config) : open_safetensors_weights(path, config);
  }
  if (!weights || !weights->has_any("mtp.")) {
    throw UnsupportedError(path.string(), kNoMtpHead, "the model carries no head that predicts further tokens");
  }
  return make_qwen_mtp_head(config, *weights);
}

}  // namespace memoir::model
