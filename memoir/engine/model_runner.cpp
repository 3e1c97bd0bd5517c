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

#include "memoir/engine/measured_cost.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/engine/scheduler.h"
#include "memoir/model/load.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

CacheCost sum(CacheCost cost, const CacheCost& more) {
  cost.fixed_bytes += more.fixed_bytes;
  cost.bytes_per_token += more.bytes_per_token;
  return cost;
}

mx::array as_rows(const mx::array& x) {
  return mx::contiguous(mx::astype(x, mx::float32));
}

mx::array rows_from(const mx::array& x, int first, int n_rows) {
  return mx::slice(x, {first, 0}, {first + n_rows, x.shape(1)});
}

prefix::KnownTokens known_tokens(const StepRunner::NewSequence& sequence, Drafter* drafter) {
  return {sequence.tokens, sequence.n_prompt, sequence.turn_ends, sequence.max_cache_bytes,
          drafter ? drafter->companion() : nullptr};
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<model::Model> model, const prefix::StoreOptions& options,
                         const cache::CacheOptions& caches,
                         const std::optional<prefix::DirectoryTierOptions>& directory, std::optional<Drafting> drafting)
    : model_(std::move(model)),
      drafting_(std::move(drafting)),
      caches_(caches),
      store_(make_prefix_store(*model_, options, caches, directory, companion_of(drafting_))),
      cost_(measured_cost(*model_, caches)) {
  if (!drafting_) return;
  if (drafting_->max_drafts < 1 || drafting_->max_drafts > DraftLength::kMax) {
    throw std::invalid_argument("[engine.ModelRunner] max_drafts is " + std::to_string(drafting_->max_drafts) +
                                ", expected 1 to " + std::to_string(DraftLength::kMax));
  }
  check_takes_drafts_back(model_->make_cache(caches), drafting_->max_drafts);
  cost_ = sum(cost_, drafting_->cost);
}

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
  std::unique_ptr<Drafter> drafter = drafting_ ? drafting_->make(*model_) : nullptr;
  prefix::Lease lease;
  cache::ModelCache cache = store_->begin(lease, known_tokens(sequence, drafter.get()));
  const int offset = cache.offset();
  sequences_.emplace(sequence.id, Sequence{std::move(cache), std::move(lease), std::move(drafter)});
  return offset;
}

int ModelRunner::catch_up(const NewSequence& sequence, int min_gain) {
  Sequence& own = at(sequence.id);
  if (own.lease) store_->catch_up(*own.lease, own.cache, known_tokens(sequence, own.drafter.get()), min_gain);
  return own.cache.offset();
}

std::vector<TokenId> ModelRunner::propose(SequenceId sequence, std::span<const TokenId> text, int n_max) {
  Sequence& own = at(sequence);
  if (!own.drafter) return {};
  try {
    return own.drafter->propose(text, n_max);
  } catch (...) {
    own.drafter.reset();
    throw;
  }
}

/// Of the slice's tokens, those whose logits or states somebody wants.
model::LogitRows ModelRunner::rows_for(const Slice& slice) const {
  const bool is_read = at(slice.sequence).reads() == Drafter::Reads::kAllTokens;
  if (slice.wants_states || slice.n_drafts > 0 || is_read) return model::LogitRows::kAll;
  return slice.wants_logits ? model::LogitRows::kLast : model::LogitRows::kNone;
}

std::vector<mx::array> ModelRunner::Outputs::all() const {
  std::vector<mx::array> arrays;
  if (logits) arrays.push_back(*logits);
  for (const auto* some : {&states, &for_drafter}) {
    for (const auto& one : *some) {
      if (one) arrays.push_back(*one);
    }
  }
  return arrays;
}

