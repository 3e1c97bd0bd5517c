// What a transaction over a model's caches costs, kind by kind, for 1 to 8 drafts.
//
//   build/release/bin/speculation_bench [verbs] [states] [MODEL]      without arguments verbs and states
//
// verbs: microseconds of begin and commit over all layers, where every draft was right and where half of them were, and
//   of giving back what was held, which generation does while the next pass is computed; with a MODEL (a folder or
//   .gguf, SmolLM2 say) also as a share of a decode step of its in the same run.
// states: recurrent layers of two published shapes, with their kernels: what a pass over the drafts takes more where
//   the states inside it are captured or its inputs recorded, and what comes behind the commit where half of the drafts
//   were right. is_replay_cheaper() (cache/recurrent.h) is to agree with it.
// All figures are medians of rounds in turn. The heap counts, where memory is given back: with
// GLIBC_TUNABLES=glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=67108864 it is as the program has it.

#include <mlx/mlx.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benches/median.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/recurrent.h"
#include "memoir/cache/transaction.h"
#include "memoir/model/delta_mixer.h"
#include "memoir/model/load.h"
#include "memoir/model/mamba_mixer.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using bench::median;
using cache::InsideStates;
using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

mx::array random(mx::Shape shape, mx::Dtype dtype = mx::float32) {
  const mx::array values = mx::astype(mx::multiply(mx::random::normal(std::move(shape)), mx::array(0.3F)), dtype);
  mx::eval(values);
  return values;
}

// ---- Layers

// A layer without its weights: it makes a cache, and takes n tokens in. Returns what is to be evaluated.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::unique_ptr<cache::LayerCache> make_cache() const = 0;
  virtual std::vector<mx::array> take_in(cache::LayerCache& cache, int n_tokens) const = 0;
};

// SmolLM2's: 3 heads of 64.
class AttentionLayer final : public Layer {
 public:
  explicit AttentionLayer(cache::KVOptions options) : options_(options) {}

  std::unique_ptr<cache::LayerCache> make_cache() const override { return cache::make_kv_cache(options_); }

  std::vector<mx::array> take_in(cache::LayerCache& cache, int n_tokens) const override {
    const mx::array rows = mx::broadcast_to(mx::array(0.5F, mx::float16), {1, 3, n_tokens, 64});
    dynamic_cast<cache::AttentionCache&>(cache).update(rows, rows);
    return cache.state();
  }

 private:
  cache::KVOptions options_;
};

// Qwen3-Next's: 32 states of 128 x 128, 2 MB in all.
class DeltaLayer final : public Layer {
 public:
  std::unique_ptr<cache::LayerCache> make_cache() const override {
    return std::make_unique<cache::RecurrentCache>(cache::RecurrentShape{
        kSizes.width - 1, kSizes.channels(), {kSizes.n_value_heads, kSizes.value_dim, kSizes.key_dim}});
  }

  std::vector<mx::array> take_in(cache::LayerCache& cache, int n_tokens) const override {
    const auto first = [&](const mx::array& a) { return mx::contiguous(model::first_tokens(a, n_tokens)); };
    return {rule_(first(joined_), first(gates_), first(gates_), dynamic_cast<cache::RecurrentCache&>(cache))};
  }

 private:
  static constexpr model::DeltaSizes kSizes = {2048, 16, 32, 128, 128, 4};
  mx::array joined_ = random({1, 512, kSizes.channels()});
  mx::array gates_ = random({1, 512, kSizes.n_value_heads});
  model::DeltaRule rule_ = {kSizes,
                            {random({kSizes.width, kSizes.channels()}), std::nullopt, true},
                            {mx::negative(mx::exp(random({kSizes.n_value_heads}))), random({kSizes.n_value_heads})}};
};

class MambaLayer final : public Layer {
 public:
  explicit MambaLayer(const model::MambaSizes& sizes) : sizes_(sizes) {}

  std::unique_ptr<cache::LayerCache> make_cache() const override {
    return std::make_unique<cache::RecurrentCache>(
        cache::RecurrentShape{sizes_.width - 1, sizes_.channels(), {sizes_.n_heads, sizes_.head_dim, sizes_.state}});
  }

