// Models on operations that are composed of MLX's own, as a GPU runs them, here on the CPU: the goldens of
// tests/README.md, in float32, and weights of 16 bits, in which a GPU computes and the CPU's kernels don't.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/device.h"
#include "memoir/model/load.h"
#include "tests/golden.h"
#include "tests/model_files.h"
#include "tests/random_array.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::copied_model;
using test::data;
using test::edit_tensors;
using test::expected_of;
using test::kTolerance;
using test::logits_in_chunks;
using test::max_difference;
using test::TemporaryFolder;
using test::Tensors;
using test::tokens_of;

// Experts of float weights: MLX's CPU has their product in float32 alone, its GPUs in all types.
const std::set<std::string> kFloatExperts = {"deepseek_v3", "gemma4_moe", "gpt_oss",    "granitemoehybrid", "llama4",
                                             "llama4_mm",   "qwen3_moe",  "qwen3_next", "qwen3_5_moe"};

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : test::fs::directory_iterator(MEMOIR_TEST_DATA)) {
    const bool is_model = exists(entry.path() / "expected.safetensors") && exists(entry.path() / "model.safetensors");
    if (is_model) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

float mean_difference(const mx::array& a, const mx::array& b) {
  return mx::mean(mx::abs(mx::subtract(mx::astype(a, mx::float32), mx::astype(b, mx::float32)))).item<float>();
}

float spread(const mx::array& a) {
  return mx::subtract(mx::max(a), mx::min(a)).item<float>();
}

class Composed : public testing::Test {
 protected:
  void SetUp() override { kernels::compose_on_cpu(true); }
  void TearDown() override { kernels::compose_on_cpu(false); }
};

class ComposedFamily : public Composed, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, ComposedFamily, testing::ValuesIn(families()),
                         [](const auto& name) { return name.param; });

TEST_P(ComposedFamily, GivesTransformersLogitsAndTokensInChunksOfAnySize) {
  const model::LoadedModel loaded = model::load_model(data(GetParam()));
  const Tensors expected = expected_of(GetParam());
  const std::vector<TokenId> prompt = tokens_of(expected.at("prompt"));
  for (const std::size_t n_chunk : {prompt.size(), std::size_t{7}}) {
    EXPECT_LT(max_difference(logits_in_chunks(*loaded.model, prompt, n_chunk), expected.at("logits")), kTolerance);
  }
  engine::Session session(*loaded.model);
  engine::GenerateOptions options;
  options.max_tokens = expected.at("greedy").shape(0);
  EXPECT_EQ(engine::generate(session, prompt, options, nullptr, {}).tokens, tokens_of(expected.at("greedy")));
}

// One that is computed in a wider type on the way makes all behind it wider, and its weights are converted at each
// step.
TEST_P(ComposedFamily, StaysInTheTypeOfItsWeights) {
  if (kFloatExperts.contains(GetParam())) return;
  for (const mx::Dtype dtype : {mx::float16, mx::bfloat16}) {
    const TemporaryFolder folder;
    const test::fs::path path = copied_model(folder, GetParam());
    edit_tensors(path, [&](Tensors& tensors) {
      for (auto& [name, tensor] : tensors) {
        if (tensor.dtype() == mx::float32) tensor = mx::astype(tensor, dtype);
      }
    });
    const std::vector<TokenId> prompt = tokens_of(expected_of(GetParam()).at("prompt"));
    kernels::compose_on_cpu(false);
    const mx::array expected = logits_in_chunks(*model::load_model(path).model, prompt, prompt.size());
    kernels::compose_on_cpu(true);
    const model::LoadedModel loaded = model::load_model(path);
    for (const std::size_t n_chunk : {prompt.size(), std::size_t{7}}) {
      const mx::array logits = logits_in_chunks(*loaded.model, prompt, n_chunk);
      EXPECT_EQ(logits.dtype(), dtype);
      EXPECT_LT(mean_difference(logits, expected), 0.02F * spread(expected));
    }
  }
}

// Rows that are kept in another type change neither the type nor, but for their rounding, what comes out.
TEST_P(ComposedFamily, RowsOfAnotherTypeLeaveTheActivationsTheirs) {
  if (kFloatExperts.contains(GetParam())) return;
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, GetParam());
  edit_tensors(path, [&](Tensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (tensor.dtype() == mx::float32) tensor = mx::astype(tensor, mx::bfloat16);
    }
  });
  const std::vector<TokenId> prompt = tokens_of(expected_of(GetParam()).at("prompt"));
  const model::LoadedModel loaded = model::load_model(path);
  const mx::array expected = mx::astype(logits_in_chunks(*loaded.model, prompt, 7), mx::float32);
  for (const mx::Dtype rows : {mx::float16, mx::float32}) {
    const mx::array logits = logits_in_chunks(*loaded.model, prompt, 7, {.dtype = rows});
    EXPECT_EQ(logits.dtype(), mx::bfloat16);
    EXPECT_LT(mean_difference(logits, expected), 0.02F * spread(expected));
  }
}

