#include "memoir/engine/draft_length.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace memoir::engine {
namespace {

constexpr double kSecondsWeight = 0.3;
constexpr double kMostChange = 0.25;  // of the present value, by one sample
constexpr double kRateWeight = 0.1;
constexpr int kBelieved = 3;
constexpr int kShortestInterval = 4;
constexpr int kLongestInterval = 512;
constexpr double kShareToLose = 0.02;
constexpr double kMostSaved = 4;  // times a round without drafts
constexpr double kMostOwed = 8;

std::size_t index(int n) {
  return static_cast<std::size_t>(n);
}

}  // namespace

void AcceptanceRates::learn(int n_judged, int n_accepted) {
  for (int i = 0; i < n_judged; ++i) {
    Rate& rate = rates_[index(i)];
    ++rate.n_samples;
    // A plain mean at first.
    const double weight = std::max(kRateWeight, 1.0 / rate.n_samples);
    rate.value += weight * ((i < n_accepted ? 1 : 0) - rate.value);
  }
}

int AcceptanceRates::frontier() const {
  int n = 0;
  while (n < kMax && rates_[index(n)].n_samples >= kBelieved) ++n;
  return n;
}

int AcceptanceRates::farthest() const {
  return std::min(2 * frontier() + 1, kMax);
}

double AcceptanceRates::at(int position) const {
  const int believed = frontier();
  if (believed == 0) return 1;
  return rates_[index(std::min(position, believed - 1))].value;
}

int DraftLength::n_measured() const {
  return static_cast<int>(std::count_if(seconds_.begin(), seconds_.end(), [](const auto& s) { return s.has_value(); }));
}

std::optional<double> DraftLength::seconds(int n) const {
  if (n < 0 || n > kMax) throw std::invalid_argument("[draft_length.seconds] n is " + std::to_string(n));
  if (seconds_[index(n)]) return seconds_[index(n)];
  int below = n;
  int above = n;
  while (below >= 0 && !seconds_[index(below)]) --below;
  while (above <= kMax && !seconds_[index(above)]) ++above;
  if (below < 0 && above > kMax) return std::nullopt;
  if (below < 0) return seconds_[index(above)];
  if (above > kMax) {
    if (below == 0 || !seconds_[0]) return seconds_[index(below)];
    const double rise = std::max(0.0, (*seconds_[index(below)] - *seconds_[0]) / below);
    return *seconds_[index(below)] + (n - below) * rise;
  }
  const double share = static_cast<double>(n - below) / (above - below);
  return *seconds_[index(below)] + share * (*seconds_[index(above)] - *seconds_[index(below)]);
}

int DraftLength::best() const {
  if (n_measured() < 2) return 0;
  double tokens = 1;
  double all_right = 1;
  double cost = *seconds(0);
  double best_rate = tokens / cost;
  int best = 0;
  for (int n = 1; n <= rates_.farthest(); ++n) {
    all_right *= rates_.at(n - 1);
    tokens += all_right;
    cost = std::max(cost, *seconds(n));  // more rows never cost less, whatever was measured
    const double rate = tokens / cost;
    if (!(rate > best_rate)) continue;
    best_rate = rate;
    best = n;
  }
  return best;
}

int DraftLength::choose(int limit) const {
  if (limit < 0) throw std::invalid_argument("[draft_length.choose] limit is " + std::to_string(limit));
  if (!seconds_[0]) return 0;
  if (!seconds_[1]) return std::min(1, limit);
  const int chosen = best();
  return std::min({tries_more() ? chosen + 1 : chosen, rates_.farthest(), limit});
}

// The second round of a try follows the first.
bool DraftLength::tries_more() const {
  return rounds_to_probe_ < 0 || (rounds_to_probe_ == 0 && to_lose_ >= 0);
}

void DraftLength::learn_loss(int n_drafted, int n_accepted, double seconds) {
  const double plain = seconds_[0].value_or(seconds);
  const double lost = n_drafted > 0 ? seconds - (1 + n_accepted) * plain : 0;
  to_lose_ = std::clamp(to_lose_ + kShareToLose * seconds - lost, -kMostOwed * plain, kMostSaved * plain);
}

void DraftLength::learn_seconds(int n_drafted, double seconds) {
  std::optional<double>& known = seconds_[index(n_drafted)];
  if (!known) {
    known = seconds;
    return;
  }
  const double most = kMostChange * *known;
  *known += kSecondsWeight * std::clamp(seconds - *known, -most, most);
}

void DraftLength::observe(int n_drafted, int n_judged, int n_accepted, double seconds) {
  if (n_accepted < 0 || n_accepted > n_judged || n_judged > n_drafted || n_drafted > kMax || !(seconds >= 0)) {
    throw std::invalid_argument("[draft_length.observe] " + std::to_string(n_accepted) + " of " +
                                std::to_string(n_judged) + " judged of " + std::to_string(n_drafted) + " drafts in " +
                                std::to_string(seconds) + " seconds");
  }
  rates_.learn(n_judged, n_accepted);
  if (n_drafted == last_drafted_) learn_seconds(n_drafted, seconds);
  last_drafted_ = n_drafted;
  if (rounds_to_probe_ < 0) {
    probe_interval_ = std::min(2 * probe_interval_, kLongestInterval);
    rounds_to_probe_ = probe_interval_;
  } else if (rounds_to_probe_ > 0 || to_lose_ >= 0) {
    --rounds_to_probe_;
  }
  learn_loss(n_drafted, n_accepted, seconds);
  const int chosen = best();
  if (chosen == last_best_) return;
  last_best_ = chosen;
  probe_interval_ = kShortestInterval;
  rounds_to_probe_ = kShortestInterval;
}

}  // namespace memoir::engine