  std::vector<mx::array> take_in(cache::LayerCache& cache, int n_tokens) const override {
    const auto first = [&](const mx::array& a) { return mx::contiguous(model::first_tokens(a, n_tokens)); };
    return {scan_(first(inputs_), first(dt_), dynamic_cast<cache::RecurrentCache&>(cache))};
  }

 private:
  model::MambaSizes sizes_;
  mx::array inputs_ = random({1, 512, sizes_.channels()});
  mx::array dt_ = random({1, 512, sizes_.n_heads});
  model::MambaScan scan_ = {sizes_,
                            {random({sizes_.width, sizes_.channels()}), random({sizes_.channels()}), true},
                            mx::negative(mx::exp(random({sizes_.n_heads}))),
                            random({sizes_.n_heads}),
                            random({sizes_.n_heads}),
                            std::nullopt};
};

// The model of 130 million: 24 states of 64 x 128, 0.8 MB in all; and what a tiny model has, 20 KB.
constexpr model::MambaSizes kMamba2 = {768, 24, 64, 1, 128, 4};
constexpr model::MambaSizes kTinyMamba2 = {64, 4, 32, 1, 32, 4};

// A ring beside a scan, as Falcon-H1's layers have attention beside one.
class ListLayer final : public Layer {
 public:
  std::unique_ptr<cache::LayerCache> make_cache() const override {
    std::vector<std::unique_ptr<cache::LayerCache>> children;
    children.push_back(scan_.make_cache());
    children.push_back(ring_.make_cache());
    return std::make_unique<cache::CacheList>(std::move(children));
  }

  std::vector<mx::array> take_in(cache::LayerCache& cache, int n_tokens) const override {
    auto& list = dynamic_cast<cache::CacheList&>(cache);
    std::vector<mx::array> outputs = scan_.take_in(list.child(0), n_tokens);
    for (const mx::array& a : ring_.take_in(list.child(1), n_tokens)) outputs.push_back(a);
    return outputs;
  }

 private:
  MambaLayer scan_{kMamba2};
  AttentionLayer ring_{{.window = 256}};
};

// So many of one layer.
class Stack {
 public:
  Stack(const Layer& layer, int n_layers, int n_tokens) : layer_(layer), cache_(make(layer, n_layers)) {
    take_in(n_tokens);
    for (int i = 0; i < 20; ++i) take_in(1);  // into their steady state
  }

  cache::ModelCache& cache() { return cache_; }

  void take_in(int n_tokens) {
    std::vector<mx::array> outputs;
    for (std::size_t i = 0; i < cache_.n_layers(); ++i) {
      for (mx::array& a : layer_.take_in(cache_.layer(i), n_tokens)) outputs.push_back(std::move(a));
    }
    mx::eval(std::move(outputs));
    cache_.materialize();
  }

 private:
  static cache::ModelCache make(const Layer& layer, int n_layers) {
    std::vector<std::unique_ptr<cache::LayerCache>> caches;
    for (int i = 0; i < n_layers; ++i) caches.push_back(layer.make_cache());
    return cache::ModelCache(std::move(caches));
  }

  const Layer& layer_;
  cache::ModelCache cache_;
};

// ---- begin and commit

constexpr int kLayers = 30;  // SmolLM2's
constexpr int kDeltaLayers = 12;
constexpr int kMambaLayers = 24;
constexpr int kMostDrafts = 8;
constexpr int kRounds = 15;

// Of begin and commit, and of giving back what was held; one for each round.
struct VerbSeconds {
  std::vector<double> verbs;
  std::vector<double> gone;
};

// Begins, takes in the present token and the drafts, and commits n_kept of them.
void measure_verbs(Stack& stack, int n_positions, int n_kept, InsideStates inside, VerbSeconds& seconds) {
  std::unique_ptr<cache::Transaction> transaction;
  const double begin = seconds_of([&] {
    transaction.reset(new cache::Transaction(cache::Transaction::begin(stack.cache(), n_positions, inside)));
  });
  stack.take_in(n_positions);
  mx::synchronize();
  seconds.verbs.push_back(begin + seconds_of([&] { transaction->commit(n_kept); }));
  stack.cache().materialize();
  seconds.gone.push_back(seconds_of([&] { transaction.reset(); }));
}

