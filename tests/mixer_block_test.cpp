// A recurrent mixer as one operation: the bits of the single operations, for one sequence and for several, and states
// updated in place.

#include "memoir/kernels/mixer_block.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <string>
#include <utility>
#include <vector>

#include "memoir/kernels/mlp.h"
#include "memoir/kernels/weight_memory.h"
#include "tests/random_array.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr int kHidden = 64;
constexpr int kWidth = 4;

using test::random_array;

Linear packed_linear(int rows, int columns, unsigned seed, bool has_bias = false) {
  const std::vector<mx::array> parts = mx::quantize(random_array({rows, columns}, seed), 32, 4);
  Linear linear{prepared({parts[0], Quantization{parts[1], parts[2], 32, 4}})};
  if (has_bias) linear.bias = random_array({rows}, seed + 50);
  return linear;
}

// Columns [begin, begin + n * size) of x as n heads, or (size 0) as they are.
mx::array columns(const mx::array& x, int begin, int n, int size = 0) {
  const int end = begin + (size > 0 ? n * size : n);
  const mx::array some = mx::slice(x, {0, 0, begin}, {x.shape(0), x.shape(1), end});
  return size > 0 ? mx::reshape(some, {x.shape(0), x.shape(1), n, size}) : some;
}

mx::array tokens(const mx::array& x, int begin, int n) {
  mx::Shape from(x.ndim(), 0);
  mx::Shape to = x.shape();
  from[1] = begin;
  to[1] = begin + n;
  return mx::slice(x, from, to);
}

struct Mamba {
  static constexpr int kHeads = 6, kHeadDim = 16, kGroups = 2, kState = 32;
  static constexpr int kInner = kHeads * kHeadDim, kChannels = kInner + 2 * kGroups * kState;

  std::optional<Norm> norm = Norm{random_array({kHidden}, 1), 1e-5F};
  Linear input = packed_linear(kInner + kChannels + kHeads, kHidden, 2, true);
  ShortConvolution convolution{random_array({kWidth, kChannels}, 3), random_array({kChannels}, 4), true};
  mx::array a = mx::negative(mx::exp(random_array({kHeads}, 5)));
  mx::array d = random_array({kHeads}, 6);
  mx::array dt_bias = random_array({kHeads}, 7);
  std::optional<SelectiveScan::Limits> limits = std::nullopt;
  GroupNorm group_norm = GroupNorm::kBehindGate;
  std::optional<mx::array> norm_weight = random_array({kInner}, 8);
  Linear output = packed_linear(kHidden, kInner, 9, true);

  MambaBlock block() const {
    return {norm, input,   convolution, kHeads,     kHeadDim, kGroups,     kState, a,
            d,    dt_bias, limits,      group_norm, 1e-6F,    norm_weight, output};
  }
  MixerOutput at_once(const mx::array& x, std::vector<MixerStates> before) const {
    return mamba_block(x, block(), std::move(before), x);
  }
  MixerStates states(int n_sequences, int n_tokens, unsigned seed) const {
    return {n_tokens, random_array({n_sequences, kWidth - 1, kChannels}, seed),
            random_array({n_sequences, kHeads, kHeadDim, kState}, seed + 1)};
  }

  mx::array normed(const mx::array& y) const {
    const Norm plain{mx::ones({kInner / kGroups}), 1e-6F};
    const mx::array groups = mx::reshape(y, {y.shape(0), y.shape(1), kGroups, kInner / kGroups});
    return mx::multiply(mx::flatten(kernels::norm(groups, plain), 2, 3), *norm_weight);
  }
  MixerOutput in_parts(const mx::array& x, const std::vector<MixerStates>& before) const {
    const mx::array joined = linear(norm ? kernels::norm(x, *norm) : x, input);
    MixerOutput result{x, {}};
    std::vector<mx::array> parts;
    int begin = 0;
    for (const MixerStates& s : before) {
      const mx::array own = tokens(joined, begin, s.n_tokens);
      const Recurrence convolved = short_convolution(columns(own, kInner, kChannels), convolution, s.tail);
      SelectiveScan scan{columns(convolved.y, 0, kHeads, kHeadDim),
                         columns(own, kInner + kChannels, kHeads),
                         a,
                         columns(convolved.y, kInner, kGroups, kState),
                         columns(convolved.y, kInner + kGroups * kState, kGroups, kState),
                         s.state,
                         d,
                         dt_bias};
      scan.dt_limits = limits;
      const Recurrence passed = selective_scan(scan);
      parts.push_back(mx::flatten(passed.y, 2, 3));
      result.states.push_back({s.n_tokens, convolved.state, passed.state});
      begin += s.n_tokens;
    }
    mx::array y = mx::concatenate(parts, 1);
    if (group_norm == GroupNorm::kBeforeGate) y = normed(y);
    y = gate_product(columns(joined, 0, kInner), y, Gate::kSilu);
    if (group_norm == GroupNorm::kBehindGate) y = normed(y);
    result.y = linear(y, output, x);
    return result;
  }
};

