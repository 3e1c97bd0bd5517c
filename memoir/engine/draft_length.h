#pragma once

// How many tokens to draft next: as many as have paid so far.
//
// A round is one forward pass over the present token and n drafts; it yields one token and the drafts that were right.
// The number chosen is the n in [0, 2 frontier + 1] with the most expected tokens for its time,
//   (1 + a1 + a1 a2 + ... + a1...an) / seconds(n)
//   a_i         how often the i-th draft was right when those before it were: a moving average, believed from
//               kBelieved samples on. Before, it is that of the last position that is believed (1 if none is).
//   frontier    the positions up to which all are believed: so the length about doubles while all goes well, and a text
//               that repeats itself is followed far after a score of rounds
//   seconds(n)  a moving average for each n; between two known ones by proportion, above them as it rose from 0 on. A
//               sample moves it by a quarter at most, so that one stall of the machine decides nothing. The first round
//               of a length after another one isn't counted: it pays for the change.
// 0 and 1 are measured first. From then on one more than the choice is tried now and then (for two rounds: the second
// one is measured), at 4 rounds' distance, which doubles to 512 while the choice stays: where drafting doesn't pay that
// is noticed again. The rule follows the adaptive draft length of Ollama's MLX runner, whose length climbs one step at
// a time.
// What is lost so is bounded: rounds with drafts that took longer than plain decoding takes for their tokens owe the
// difference, a fiftieth of all time is paid back, and nothing is tried while something is owed. What drafts gain pays
// too, but little is saved up: they may have been right in another text.
//
// Ownership: a value. Threads: one at a time. No clock of its own: times are told.

#include <array>
#include <optional>

namespace memoir::engine {

/// How often the i-th draft was right when those before it were.
class AcceptanceRates {
 public:
  static constexpr int kMax = 15;

  /// The first n_judged drafts of a round were judged, the first n_accepted of them right.
  void learn(int n_judged, int n_accepted);

  /// Positions believed, one after the other from the first.
  int frontier() const;

  /// The most drafts that are worth a try: 2 frontier + 1, at most kMax.
  int farthest() const;

  /// Of the i-th draft, from 0; beyond the frontier that of the last position that is believed, or 1.
  double at(int position) const;

 private:
  struct Rate {
    double value = 1;
    int n_samples = 0;
  };

  std::array<Rate, kMax> rates_;
};

class DraftLength {
 public:
  // With the present token kSlack positions, what every kind of cache can take back.
  static constexpr int kMax = AcceptanceRates::kMax;

  /// The number of drafts to ask for, 0 to `limit`. Throws std::invalid_argument if limit is negative.
  int choose(int limit) const;

  /// A round ended: so many were drafted, the first n_accepted of them right; n_judged of them came to be judged (fewer
  /// than were drafted if the text ended). seconds: what the round took.
  /// Throws std::invalid_argument unless 0 <= n_accepted <= n_judged <= n_drafted <= kMax and seconds >= 0.
  void observe(int n_drafted, int n_judged, int n_accepted, double seconds);

  /// As AcceptanceRates.
  int frontier() const { return rates_.frontier(); }

  /// Rounds between two tries of a longer draft.
  int probe_interval() const { return probe_interval_; }

  /// Seconds of a round with n drafts; nullopt if none is known. Throws std::invalid_argument if n is outside [0,
  /// kMax].
  std::optional<double> seconds(int n) const;

  /// The choice without the tries; 0 until two lengths have been measured.
  int best() const;

 private:
  bool tries_more() const;
  void learn_seconds(int n_drafted, double seconds);
  void learn_loss(int n_drafted, int n_accepted, double seconds);
  int n_measured() const;

  AcceptanceRates rates_;
  std::array<std::optional<double>, kMax + 1> seconds_;
  int last_drafted_ = -1;
  int last_best_ = -1;
  int probe_interval_ = 4;
  int rounds_to_probe_ = 4;
  double to_lose_ = 0;  // seconds; negative: owed
};

}  // namespace memoir::engine
