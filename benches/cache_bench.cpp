// What the caches of attention layers cost, each figure beside what it is to be compared with in the same run.
//
//   build/release/bin/cache_bench [rows] [restores] [MODEL]      without arguments rows and restores
//
// Bytes that a decode step allocates with 1,000 to 16,000 rows in the cache. Time and bytes of a rewind, a view, a lazy
// snapshot and a split of one. A restore's copy against memcpy of as many bytes. With a MODEL (a folder or .gguf): how
// much of a decode step of its is the caches' work.

#include <mlx/mlx.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benches/median.h"
#include "memoir/cache/kv.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/attention_args.h"
#include "memoir/kernels/cpu/kv_write.h"
#include "memoir/model/load.h"
#include "tests/held_allocations.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using bench::median;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int kHeads = 8;
constexpr int kWidth = 128;

struct Kind {
  const char* name;
  cache::KVOptions options;
};

// n_window: of rings and chunks.
std::vector<Kind> kinds(int n_window) {
  const cache::KVQuantization q8{8, 64};
  const cache::KVQuantization q4{4, 64};
  return {{"flat f16", {.dtype = mx::float16}},
          {"flat q8", {.dtype = mx::float16, .quantization = q8}},
          {"flat q4", {.dtype = mx::float16, .quantization = q4}},
          {"ring f16", {.window = n_window, .keep = 4, .dtype = mx::float16}},
          {"ring q8", {.window = n_window, .keep = 4, .dtype = mx::float16, .quantization = q8}},
          {"chunk f16", {.chunk = n_window, .dtype = mx::float16}},
          {"chunk q8", {.chunk = n_window, .dtype = mx::float16, .quantization = q8}}};
}

mx::array rows_of(int n_rows) {
  const mx::array rows = mx::full({1, kHeads, n_rows, kWidth}, 0.5F, mx::float16);
  mx::eval(rows);
  return rows;
}

// A cache that has taken in so many rows, and is in its steady state.
std::unique_ptr<cache::KVCache> filled(const cache::KVOptions& options, int n_rows) {
  auto cache = cache::make_kv_cache(options);
  const mx::array rows = rows_of(n_rows - 20);
  cache->update(rows, rows);
  for (int i = 0; i < 20; ++i) {
    const mx::array one = rows_of(1);
    cache->update(one, one);
    cache->materialize();
  }
  return cache;
}

// ---- A decode step

void bench_allocations() {
  std::printf("bytes that a step of one row allocates (8 heads of 128; rows written, attention over them)\n");
  std::printf("%12s", "rows");
  const std::vector<int> sizes = {1'000, 2'000, 4'000, 8'000, 16'000};
  for (const int n_rows : sizes) std::printf(" %10d", n_rows);
  std::printf("\n");
  for (const Kind& kind : kinds(512)) {
    std::printf("%12s", kind.name);
    for (const int n_rows : sizes) {
      const auto cache = filled(kind.options, n_rows);
      const mx::array one = rows_of(1);
      kernels::AttentionOptions options{.scale = 0.1F};
      options.window = kind.options.window;
      options.keep = kind.options.keep;
      options.chunk = kind.options.chunk;
      const std::size_t n_bytes = test::held_allocation_bytes([&] {
        const cache::History history = cache->update(one, one);
        return std::vector{kernels::attention(one, history, options)};
      });
      std::printf(" %10zu", n_bytes);
    }
    std::printf("\n");
  }
}

// ---- Verbs that copy nothing

struct Cost {
  double ns;
  std::size_t n_bytes;  // allocated at the highest
};

Cost cost_of(const std::function<void()>& verb) {
  constexpr int kCalls = 200;
  mx::synchronize();
  mx::reset_peak_memory();
  const std::size_t before = mx::get_active_memory();
  double best = 1;
  for (int repeat = 0; repeat < 15; ++repeat) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) verb();
    best = std::min(best, seconds_since(begin) / kCalls);
  }
  return {best * 1e9, std::max(mx::get_peak_memory(), before) - before};
}

void bench_verbs() {
  constexpr int kRows = 4000;
  std::printf("ns, and bytes allocated, with %d rows (of a split: with the snapshot that is split)\n", kRows);
  std::printf("%12s %18s %18s %18s %18s\n", "", "rewind and back", "view", "lazy snapshot", "split of one");
  for (const Kind& kind : kinds(512)) {
    const auto cache = filled(kind.options, kRows);
    const auto held = cache->snapshot(0);
    const std::vector<std::function<void()>> verbs = {[&] {
                                                        cache->restore(nullptr, kRows - 8);
                                                        cache->restore(held.get(), kRows);
                                                      },
                                                      [&] { cache->view(); }, [&] { cache->snapshot(0); },
                                                      [&] { cache->split(cache->snapshot(0), kRows - 8); }};
    std::printf("%12s", kind.name);
    for (const auto& verb : verbs) {
      const Cost cost = cost_of(verb);
      std::printf(" %12.0f %5zu", cost.ns, cost.n_bytes);
    }
    std::printf("\n");
  }
}

// ---- Restoring

