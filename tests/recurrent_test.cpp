// The recurrent operations on MLX's side: against transformers' results (data/recurrent, see make_recurrent.py), the
// CPU kernels and the operations composed for a GPU alike; arguments; where inputs and states lie.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memoir/kernels/gated_delta.h"
#include "memoir/kernels/recurrence_args.h"
#include "memoir/kernels/selective_scan.h"
#include "memoir/kernels/short_convolution.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

// float32 implementations in other orders of summation; values are of the order of 1 to 10.
constexpr float kTolerance = 3e-5F;

using Tensors = std::unordered_map<std::string, mx::array>;

const Tensors& reference() {
  static const Tensors tensors = mx::load_safetensors(MEMOIR_TEST_DATA "/recurrent/recurrent.safetensors").first;
  return tensors;
}

const mx::array& tensor(const std::string& name) {
  return reference().at(name);
}

float largest_difference(const mx::array& a, const mx::array& b) {
  return mx::max(mx::abs(mx::subtract(mx::astype(a, mx::float32), mx::astype(b, mx::float32)))).item<float>();
}

void expect_near(const mx::array& a, const mx::array& b, const std::string& what, float tolerance = kTolerance) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  EXPECT_LT(largest_difference(a, b), tolerance) << what;
}

void expect_equal(const mx::array& a, const mx::array& b, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  EXPECT_EQ(a.dtype(), b.dtype()) << what;
  EXPECT_TRUE(mx::array_equal(a, b).item<bool>()) << what;
}

mx::array tokens(const mx::array& a, int begin, int end) {
  return CallPart{0, a.shape(0), begin, end}.of(a);
}

mx::array sequences(const mx::array& a, int begin, int end) {
  return CallPart{begin, end, 0, a.shape(1)}.of(a);
}

// The three operations of the reference as one: `run` of some tokens, from a state.
struct Operation {
  std::string name;
  int n_tokens;
  mx::array state;
  std::function<Recurrence(const CallPart&, const std::optional<mx::array>&, const RecurrenceOptions&)> run;
  std::function<Recurrence(const CallPart&, const std::optional<mx::array>&, const RecurrenceOptions&)> run_composed;

  CallPart all() const { return {0, state.shape(0), 0, n_tokens}; }
};

GatedDelta delta_input(const CallPart& part, const std::optional<mx::array>& state) {
  const auto of = [&](const char* name) { return part.of(tensor(std::string("delta.") + name)); };
  return {.queries = of("q"),
          .keys = of("k"),
          .values = of("v"),
          .decays = of("a"),
          .betas = of("b"),
          .state = state,
          .gates = DeltaGates{mx::negative(mx::exp(tensor("delta.a_log"))), tensor("delta.dt_bias")},
          .normalizes = true,
          .scale = 1 / std::sqrt(24.0F)};
}

SelectiveScan scan_input(const std::string& name, const CallPart& part, const std::optional<mx::array>& state) {
  const auto of = [&](const char* array) { return part.of(tensor(name + array)); };
  return {.x = of(".x"),
          .dt = of(".dt"),
          .a = tensor(name + ".a"),
          .b = of(".b"),
          .c = of(".c"),
          .state = state,
          .d = tensor(name + ".d"),
          .dt_bias = tensor(name + ".dt_bias")};
}

ShortConvolution convolution() {
  return {tensor("conv.weight"), tensor("conv.bias"), true};
}

std::vector<Operation> operations() {
  std::vector<Operation> result;
  result.push_back({"delta", 11, tensor("delta.state"),
                    [](const CallPart& part, const auto& state, const RecurrenceOptions& options) {
                      return gated_delta(delta_input(part, state), options);
                    },
                    [](const CallPart& part, const auto& state, const RecurrenceOptions& options) {
                      return composed_gated_delta(delta_input(part, state), options);
                    }});
  result.push_back({"conv", 7, tensor("conv.tail"),
                    [](const CallPart& part, const auto& state, const RecurrenceOptions& options) {
                      return short_convolution(part.of(tensor("conv.x")), convolution(), state, options);
                    },
                    [](const CallPart& part, const auto& state, const RecurrenceOptions& options) {
                      return composed_short_convolution(part.of(tensor("conv.x")), convolution(), state, options);
                    }});
  for (const auto& [name, n_tokens] : {std::pair("scan2", 13), std::pair("scan1", 9)}) {
    const std::string scan = name;
    result.push_back({name, n_tokens, tensor(scan + ".state"),
                      [scan](const CallPart& part, const auto& state, const RecurrenceOptions& options) {
                        return selective_scan(scan_input(scan, part, state), options);
                      },
                      [scan](const CallPart& part, const auto& state, const RecurrenceOptions& options) {
                        return composed_selective_scan(scan_input(scan, part, state), options);
                      }});
  }
  return result;
}

