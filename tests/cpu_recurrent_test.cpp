// The recurrent CPU kernels: values against the formulas of their headers in double precision, and the same bits
// however a call is split, on any number of threads, in every instruction set.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/kernels/cpu/gated_delta.h"
#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/selective_scan.h"
#include "memoir/kernels/cpu/short_convolution.h"
#include "memoir/kernels/cpu/threads.h"
#include "tests/float_rows.h"

namespace memoir::kernels::cpu {
namespace {

using test::random_float;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// A convolution of width 1 has no state.
bool same_bits(const Floats& a, const Floats& b) {
  return a.empty() ? b.empty() : test::same_bits(a, b);
}

Floats random_floats(std::size_t n, float size, std::mt19937& random) {
  Floats values(n);
  for (float& value : values) value = random_float(random) * size;
  return values;
}

std::size_t product(std::initializer_list<int> sizes) {
  std::size_t n = 1;
  for (const int size : sizes) n *= static_cast<std::size_t>(size);
  return n;
}

struct Sizes {
  int n_sequences;
  int n_tokens;
};

// What a run over several calls gives.
struct Result {
  Floats y;
  Floats state;
  std::vector<Floats> captured;
};

// Calls `call(begin, n_tokens, states, y)` for each part of a split, and puts outputs and captured states together.
// y_width: floats of one token's outputs. All parts
// but the first update the state in place.
struct Split {
  Sizes sizes;
  std::size_t y_width;
  std::size_t n_state;
  const Floats* initial;
  const std::vector<TokenSpan>* spans;
  const std::vector<int>* capture;

  template <typename Call>
  Result run(const std::vector<int>& parts, const Call& call) const {
    const auto n_sequences = static_cast<std::size_t>(sizes.n_sequences);
    Result result{Floats(n_sequences * static_cast<std::size_t>(sizes.n_tokens) * y_width, 99), Floats(n_state), {}};
    const float* before = initial->empty() ? nullptr : initial->data();
    Floats present;
    int begin = 0;
    for (const int n_tokens : parts) {
      Floats after(n_state, 77);
      std::vector<TokenSpan> own;
      for (const TokenSpan& span : *spans) {
        own.push_back({std::clamp(span.begin - begin, 0, n_tokens), std::clamp(span.end - begin, 0, n_tokens)});
      }
      std::vector<int> steps;
      for (const int step : *capture) {
        if (step > begin && step < begin + n_tokens) steps.push_back(step - begin);
      }
      std::vector<Floats> captured(steps.size(), Floats(n_state, 55));
      std::vector<float*> pointers;
      for (Floats& floats : captured) pointers.push_back(floats.data());
      StateArgs states;
      states.initial = before;
      if (begin > 0) {
        after.assign(before, before + n_state);
        states.initial = after.data();
      }
      states.final = after.data();
      states.spans = own.empty() ? nullptr : own.data();
      states.n_captured = static_cast<int>(steps.size());
      states.steps = steps.data();
      states.captured = pointers.data();
      Floats y(n_sequences * static_cast<std::size_t>(n_tokens) * y_width, 33);
      call(begin, n_tokens, states, y.data());
      for (std::size_t b = 0; b < n_sequences; ++b) {
        const std::size_t n = static_cast<std::size_t>(n_tokens) * y_width;
        const std::size_t at = b * static_cast<std::size_t>(sizes.n_tokens) + static_cast<std::size_t>(begin);
        std::copy_n(y.begin() + static_cast<std::ptrdiff_t>(b * n), n,
                    result.y.begin() + static_cast<std::ptrdiff_t>(at * y_width));
      }
      for (Floats& floats : captured) result.captured.push_back(std::move(floats));
      begin += n_tokens;
      for (const int step : *capture) {
        if (step == begin && begin < sizes.n_tokens) result.captured.push_back(after);
      }
      present = std::move(after);
      before = present.data();
    }
    result.state = present;
    return result;
  }
};

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.y, b.y)) << "outputs, " << what;
  EXPECT_TRUE(same_bits(a.state, b.state)) << "state, " << what;
  ASSERT_EQ(a.captured.size(), b.captured.size()) << what;
  for (std::size_t i = 0; i < a.captured.size(); ++i) {
    EXPECT_TRUE(same_bits(a.captured[i], b.captured[i])) << "captured " << i << ", " << what;
  }
}

