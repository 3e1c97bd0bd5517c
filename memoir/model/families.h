#pragma once

// The model families memoir has, one function each; registry.cpp maps config.model_type to them.

#include <memory>

#include "memoir/model/model.h"

namespace memoir::model {

/// Llama 2 and 3, SmolLM2, Mistral (llama.cpp). Reads every tensor from `weights`.
std::unique_ptr<Model> make_llama(const ModelConfig& config, Weights& weights);

}  // namespace memoir::model
