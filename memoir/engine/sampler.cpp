#include "memoir/engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

#include "memoir/engine/request_fault.h"

// Compiled with -ffp-contract=off (core_sources.cmake): a fused multiply-add on some platforms only would end the
// promise that the same seed gives the same token everywhere.

namespace memoir::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr double kMassUnits = 0x1p40;       // with kMaxVocab tokens a sum stays below 2^63
constexpr double kSmallestExponent = -700;  // exp() below is 1e-304 or less, taken as 0: keeps clear of subnormals

[[noreturn]] void refuse(const char* name, double value, const char* range) {
  std::ostringstream text;
  text << "[sampler] " << name << " is " << value << ", expected " << range;
  throw std::invalid_argument(text.str());
}

[[noreturn]] void refuse_token(const char* function, TokenId token, std::size_t n_vocab) {
  throw std::invalid_argument(std::string("[") + function + "] token " + std::to_string(token) +
                              " is outside the vocabulary of " + std::to_string(n_vocab));
}

[[noreturn]] void refuse_all_logits(const char* function) {
  throw std::runtime_error(std::string("[") + function + "] no token can be chosen: every logit is -inf or NaN");
}

bool is_outside(TokenId token, std::size_t n_vocab) {
  return token < 0 || static_cast<std::size_t>(token) >= n_vocab;
}

/// exp(x) for kSmallestExponent <= x <= 0, of additions and multiplications only, so that it is the same everywhere
/// and compilers vectorize it. x = n ln 2 + r with |r| <= ln 2 / 2, exp(x) = 2^n exp(r), exp(r) by Taylor's
/// polynomial of degree 11 (the first term left out is below 7e-15).
double exp_of_nonpositive(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits of the mantissa
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // n * high is exact for the n that occur
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double shifted = x * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0 / 39916800;
  for (const double inverse_factorial :
       {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) {
    sum = sum * r + inverse_factorial;
  }
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + (std::bit_cast<std::uint64_t>(shifted) << 52));
}

/// weights[i] = exp((logits[i] - max_logit) * scale). Logits equal to the largest get 1 even where the difference has
/// no value (inf - inf) or 0 * scale hasn't (scale may be inf), NaN gets 0.
void fill_weights(std::span<const float> logits, float max_logit, double scale, std::span<double> weights) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double x = (static_cast<double>(logits[i]) - static_cast<double>(max_logit)) * scale;
    const double weight = exp_of_nonpositive(x > kSmallestExponent ? x : kSmallestExponent);
    const double or_zero = x > kSmallestExponent ? weight : 0.0;
    weights[i] = logits[i] == max_logit ? 1.0 : or_zero;
  }
}

/// The largest logit that is not NaN, -inf if there is none.
float largest(std::span<const float> logits) {
  // Independent lanes: the maximum does not depend on the order, and compilers need the permission.
  std::array<float, 16> lanes;
  lanes.fill(kNever);
  std::size_t i = 0;
  for (; i + lanes.size() <= logits.size(); i += lanes.size()) {
    for (std::size_t j = 0; j < lanes.size(); ++j) {
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    }
  }
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  return *std::max_element(lanes.begin(), lanes.end());
}

double in_order_sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

void SamplerOptions::validate() const {
  // Written so that NaN fails each comparison.
  if (!(temperature >= 0 && std::isfinite(temperature))) {
    refuse("temperature", temperature, "a finite number >= 0");
  }
  if (!(top_p > 0 && top_p <= 1)) refuse("top_p", top_p, "0 < top_p <= 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("min_p", min_p, "0 <= min_p <= 1");
  if (top_k < 0) refuse("top_k", top_k, "top_k >= 0 (0 keeps all)");
  if (!(repetition_penalty > 0 && std::isfinite(repetition_penalty))) {
    refuse("repetition_penalty", repetition_penalty, "a finite number > 0 (1 is none)");
  }
  if (!std::isfinite(presence_penalty)) {
    refuse("presence_penalty", presence_penalty, "a finite number");
  }
  if (!std::isfinite(frequency_penalty)) {
    refuse("frequency_penalty", frequency_penalty, "a finite number");
  }
  if (penalty_window < -1) refuse("penalty_window", penalty_window, "-1 (all tokens) or more");
  if (n_choosable < 0) refuse("n_choosable", n_choosable, "n_choosable >= 0 (0 is all)");
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0) refuse("a token in logit_bias", token, "an id of the vocabulary");
    if (std::isnan(bias)) refuse("a value in logit_bias", bias, "a number, -inf or inf");
  }
}