TEST(Recurrence, AgreesWithTransformers) {
  for (const Operation& op : operations()) {
    for (const auto* run : {&op.run, &op.run_composed}) {
      const std::string what = op.name + (run == &op.run ? "" : ", composed");
      const Recurrence result = (*run)(op.all(), op.state, {});
      expect_near(result.y, tensor(op.name + ".y"), what + " outputs");
      expect_near(result.state, tensor(op.name + ".after"), what + " state");
    }
  }
}

TEST(Recurrence, GatesMadeBeforehandGiveTheSame) {
  GatedDelta input = delta_input({0, 2, 0, 11}, tensor("delta.state"));
  input.gates.reset();
  input.decays = tensor("delta.g");
  input.betas = tensor("delta.beta");
  for (const Recurrence& result : {gated_delta(input), composed_gated_delta(input, {})}) {
    expect_near(result.y, tensor("delta.y"), "outputs");
    expect_near(result.state, tensor("delta.after"), "state");
  }
}

TEST(Recurrence, ConvolutionWithoutBiasAndActivationAgreesWithTransformers) {
  const ShortConvolution plain{tensor("conv_plain.weight")};
  for (const Recurrence& result :
       {short_convolution(tensor("conv_plain.x"), plain, tensor("conv_plain.tail")),
        composed_short_convolution(tensor("conv_plain.x"), plain, tensor("conv_plain.tail"), {})}) {
    expect_near(result.y, tensor("conv_plain.y"), "outputs");
    expect_equal(result.state, tensor("conv_plain.after"), "tail");
  }
}

TEST(Recurrence, ScanWithLimitsAgreesWithTransformers) {
  SelectiveScan input = scan_input("scan2", {0, 2, 0, 13}, tensor("scan2.state"));
  input.dt_limits = {0.3F, 1.2F};
  for (const Recurrence& result : {selective_scan(input), composed_selective_scan(input, {})}) {
    expect_near(result.y, tensor("scan2.limited_y"), "outputs");
    expect_near(result.state, tensor("scan2.limited_after"), "state");
  }
}

TEST(Recurrence, CapturesWhatTransformersHasAfterThoseTokens) {
  const GatedDelta input = delta_input({0, 2, 0, 11}, tensor("delta.state"));
  for (const Recurrence& result :
       {gated_delta(input, {.capture = {5}}), composed_gated_delta(input, {.capture = {5}})}) {
    ASSERT_EQ(result.captured.size(), 1U);
    expect_near(result.captured[0], tensor("delta.after5"), "state after 5");
    expect_near(result.y, tensor("delta.y"), "outputs");
  }
}

TEST(Recurrence, SplitsOfACallGiveTheSameBits) {
  for (const Operation& op : operations()) {
    const Recurrence whole = op.run(op.all(), op.state, {.capture = {1, 4, op.n_tokens}});
    std::optional<mx::array> state = op.state;
    std::vector<mx::array> outputs;
    for (int token = 0; token < op.n_tokens; ++token) {
      const Recurrence step = op.run({0, 2, token, token + 1}, state, {});
      outputs.push_back(step.y);
      state = step.state;
      if (token == 0) expect_equal(*state, whole.captured[0], op.name + " after 1");
      if (token == 3) expect_equal(*state, whole.captured[1], op.name + " after 4");
    }
    expect_equal(mx::concatenate(outputs, 1), whole.y, op.name + " outputs");
    expect_equal(*state, whole.state, op.name + " state");
    expect_equal(*state, whole.captured[2], op.name + " after all");
  }
}

TEST(Recurrence, SequencesOfABatchHaveTheBitsOfTheirOwn) {
  for (const Operation& op : operations()) {
    const Recurrence both = op.run(op.all(), op.state, {});
    for (int b = 0; b < 2; ++b) {
      const Recurrence one = op.run({b, b + 1, 0, op.n_tokens}, sequences(op.state, b, b + 1), {});
      expect_equal(one.y, sequences(both.y, b, b + 1), op.name);
      expect_equal(one.state, sequences(both.state, b, b + 1), op.name);
    }
  }
}