struct Delta {
  static constexpr int kKeyHeads = 2, kValueHeads = 4, kKeyDim = 16, kValueDim = 24;
  static constexpr int kValues = kValueHeads * kValueDim, kChannels = 2 * kKeyHeads * kKeyDim + kValues;

  std::optional<Norm> norm = Norm{random_array({kHidden}, 1), 1e-5F};
  Linear joined = packed_linear(kChannels, kHidden, 2);
  Linear gates = packed_linear(kValues, kHidden, 3);
  Linear decays = packed_linear(kValueHeads, kHidden, 4);
  Linear betas = packed_linear(kValueHeads, kHidden, 5);
  ShortConvolution convolution{random_array({kWidth, kChannels}, 6), std::nullopt, true};
  DeltaGates rule_gates{mx::negative(mx::exp(random_array({kValueHeads}, 7))), random_array({kValueHeads}, 8)};
  Norm value_norm{random_array({kValueDim}, 9), 1e-6F};
  Linear output = packed_linear(kHidden, kValues, 10);
  bool has_tiled_values = false;

  DeltaBlock block() const {
    return {norm,      joined,           gates,      decays, betas,      convolution, kKeyHeads, kValueHeads, kKeyDim,
            kValueDim, has_tiled_values, rule_gates, 0.25F,  value_norm, output};
  }
  MixerOutput at_once(const mx::array& x, std::vector<MixerStates> before) const {
    return delta_block(x, block(), std::move(before), x);
  }
  MixerStates states(int n_sequences, int n_tokens, unsigned seed) const {
    return {n_tokens, random_array({n_sequences, kWidth - 1, kChannels}, seed),
            random_array({n_sequences, kValueHeads, kValueDim, kKeyDim}, seed + 1)};
  }

  // Key heads for each value head: in turn where values are tiled, else one for neighbours.
  mx::array by_value_head(const mx::array& heads) const {
    constexpr int kTimes = kValueHeads / kKeyHeads;
    return has_tiled_values ? mx::tile(heads, {1, 1, kTimes, 1}) : mx::repeat(heads, kTimes, 2);
  }
  MixerOutput in_parts(const mx::array& x, const std::vector<MixerStates>& before) const {
    const mx::array in = norm ? kernels::norm(x, *norm) : x;
    MixerOutput result{x, {}};
    std::vector<mx::array> parts;
    int begin = 0;
    for (const MixerStates& s : before) {
      const mx::array own = tokens(in, begin, s.n_tokens);
      const Recurrence convolved = short_convolution(linear(own, joined), convolution, s.tail);
      GatedDelta rule{by_value_head(columns(convolved.y, 0, kKeyHeads, kKeyDim)),
                      by_value_head(columns(convolved.y, kKeyHeads * kKeyDim, kKeyHeads, kKeyDim)),
                      columns(convolved.y, 2 * kKeyHeads * kKeyDim, kValueHeads, kValueDim),
                      linear(own, decays),
                      linear(own, betas),
                      s.state,
                      rule_gates};
      rule.normalizes = true;
      rule.scale = 0.25F;
      const Recurrence passed = gated_delta(rule);
      parts.push_back(passed.y);
      result.states.push_back({s.n_tokens, convolved.state, passed.state});
      begin += s.n_tokens;
    }
    const mx::array y = mx::flatten(kernels::norm(mx::concatenate(parts, 1), value_norm), 2, 3);
    result.y = linear(gate_product(linear(in, gates), y, Gate::kSilu), output, x);
    return result;
  }
};

template <typename Mixer>
void expect_bits_of_parts(const Mixer& mixer, const mx::array& x, const std::vector<MixerStates>& before,
                          const std::string& what) {
  const MixerOutput expected = mixer.in_parts(x, before);
  const MixerOutput output = mixer.at_once(x, before);
  EXPECT_TRUE(mx::array_equal(output.y, expected.y).template item<bool>()) << what;
  ASSERT_EQ(output.states.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const MixerStates& ours = output.states[i];
    const MixerStates& theirs = expected.states[i];
    EXPECT_EQ(ours.n_tokens, theirs.n_tokens);
    EXPECT_TRUE(mx::array_equal(ours.tail, theirs.tail).template item<bool>()) << what << ", tail " << i;
    EXPECT_TRUE(mx::array_equal(ours.state, theirs.state).template item<bool>()) << what << ", state " << i;
  }
}

