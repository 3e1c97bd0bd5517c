#include "memoir/engine/model_runner.h"

#include <mlx/device.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/stream.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/layout.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/engine/scheduler.h"
#include "memoir/model/load.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

/// Asked of caches themselves, whatever the layers keep. Arrays know their size before they are computed, and these
/// never are.
CacheCost measured_cost(const model::Model& model, const cache::CacheOptions& caches) {
  const int n_step = cache::Layout::kStep;
  const auto bytes_for = [&](int n_tokens) {
    cache::ModelCache cache = model.make_cache(caches);
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

prefix::KnownTokens known_tokens(const StepRunner::NewSequence& sequence) {
  return {sequence.tokens, sequence.n_prompt, sequence.turn_ends, sequence.max_cache_bytes};
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<model::Model> model, const prefix::StoreOptions& options,
                         const cache::CacheOptions& caches,
                         const std::optional<prefix::DirectoryTierOptions>& directory)
    : model_(std::move(model)),
      caches_(caches),
      store_(make_prefix_store(*model_, options, caches, directory)),
      cost_(measured_cost(*model_, caches)) {}

const ModelRunner::Sequence& ModelRunner::at(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    throw std::invalid_argument("[engine.ModelRunner] sequence " + std::to_string(sequence) + " is unknown");
  }
  return found->second;
}

ModelRunner::Sequence& ModelRunner::at(SequenceId sequence) {
  return const_cast<Sequence&>(std::as_const(*this).at(sequence));
}

int ModelRunner::create(const NewSequence& sequence) {
  if (sequences_.contains(sequence.id)) {
    throw std::invalid_argument("[engine.ModelRunner] sequence " + std::to_string(sequence.id) + " exists already");
  }
  if (!sequence.is_shared) {
    sequences_.emplace(sequence.id, Sequence{model_->make_cache(caches_), std::nullopt});
    return 0;
  }
  prefix::Lease lease;
  cache::ModelCache cache = store_->begin(lease, known_tokens(sequence));
  const auto place = sequences_.emplace(sequence.id, Sequence{std::move(cache), std::move(lease)}).first;
  return place->second.cache.offset();
}

int ModelRunner::catch_up(const NewSequence& sequence, int min_gain) {
  Sequence& own = at(sequence.id);
  if (own.lease) store_->catch_up(*own.lease, own.cache, known_tokens(sequence), min_gain);
  return own.cache.offset();
}

ModelRunner::Outputs ModelRunner::forward(std::span<const Slice> slices) {
  std::vector<model::SequenceTokens> sequences;
  bool wants_states = false;
  for (const Slice& slice : slices) {
    auto rows = slice.wants_logits ? model::LogitRows::kLast : model::LogitRows::kNone;
    if (slice.wants_states) rows = model::LogitRows::kAll;
    wants_states = wants_states || slice.wants_states;
    sequences.push_back({slice.tokens, &at(slice.sequence).cache, rows});
  }
  const auto as_rows = [](const mx::array& x) { return mx::contiguous(mx::astype(x, mx::float32)); };
  Outputs outputs;
  if (!wants_states) {
    outputs.logits = as_rows(model_->forward(sequences));
    return outputs;
  }
  const mx::array states = model_->hidden_states(sequences);
  std::vector<int> logit_rows;
  int row = 0;
  for (const Slice& slice : slices) {
    if (slice.wants_logits) logit_rows.push_back(row++);
    if (!slice.wants_states) continue;
    const auto n_tokens = static_cast<int>(slice.tokens.size());
    outputs.states.push_back(as_rows(mx::slice(states, {row, 0}, {row + n_tokens, states.shape(1)})));
    row += n_tokens;
  }
  if (!logit_rows.empty()) {
    const mx::array chosen(logit_rows.data(), {static_cast<int>(logit_rows.size())}, mx::int32);
    outputs.logits = as_rows(model_->logits_of(mx::take(states, chosen, 0)));
  }
  return outputs;
}

std::vector<std::span<float>> ModelRunner::run(std::span<const Slice> slices) {
  std::vector<int> offsets;
  for (const Slice& slice : slices) offsets.push_back(offset(slice.sequence));
  std::optional<Outputs> outputs;
  try {
    for (const Slice& slice : slices) {
      Sequence& sequence = at(slice.sequence);
      if (sequence.lease) store_->prepare(*sequence.lease, sequence.cache, slice.tokens);
    }
    outputs = forward(slices);
    std::vector<mx::array> wanted = outputs->states;
    if (outputs->logits) wanted.push_back(*outputs->logits);
    mx::eval(wanted);
    for (const Slice& slice : slices) {
      if (!slice.wants_logits) at(slice.sequence).cache.materialize();  // its logits are never computed
    }
  } catch (...) {
    const bool is_built = outputs.has_value();
    outputs.reset();
    undo(slices, offsets, is_built);
    throw;
  }
  for (const Slice& slice : slices) {
    Sequence& sequence = at(slice.sequence);
    if (sequence.lease) store_->record(*sequence.lease, sequence.cache);
  }
  return rows_of(slices, *outputs);
}

std::vector<std::span<float>> ModelRunner::rows_of(std::span<const Slice> slices, const Outputs& outputs) {
  rows_.resize(slices.size());
  std::vector<std::span<float>> rows(slices.size());
  const float* next = outputs.logits ? outputs.logits->data<float>() : nullptr;
  auto states = outputs.states.begin();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].wants_logits) {
      const int n_vocab = outputs.logits->shape(1);
      rows_[i].assign(next, next + n_vocab);
      next += n_vocab;
    } else if (slices[i].wants_states) {
      rows_[i].assign(states->data<float>(), states->data<float>() + states->size());
      ++states;
    } else {
      continue;
    }
    rows[i] = rows_[i];
  }
  return rows;
}