void expect_near(const Floats& values, const Doubles& expected, const std::string& what) {
  ASSERT_EQ(values.size(), expected.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
  }
  EXPECT_LT(worst, 1e-5) << what;
}

// Runs in every set, on 1, 2 and 3 threads, in several splits: one result. Returns it.
Result same_everywhere(int n_tokens, const std::string& what,
                       const std::function<Result(const std::vector<int>&)>& run) {
  const int n_threads_before = n_threads();
  std::vector<std::vector<int>> splits = {{n_tokens}, std::vector<int>(static_cast<std::size_t>(n_tokens), 1)};
  if (n_tokens > 3) splits.push_back({1, n_tokens - 3, 2});
  const KernelList list = supported_kernels();
  Result first;
  for (int i = 0; i < list.n_sets; ++i) {
    choose_kernels(list.sets[i]->name);
    EXPECT_TRUE(std::string_view(list.sets[i]->name).starts_with(recurrent_kernels().name)) << list.sets[i]->name;
    for (const int n : {1, 2, 3}) {
      set_n_threads(n);
      for (const std::vector<int>& split : splits) {
        const Result result = run(split);
        if (first.y.empty()) first = result;
        expect_same(result, first,
                    what + ", " + list.sets[i]->name + ", " + std::to_string(n) + " threads, " +
                        std::to_string(split.size()) + " calls");
      }
    }
  }
  choose_kernels("");
  set_n_threads(n_threads_before);
  return first;
}

bool is_real(const std::vector<TokenSpan>& spans, int sequence, int token) {
  if (spans.empty()) return true;
  const TokenSpan& span = spans[static_cast<std::size_t>(sequence)];
  return token >= span.begin && token < span.end;
}

double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

// ---- Gated delta

struct DeltaCase {
  Sizes sizes{1, 1};
  int Hk = 1, Hv = 1, Dk = 1, Dv = 1;
  bool normalizes = true;
  bool has_gates = true;
  bool has_state = true;
  std::vector<TokenSpan> spans = {};
  std::vector<int> capture = {};