TEST(Recurrence, PaddingLeavesNoTrace) {
  for (const Operation& op : operations()) {
    const std::vector<TokenSpan> spans = {{2, 6}, {0, 3}};
    const Recurrence padded = op.run(op.all(), op.state, {.capture = {1, 4}, .spans = spans});
    const Recurrence composed = op.run_composed(op.all(), op.state, {.capture = {1, 4}, .spans = spans});
    expect_near(composed.y, padded.y, op.name + ", composed");
    expect_near(composed.state, padded.state, op.name + ", composed");
    for (std::size_t i = 0; i < 2; ++i) expect_near(composed.captured[i], padded.captured[i], op.name + ", captured");
    for (int b = 0; b < 2; ++b) {
      const auto [begin, end] = spans[static_cast<std::size_t>(b)];
      const mx::array before = sequences(op.state, b, b + 1);
      const Recurrence alone = op.run({b, b + 1, begin, end}, before, {});
      expect_equal(tokens(sequences(padded.y, b, b + 1), begin, end), alone.y, op.name);
      expect_equal(sequences(padded.state, b, b + 1), alone.state, op.name);
      EXPECT_EQ(mx::sum(mx::abs(tokens(padded.y, 6, op.n_tokens))).item<float>(), 0);
    }
    expect_equal(sequences(padded.captured[0], 0, 1), sequences(op.state, 0, 1), op.name + " before its first token");
    expect_equal(sequences(padded.captured[1], 1, 2), sequences(padded.state, 1, 2), op.name + " after its last");
  }
}

TEST(Recurrence, NoStateIsZeros) {
  for (const Operation& op : operations()) {
    const Recurrence none = op.run(op.all(), std::nullopt, {.capture = {2}});
    const Recurrence zeros = op.run(op.all(), mx::zeros_like(op.state), {.capture = {2}});
    expect_equal(none.y, zeros.y, op.name);
    expect_equal(none.state, zeros.state, op.name);
    expect_equal(none.captured[0], zeros.captured[0], op.name);
    expect_near(op.run_composed(op.all(), std::nullopt, {}).y, none.y, op.name + ", composed");
  }
}

// As a model has them: slices of one projection, heads split off, axes in another order.
TEST(Recurrence, TakesInputsOfAnyStrides) {
  const auto sliced = [](const mx::array& a) {
    const mx::array joined = mx::concatenate({mx::ones_like(a), a, mx::ones_like(a)}, a.ndim() - 1);
    return mx::split(joined, 3, static_cast<int>(a.ndim()) - 1)[1];
  };
  const auto turned = [](const mx::array& a) {
    return mx::swapaxes(mx::contiguous(mx::swapaxes(a, 1, static_cast<int>(a.ndim()) - 1)), 1,
                        static_cast<int>(a.ndim()) - 1);
  };
  for (const std::function<mx::array(const mx::array&)>& change :
       std::vector<std::function<mx::array(const mx::array&)>>{sliced, turned}) {
    GatedDelta delta = delta_input({0, 2, 0, 11}, change(tensor("delta.state")));
    for (mx::array* a : {&delta.queries, &delta.keys, &delta.values, &delta.decays, &delta.betas}) *a = change(*a);
    expect_near(gated_delta(delta).y, tensor("delta.y"), "delta");
    SelectiveScan scan = scan_input("scan2", {0, 2, 0, 13}, change(tensor("scan2.state")));
    for (mx::array* a : {&scan.x, &scan.dt, &scan.b, &scan.c}) *a = change(*a);
    expect_near(selective_scan(scan).y, tensor("scan2.y"), "scan");
    expect_near(short_convolution(change(tensor("conv.x")), convolution(), change(tensor("conv.tail"))).y,
                tensor("conv.y"), "conv");
  }
}