// Of decode steps; nothing without a model.
class Steps {
 public:
  explicit Steps(const std::string& path) {
    if (path.empty()) return;
    loaded_ = std::make_unique<model::LoadedModel>(model::load_model(path));
    cache_ = std::make_unique<cache::ModelCache>(loaded_->model->make_cache());
    mx::eval(loaded_->model->forward(std::vector<TokenId>(512, 1), *cache_, model::LogitRows::kLast));
  }

  bool is_any() const { return loaded_ != nullptr; }

  void measure() {
    if (!is_any()) return;
    for (int i = 0; i < 5; ++i) {
      seconds_.push_back(seconds_of(
          [&] { mx::eval(loaded_->model->forward(std::vector<TokenId>{1}, *cache_, model::LogitRows::kLast)); }));
    }
    cache_->rewind(512);
  }

  double seconds() const { return median(seconds_); }

 private:
  std::unique_ptr<model::LoadedModel> loaded_;
  std::unique_ptr<cache::ModelCache> cache_;
  std::vector<double> seconds_;
};

void print_verbs(const char* name, const char* what, const std::vector<VerbSeconds>& seconds,
                 std::vector<double> VerbSeconds::*which, const Steps& steps) {
  std::printf("%22s %5s", name, what);
  double most = 0;
  for (const VerbSeconds& one : seconds) {
    std::printf(" %7.1f", median(one.*which) * 1e6);
    most = std::max(most, median(one.*which));
  }
  if (steps.is_any()) std::printf("  %6.2f %%", most / steps.seconds() * 100);
  std::printf("\n");
}

void bench_verbs_of(const char* name, const Layer& layer, int n_layers, Steps& steps,
                    InsideStates inside = InsideStates::kCheaper) {
  Stack stack(layer, n_layers, 500);
  std::vector<VerbSeconds> all(kMostDrafts);
  std::vector<VerbSeconds> half(kMostDrafts);
  for (int round = 0; round < kRounds; ++round) {
    for (int n = 1; n <= kMostDrafts; ++n) {
      const auto at = static_cast<std::size_t>(n - 1);
      measure_verbs(stack, n + 1, n + 1, inside, all[at]);
      measure_verbs(stack, n + 1, 1 + n / 2, inside, half[at]);
      // Takes the texts back, so that rows and rounds stay what they are.
      if (stack.cache().rewind(500)) stack.take_in(20);
    }
    steps.measure();
  }
  print_verbs(name, "all", all, &VerbSeconds::verbs, steps);
  print_verbs("", "gone", all, &VerbSeconds::gone, steps);
  print_verbs("", "half", half, &VerbSeconds::verbs, steps);
  print_verbs("", "gone", half, &VerbSeconds::gone, steps);
}

void bench_verbs(const std::string& model) {
  Steps steps(model);
  const cache::KVQuantization q8{8, 64};
  std::printf(
      "microseconds of begin and commit over 30 layers of keys and values as SmolLM2 has them, 12 of the delta\n"
      "rule as Qwen3-Next has it, 24 of Mamba 2; of 1 to 8 drafts%s\n",
      steps.is_any() ? "; the most of them as a share of a decode step" : "");
  bench_verbs_of("flat f16", AttentionLayer({.dtype = mx::float16}), kLayers, steps);
  bench_verbs_of("flat q8", AttentionLayer({.dtype = mx::float16, .quantization = q8}), kLayers, steps);
  bench_verbs_of("ring f16", AttentionLayer({.window = 256, .keep = 4, .dtype = mx::float16}), kLayers, steps);
  bench_verbs_of("ring q8", AttentionLayer({.window = 256, .dtype = mx::float16, .quantization = q8}), kLayers, steps);
  bench_verbs_of("chunk f16", AttentionLayer({.chunk = 256, .dtype = mx::float16}), kLayers, steps);
  bench_verbs_of("delta rule, captured", DeltaLayer(), kDeltaLayers, steps, InsideStates::kCaptured);
  bench_verbs_of("delta rule, replayed", DeltaLayer(), kDeltaLayers, steps, InsideStates::kReplayed);
  bench_verbs_of("Mamba 2, captured", MambaLayer(kMamba2), kMambaLayers, steps, InsideStates::kCaptured);
  bench_verbs_of("Mamba 2, replayed", MambaLayer(kMamba2), kMambaLayers, steps, InsideStates::kReplayed);
  bench_verbs_of("list of scan and ring", ListLayer(), kMambaLayers, steps);
  if (steps.is_any()) std::printf("a decode step of the model behind 512 tokens: %.2f ms\n", steps.seconds() * 1e3);
}

