#pragma once

// The scheduler's StepRunner over a model: a ModelCache for each sequence, a PrefixStore for those that ended.
//
// Threads: one, which owns MLX's work; the model's weights are evaluated. Ownership: owns model and store.

#include <mlx/array.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/engine/step_runner.h"
#include "memoir/model/model.h"

namespace memoir::engine {

class ModelRunner : public StepRunner {
 public:
  ModelRunner(std::unique_ptr<model::Model> model, std::unique_ptr<PrefixStore> store);

  int n_vocab() const override { return model_->config().vocab_size; }
  int context() const override { return model_->context(); }
  CacheCost cost() const override { return cost_; }
  int create(SequenceId sequence, std::span<const TokenId> tokens, std::size_t max_cache_bytes) override;
  std::vector<std::span<float>> run(std::span<const Slice> slices) override;
  int offset(SequenceId sequence) const override;
  std::size_t cache_bytes(SequenceId sequence) const override;
  void retire(SequenceId sequence, std::vector<TokenId> tokens) override;
  void drop(SequenceId sequence) noexcept override { caches_.erase(sequence); }
  std::size_t kept_bytes() const override { return store_->bytes(); }

 private:
  const cache::ModelCache& cache(SequenceId sequence) const;
  cache::ModelCache& cache(SequenceId sequence);
  mlx::core::array forward(std::span<const Slice> slices);

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<PrefixStore> store_;
  CacheCost cost_;
  std::map<SequenceId, cache::ModelCache> caches_;
  std::vector<std::vector<float>> rows_;  // what run() returned last
};

}  // namespace memoir::engine
