#pragma once

// Paged-out states of a layer that keeps no rows: whole, as they were at the end of the range that is covered. So a
// range can only be cut in front, and the later of two ranges is all that is needed.

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "memoir/cache/snapshot.h"

namespace memoir::cache {

/// Arrays, some of which may be missing.
using StateArrays = std::vector<std::optional<mlx::core::array>>;

class StateSnapshot final : public Snapshot {
 public:
  /// Takes compact copies: an array that is part of a larger buffer is copied, any other shared (states are never
  /// written to in place while something else holds them). The copies are scheduled, not waited for.
  /// kind: of the cache that it is taken of. numbers: what else that cache wants back.
  StateSnapshot(std::string_view kind, int from, int to, const StateArrays& arrays,
                std::vector<std::vector<int>> numbers = {});

  int from() const override { return from_; }
  int to() const override { return to_; }
  std::size_t size_bytes() const override;
  void materialize() override;

  std::string_view kind() const { return kind_; }
  const StateArrays& arrays() const { return arrays_; }
  const std::vector<std::vector<int>>& numbers() const { return numbers_; }

  /// The same states, covering [from, to).
  void begin_at(int from) { from_ = from; }

 private:
  std::string_view kind_;
  int from_;
  int to_;
  StateArrays arrays_;
  std::vector<std::vector<int>> numbers_;
};

/// A compact copy, see StateSnapshot. Lazy.
mlx::core::array compact(const mlx::core::array& a);

/// Bytes of those that are there.
std::size_t bytes_of(const StateArrays& arrays);

/// The snapshot, if it is one of `kind`. Throws std::invalid_argument "[cache.<function>] ..." otherwise.
StateSnapshot& checked_state(Snapshot& snapshot, std::string_view kind, const char* function);
const StateSnapshot& checked_state(const Snapshot& snapshot, std::string_view kind, const char* function);

/// LayerCache::merge: the child, covering both; also where there is no parent.
/// Throws std::invalid_argument if they are of another kind or don't meet.
std::unique_ptr<Snapshot> merge_states(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child,
                                       std::string_view kind);

/// LayerCache::split: (null, the snapshot covering [at, c)).
SnapshotPair split_states(std::unique_ptr<Snapshot> snapshot, int at, std::string_view kind);

}  // namespace memoir::cache