SamplerOptions choosing_below(SamplerOptions options, int n_known, std::span<const TokenId> end_tokens) {
  options.n_choosable = options.n_choosable > 0 ? std::min(options.n_choosable, n_known) : n_known;
  options.choosable_beyond.insert(options.choosable_beyond.end(), end_tokens.begin(), end_tokens.end());
  return options;
}

Sampler::Sampler(const SamplerOptions& options, int n_vocab)
    : options_(options), n_vocab_(n_vocab), log_min_p_(std::log(options.min_p)) {
  options_.validate();
  if (n_vocab < 1 || n_vocab > kMaxVocab) refuse("n_vocab", n_vocab, ("1 to " + std::to_string(kMaxVocab)).c_str());
  for (const auto& [token, bias] : options_.logit_bias) {
    if (is_outside(token, static_cast<std::size_t>(n_vocab))) {
      refuse_token("sampler: logit_bias", token, static_cast<std::size_t>(n_vocab));
    }
  }
  if (options_.seed) {
    seed_ = *options_.seed;
  } else {
    std::random_device device;
    const std::uint64_t high = device();
    seed_ = high << 32 | device();
  }
  generator_.seed(seed_);
}

bool Sampler::has_penalties() const {
  return options_.penalty_window != 0 &&
         (options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0);
}

bool Sampler::has_padding() const {
  return options_.n_choosable > 0 && options_.n_choosable < n_vocab_;
}

bool Sampler::is_plain_argmax() const {
  return options_.temperature == 0 && options_.logit_bias.empty() && !has_penalties() && !has_padding();
}

void Sampler::accept(TokenId token) {
  const auto n_vocab = static_cast<std::size_t>(n_vocab_);
  if (is_outside(token, n_vocab)) refuse_token("sampler.accept", token, n_vocab);
  remember(token);
}

void Sampler::prime(std::span<const TokenId> prompt) {
  const auto n_vocab = static_cast<std::size_t>(n_vocab_);
  for (const TokenId token : prompt) {
    if (is_outside(token, n_vocab)) refuse_token("sampler.prime", token, n_vocab);
  }
  if (options_.penalty_window >= 0) {
    prompt = prompt.last(std::min(prompt.size(), static_cast<std::size_t>(options_.penalty_window)));
  }
  for (const TokenId token : prompt) remember(token);
}

void Sampler::remember(TokenId token) {
  if (!has_penalties()) return;
  ++counts_[token];
  if (options_.penalty_window < 0) return;
  recent_.push_back(token);
  if (recent_.size() <= static_cast<std::size_t>(options_.penalty_window)) return;
  const auto oldest = counts_.find(recent_.front());
  if (--oldest->second == 0) counts_.erase(oldest);
  recent_.pop_front();
}

void Sampler::reset() {
  recent_.clear();
  counts_.clear();
  generator_.seed(seed_);
}

/// Whether a ban takes a token that could be chosen without it.
bool Sampler::bans_a_choice(std::span<const float> logits) const {
  const auto is_choosable = [&](TokenId token) {
    const auto& beyond = options_.choosable_beyond;
    return !has_padding() || token < options_.n_choosable ||
           std::find(beyond.begin(), beyond.end(), token) != beyond.end();
  };
  return std::any_of(options_.logit_bias.begin(), options_.logit_bias.end(), [&](const auto& entry) {
    const auto [token, bias] = entry;
    return bias == kNever && logits[static_cast<std::size_t>(token)] > kNever && is_choosable(token);
  });
}

void Sampler::apply_bias_and_penalties(std::span<float> logits) const {
  for (const auto& [token, bias] : options_.logit_bias) {
    // inf + -inf is NaN, which is never chosen: a ban holds.
    logits[static_cast<std::size_t>(token)] += bias;
  }
  for (const auto& [token, count] : counts_) {
    float& logit = logits[static_cast<std::size_t>(token)];
    double changed = logit;
    changed = changed > 0 ? changed / options_.repetition_penalty : changed * options_.repetition_penalty;
    changed -= count * options_.frequency_penalty + options_.presence_penalty;
    logit = static_cast<float>(changed);
  }
}