// What comes of 16-bit inputs is what comes of the same numbers in float32, rounded once.
TEST(Recurrence, SixteenBitInputsGiveTheirTypeBackAndFloat32States) {
  for (const mx::Dtype dtype : {mx::float16, mx::bfloat16}) {
    const auto check = [dtype](const Recurrence& result, const Recurrence& exact, const std::string& what) {
      EXPECT_EQ(result.y.dtype(), dtype) << what;
      expect_equal(result.y, mx::astype(exact.y, dtype), what);
      expect_equal(mx::astype(result.state, mx::float32), exact.state, what);
    };
    const auto cast = [dtype](const mx::array& a) { return mx::astype(a, dtype); };
    const auto back = [](const mx::array& a) { return mx::astype(a, mx::float32); };
    GatedDelta delta = delta_input({0, 2, 0, 11}, tensor("delta.state"));
    const std::vector<mx::array*> delta_arrays = {&delta.queries, &delta.keys, &delta.values, &delta.decays,
                                                  &delta.betas};
    for (mx::array* a : delta_arrays) *a = cast(*a);
    const Recurrence delta_result = gated_delta(delta);
    EXPECT_EQ(delta_result.state.dtype(), mx::float32);
    for (mx::array* a : delta_arrays) *a = back(*a);
    check(delta_result, gated_delta(delta), "delta");

    SelectiveScan scan = scan_input("scan2", {0, 2, 0, 13}, tensor("scan2.state"));
    for (mx::array* a : {&scan.x, &scan.dt, &scan.b, &scan.c}) *a = cast(*a);
    const Recurrence scan_result = selective_scan(scan);
    for (mx::array* a : {&scan.x, &scan.dt, &scan.b, &scan.c}) *a = back(*a);
    check(scan_result, selective_scan(scan), "scan");

    const mx::array x = cast(tensor("conv.x"));
    const mx::array tail = cast(tensor("conv.tail"));
    const Recurrence conv_result = short_convolution(x, convolution(), tail);
    check(conv_result, short_convolution(back(x), convolution(), back(tail)), "conv");
    expect_equal(conv_result.state, tokens(x, 4, 7), "the tail is the inputs themselves");
  }
}

TEST(Recurrence, LeavesTheStateItWasGivenAsItWas) {
  for (const Operation& op : operations()) {
    const mx::array held = mx::add(op.state, mx::array(0.0F));
    const Recurrence first = op.run(op.all(), held, {});
    const Recurrence second = op.run(op.all(), held, {});
    mx::eval(first.state, second.state);
    expect_equal(held, op.state, op.name);
    expect_equal(first.state, second.state, op.name);
  }
}

TEST(Recurrence, ATailHoldsNoPartOfItsInputs) {
  const ShortConvolution spec{mx::ones({4, 256})};
  const std::size_t before = mx::get_active_memory();
  std::optional<mx::array> tail;
  {
    const mx::array x = mx::add(mx::ones({1, 2000, 256}), mx::array(1.0F));
    tail = short_convolution(x, spec, std::nullopt).state;
    mx::eval(*tail);
  }
  mx::synchronize();
  EXPECT_LT(mx::get_active_memory() - before, 64U << 10);  // x has 2 MB, the tail 3 KB
}

// More than one block of the composed scan.
TEST(Recurrence, LongComposedScansAgreeWithTheKernels) {
  mx::random::seed(3);
  const int n = 150;
  SelectiveScan input{.x = mx::random::normal({1, n, 4, 8}),
                      .dt = mx::random::normal({1, n, 4}),
                      .a = mx::negative(mx::random::uniform({4})),
                      .b = mx::random::normal({1, n, 2, 16}),
                      .c = mx::random::normal({1, n, 2, 16})};
  const Recurrence kernel = selective_scan(input, {.capture = {70}});
  const Recurrence composed = composed_selective_scan(input, {.capture = {70}});
  expect_near(composed.y, kernel.y, "outputs", 2e-4F);
  expect_near(composed.state, kernel.state, "state", 2e-4F);
  expect_near(composed.captured[0], kernel.captured[0], "captured", 2e-4F);
}

// ---- Arguments

