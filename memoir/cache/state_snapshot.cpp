#include "memoir/cache/state_snapshot.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace mx = mlx::core;

namespace memoir::cache {

mx::array compact(const mx::array& a) {
  return mx::contiguous(a);
}

std::size_t bytes_of(const StateArrays& arrays) {
  std::size_t n_bytes = 0;
  for (const auto& a : arrays) n_bytes += a ? a->nbytes() : 0;
  return n_bytes;
}

StateSnapshot::StateSnapshot(std::string_view kind, int from, int to, const StateArrays& arrays,
                             std::vector<std::vector<int>> numbers)
    : kind_(kind), from_(from), to_(to), numbers_(std::move(numbers)) {
  std::vector<mx::array> copies;
  for (const auto& a : arrays) {
    arrays_.push_back(a ? std::optional<mx::array>(compact(*a)) : std::nullopt);
    if (a) copies.push_back(*arrays_.back());
  }
  mx::async_eval(copies);
}

std::size_t StateSnapshot::size_bytes() const {
  return bytes_of(arrays_);
}

void StateSnapshot::materialize() {
  std::vector<mx::array> present;
  for (const auto& a : arrays_) {
    if (a) present.push_back(*a);
  }
  mx::eval(std::move(present));
}

const StateSnapshot& checked_state(const Snapshot& snapshot, std::string_view kind, const char* function) {
  const auto* state = dynamic_cast<const StateSnapshot*>(&snapshot);
  if (!state || state->kind() != kind) {
    throw std::invalid_argument(std::string("[cache.") + function + "] the snapshot is of a " +
                                (state ? std::string(state->kind()) : "cache of another kind") +
                                ", expected one of a " + std::string(kind));
  }
  return *state;
}

StateSnapshot& checked_state(Snapshot& snapshot, std::string_view kind, const char* function) {
  return const_cast<StateSnapshot&>(checked_state(std::as_const(snapshot), kind, function));
}

std::unique_ptr<Snapshot> merge_states(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child,
                                       std::string_view kind) {
  if (parent) checked_state(*parent, kind, "merge");
  if (!child) return nullptr;
  StateSnapshot& later = checked_state(*child, kind, "merge");
  if (!parent) return child;
  if (parent->to() != later.from()) {
    throw std::invalid_argument("[cache.merge] the parent ends at " + std::to_string(parent->to()) +
                                ", the child begins at " + std::to_string(later.from()) + ", expected them to meet");
  }
  later.begin_at(parent->from());
  return child;
}

SnapshotPair split_states(std::unique_ptr<Snapshot> snapshot, int at, std::string_view kind) {
  if (!snapshot) return {};
  StateSnapshot& state = checked_state(*snapshot, kind, "split");
  if (at >= state.to()) return {std::move(snapshot), nullptr};
  if (at > state.from()) state.begin_at(at);
  return {nullptr, std::move(snapshot)};
}

}  // namespace memoir::cache
