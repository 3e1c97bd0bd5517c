#pragma once

// The scheduler's StepRunner over a model: a ModelCache for each sequence, and a prefix::Store of what any of them has
// computed.
//
// Threads: one, which owns MLX's work; the model's weights are evaluated. Ownership: owns model and store.

#include <mlx/array.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/engine/step_runner.h"
#include "memoir/model/model.h"
#include "memoir/prefix/directory_options.h"
#include "memoir/prefix/store.h"

namespace memoir::engine {

class ModelRunner : public StepRunner {
 public:
  /// options, directory: of the prefix store. caches: how the sequences' are made. Throws as make_prefix_store.
  explicit ModelRunner(std::unique_ptr<model::Model> model, const prefix::StoreOptions& options = {},
                       const cache::CacheOptions& caches = {},
                       const std::optional<prefix::DirectoryTierOptions>& directory = {});

  int n_vocab() const override { return model_->config().vocab_size; }
  int context() const override { return model_->context(); }
  CacheCost cost() const override { return cost_; }
  int create(const NewSequence& sequence) override;
  int catch_up(const NewSequence& sequence, int min_gain) override;
  std::vector<std::span<float>> run(std::span<const Slice> slices) override;
  int offset(SequenceId sequence) const override;
  std::size_t cache_bytes(SequenceId sequence) const override;
  void retire(SequenceId sequence) noexcept override;
  void drop(SequenceId sequence) noexcept override { sequences_.erase(sequence); }
  std::size_t kept_bytes() const override { return store_->size_bytes(); }
  std::string kept_report() override { return store_->report().dump(); }
  void clear_kept() override { store_->clear(); }

  prefix::Store& store() { return *store_; }

 private:
  struct Sequence {
    cache::ModelCache cache;
    std::optional<prefix::Lease> lease;  // nullopt: nothing of it is shared
  };

  const Sequence& at(SequenceId sequence) const;
  Sequence& at(SequenceId sequence);
  void undo(std::span<const Slice> slices, const std::vector<int>& offsets, bool is_built);

  /// What the slices want, float32. Lazy.
  struct Outputs {
    std::optional<mlx::core::array> logits;  // [n, V], in the order of those that want them
    std::vector<mlx::core::array> states;    // each [n_tokens, hidden], likewise
  };
  Outputs forward(std::span<const Slice> slices);
  std::vector<std::span<float>> rows_of(std::span<const Slice> slices, const Outputs& outputs);

  std::unique_ptr<model::Model> model_;
  cache::CacheOptions caches_;
  std::unique_ptr<prefix::Store> store_;
  CacheCost cost_;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<std::vector<float>> rows_;  // what run() returned last
};

}  // namespace memoir::engine
