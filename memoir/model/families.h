#pragma once

// The model families memoir has, one function each; registry.cpp maps config.model_type to them.

#include <memory>

#include "memoir/model/model.h"
#include "memoir/model/mtp_head.h"

namespace memoir::model {

/// Each reads every tensor from `weights` and throws as make_model().
std::unique_ptr<Model> make_cohere2(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_deepseek_v3(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_falcon_h1(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_gemma3(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_gemma4(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_gpt_oss(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_granite_hybrid(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_lfm2(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_llama(const ModelConfig& config, Weights& weights);  // and Mistral, SmolLM2
std::unique_ptr<Model> make_llama4(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_mamba2(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_olmo3(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_qwen2(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_qwen3(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_qwen3_moe(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_qwen3_next(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_qwen3_5(const ModelConfig& config, Weights& weights);
std::unique_ptr<Model> make_qwen3_5_moe(const ModelConfig& config, Weights& weights);

/// The head of further tokens of a Qwen3-Next or Qwen3.5 model, from weights that have some under "mtp.".
std::unique_ptr<MtpHead> make_qwen_mtp_head(const ModelConfig& config, Weights& weights);

}  // namespace memoir::model