template <typename Call>
void expect_refused(const Call& call, const std::string& expected) {
  try {
    call();
    FAIL() << "nothing was thrown, expected: " << expected;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(Recurrence, RefusesShapesAndTypesThatDontFit) {
  const auto delta = [](const auto& change) {
    GatedDelta input = delta_input({0, 2, 0, 11}, tensor("delta.state"));
    change(input);
    gated_delta(input);
  };
  const auto cut = [](const mx::array& a) { return tokens(a, 0, 5); };
  expect_refused([&] { delta([&](GatedDelta& x) { x.keys = cut(x.keys); }); }, "[kernels.gated_delta] keys");
  expect_refused([&] { delta([&](GatedDelta& x) { x.queries = cut(x.queries); }); }, "queries has shape (2,5,2,24)");
  expect_refused([&] { delta([&](GatedDelta& x) { x.betas = cut(x.betas); }); }, "betas");
  expect_refused([&] { delta([&](GatedDelta& x) { x.decays = mx::zeros({2, 11}); }); }, "decays");
  expect_refused([&] { delta([&](GatedDelta& x) { x.values = mx::zeros({2, 11, 3, 20}); }); }, "a multiple of Hk");
  expect_refused([&] { delta([&](GatedDelta& x) { x.values = mx::zeros({2, 11, 4, 20}, mx::int32); }); }, "int32");
  expect_refused([&] { delta([&](GatedDelta& x) { x.values = mx::zeros({2, 11, 80}); }); }, "(B,T,Hv,Dv)");
  expect_refused([&] { delta([&](GatedDelta& x) { x.state = mx::zeros({2, 4, 24, 20}); }); }, "state has shape");
  expect_refused([&] { delta([&](GatedDelta& x) { x.state = mx::astype(*x.state, mx::float16); }); },
                 "state is float16, expected float32");
  expect_refused([&] { delta([&](GatedDelta& x) { x.gates->a = mx::zeros({2}); }); }, "a has shape");

  const mx::array x = tensor("conv.x");
  expect_refused([&] { short_convolution(x, {mx::zeros({21, 4})}, std::nullopt); }, "[kernels.short_convolution]");
  expect_refused([&] { short_convolution(x, {mx::zeros({33, 21})}, std::nullopt); }, "K from 1 to 32");
  expect_refused([&] { short_convolution(x, {mx::zeros({4, 21}), mx::zeros({4})}, std::nullopt); }, "bias");
  expect_refused([&] { short_convolution(x, convolution(), mx::zeros({2, 4, 21})); }, "tail has shape (2,4,21)");
  expect_refused([&] { short_convolution(x, convolution(), mx::zeros({2, 3, 21}, mx::float16)); }, "tail is float16");
  expect_refused([&] { short_convolution(mx::zeros({2, 0, 21}), convolution(), std::nullopt); }, "0 tokens");

  const auto scan = [](const std::string& name, const auto& change) {
    SelectiveScan input = scan_input(name, {0, 2, 0, name == "scan2" ? 13 : 9}, tensor(name + ".state"));
    change(input);
    selective_scan(input);
  };
  expect_refused([&] { scan("scan2", [&](SelectiveScan& s) { s.b = cut(s.b); }); }, "[kernels.selective_scan] b has");
  expect_refused([&] { scan("scan2", [&](SelectiveScan& s) {
                         s.b = s.c = mx::zeros({2, 13, 4, 18});
                       }); },
                 "H a multiple of G");
  expect_refused([&] { scan("scan2", [&](SelectiveScan& s) { s.a = mx::zeros({6, 18}); }); }, "a has shape (6,18)");
  expect_refused([&] { scan("scan2", [&](SelectiveScan& s) { s.dt = cut(s.dt); }); }, "dt has");
  expect_refused([&] { scan("scan2", [&](SelectiveScan& s) { s.d = mx::zeros({5}); }); }, "d has");
  expect_refused([&] { scan("scan2", [&](SelectiveScan& s) { s.dt_limits = {2, 1}; }); }, "dt_limits");
  expect_refused([&] { scan("scan1", [&](SelectiveScan& s) { s.a = mx::zeros({19}); }); }, "expected (19,5)");
  expect_refused([&] { scan("scan1", [&](SelectiveScan& s) { s.state = mx::zeros({2, 5, 19}); }); }, "state has");
  expect_refused([&] { scan("scan1", [&](SelectiveScan& s) { s.c = tensor("scan2.c"); }); }, "c has shape");
}

TEST(Recurrence, RefusesStepsAndSpansThatDontFit) {
  for (const Operation& op : operations()) {
    const auto run = [&](const RecurrenceOptions& options) { op.run(op.all(), op.state, options); };
    expect_refused([&] { run({.capture = {0}}); }, "step 0 is to be captured");
    expect_refused([&] { run({.capture = {2, 2}}); }, "step 2 is to be captured after 2");
    expect_refused([&] { run({.capture = {op.n_tokens + 1}}); }, "expected ascending steps");
    expect_refused([&] { run({.spans = {{0, 1}}}); }, "1 spans for 2 sequences");
    expect_refused([&] { run({.spans = {{0, 1}, {2, 1}}}); }, "a span is [2,1)");
    expect_refused([&] { run({.spans = {{-1, 1}, {0, 1}}}); }, "a span is [-1,1)");
    expect_refused([&] { run({.spans = {{0, 1}, {0, 99}}}); }, "a span is [0,99)");
  }
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::kernels
