#include "memoir/engine/draft_shares.h"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <string>

namespace memoir::engine {
namespace {

constexpr double kSecondsWeight = 0.3;
constexpr double kMostChange = 0.25;  // of the present value, by one sample

void move(double& value, double sample) {
  const double most = kMostChange * value;
  value += kSecondsWeight * std::clamp(sample - value, -most, most);
}

}  // namespace

// The largest of the numbers that count as one.
int RowSeconds::counted_as(int n_rows) {
  int step = 1;
  while (4 * step < n_rows) step *= 2;
  step = std::max(1, step / 2);
  return (n_rows + step - 1) / step * step;
}

void RowSeconds::observe(int n_rows, double seconds) {
  if (n_rows < 1 || !(seconds >= 0)) {
    throw std::invalid_argument("[draft_shares.observe] " + std::to_string(n_rows) + " rows in " +
                                std::to_string(seconds) + " seconds");
  }
  Point& point = points_[counted_as(n_rows)];
  ++point.n_samples;
  if (point.n_samples == 2) point = {2, static_cast<double>(n_rows), seconds};
  if (point.n_samples <= 2) return;
  point.n_rows += kSecondsWeight * (n_rows - point.n_rows);
  move(point.seconds, seconds);
}

bool RowSeconds::is_known() const {
  return std::ranges::any_of(points_, [](const auto& one) { return one.second.n_samples > 1; });
}

double RowSeconds::at(int n_rows) const {
  const Point* first = nullptr;
  const Point* below = nullptr;
  const Point* above = nullptr;
  for (const auto& [key, point] : points_) {
    if (point.n_samples < 2 || above) continue;
    if (!first) first = &point;
    (point.n_rows <= n_rows ? below : above) = &point;
  }
  if (!first) throw std::invalid_argument("[draft_shares.seconds] nothing is known");
  if (!below) return first->seconds;
  if (above) {
    const double share = (n_rows - below->n_rows) / (above->n_rows - below->n_rows);
    return below->seconds + share * (above->seconds - below->seconds);
  }
  if (first == below) return below->seconds;
  const double rise = std::max(0.0, (below->seconds - first->seconds) / (below->n_rows - first->n_rows));
  return below->seconds + (n_rows - below->n_rows) * rise;
}

// Of a request's draft, given that those before it are right.
double DraftShares::rate(const Known& known, int position) const {
  return position < known.rates.frontier() || all_.frontier() == 0 ? known.rates.at(position) : all_.at(position);
}

std::vector<int> DraftShares::best_shares(std::span<const Wish> wishes, int n_rows) const {
  struct Next {
    double chance;  // that it is right, and all before it
    std::size_t index;
    bool operator<(const Next& other) const {
      return chance != other.chance ? chance < other.chance : index > other.index;
    }
  };
  std::priority_queue<Next> queue;
  std::vector<int> shares(wishes.size(), 0);
  std::vector<int> most;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const Known& known = requests_.at(wishes[i].id);
    most.push_back(std::min(wishes[i].limit, std::max(known.rates.farthest(), all_.farthest())));
    if (most[i] > 0) queue.push({rate(known, 0), i});
  }
  double tokens = n_rows;
  double pass_s = pass_.at(n_rows);
  double best_rate = tokens / pass_s;
  std::vector<std::size_t> given;
  std::size_t n_best = 0;
  while (!queue.empty()) {
    const Next next = queue.top();
    queue.pop();
    given.push_back(next.index);
    tokens += next.chance;
    const auto n_drafts = static_cast<int>(given.size());
    pass_s = std::max(pass_s, pass_.at(n_rows + n_drafts));
    const double value = tokens / (pass_s + n_drafts * draft_s_);
    if (value > best_rate) {
      best_rate = value;
      n_best = given.size();
    }
    const int n_has = ++shares[next.index];
    if (n_has == most[next.index]) continue;
    queue.push({next.chance * rate(requests_.at(wishes[next.index].id), n_has), next.index});
  }
  std::fill(shares.begin(), shares.end(), 0);
  for (std::size_t i = 0; i < n_best; ++i) ++shares[given[i]];
  return shares;
}

void DraftShares::probe(Known& known, const Wish& wish, int& share) const {
  if (share > 0) {
    known.n_steps_without = 0;
    known.probe_interval = kShortestInterval;
    return;
  }
  if (wish.limit == 0 || ++known.n_steps_without < known.probe_interval) return;
  share = 1;
  known.n_steps_without = 0;
  known.probe_interval = std::min(2 * known.probe_interval, kLongestInterval);
}

std::vector<int> DraftShares::choose(std::span<const Wish> wishes, int n_rows) {
  if (!pass_.is_known()) return std::vector<int>(wishes.size(), 0);
  for (const Wish& wish : wishes) requests_.try_emplace(wish.id);
  std::vector<int> shares = best_shares(wishes, n_rows);
  for (std::size_t i = 0; i < wishes.size(); ++i) probe(requests_.at(wishes[i].id), wishes[i], shares[i]);
  return shares;
}

void DraftShares::observe(RequestId id, int n_drafted, int n_judged, int n_accepted) {
  if (n_accepted < 0 || n_accepted > n_judged || n_judged > n_drafted || n_drafted > AcceptanceRates::kMax) {
    throw std::invalid_argument("[draft_shares.observe] " + std::to_string(n_accepted) + " of " +
                                std::to_string(n_judged) + " judged of " + std::to_string(n_drafted) + " drafts");
  }
  requests_[id].rates.learn(n_judged, n_accepted);
  all_.learn(n_judged, n_accepted);
}

void DraftShares::observe_step(int n_rows, int n_drafts, double pass_s, double drafting_s) {
  pass_.observe(n_rows, pass_s);
  if (n_drafts == 0) return;
  const double sample = drafting_s / n_drafts;
  if (draft_s_ == 0) draft_s_ = sample;
  move(draft_s_, sample);
}

}  // namespace memoir::engine
