#include "memoir/engine/model_runner.h"

#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/layout.h"
#include "memoir/engine/scheduler.h"
#include "memoir/model/load.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

/// Asked of caches themselves, whatever the layers keep. Arrays know their size before they are computed, and these
/// never are.
CacheCost measured_cost(const model::Model& model) {
  const int n_step = cache::Layout::kStep;
  const auto bytes_for = [&](int n_tokens) {
    cache::ModelCache cache = model.make_cache();
    model.forward(std::vector<TokenId>(static_cast<std::size_t>(n_tokens), 0), cache, model::LogitRows::kLast);
    return cache.size_bytes();
  };
  const std::size_t one_step = bytes_for(1);
  // A context of one step and less is all that is ever asked for.
  const std::size_t two_steps = model.context() > n_step ? bytes_for(n_step + 1) : one_step;
  const std::size_t per_token = (two_steps - one_step) / static_cast<std::size_t>(n_step);
  // A ring takes more for a moment when many tokens come at once: then nothing is left for what is fixed.
  const std::size_t step_bytes = per_token * static_cast<std::size_t>(n_step);
  return {one_step - std::min(one_step, step_bytes), per_token, n_step};
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<model::Model> model, std::unique_ptr<PrefixStore> store)
    : model_(std::move(model)), store_(std::move(store)), cost_(measured_cost(*model_)) {}

const cache::ModelCache& ModelRunner::cache(SequenceId sequence) const {
  const auto found = caches_.find(sequence);
  if (found == caches_.end()) {
    throw std::invalid_argument("[engine.ModelRunner] sequence " + std::to_string(sequence) + " is unknown");
  }
  return found->second;
}

cache::ModelCache& ModelRunner::cache(SequenceId sequence) {
  return const_cast<cache::ModelCache&>(std::as_const(*this).cache(sequence));
}

int ModelRunner::create(SequenceId sequence, std::span<const TokenId> tokens, std::size_t max_cache_bytes) {
  std::optional<PrefixStore::Restored> restored = store_->take(tokens);
  if (restored && restored->cache.size_bytes() > max_cache_bytes) {
    const auto n_held = static_cast<std::size_t>(restored->cache.offset());
    store_->give({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n_held)}, std::move(restored->cache));
    restored.reset();
  }
  const auto [place, is_new] = caches_.emplace(sequence, restored ? std::move(restored->cache) : model_->make_cache());
  if (!is_new) {
    throw std::invalid_argument("[engine.ModelRunner] sequence " + std::to_string(sequence) + " exists already");
  }
  return place->second.offset();
}

/// The logits that are wanted, [n, V] float32, in the slices' order. Lazy.
mx::array ModelRunner::forward(std::span<const Slice> slices) {
  std::vector<model::SequenceTokens> sequences;
  for (const Slice& slice : slices) {
    const auto rows = slice.wants_logits ? model::LogitRows::kLast : model::LogitRows::kNone;
    sequences.push_back({slice.tokens, &cache(slice.sequence), rows});
  }
  return mx::contiguous(mx::astype(model_->forward(sequences), mx::float32));
}

std::vector<std::span<float>> ModelRunner::run(std::span<const Slice> slices) {
  std::vector<int> offsets;
  for (const Slice& slice : slices) offsets.push_back(offset(slice.sequence));
  std::optional<mx::array> logits;
  try {
    logits = forward(slices);
    mx::eval(*logits);
    for (const Slice& slice : slices) {
      if (!slice.wants_logits) cache(slice.sequence).materialize();  // its logits are never computed
    }
  } catch (...) {
    const bool is_built = logits.has_value();
    logits.reset();
    for (std::size_t i = 0; i < slices.size(); ++i) {
      cache::ModelCache& own = cache(slices[i].sequence);
      // What was only planned is undone. What failed while it was computed may be in the arrays.
      if (is_built || offsets[i] == 0 || !own.rewind(offsets[i])) own.free();
    }
    throw;
  }
  rows_.resize(slices.size());
  std::vector<std::span<float>> rows(slices.size());
  const float* next = logits->data<float>();
  const int n_vocab = logits->shape(1);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (!slices[i].wants_logits) continue;
    rows_[i].assign(next, next + n_vocab);
    rows[i] = rows_[i];
    next += n_vocab;
  }
  return rows;
}

int ModelRunner::offset(SequenceId sequence) const {
  return cache(sequence).offset();
}

std::size_t ModelRunner::cache_bytes(SequenceId sequence) const {
  return cache(sequence).size_bytes();
}

void ModelRunner::retire(SequenceId sequence, std::vector<TokenId> tokens) {
  auto node = caches_.extract(sequence);
  if (node) store_->give(std::move(tokens), std::move(node.mapped()));
}

std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options) {
  // std::function wants to be copied, a model not.
  const auto model = std::make_shared<std::unique_ptr<model::Model>>(std::move(loaded.model));
  const mx::Device device = mx::default_device();
  const auto make_runner = [model, device, n_bytes = options.prefix_cache_bytes] {
    mx::set_default_device(device);
    return std::make_unique<ModelRunner>(std::move(*model), std::make_unique<KeptCaches>(n_bytes));
  };
  return make_service(make_runner, std::move(loaded.tokenizer), options);
}

}  // namespace memoir::engine
