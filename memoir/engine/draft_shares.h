#pragma once

// How many drafts each request of a step gets: as many as give the most tokens per second over all of them.
//
// Drafts are given one at a time, the one first that is likeliest to be kept, and of all numbers that come up so the
// best is taken by
//   (rows + the expected drafts that are right) / (seconds(rows + drafts) + drafts * seconds of making one)
//   rows        requests that decode in the step, one token each
//   expected    of a request's i-th draft a1 a2 ... ai: its own rates (AcceptanceRates), where these are not believed
//   yet
//               those over all requests; at most 2 frontier + 1 drafts
//   seconds(n)  of a pass over n rows: moving averages, one for each number up to 8 and four in each doubling above;
//               between two by proportion, beyond as it rose over all that are known. More rows never count as cheaper.
//               A sample moves it by a quarter at most, and the first isn't counted: it pays for the change.
// So with few requests there are drafts where they are right often enough, and with many, whose rows fill the
// processor, there are none. Nothing is drafted before a pass without drafts was measured. A request that gets none is
// tried again with one draft after 4, 8, ... 512 of its steps.
// Steps that compute parts of prompts are decided as if they did not, and not measured.
//
// Ownership: a value. Threads: one at a time. No clock of its own: times are told.

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "memoir/engine/draft_length.h"
#include "memoir/engine/service.h"

namespace memoir::engine {

/// Seconds of a pass by its number of rows.
class RowSeconds {
 public:
  /// Throws std::invalid_argument unless n_rows >= 1 and seconds >= 0.
  void observe(int n_rows, double seconds);

  bool is_known() const;

  /// Throws std::invalid_argument if nothing is known.
  double at(int n_rows) const;

 private:
  struct Point {
    int n_samples = 0;
    double n_rows = 0;  // a moving average too
    double seconds = 0;
  };
  static int counted_as(int n_rows);

  std::map<int, Point> points_;  // by what their rows count as
};

class DraftShares {
 public:
  struct Wish {
    RequestId id;
    int limit;  // the most drafts that it can use, >= 0
  };

  /// The drafts of each, in their order: each is a row of the step already.
  std::vector<int> choose(std::span<const Wish> wishes, int n_rows);

  /// A request's round ended; as DraftLength::observe, with its errors.
  void observe(RequestId id, int n_drafted, int n_judged, int n_accepted);

  /// A step over n_rows rows, of which n_drafts were drafts, took pass_s, and making these drafting_s.
  void observe_step(int n_rows, int n_drafts, double pass_s, double drafting_s);

  /// It is gone.
  void forget(RequestId id) { requests_.erase(id); }

 private:
  struct Known {
    AcceptanceRates rates;
    int n_steps_without = 0;  // drafts, since its last one
    int probe_interval = kShortestInterval;
  };
  static constexpr int kShortestInterval = 4;
  static constexpr int kLongestInterval = 512;

  double rate(const Known& known, int position) const;
  std::vector<int> best_shares(std::span<const Wish> wishes, int n_rows) const;
  void probe(Known& known, const Wish& wish, int& share) const;

  std::map<RequestId, Known> requests_;
  AcceptanceRates all_;
  RowSeconds pass_;
  double draft_s_ = 0;  // of one draft; 0: not known
};

}  // namespace memoir::engine