void Sampler::mask_padding(std::span<float> logits) const {
  if (!has_padding()) return;
  std::vector<std::pair<TokenId, float>> kept;
  for (const TokenId token : options_.choosable_beyond) {
    if (!is_outside(token, logits.size())) kept.emplace_back(token, logits[static_cast<std::size_t>(token)]);
  }
  std::fill(logits.begin() + options_.n_choosable, logits.end(), kNever);
  for (const auto& [token, logit] : kept) logits[static_cast<std::size_t>(token)] = logit;
}

TokenId Sampler::sample(std::span<float> logits) {
  if (logits.size() != static_cast<std::size_t>(n_vocab_)) {
    throw std::invalid_argument("[sampler.sample] got " + std::to_string(logits.size()) + " logits, expected " +
                                std::to_string(n_vocab_));
  }
  const bool has_banned = bans_a_choice(logits);
  apply_bias_and_penalties(logits);
  mask_padding(logits);
  const float max_logit = largest(logits);
  if (max_logit == kNever && has_banned) throw RequestFault("logit_bias", "it bans every token that could come here");
  if (max_logit == kNever) refuse_all_logits("sampler.sample");
  if (options_.temperature == 0) {
    return static_cast<TokenId>(std::find(logits.begin(), logits.end(), max_logit) - logits.begin());
  }
  for (float& logit : logits) logit = std::isnan(logit) ? kNever : logit;
  keep_from(logits, find_cutoff(logits, max_logit), max_logit);
  return draw(max_logit);
}

/// The last candidate that top-k and top-p keep.
Sampler::Candidate Sampler::find_cutoff(std::span<const float> logits, float max_logit) {
  const bool has_top_k = options_.top_k > 0 && options_.top_k < n_vocab_;
  if (!has_top_k && options_.top_p == 1) return {kNever, n_vocab_, 0};
  if (has_top_k) {
    select_top_k(logits);
    if (options_.top_p == 1) return *std::max_element(candidates_.begin(), candidates_.end());
  }
  const double total_mass = has_top_k ? weigh_candidates(max_logit) : gather_for_top_p(logits, max_logit);
  return last_of_top_p(total_mass);
}

/// candidates_ becomes the top_k first ones, in no order.
void Sampler::select_top_k(std::span<const float> logits) {
  const auto k = static_cast<std::size_t>(options_.top_k);
  const std::size_t capacity = std::max(2 * k, k + 64);
  candidates_.clear();
  const auto drop_beyond_k = [&] {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k - 1), candidates_.end());
    candidates_.resize(k);
    return candidates_.back().logit;
  };
  // Once k candidates are known, only a logit above the least of them can enter (an equal one has a higher id). Most
  // tokens fail that one comparison; the buffer is cut down to k each time it fills.
  std::size_t i = 0;
  for (; i < logits.size() && candidates_.size() < capacity; ++i) {
    candidates_.push_back({logits[i], static_cast<TokenId>(i), 0});
  }
  float least = drop_beyond_k();
  for (; i < logits.size(); ++i) {
    if (!(logits[i] > least)) continue;
    candidates_.push_back({logits[i], static_cast<TokenId>(i), 0});
    if (candidates_.size() == capacity) least = drop_beyond_k();
  }
  if (candidates_.size() > k) drop_beyond_k();
}

/// Sets the mass of each candidate and returns the sum.
double Sampler::weigh_candidates(float max_logit) {
  kept_logits_.clear();
  for (const Candidate& candidate : candidates_) kept_logits_.push_back(candidate.logit);
  weights_.resize(kept_logits_.size());
  fill_weights(kept_logits_, max_logit, 1, weights_);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    candidates_[i].mass = static_cast<std::int64_t>(weights_[i] * kMassUnits);
    total += candidates_[i].mass;
  }
  return static_cast<double>(total);
}

/// candidates_ becomes the tokens that top-p may keep; returns the mass of all tokens.
double Sampler::gather_for_top_p(std::span<const float> logits, float max_logit) {
  weights_.resize(logits.size());
  fill_weights(logits, max_logit, 1, weights_);
  std::int64_t total = 0;
  for (const double weight : weights_) total += static_cast<std::int64_t>(weight * kMassUnits);
  // V tokens of less than (1 - top_p) * total / V have less than (1 - top_p) * total together: all the others reach
  // top_p without them, so none of them is kept, and only the others need ranking.
  const auto n_vocab = static_cast<double>(logits.size());
  const double least_weight = (1 - options_.top_p) * static_cast<double>(total) / (n_vocab * kMassUnits);
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] < least_weight) continue;
    candidates_.push_back({logits[i], static_cast<TokenId>(i), static_cast<std::int64_t>(weights_[i] * kMassUnits)});
  }
  return static_cast<double>(total);
}