  Floats queries = {}, keys = {}, values = {}, decays = {}, betas = {}, a = {}, dt_bias = {}, state = {};
  float scale = 0.25F;

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    const auto [B, T] = sizes;
    queries = random_floats(product({B, T, Hk, Dk}), 2, random);
    keys = random_floats(product({B, T, Hk, Dk}), normalizes ? 2 : 0.3F, random);
    values = random_floats(product({B, T, Hv, Dv}), 1, random);
    decays = random_floats(product({B, T, Hv}), has_gates ? 6 : 0.5F, random);
    if (!has_gates) {
      for (float& decay : decays) decay = -std::abs(decay);
    }
    betas = random_floats(product({B, T, Hv}), has_gates ? 4 : 1, random);
    a = random_floats(product({Hv}), 1, random);
    for (float& rate : a) rate = -std::exp(rate);
    dt_bias = random_floats(product({Hv}), 1, random);
    if (has_state) state = random_floats(product({B, Hv, Dv, Dk}), 1, random);
  }

  std::size_t n_state() const { return product({sizes.n_sequences, Hv, Dv, Dk}); }

  Result run(const std::vector<int>& parts) const {
    const Split split{sizes, product({Hv, Dv}), n_state(), &state, &spans, &capture};
    return split.run(parts, [&](int begin, int n_tokens, const StateArgs& states, float* y) {
      GatedDeltaArgs args;
      args.n_sequences = sizes.n_sequences;
      args.n_tokens = n_tokens;
      args.n_key_heads = Hk;
      args.n_value_heads = Hv;
      args.key_dim = Dk;
      args.value_dim = Dv;
      args.queries = {queries.data() + begin * Hk * Dk, sizes.n_tokens * Hk * Dk, Hk * Dk, Dk};
      args.keys = {keys.data() + begin * Hk * Dk, sizes.n_tokens * Hk * Dk, Hk * Dk, Dk};
      args.values = {values.data() + begin * Hv * Dv, sizes.n_tokens * Hv * Dv, Hv * Dv, Dv};
      args.decays = {decays.data() + begin * Hv, sizes.n_tokens * Hv, Hv, 0};
      args.betas = {betas.data() + begin * Hv, sizes.n_tokens * Hv, Hv, 0};
      if (has_gates) {
        args.a = a.data();
        args.dt_bias = dt_bias.data();
      }
      args.normalizes = normalizes;
      args.scale = scale;
      args.states = states;
      args.y = y;
      Floats prepared(prepared_floats(args));
      args.prepared = prepared.data();
      gated_delta(args);
    });
  }

  struct Expected {
    Doubles y, state;
    std::vector<Doubles> captured;
  };
  Expected expected() const {
    Expected result;
    const auto [B, T] = sizes;
    result.state.assign(n_state(), 0);
    std::copy(state.begin(), state.end(), result.state.begin());
    result.captured.assign(capture.size(), Doubles(n_state()));
    for (int b = 0; b < B; ++b) {
      for (int h = 0; h < Hv; ++h) head(b, h, result);
    }
    return result;
  }

 private:
  void head(int b, int h, Expected& result) const {
    const int T = sizes.n_tokens;
    const auto at = [](std::ptrdiff_t i) { return static_cast<std::size_t>(i); };
    result.y.resize(product({sizes.n_sequences, T, Hv, Dv}));
    double* s = result.state.data() + (b * Hv + h) * Dv * Dk;
    const auto capture_after = [&](int step) {
      for (std::size_t i = 0; i < capture.size(); ++i) {
        if (capture[i] == step) std::copy_n(s, Dv * Dk, result.captured[i].data() + (b * Hv + h) * Dv * Dk);
      }
    };
    for (int t = 0; t < T; ++t, capture_after(t)) {
      if (!is_real(spans, b, t)) continue;
      const float* query = queries.data() + ((b * T + t) * Hk + h / (Hv / Hk)) * Dk;
      const float* key = keys.data() + ((b * T + t) * Hk + h / (Hv / Hk)) * Dk;
      Doubles q(query, query + Dk), k(key, key + Dk);
      for (Doubles* row : {&q, &k}) {
        double squares = 1e-6;
        for (const double x : *row) squares += x * x;
        if (normalizes) {
          for (double& x : *row) x /= std::sqrt(squares);
        }
      }
      double decay = decays[at((b * T + t) * Hv + h)];
      double beta = betas[at((b * T + t) * Hv + h)];
      if (has_gates) {
        decay = static_cast<double>(a[at(h)]) * softplus(decay + static_cast<double>(dt_bias[at(h)]));
        beta = 1 / (1 + std::exp(-beta));
      }
      for (int v = 0; v < Dv; ++v) {
        double memory = 0;
        for (int i = 0; i < Dk; ++i) {
          s[v * Dk + i] *= std::exp(decay);
          memory += s[v * Dk + i] * k[at(i)];
        }
        const double delta = beta * (values[at(((b * T + t) * Hv + h) * Dv + v)] - memory);
        double out = 0;
        for (int i = 0; i < Dk; ++i) {
          s[v * Dk + i] += delta * k[at(i)];
          out += s[v * Dk + i] * q[at(i)] * static_cast<double>(scale);
        }
        result.y[at(((b * T + t) * Hv + h) * Dv + v)] = out;
      }
    }
  }
};