ModelRunner::Outputs ModelRunner::forward(std::span<const Slice> slices) {
  std::vector<model::SequenceTokens> sequences;
  bool wants_states = false;
  for (const Slice& slice : slices) {
    Sequence& own = at(slice.sequence);
    sequences.push_back({slice.tokens, &own.cache, rows_for(slice)});
    wants_states = wants_states || slice.wants_states || own.reads() != Drafter::Reads::kNothing;
  }
  Outputs outputs;
  outputs.states.resize(slices.size());
  outputs.for_drafter.resize(slices.size());
  if (wants_states) {
    add_states(outputs, slices, model_->hidden_states(sequences));
  } else {
    outputs.logits = as_rows(model_->forward(sequences));
  }
  return outputs;
}

/// states: [n, hidden], of the rows of all slices. What they want of them.
void ModelRunner::add_states(Outputs& outputs, std::span<const Slice> slices, const mx::array& states) {
  std::vector<int> logit_rows;
  int row = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    const auto n_tokens = static_cast<int>(slice.tokens.size());
    const model::LogitRows rows = rows_for(slice);
    const int n_rows = rows == model::LogitRows::kAll ? n_tokens : rows == model::LogitRows::kLast ? 1 : 0;
    if (slice.wants_states) outputs.states[i] = as_rows(rows_from(states, row, n_rows));
    if (at(slice.sequence).reads() != Drafter::Reads::kNothing && n_rows > 0) {
      // A copy of their own: the rest of the states must not live as long.
      const mx::array own = mx::contiguous(rows_from(states, row, n_rows));
      outputs.for_drafter[i] = mx::reshape(own, {1, n_rows, states.shape(1)});
    }
    row += n_rows;
    for (int k = slice.wants_logits ? slice.n_drafts : -1; k >= 0; --k) logit_rows.push_back(row - 1 - k);
  }
  if (logit_rows.empty()) return;
  const mx::array chosen(logit_rows.data(), {static_cast<int>(logit_rows.size())}, mx::int32);
  outputs.logits = as_rows(model_->logits_of(mx::take(states, chosen, 0)));
}

void ModelRunner::begin_pass(const Slice& slice) {
  Sequence& own = at(slice.sequence);
  if (slice.n_drafts > 0) {
    const auto n_tokens = static_cast<int>(slice.tokens.size());
    own.draft.reset(new cache::Transaction(cache::Transaction::begin(own.cache, n_tokens)));
  }
  if (own.lease) store_->prepare(*own.lease, own.cache, slice.tokens);
}

/// hidden: as Pass::hidden.
void ModelRunner::end_pass(const Slice& slice, std::optional<mx::array> hidden) {
  Sequence& own = at(slice.sequence);
  Pass pass{{slice.tokens.begin(), slice.tokens.end()}, std::move(hidden)};
  if (own.draft) {
    own.pass = std::move(pass);
    return;
  }
  tell_drafter(own, pass, static_cast<int>(slice.tokens.size()));
  if (own.lease) store_->record(*own.lease, own.cache);
}

void ModelRunner::keep_drafts(SequenceId sequence, int n_drafts) {
  Sequence& own = at(sequence);
  if (!own.draft) {
    throw std::invalid_argument("[engine.ModelRunner] sequence " + std::to_string(sequence) + " has no drafts");
  }
  own.draft->commit(1 + n_drafts);
  own.draft.reset();
  const Pass pass = std::exchange(own.pass, {});
  tell_drafter(own, pass, 1 + n_drafts);
  if (own.lease) store_->record(*own.lease, own.cache);
}

/// The first n_kept tokens of the pass are in the sequence's cache, as its last.
void ModelRunner::tell_drafter(Sequence& sequence, const Pass& pass, int n_kept) {
  if (!sequence.drafter || !pass.hidden) return;
  try {
    const int n_before = static_cast<int>(pass.tokens.size()) - pass.hidden->shape(1);  // of which there are no states
    const int first = sequence.reads() == Drafter::Reads::kAllTokens ? 0 : n_kept - 1;
    const mx::array hidden =
        mx::slice(*pass.hidden, {0, first - n_before, 0}, {1, n_kept - n_before, pass.hidden->shape(2)});
    const auto tokens = std::span(pass.tokens).first(static_cast<std::size_t>(n_kept));
    sequence.drafter->taken_in({tokens, sequence.cache.offset() - n_kept, hidden, sequence.cache});
  } catch (...) {
    sequence.drafter.reset();
  }
}

