#include "memoir/model/step.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/composite.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

mx::array rows_of(const mx::array& a, const StepSequence& sequence, int axis) {
  mx::Shape begin(a.ndim(), 0);
  mx::Shape end = a.shape();
  begin[static_cast<std::size_t>(axis)] = sequence.begin;
  end[static_cast<std::size_t>(axis)] = sequence.begin + sequence.n_tokens;
  return mx::slice(a, std::move(begin), std::move(end));
}

template <typename Cache>
Cache& child_of(const cache::ModelCache& cache, const CachePlace& place) {
  cache::LayerCache& layer = cache.layer(place.layer);
  const auto* list = dynamic_cast<const cache::CacheList*>(&layer);
  if (!list) {
    throw std::invalid_argument("[model.forward] layer " + std::to_string(place.layer) + " has a " +
                                std::string(layer.kind()) + ", expected a CacheList");
  }
  return list->child<Cache>(*place.child);
}

}  // namespace

std::vector<int> Step::positions() const {
  std::vector<int> positions;
  for (const StepSequence& sequence : sequences) {
    for (int t = 0; t < sequence.n_tokens; ++t) positions.push_back(sequence.offset + t);
  }
  return positions;
}

cache::AttentionCache& attention_cache(const cache::ModelCache& cache, const CachePlace& place) {
  return place.child ? child_of<cache::AttentionCache>(cache, place) : cache.attention(place.layer);
}

cache::RecurrentCache& recurrent_cache(const cache::ModelCache& cache, const CachePlace& place) {
  return place.child ? child_of<cache::RecurrentCache>(cache, place) : cache.recurrent(place.layer);
}

void put_states(cache::RecurrentCache& cache, int n_tokens, const kernels::Recurrence& convolution,
                const kernels::Recurrence* behind, cache::StateReplay replay) {
  std::vector<cache::RecurrentState> captured;
  for (std::size_t i = 0; i < convolution.captured.size(); ++i) {
    captured.push_back({convolution.captured[i], behind ? std::optional(behind->captured[i]) : std::nullopt});
  }
  cache.put({convolution.state, behind ? std::optional(behind->state) : std::nullopt}, n_tokens, captured,
            std::move(replay));
}

std::optional<mx::array> mix_at_once(const mx::array& x, const Step& step, const CachePlace& place,
                                     const MixerFunction& run) {
  if (step.cells) return std::nullopt;
  for (const StepSequence& sequence : step.sequences) {
    const cache::RecurrentCache& cache = recurrent_cache(*sequence.cache, place);
    if (!cache.capture_steps(sequence.n_tokens).empty()) return std::nullopt;
  }
  std::vector<kernels::MixerStates> before;
  for (const StepSequence& sequence : step.sequences) {
    cache::RecurrentState states = recurrent_cache(*sequence.cache, place).get(x.shape(0), x.dtype());
    before.push_back({sequence.n_tokens, std::move(*states.tail), std::move(*states.state)});
  }
  kernels::MixerOutput output = run(std::move(before));
  for (std::size_t i = 0; i < output.states.size(); ++i) {
    const kernels::MixerStates& after = output.states[i];
    recurrent_cache(*step.sequences[i].cache, place).put({after.tail, after.state}, after.n_tokens);
  }
  return output.y;
}

mx::array first_tokens(const mx::array& x, int n_tokens) {
  mx::Shape end = x.shape();
  end[1] = n_tokens;
  return mx::slice(x, mx::Shape(x.ndim(), 0), std::move(end));
}

kernels::Turns make_turns(const kernels::Rope& rope, const std::vector<StepSequence>& sequences) {
  std::vector<kernels::PositionRun> runs;
  for (const StepSequence& sequence : sequences) runs.push_back({sequence.offset, sequence.n_tokens});
  return kernels::make_turns(rope, runs);
}

Histories update(const Step& step, const CachePlace& place, const mx::array& keys, const mx::array& values) {
  if (step.cells) return step.cells->update(place.layer, keys, values);
  constexpr int kRowAxis = 2;
  const bool is_single = step.sequences.size() == 1;
  Histories histories;
  for (const StepSequence& sequence : step.sequences) {
    cache::AttentionCache& cache = attention_cache(*sequence.cache, place);
    histories.push_back({sequence.n_tokens, is_single ? cache.update(keys, values)
                                                      : cache.update(rows_of(keys, sequence, kRowAxis),
                                                                     rows_of(values, sequence, kRowAxis))});
  }
  return histories;
}

mx::array by_sequence(const Step& step, const std::vector<mx::array>& inputs, const SequenceFunction& function) {
  if (step.cells)
    throw std::invalid_argument("[model.by_sequence] a layer that is not attention has no state in cells");
  if (step.sequences.size() == 1) return function(inputs, *step.sequences.front().cache);
  std::vector<mx::array> outputs;
  for (const StepSequence& sequence : step.sequences) {
    std::vector<mx::array> rows;
    for (const mx::array& input : inputs) rows.push_back(rows_of(input, sequence, 1));
    outputs.push_back(function(rows, *sequence.cache));
  }
  return mx::concatenate(std::move(outputs), 1);
}

}  // namespace memoir::model