std::vector<DeltaCase> delta_cases() {
  std::vector<DeltaCase> cases(6);
  cases[0] = {{1, 1}, 1, 1, 1, 1, false, false, false};
  cases[1] = {{1, 13}, 2, 4, 16, 32};
  cases[2] = {{2, 9}, 1, 3, 21, 37, true, true, true, {{0, 9}, {2, 6}}, {3, 7}};
  cases[3] = {{3, 5}, 2, 2, 7, 5, true, true, false, {{1, 1}, {0, 4}, {4, 5}}, {1, 2, 3, 4}};
  cases[4] = {{1, 24}, 1, 2, 128, 128, true, false, true, {}, {1, 23}};
  cases[5] = {{1, 6}, 2, 34, 8, 16, false, false, true};
  return cases;
}

TEST(GatedDelta, AgreesWithTheFormulaInTheSameBitsEverywhere) {
  unsigned seed = 1;
  for (DeltaCase& c : delta_cases()) {
    const std::string what = "case " + std::to_string(seed);
    c.fill(seed++);
    const Result result = same_everywhere(c.sizes.n_tokens, what, [&](const auto& parts) { return c.run(parts); });
    const DeltaCase::Expected expected = c.expected();
    expect_near(result.y, expected.y, what + " outputs");
    expect_near(result.state, expected.state, what + " state");
    ASSERT_EQ(result.captured.size(), expected.captured.size());
    for (std::size_t i = 0; i < result.captured.size(); ++i) {
      expect_near(result.captured[i], expected.captured[i], what + " captured");
    }
  }
}

TEST(GatedDelta, BatchesHaveTheBitsOfTheirSequencesAlone) {
  DeltaCase both{{2, 7}, 2, 4, 12, 20};
  both.fill(3);
  const Result result = both.run({7});
  for (int b = 0; b < 2; ++b) {
    DeltaCase one = both;
    one.sizes.n_sequences = 1;
    const auto half = [b](Floats& floats) {
      const auto n = static_cast<std::ptrdiff_t>(floats.size() / 2);
      floats = Floats(floats.begin() + b * n, floats.begin() + (b + 1) * n);
    };
    for (Floats* floats : {&one.queries, &one.keys, &one.values, &one.decays, &one.betas, &one.state}) half(*floats);
    const Result alone = one.run({7});
    Result part = result;
    half(part.y);
    half(part.state);
    expect_same(alone, part, "sequence " + std::to_string(b));
  }
}

TEST(GatedDelta, ForgetsAllWhereTheDecayIsLarge) {
  DeltaCase c{{1, 1}, 1, 1, 4, 4, false, false, true};
  c.fill(1);
  c.decays = {-200};
  c.betas = {0};
  const Result result = c.run({1});
  EXPECT_TRUE(std::all_of(result.state.begin(), result.state.end(), [](float x) { return x == 0; }));
}

TEST(GatedDelta, PassesNanOnToItsHeadAlone) {
  DeltaCase c{{1, 2}, 1, 2, 4, 4};
  c.fill(1);
  c.values[0] = std::numeric_limits<float>::quiet_NaN();
  const Result result = c.run({2});
  EXPECT_TRUE(std::isnan(result.state[0]));
  for (std::size_t i = 4; i < result.state.size(); ++i) EXPECT_FALSE(std::isnan(result.state[i])) << i;
}

// ---- Selective scan

struct ScanCase {
  Sizes sizes{1, 1};
  int H = 1, P = 1, G = 1, N = 1;
  bool is_diagonal = false;
  bool has_extras = true;  // d, dt_bias and softplus
  bool is_clamped = false;
  bool has_state = true;
  std::vector<TokenSpan> spans = {};
  std::vector<int> capture = {};

  Floats x = {}, dt = {}, a = {}, b = {}, c = {}, d = {}, dt_bias = {}, state = {};

