#include "memoir/prefix/state_checkpoint.h"

#include <algorithm>
#include <utility>

#include "memoir/cache/recurrent.h"

namespace memoir::prefix {
namespace {

std::unique_ptr<StateCheckpoint> checkpoint_of(StateCheckpoint::States states) {
  const bool is_whole = std::all_of(states.begin(), states.end(), [](const auto& state) { return state != nullptr; });
  return is_whole && !states.empty() ? std::make_unique<StateCheckpoint>(std::move(states)) : nullptr;
}

}  // namespace

StateCheckpoint::StateCheckpoint(States states) : offset_(states.front()->to()), earliest_(0) {
  for (const auto& state : states) {
    state->materialize();
    n_bytes_ += state->size_bytes();
    earliest_ = std::max(earliest_, state->earliest());
  }
  earliest_ = std::max(1, earliest_);
  states_ = std::make_shared<const States>(std::move(states));
}

StateCheckpoint::StateCheckpoint(const StateCheckpoint& other, int at) : StateCheckpoint(other) {
  offset_ = at;
}

std::unique_ptr<Checkpoint> StateCheckpoint::earlier(int at) const {
  if (at < earliest_ || at >= offset_) return nullptr;
  return std::unique_ptr<Checkpoint>(new StateCheckpoint(*this, at));
}

void Capture::begin(const CacheParts& cache, std::vector<int> offsets) {
  cancel(cache);
  offsets_ = std::move(offsets);
  for (cache::LayerCache* const part : cache.others) {
    if (auto* const recurrent = dynamic_cast<cache::RecurrentCache*>(part)) recurrent->capture_at(offsets_);
  }
}

std::vector<std::unique_ptr<StateCheckpoint>> Capture::take(const CacheParts& cache) {
  const std::vector<int> offsets = std::exchange(offsets_, {});
  std::vector<StateCheckpoint::States> states(offsets.size());
  for (cache::LayerCache* const part : cache.others) {
    if (auto* const recurrent = dynamic_cast<cache::RecurrentCache*>(part)) {
      auto captured = recurrent->take_captured();
      captured.resize(offsets.size());
      for (std::size_t i = 0; i < offsets.size(); ++i) states[i].push_back(std::move(captured[i]));
    } else {
      for (std::size_t i = 0; i < offsets.size(); ++i) states[i].push_back(part->snapshot_at(offsets[i]));
    }
  }
  for (std::size_t i = 0; i < offsets.size() && cache.companion != nullptr; ++i) {
    states[i].push_back(cache.companion->state_at(offsets[i]));
  }
  std::vector<std::unique_ptr<StateCheckpoint>> result;
  for (StateCheckpoint::States& one : states) result.push_back(checkpoint_of(std::move(one)));
  return result;
}

void Capture::cancel(const CacheParts& cache) {
  if (std::exchange(offsets_, {}).empty()) return;
  for (cache::LayerCache* const part : cache.others) {
    if (auto* const recurrent = dynamic_cast<cache::RecurrentCache*>(part)) recurrent->take_captured();
  }
}

std::unique_ptr<StateCheckpoint> present_checkpoint(const CacheParts& cache, int offset) {
  StateCheckpoint::States states;
  for (const cache::LayerCache* const part : cache.others) states.push_back(part->snapshot_at(offset));
  if (cache.companion != nullptr) states.push_back(cache.companion->state_at(offset));
  return checkpoint_of(std::move(states));
}

}  // namespace memoir::prefix