// A server loads a model in one thread and runs it in another, and MLX evaluates in none what another thread left lazy.
TEST_P(ComposedFamily, RunsInAnotherThreadThanItWasLoadedIn) {
  const model::LoadedModel loaded = model::load_model(data(GetParam()));
  const std::vector<TokenId> prompt = tokens_of(expected_of(GetParam()).at("prompt"));
  std::string error;
  std::thread([&] {
    mx::set_default_device(mx::Device::cpu);
    try {
      logits_in_chunks(*loaded.model, prompt, 7);
    } catch (const std::exception& failed) {
      error = failed.what();
    }
  }).join();
  EXPECT_EQ(error, "");
}

// Rows wherever a cache put them: in a ring that went round, behind its first positions, with some missing, too many.
TEST_F(Composed, AttentionOverAnyRangesIsThatOfTheCpusKernel) {
  struct Case {
    std::vector<kernels::KvRange> ranges;  // position, row, rows
    std::optional<int> window = std::nullopt;
    int keep = 0;
    std::optional<int> chunk = std::nullopt;
  };
  const std::vector<Case> cases = {{{{0, 0, 12}}},
                                   {{{0, 3, 9}}, 5},
                                   {{{20, 6, 6}, {26, 0, 6}}},
                                   {{{20, 6, 6}, {26, 0, 6}}, 12},
                                   {{{20, 6, 6}, {26, 0, 6}}, 9},
                                   {{{0, 0, 2}, {20, 8, 4}, {24, 2, 6}}, 8, 2},
                                   {{{0, 0, 2}, {20, 8, 4}, {24, 2, 6}}, 30, 2},
                                   {{{0, 0, 3}, {3, 7, 5}}, 6, 2},
                                   {{{0, 10, 2}, {5, 3, 4}, {9, 0, 3}}, 11},
                                   {{{0, 10, 2}, {5, 3, 4}, {9, 0, 3}}},
                                   {{{4, 8, 4}, {8, 0, 6}}, std::nullopt, 0, 8},
                                   {{{4, 0, 4}, {8, 4, 6}}, 4, 0, 8}};
  const kernels::KvBuffer keys{test::random_array({2, 2, 12, 32}, 1)};
  const kernels::KvBuffer values{test::random_array({2, 2, 12, 16}, 2)};
  const mx::array sinks = test::random_array({4}, 3);
  for (const Case& one : cases) {
    for (const int n_queries : {1, 3}) {
      for (const float cap : {0.0F, 5.0F}) {
        for (const bool has_sinks : {false, true}) {
          const mx::array queries = test::random_array({2, 4, n_queries, 32}, 4);
          kernels::AttentionOptions options{.scale = 0.2F, .window = one.window, .keep = one.keep, .chunk = one.chunk};
          options.soft_cap = cap;
          if (has_sinks) options.sinks = sinks;
          const kernels::History history{keys, values, one.ranges};
          const mx::array y = kernels::attention(queries, history, options);
          kernels::compose_on_cpu(false);
          const mx::array expected = kernels::attention(queries, history, options);
          kernels::compose_on_cpu(true);
          EXPECT_LT(max_difference(y, expected), 1e-5F)
              << "case " << &one - cases.data() << ", " << n_queries << " queries, cap " << cap << ", " << has_sinks;
        }
      }
    }
  }
}

TEST_F(Composed, AttentionIsInTheQueriesTypeWhateverTheRowsAre) {
  const mx::array queries = mx::astype(test::random_array({1, 4, 3, 32}, 1), mx::bfloat16);
  const mx::array rows = test::random_array({1, 2, 8, 32}, 2);
  const auto attend = [&](const kernels::KvBuffer& buffer, float cap) {
    kernels::AttentionOptions options{0.2F};
    options.soft_cap = cap;
    return kernels::attention(queries, kernels::History{buffer, buffer, {{0, 0, 7}}}, options);
  };
  for (const float cap : {0.0F, 5.0F}) {
    const mx::array expected = mx::astype(attend({rows}, cap), mx::float32);
    for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
      const mx::array y = attend({mx::astype(rows, dtype)}, cap);
      EXPECT_EQ(y.dtype(), mx::bfloat16);
      EXPECT_LT(max_difference(mx::astype(y, mx::float32), expected), 2e-2F);
    }
    const std::vector<mx::array> parts = mx::quantize(mx::astype(rows, mx::float16), 32, 8);
    const mx::array y = attend({parts[0], kernels::Quantization{parts[1], parts[2], 32, 8}}, cap);
    EXPECT_EQ(y.dtype(), mx::bfloat16);
    EXPECT_LT(max_difference(mx::astype(y, mx::float32), expected), 2e-2F);
  }
}

}  // namespace
}  // namespace memoir