std::vector<std::span<float>> ModelRunner::run(std::span<const Slice> slices) {
  std::vector<int> offsets;
  for (const Slice& slice : slices) offsets.push_back(offset(slice.sequence));
  std::optional<Outputs> outputs;
  try {
    for (const Slice& slice : slices) begin_pass(slice);
    outputs = forward(slices);
    mx::eval(outputs->all());
    for (const Slice& slice : slices) {
      if (!slice.wants_logits) at(slice.sequence).cache.materialize();  // its logits are never computed
    }
  } catch (...) {
    const bool is_built = outputs.has_value();
    outputs.reset();
    undo(slices, offsets, is_built);
    throw;
  }
  for (std::size_t i = 0; i < slices.size(); ++i) end_pass(slices[i], std::move(outputs->for_drafter[i]));
  return rows_of(slices, *outputs);
}

std::vector<std::span<float>> ModelRunner::rows_of(std::span<const Slice> slices, const Outputs& outputs) {
  rows_.resize(slices.size());
  std::vector<std::span<float>> rows(slices.size());
  const float* next = outputs.logits ? outputs.logits->data<float>() : nullptr;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].wants_logits) {
      const auto n_values = static_cast<std::size_t>(1 + slices[i].n_drafts) * static_cast<std::size_t>(n_vocab());
      rows_[i].assign(next, next + n_values);
      next += n_values;
    } else if (const auto& states = outputs.states[i]) {
      rows_[i].assign(states->data<float>(), states->data<float>() + states->size());
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
    sequence.draft.reset();
    if (sequence.lease) store_->cancel_pass(*sequence.lease, sequence.cache);
    if (is_built || offsets[i] == 0 || !sequence.cache.rewind(offsets[i])) sequence.cache.free();
  }
}

int ModelRunner::offset(SequenceId sequence) const {
  return at(sequence).cache.offset();
}

std::size_t ModelRunner::cache_bytes(SequenceId sequence) const {
  const Sequence& own = at(sequence);
  return own.cache.size_bytes() + (own.drafter ? own.drafter->size_bytes() : 0);
}

void ModelRunner::retire(SequenceId sequence) noexcept {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  Sequence& own = found->second;
  if (own.lease) {
    if (std::exchange(own.draft, nullptr)) store_->cancel_pass(*own.lease, own.cache);
    store_->end(*own.lease, own.cache);
  }
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

PrefixCacheCounts ModelRunner::kept() const {
  const prefix::TrieCounters& counters = store_->trie().counters();
  return {store_->size_bytes(), store_->tier_bytes(), counters.n_lookups, counters.n_hits, store_->evicted().n_bytes};
}

std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options) {
  return make_service(std::move(loaded), options, cache::CacheOptions{});
}

std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options,
                                      const cache::CacheOptions& caches) {
  // std::function wants to be copied, a model not.
  const auto model = std::make_shared<std::unique_ptr<model::Model>>(std::move(loaded.model));
  const mx::Device device = mx::default_device();
  const auto make_runner = [model, device, caches, n_bytes = options.prefix_cache_bytes,
                            format = options.prefix_cache_format, directory = options.prefix_cache_directory,
                            drafting = options.drafting] {
    mx::set_default_device(device);
    return std::make_unique<ThreadsRunner>(
        std::move(*model), prefix::StoreOptions{.max_bytes = n_bytes, .format = format}, caches, directory, drafting);
  };
  return make_service(make_runner, std::move(loaded.tokenizer), options);
}

}  // namespace memoir::engine