// Takes the place of everything else in the processor's caches.
void chill() {
  static std::vector<char> other(std::size_t{128} << 20);
  static char value = 0;
  std::memset(other.data(), ++value, other.size());
}

double least_seconds(const std::function<void()>& prepare, const std::function<void()>& run) {
  double best = 1e9;
  for (int repeat = 0; repeat < 25; ++repeat) {
    prepare();
    chill();
    const Clock::time_point begin = Clock::now();
    run();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

// Into a cache that has the room, as a session's does, from a snapshot with rows of its own; memcpy between two buffers
// that have been written before, by MLX's thread, which does the restore's copies too. None of them is in the
// processor's caches.
void bench_restores() {
  constexpr int kRows = 8'000;
  std::printf("restoring a snapshot of some %d rows against memcpy on one thread, least of 25\n", kRows);
  for (const Kind& kind : kinds(kRows)) {
    const auto source = filled(kind.options, kRows);
    const auto snapshot = source->snapshot(0);
    snapshot->materialize();
    const auto cache = filled(kind.options, kRows);
    const double restore = least_seconds([&] { cache->restore(nullptr, 0); },
                                         [&] {
                                           if (!cache->restore(snapshot.get(), kRows)) std::printf("refused\n");
                                           cache->materialize();
                                         });
    std::vector<char> from(snapshot->size_bytes(), 1);
    std::vector<char> to(from.size(), 2);
    const double copy = least_seconds([] {},
                                      [&] {
                                        mx::cpu::get_command_encoder(mx::default_stream(mx::Device::cpu)).dispatch([&] {
                                          std::memcpy(to.data(), from.data(), from.size());
                                        });
                                        mx::synchronize();
                                      });
    if (to[to.size() / 2] != 1) std::printf("memcpy failed\n");
    std::printf("%12s %7.1f MB: %6.2f ms, memcpy %6.2f ms, speed %.2f of memcpy's\n", kind.name,
                static_cast<double>(from.size()) / 1e6, restore * 1e3, copy * 1e3, copy / restore);
  }
}

// ---- A model's step

double step_seconds(const model::Model& model, cache::ModelCache& cache) {
  const Clock::time_point begin = Clock::now();
  mx::eval(model.forward(std::vector<TokenId>{1}, cache, model::LogitRows::kLast));
  return seconds_since(begin);
}

// What the caches of all layers do in a step: say where a row goes and take the update, which the engine's thread does
// while it builds the step, and write it, which the CPU kernels do in the layer's operation. With float32 rows.
double cache_work_seconds(cache::ModelCache& cache) {
  double seconds = 0;
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    cache::AttentionCache& layer = cache.attention(i);
    const auto view = layer.view();
    const cache::RowShape shape{1, view->keys.data.shape(1), view->keys.dim(), view->values.dim(), mx::float32};
    const std::vector<float> row(static_cast<std::size_t>(shape.n_heads * std::max(shape.key_dim, shape.value_dim)),
                                 0.5F);
    Clock::time_point begin = Clock::now();
    const auto plan = layer.plan_update(1, shape);
    layer.take_update(*plan, plan->buffers);
    seconds += seconds_since(begin);
    std::vector<mx::array> arrays = kernels::arrays_of(plan->buffers.keys, plan->buffers.values);
    mx::eval(arrays);  // where the buffer has grown
    begin = Clock::now();
    for (mx::array& buffer : arrays) {
      kernels::cpu::KvWriteArgs args = kernels::write_args(kernels::KvForm(plan->buffers.keys), &buffer);
      args.n_sequences = args.n_tokens = 1;
      args.x = row.data();
      args.x_row_stride = args.x_head_stride = args.rows.dim;
      args.runs = plan->runs;
      kernels::cpu::write_rows(args);
    }
    seconds += seconds_since(begin);
  }
  return seconds;
}

void bench_model(const std::string& path) {
  const model::LoadedModel loaded = model::load_model(path);
  cache::ModelCache cache = loaded.model->make_cache();
  const std::vector<TokenId> prompt(512, 1);
  mx::eval(loaded.model->forward(prompt, cache, model::LogitRows::kLast));
  std::vector<double> steps;
  std::vector<double> works;
  for (int i = 0; i < 200; ++i) {
    steps.push_back(step_seconds(*loaded.model, cache));
    works.push_back(cache_work_seconds(cache));
  }
  const double step = median(steps);
  const double work = median(works);
  std::printf(
      "a decode step behind %zu tokens: %.2f ms, of it the caches' work %.3f ms, %.2f %% (medians "
      "of 200)\n",
      prompt.size(), step * 1e3, work * 1e3, work / step * 100);
}

}  // namespace
}  // namespace memoir

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each figure as it comes
  mx::set_default_device(mx::Device::cpu);
  std::vector<std::string> parts(argv + 1, argv + argc);
  if (parts.empty()) parts = {"rows", "restores"};
  for (const std::string& part : parts) {
    if (part == "rows") {
      memoir::bench_allocations();
      memoir::bench_verbs();
    } else if (part == "restores") {
      memoir::bench_restores();
    } else {
      memoir::bench_model(part);
    }
  }
  return 0;
}