  int n_rates() const { return is_diagonal ? P : H; }
  std::size_t n_state() const { return product({sizes.n_sequences, H, P, N}); }

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    const auto [B, T] = sizes;
    x = random_floats(product({B, T, H, P}), 1, random);
    dt = random_floats(product({B, T, n_rates()}), has_extras ? 4 : 1, random);
    if (!has_extras) {
      for (float& step : dt) step = std::abs(step);
    }
    a = random_floats(is_diagonal ? product({P, N}) : product({H}), 3, random);
    for (float& rate : a) rate = -std::abs(rate);
    b = random_floats(product({B, T, G, N}), 1, random);
    c = random_floats(product({B, T, G, N}), 1, random);
    d = random_floats(product({n_rates()}), 1, random);
    dt_bias = random_floats(product({n_rates()}), 1, random);
    if (has_state) state = random_floats(n_state(), 1, random);
  }

  Result run(const std::vector<int>& parts) const {
    const Split split{sizes, product({H, P}), n_state(), &state, &spans, &capture};
    return split.run(parts, [&](int begin, int n_tokens, const StateArgs& states, float* y) {
      const int T = sizes.n_tokens;
      SelectiveScanArgs args;
      args.n_sequences = sizes.n_sequences;
      args.n_tokens = n_tokens;
      args.n_heads = H;
      args.head_dim = P;
      args.n_groups = G;
      args.state_dim = N;
      args.is_diagonal = is_diagonal;
      args.x = {x.data() + begin * H * P, T * H * P, H * P, P};
      args.dt = {dt.data() + begin * n_rates(), T * n_rates(), n_rates(), 0};
      args.b = {b.data() + begin * G * N, T * G * N, G * N, N};
      args.c = {c.data() + begin * G * N, T * G * N, G * N, N};
      args.a = a.data();
      args.has_softplus = has_extras;
      if (has_extras) {
        args.d = d.data();
        args.dt_bias = dt_bias.data();
      }
      args.is_clamped = is_clamped;
      args.dt_min = 0.2F;
      args.dt_max = 1.5F;
      args.states = states;
      args.y = y;
      Floats prepared(prepared_floats(args) + 1);
      args.prepared = prepared.data();
      selective_scan(args);
    });
  }

  DeltaCase::Expected expected() const {
    DeltaCase::Expected result;
    result.state.assign(n_state(), 0);
    std::copy(state.begin(), state.end(), result.state.begin());
    result.y.assign(product({sizes.n_sequences, sizes.n_tokens, H, P}), 0);
    result.captured.assign(capture.size(), Doubles(n_state()));
    for (int sequence = 0; sequence < sizes.n_sequences; ++sequence) {
      for (int h = 0; h < H; ++h) {
        for (int p = 0; p < P; ++p) channel(sequence, h, p, result);
      }
    }
    return result;
  }

 private:
  void channel(int sequence, int h, int p, DeltaCase::Expected& result) const {
    const auto at = [](std::ptrdiff_t i) { return static_cast<std::size_t>(i); };
    const int T = sizes.n_tokens;
    const int rate = is_diagonal ? p : h;
    double* s = result.state.data() + ((sequence * H + h) * P + p) * N;
    const auto capture_after = [&](int step) {
      for (std::size_t i = 0; i < capture.size(); ++i) {
        if (capture[i] == step) std::copy_n(s, N, result.captured[i].data() + ((sequence * H + h) * P + p) * N);
      }
    };
    for (int t = 0; t < T; ++t, capture_after(t)) {
      if (!is_real(spans, sequence, t)) continue;
      const std::ptrdiff_t token = sequence * T + t;
      double step = dt[at(token * n_rates() + rate)];
      if (has_extras) step = softplus(step + static_cast<double>(dt_bias[at(rate)]));
      if (is_clamped) step = std::clamp(step, static_cast<double>(0.2F), 1.5);
      const double input = x[at((token * H + h) * P + p)];
      const float* b_row = b.data() + (token * G + h / (H / G)) * N;
      const float* c_row = c.data() + (token * G + h / (H / G)) * N;
      double y = has_extras ? static_cast<double>(d[at(rate)]) * input : 0;
      for (int n = 0; n < N; ++n) {
        const double decay = a[at(is_diagonal ? p * N + n : h)];
        s[n] = s[n] * std::exp(step * decay) + step * input * static_cast<double>(b_row[n]);
        y += s[n] * static_cast<double>(c_row[n]);
      }
      result.y[at((token * H + h) * P + p)] = y;
    }
  }
};