/// What was only planned is undone. What failed while it was computed may be in the arrays.
void ModelRunner::undo(std::span<const Slice> slices, const std::vector<int>& offsets, bool is_built) {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    Sequence& sequence = at(slices[i].sequence);
    if (sequence.lease) store_->cancel_pass(*sequence.lease, sequence.cache);
    if (is_built || offsets[i] == 0 || !sequence.cache.rewind(offsets[i])) sequence.cache.free();
  }
}

int ModelRunner::offset(SequenceId sequence) const {
  return at(sequence).cache.offset();
}

std::size_t ModelRunner::cache_bytes(SequenceId sequence) const {
  return at(sequence).cache.size_bytes();
}

void ModelRunner::retire(SequenceId sequence) noexcept {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  Sequence& own = found->second;
  if (own.lease) store_->end(*own.lease, own.cache);
  sequences_.erase(found);
}

namespace {

/// The stream of the CPU that a service's thread computes on, lent to it. MLX gives each thread one that has a thread
/// of its own and never ends: so it is used again by the services that follow.
class StreamLoan {
 public:
  StreamLoan() : stream_(take()) { mx::set_default_stream(stream_); }
  /// What was computed on it is gone, and so may be the memory that MLX holds ready for more.
  ~StreamLoan() {
    mx::clear_cache();
    const std::lock_guard lock(pool().mutex);
    pool().free.push_back(stream_);
  }
  StreamLoan(const StreamLoan&) = delete;
  StreamLoan& operator=(const StreamLoan&) = delete;

 private:
  struct Pool {
    std::mutex mutex;
    std::vector<mx::Stream> free;
  };
  static Pool& pool() {
    static Pool pool;
    return pool;
  }
  static mx::Stream take() {
    const std::lock_guard lock(pool().mutex);
    if (pool().free.empty()) return mx::new_thread_unsafe_stream(mx::Device(mx::Device::cpu));
    const mx::Stream stream = pool().free.back();
    pool().free.pop_back();
    return stream;
  }

  mx::Stream stream_;
};

/// A runner on a thread of its own. The base that stands first is destroyed last.
class ThreadsRunner final : private StreamLoan, public ModelRunner {
 public:
  using ModelRunner::ModelRunner;
};

}  // namespace

std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options) {
  return make_service(std::move(loaded), options, cache::CacheOptions{});
}

std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options,
                                      const cache::CacheOptions& caches) {
  // std::function wants to be copied, a model not.
  const auto model = std::make_shared<std::unique_ptr<model::Model>>(std::move(loaded.model));
  const mx::Device device = mx::default_device();
  const auto make_runner = [model, device, caches, n_bytes = options.prefix_cache_bytes,
                            format = options.prefix_cache_format, directory = options.prefix_cache_directory] {
    mx::set_default_device(device);
    return std::make_unique<ThreadsRunner>(
        std::move(*model), prefix::StoreOptions{.max_bytes = n_bytes, .format = format}, caches, directory);
  };
  return make_service(make_runner, std::move(loaded.tokenizer), options);
}

}  // namespace memoir::engine
