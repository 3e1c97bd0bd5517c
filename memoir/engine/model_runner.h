#pragma once

// The scheduler's StepRunner over a model: a ModelCache for each sequence, a prefix::Store of what any of them has
// computed, and a drafter for each where there are drafts.
//
// Drafts are a transaction over the sequence's cache, open from run() to keep_drafts(). A drafter that fails is given
// up; its sequence goes on without. Threads: one, which owns MLX's work; the model's weights are evaluated. Ownership:
// owns model and store.

#include <mlx/array.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/transaction.h"
#include "memoir/engine/drafting.h"
#include "memoir/engine/step_runner.h"
#include "memoir/model/model.h"
#include "memoir/prefix/directory_options.h"
#include "memoir/prefix/store.h"

namespace memoir::engine {

class ModelRunner : public StepRunner {
 public:
  /// options, directory: of the prefix store. caches: how the sequences' are made. Throws as make_prefix_store, and
  /// std::invalid_argument if drafting asks for a number out of its range or for caches that can't take drafts back.
  explicit ModelRunner(std::unique_ptr<model::Model> model, const prefix::StoreOptions& options = {},
                       const cache::CacheOptions& caches = {},
                       const std::optional<prefix::DirectoryTierOptions>& directory = {},
                       std::optional<Drafting> drafting = std::nullopt);

  int n_vocab() const override { return model_->config().vocab_size; }
  int context() const override { return model_->context(); }
  CacheCost cost() const override { return cost_; }
  int max_drafts() const override { return drafting_ ? drafting_->max_drafts : 0; }
  bool adapts_drafts() const override { return !drafting_ || drafting_->adapts; }
  int create(const NewSequence& sequence) override;
  int catch_up(const NewSequence& sequence, int min_gain) override;
  std::vector<TokenId> propose(SequenceId sequence, std::span<const TokenId> text, int n_max) override;
  std::vector<std::span<float>> run(std::span<const Slice> slices) override;
  void keep_drafts(SequenceId sequence, int n_drafts) override;
  int offset(SequenceId sequence) const override;
  std::size_t cache_bytes(SequenceId sequence) const override;
  void retire(SequenceId sequence) noexcept override;
  void drop(SequenceId sequence) noexcept override { sequences_.erase(sequence); }
  PrefixCacheCounts kept() const override;
  std::string kept_report() override { return store_->report().dump(); }
  void clear_kept() override { store_->clear(); }

  prefix::Store& store() { return *store_; }

 private:
  /// Tokens of a slice, and their hidden states where the drafter wants them.
  struct Pass {
    std::vector<TokenId> tokens;
    std::optional<mlx::core::array> hidden;  // [1, n, hidden], of the last n of them
  };
  struct Sequence {
    cache::ModelCache cache;
    std::optional<prefix::Lease> lease;  // nullopt: nothing of it is shared
    std::unique_ptr<Drafter> drafter = nullptr;
    std::unique_ptr<cache::Transaction> draft = nullptr;  // before the cache goes, this does
    Pass pass = {};                                       // with drafts that are not settled

    Drafter::Reads reads() const { return drafter ? drafter->reads() : Drafter::Reads::kNothing; }
  };

  const Sequence& at(SequenceId sequence) const;
  Sequence& at(SequenceId sequence);
  model::LogitRows rows_for(const Slice& slice) const;
  void begin_pass(const Slice& slice);
  void end_pass(const Slice& slice, std::optional<mlx::core::array> hidden);
  static void tell_drafter(Sequence& sequence, const Pass& pass, int n_kept);
  void undo(std::span<const Slice> slices, const std::vector<int>& offsets, bool is_built);

  /// Lazy.
  struct Outputs {
    std::optional<mlx::core::array> logits;               // [n, V] float32, in the order of those that want them
    std::vector<std::optional<mlx::core::array>> states;  // of each slice that wants them, [n_tokens, hidden] float32
    std::vector<std::optional<mlx::core::array>> for_drafter;  // of each slice, as Pass::hidden

    std::vector<mlx::core::array> all() const;
  };
  Outputs forward(std::span<const Slice> slices);
  void add_states(Outputs& outputs, std::span<const Slice> slices, const mlx::core::array& states);
  std::vector<std::span<float>> rows_of(std::span<const Slice> slices, const Outputs& outputs);

  std::unique_ptr<model::Model> model_;
  std::optional<Drafting> drafting_;
  cache::CacheOptions caches_;
  std::unique_ptr<prefix::Store> store_;
  CacheCost cost_;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<std::vector<float>> rows_;  // what run() returned last
};

}  // namespace memoir::engine