std::vector<ScanCase> scan_cases() {
  std::vector<ScanCase> cases(9);
  cases[0] = {{1, 1}, 1, 1, 1, 1, false, false, false, false};
  cases[1] = {{1, 12}, 4, 16, 2, 16};
  cases[2] = {{2, 9}, 6, 37, 3, 21, false, true, true, true, {{0, 9}, {2, 6}}, {3, 7}};
  cases[3] = {{1, 20}, 2, 64, 1, 128, false, true, false, true, {}, {1, 19}};
  cases[4] = {{2, 5}, 17, 8, 17, 6, false, false, false, false, {{1, 1}, {0, 4}}, {1, 2, 3, 4}};
  cases[5] = {{1, 1}, 1, 1, 1, 1, true};
  cases[6] = {{2, 11}, 1, 53, 1, 16, true, true, true, true, {{3, 11}, {0, 5}}, {2, 6}};
  cases[7] = {{1, 8}, 1, 32, 1, 19, true, false, false, false};
  cases[8] = {{1, 5}, 1, 16, 1, 3, true, true, false, true, {}, {2}};
  return cases;
}

TEST(SelectiveScan, AgreesWithTheFormulaInTheSameBitsEverywhere) {
  unsigned seed = 1;
  for (ScanCase& c : scan_cases()) {
    const std::string what = "case " + std::to_string(seed);
    c.fill(seed++);
    const Result result = same_everywhere(c.sizes.n_tokens, what, [&](const auto& parts) { return c.run(parts); });
    const DeltaCase::Expected expected = c.expected();
    expect_near(result.y, expected.y, what + " outputs");
    expect_near(result.state, expected.state, what + " state");
    ASSERT_EQ(result.captured.size(), expected.captured.size());
    for (std::size_t i = 0; i < result.captured.size(); ++i) {
      expect_near(result.captured[i], expected.captured[i], what + " captured");
    }
  }
}

// The steps pass through softplus and come out as dt * x where the state is empty, B = C = 1 and nothing decays yet.
TEST(SelectiveScan, SoftplusHoldsItsPrecisionFromFarBelowToFarAboveZero) {
  for (const float step :
       {-80.0F, -30.0F, -16.0F, -5.0F, -1.0F, -1e-3F, 0.0F, 1e-3F, 1.0F, 5.0F, 16.0F, 30.0F, 90.0F}) {
    ScanCase c{{1, 1}, 1, 1, 1, 1};
    c.fill(1);
    c.x = c.b = c.c = {1};
    c.d = c.dt_bias = c.state = {0};
    c.dt = {step};
    const Result result = same_everywhere(1, "softplus", [&](const auto& parts) { return c.run(parts); });
    const double expected = softplus(step);
    EXPECT_NEAR(result.y[0] / expected, 1, 3e-7) << step;
  }
}

// ---- Short convolution

struct ConvolutionCase {
  Sizes sizes{1, 1};
  int C = 1, K = 1;
  bool has_extras = true;  // bias and SiLU
  bool has_state = true;
  std::vector<TokenSpan> spans = {};
  std::vector<int> capture = {};

  Floats x = {}, weight = {}, bias = {}, state = {};