template <typename Mixer>
void expect_bits_of_parts(const Mixer& mixer, const std::string& what) {
  for (const int n_sequences : {1, 2}) {
    for (const int n_tokens : {1, 2, 5, 40}) {
      expect_bits_of_parts(mixer, random_array({n_sequences, n_tokens, kHidden}, 21),
                           {mixer.states(n_sequences, n_tokens, 22)},
                           what + ", " + std::to_string(n_sequences) + " of " + std::to_string(n_tokens));
    }
  }
  expect_bits_of_parts(mixer, random_array({1, 11, kHidden}, 31),
                       {mixer.states(1, 3, 32), mixer.states(1, 1, 34), mixer.states(1, 7, 36)}, what + ", three");
}

TEST(MixerBlock, GivesTheBitsOfMambasSingleOperations) {
  for (const GroupNorm group_norm : {GroupNorm::kNone, GroupNorm::kBehindGate, GroupNorm::kBeforeGate}) {
    Mamba mamba;
    mamba.group_norm = group_norm;
    expect_bits_of_parts(mamba, "group norm " + std::to_string(static_cast<int>(group_norm)));
  }
  Mamba mamba;
  mamba.norm.reset();
  mamba.convolution.bias.reset();
  mamba.limits = {0.3F, 0.9F};
  expect_bits_of_parts(mamba, "limits");
}

TEST(MixerBlock, GivesTheBitsOfTheDeltaRulesSingleOperations) {
  Delta delta;
  expect_bits_of_parts(delta, "neighbours");
  delta.has_tiled_values = true;
  expect_bits_of_parts(delta, "tiled");
  delta.norm.reset();
  expect_bits_of_parts(delta, "no norm");
}

template <typename Mixer>
void expect_states_in_place(const Mixer& mixer) {
  std::vector<MixerStates> before = {mixer.states(1, 1, 41)};
  mx::eval(before[0].tail, before[0].state);
  const float* tail = before[0].tail.template data<float>();
  const float* state = before[0].state.template data<float>();
  const MixerOutput output = mixer.at_once(random_array({1, 1, kHidden}, 42), std::move(before));
  mx::eval(output.y);
  EXPECT_EQ(output.states[0].tail.template data<float>(), tail);
  EXPECT_EQ(output.states[0].state.template data<float>(), state);
}

TEST(MixerBlock, UpdatesStatesThatNothingElseHoldsInPlace) {
  expect_states_in_place(Mamba());
  expect_states_in_place(Delta());
}

template <typename Mixer>
void expect_states_kept(const Mixer& mixer) {
  const MixerStates before = mixer.states(1, 1, 43);
  mx::eval(before.tail, before.state);
  mx::eval(mixer.at_once(random_array({1, 1, kHidden}, 44), {before}).y);
  const MixerStates same = mixer.states(1, 1, 43);
  EXPECT_TRUE(mx::array_equal(before.tail, same.tail).template item<bool>());
  EXPECT_TRUE(mx::array_equal(before.state, same.state).template item<bool>());
}

TEST(MixerBlock, LeavesStatesThatSomethingElseHolds) {
  expect_states_kept(Mamba());
  expect_states_kept(Delta());
}

template <typename Mixer>
void expect_refused(const Mixer& mixer, const mx::array& x, std::vector<MixerStates> before, const std::string& part) {
  try {
    mixer.at_once(x, std::move(before));
    ADD_FAILURE() << "nothing thrown, expected " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(MixerBlock, RefusesWhatDoesNotFit) {
  const mx::array x = random_array({1, 4, kHidden}, 51);
  Mamba mamba;
  expect_refused(mamba, x, {}, "[kernels.mamba_block] 0 sequences");
  expect_refused(mamba, x, {mamba.states(1, 3, 52)}, "fewer tokens");
  expect_refused(mamba, x, {mamba.states(1, 5, 52)}, "more or fewer tokens");
  expect_refused(mamba, x, {mamba.states(2, 4, 52)}, "a tail has shape (2,3,224), expected (1,3,224)");
  mamba.d = random_array({3}, 53);
  expect_refused(mamba, x, {mamba.states(1, 4, 52)}, "a, d or dt_bias has shape (3), expected (6)");
  Delta delta;
  expect_refused(delta, random_array({1, 4, 32}, 54), {delta.states(1, 4, 55)}, "the norm's weight has shape (64)");
  delta.betas = packed_linear(3, kHidden, 56);
  expect_refused(delta, x, {delta.states(1, 4, 55)}, "[kernels.delta_block] betas has 3 rows, expected 4");
}

}  // namespace
}  // namespace memoir::kernels