// ---- Recurrent states

struct StateSeconds {
  std::vector<double> pass;    // over the present token and the drafts
  std::vector<double> behind;  // from the commit of half of them to states that are there
};

void transact(Stack& stack, int n_positions, InsideStates inside, StateSeconds& seconds) {
  cache::Transaction transaction = cache::Transaction::begin(stack.cache(), n_positions, inside);
  seconds.pass.push_back(seconds_of([&] { stack.take_in(n_positions); }));
  seconds.behind.push_back(seconds_of([&] {
    transaction.commit(1 + (n_positions - 1) / 2);
    stack.cache().materialize();
  }));
}

void bench_states_of(const char* name, const Layer& layer, int n_layers) {
  Stack stack(layer, n_layers, 20);
  std::printf("%s, %d layers, states of %.1f MB in all\n", name, n_layers,
              static_cast<double>(stack.cache().size_bytes()) / 1e6);
  std::printf("%8s %12s | %10s %10s | %10s %10s | %s\n", "drafts", "pass, ms", "captured +", "behind", "replayed +",
              "behind", "less, where all / half are right");
  for (int n = 1; n <= kMostDrafts; ++n) {
    std::vector<double> plain;
    StateSeconds captured;
    StateSeconds replayed;
    for (int round = 0; round < kRounds; ++round) {
      plain.push_back(seconds_of([&] { stack.take_in(n + 1); }));
      transact(stack, n + 1, InsideStates::kCaptured, captured);
      transact(stack, n + 1, InsideStates::kReplayed, replayed);
    }
    // What a round takes more than a pass without a transaction.
    const auto more = [&](const StateSeconds& way) { return (median(way.pass) - median(plain)) * 1e3; };
    const auto behind = [](const StateSeconds& way) { return median(way.behind) * 1e3; };
    const auto less = [](double a, double b) { return a < b ? "captured" : "replayed"; };
    std::printf("%8d %12.2f | %10.2f %10.2f | %10.2f %10.2f | %s / %s\n", n, median(plain) * 1e3, more(captured),
                behind(captured), more(replayed), behind(replayed), less(more(captured), more(replayed)),
                less(more(captured) + behind(captured), more(replayed) + behind(replayed)));
  }
}

void bench_states() {
  bench_states_of("gated delta rule as Qwen3-Next has it", DeltaLayer(), kDeltaLayers);
  bench_states_of("Mamba 2's scan as the model of 130 million has it", MambaLayer(kMamba2), kMambaLayers);
  bench_states_of("Mamba 2's scan, tiny", MambaLayer(kTinyMamba2), kMambaLayers);
}

}  // namespace
}  // namespace memoir

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each figure as it comes
  mx::set_default_device(mx::Device::cpu);
  std::vector<std::string> parts(argv + 1, argv + argc);
  if (parts.empty()) parts = {"verbs", "states"};
  std::string model;
  for (const std::string& part : parts) {
    if (part != "verbs" && part != "states") model = part;
  }
  for (const std::string& part : parts) {
    if (part == "verbs") memoir::bench_verbs(model);
    if (part == "states") memoir::bench_states();
  }
  return 0;
}