  std::size_t n_state() const { return product({sizes.n_sequences, K - 1, C}); }

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    x = random_floats(product({sizes.n_sequences, sizes.n_tokens, C}), 2, random);
    weight = random_floats(product({K, C}), 1, random);
    bias = random_floats(product({C}), 1, random);
    if (has_state) state = random_floats(n_state(), 2, random);
  }

  Result run(const std::vector<int>& parts) const {
    const Split split{sizes, product({C}), n_state(), &state, &spans, &capture};
    return split.run(parts, [&](int begin, int n_tokens, const StateArgs& states, float* y) {
      ShortConvolutionArgs args;
      args.n_sequences = sizes.n_sequences;
      args.n_tokens = n_tokens;
      args.n_channels = C;
      args.width = K;
      args.x = {x.data() + begin * C, sizes.n_tokens * C, C, 0};
      args.weight = weight.data();
      args.bias = has_extras ? bias.data() : nullptr;
      args.has_silu = has_extras;
      args.states = states;
      args.y = y;
      short_convolution(args);
    });
  }

  DeltaCase::Expected expected() const {
    DeltaCase::Expected result;
    result.y.assign(x.size(), 0);
    result.state.assign(n_state(), 0);
    result.captured.assign(capture.size(), Doubles(n_state()));
    const int T = sizes.n_tokens;
    for (int b = 0; b < sizes.n_sequences; ++b) {
      for (int channel = 0; channel < C; ++channel) {
        Doubles inputs;  // the real ones, the tail first
        const auto keep = [&](Doubles& states) {
          for (int j = 0; j < K - 1; ++j) {
            const std::size_t at = inputs.size() - static_cast<std::size_t>(K - 1 - j);
            states[static_cast<std::size_t>((b * (K - 1) + j) * C + channel)] = inputs[at];
          }
        };
        for (int j = 0; j < K - 1; ++j) {
          inputs.push_back(has_state ? state[static_cast<std::size_t>((b * (K - 1) + j) * C + channel)] : 0);
        }
        for (int t = 0; t < T; ++t) {
          const std::size_t at = static_cast<std::size_t>((b * T + t) * C + channel);
          if (is_real(spans, b, t)) {
            inputs.push_back(x[at]);
            double y = has_extras ? bias[static_cast<std::size_t>(channel)] : 0;
            for (int j = 0; j < K; ++j) {
              y += inputs[inputs.size() - static_cast<std::size_t>(K - j)] *
                   static_cast<double>(weight[static_cast<std::size_t>(j * C + channel)]);
            }
            result.y[at] = has_extras ? y / (1 + std::exp(-y)) : y;
          }
          for (std::size_t i = 0; i < capture.size(); ++i) {
            if (capture[i] == t + 1) keep(result.captured[i]);
          }
        }
        keep(result.state);
      }
    }
    return result;
  }
};

TEST(ShortConvolution, AgreesWithTheFormulaInTheSameBitsEverywhere) {
  std::vector<ConvolutionCase> cases(7);
  cases[0] = {{1, 1}, 1, 1};
  cases[1] = {{1, 9}, 48, 4};
  cases[2] = {{2, 7}, 37, 3, true, true, {{0, 7}, {2, 4}}, {1, 3, 6}};
  cases[3] = {{3, 6}, 5, 4, false, false, {{1, 1}, {0, 4}, {5, 6}}, {1, 2, 3, 4, 5}};
  cases[4] = {{1, 40}, 1100, 4, true, false, {}, {39}};
  cases[5] = {{1, 3}, 16, 32, false};
  cases[6] = {{2, 5}, 20, 2, false, true, {}, {4}};
  unsigned seed = 1;
  for (ConvolutionCase& c : cases) {
    const std::string what = "case " + std::to_string(seed);
    c.fill(seed++);
    const Result result = same_everywhere(c.sizes.n_tokens, what, [&](const auto& parts) { return c.run(parts); });
    const DeltaCase::Expected expected = c.expected();
    expect_near(result.y, expected.y, what + " outputs");
    EXPECT_EQ(Doubles(result.state.begin(), result.state.end()), expected.state) << what;
    ASSERT_EQ(result.captured.size(), expected.captured.size());
    for (std::size_t i = 0; i < result.captured.size(); ++i) {
      EXPECT_EQ(Doubles(result.captured[i].begin(), result.captured[i].end()), expected.captured[i]) << what;
    }
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu
