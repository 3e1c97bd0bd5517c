#include "memoir/model/step.h"

#include <mlx/ops.h>

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

}  // namespace

std::vector<int> Step::positions() const {
  std::vector<int> positions;
  for (const StepSequence& sequence : sequences) {
    for (int t = 0; t < sequence.n_tokens; ++t) positions.push_back(sequence.offset + t);
  }
  return positions;
}

kernels::Turns make_turns(const kernels::Rope& rope, const std::vector<StepSequence>& sequences) {
  std::vector<kernels::PositionRun> runs;
  for (const StepSequence& sequence : sequences) runs.push_back({sequence.offset, sequence.n_tokens});
  return kernels::make_turns(rope, runs);
}

Histories update(const Step& step, std::size_t index, const mx::array& keys, const mx::array& values) {
  constexpr int kRowAxis = 2;
  const bool is_single = step.sequences.size() == 1;
  Histories histories;
  for (const StepSequence& sequence : step.sequences) {
    cache::AttentionCache& cache = sequence.cache->attention(index);
    histories.push_back({sequence.n_tokens, is_single ? cache.update(keys, values)
                                                      : cache.update(rows_of(keys, sequence, kRowAxis),
                                                                     rows_of(values, sequence, kRowAxis))});
  }
  return histories;
}

mx::array by_sequence(const Step& step, const std::vector<mx::array>& inputs, const SequenceFunction& function) {
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