/// The first candidate, in rank order, where the running mass reaches top_p * total_mass. Halves the range that holds
/// it (quickselect by mass) instead of sorting: O(candidates).
Sampler::Candidate Sampler::last_of_top_p(double total_mass) {
  constexpr std::ptrdiff_t kFewEnoughToSort = 64;
  const double goal = options_.top_p * total_mass;
  auto first = candidates_.begin();
  auto last = candidates_.end();
  std::int64_t mass_before = 0;
  while (last - first > kFewEnoughToSort) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last);
    std::int64_t mass = mass_before;
    for (auto it = first; it != middle; ++it) mass += it->mass;
    if (static_cast<double>(mass) >= goal) {
      last = middle;
    } else {
      first = middle;
      mass_before = mass;
    }
  }
  std::sort(first, last);
  for (; first + 1 != last; ++first) {
    mass_before += first->mass;
    if (static_cast<double>(mass_before) >= goal) break;
  }
  return *first;
}

/// Whether exp(below_max) >= min_p. The logarithm, whose last bits differ between platforms, decides only where a
/// difference in them can't matter.
bool Sampler::min_p_keeps(double below_max) const {
  constexpr double kMargin = 1e-9;
  if (below_max >= log_min_p_ + kMargin) return true;
  if (below_max < log_min_p_ - kMargin) return false;
  return below_max > kSmallestExponent && exp_of_nonpositive(below_max) >= options_.min_p;
}

/// Collects, in the order of ids, the tokens ranked at or before the cutoff that min-p keeps too.
void Sampler::keep_from(std::span<const float> logits, const Candidate& cutoff, float max_logit) {
  kept_logits_.clear();
  kept_ids_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (logit < cutoff.logit || logit == kNever) continue;
    const auto id = static_cast<TokenId>(i);
    if (logit == cutoff.logit && id > cutoff.id) continue;
    // inf - inf has no value, so the largest is kept by name.
    if (logit != max_logit && !min_p_keeps(static_cast<double>(logit) - static_cast<double>(max_logit))) continue;
    kept_logits_.push_back(logit);
    kept_ids_.push_back(id);
  }
}

TokenId Sampler::draw(float max_logit) {
  weights_.resize(kept_logits_.size());
  fill_weights(kept_logits_, max_logit, 1 / options_.temperature, weights_);
  const double u = static_cast<double>(generator_() >> 11) * 0x1p-53;
  const double goal = u * in_order_sum(weights_);
  double sum = 0;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < weights_.size() && sum <= goal; ++i) {
    if (weights_[i] == 0) continue;
    sum += weights_[i];
    chosen = i;
  }
  return kept_ids_[chosen];
}

void softmax(std::span<const float> logits, double temperature, std::span<double> probabilities) {
  if (probabilities.size() != logits.size()) {
    throw std::invalid_argument("[sampler.softmax] got room for " + std::to_string(probabilities.size()) +
                                " probabilities of " + std::to_string(logits.size()) + " logits");
  }
  if (!(temperature > 0 && std::isfinite(temperature))) {
    refuse("temperature", temperature, "a finite number > 0");
  }
  const float max_logit = largest(logits);
  if (max_logit == kNever) refuse_all_logits("sampler.softmax");
  fill_weights(logits, max_logit, 1 / temperature, probabilities);
  const double sum = in_order_sum(probabilities);
  for (double& probability : probabilities) probability /= sum;
}

float log_probability(std::span<const float> logits, TokenId token) {
  if (is_outside(token, logits.size())) {
    refuse_token("sampler.log_probability", token, logits.size());
  }
  const float max_logit = largest(logits);
  if (max_logit == kNever) refuse_all_logits("sampler.log_probability");
  const float logit = logits[static_cast<std::size_t>(token)];
  if (std::isnan(logit)) return kNever;
  std::vector<double> weights(logits.size());
  fill_weights(logits, max_logit, 1, weights);
  const double below_max = logit == max_logit ? 0.0 : static_cast<double>(logit) - static_cast<double>(max_logit);
  return static_cast<float>(below_max - std::log(in_order_sum(weights)));
}

}  // namespace memoir::engine
