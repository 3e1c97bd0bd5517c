// What cells cost, each figure beside what it is to be compared with in the same run.
//
//   build/release/bin/cell_bench [MODEL]
//
// Finding a place: a step of 256 sequences' next rows, in cells where sequences come and go, from a thousand cells to a
// million. A defragmentation: its rows against memcpy of as many bytes. With a MODEL (a folder or .gguf): 8 samples of
// one prompt of 1,000 tokens against one, prefill and the bytes of the cache.

#include <mlx/mlx.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "memoir/cache/cell_cache.h"
#include "memoir/engine/samples.h"
#include "memoir/model/load.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Nanoseconds a row, of batches of one row of each of 256 sequences. Sequences of random lengths fill the cells to nine
// tenths; whenever they are full one of them goes and begins again.
double place_ns(int n_cells, cache::Placing placing) {
  constexpr int kSequences = 256;
  constexpr int kRows = 200'000;
  cache::Cells cells(
      {.max_sequences = kSequences, .capacity = n_cells, .max_batch = 4096, .n_cells = n_cells, .placing = placing});
  std::mt19937 random(1);
  const auto feed = [&](int sequence, int n) {
    cache::CellBatch batch;
    for (int i = 0; i < n; ++i) {
      batch.sequences.push_back(sequence);
      batch.positions.push_back(cells.end(sequence) + i);
    }
    return cells.place(batch).has_value();
  };
  while (cells.n_free() > n_cells / 10) {
    const int n = 1 + static_cast<int>(random() % static_cast<unsigned>(std::max(1, n_cells / kSequences)));
    feed(static_cast<int>(random() % kSequences), std::min({n, cells.n_free(), 4096}));
  }
  double n_seconds = 0;
  int n_rows = 0;
  while (n_rows < kRows) {
    while (cells.n_free() < kSequences) cells.remove(static_cast<int>(random() % kSequences), 0);
    cache::CellBatch batch;
    for (int s = 0; s < kSequences; ++s) {
      batch.sequences.push_back(s);
      batch.positions.push_back(cells.end(s));
    }
    const Clock::time_point begin = Clock::now();
    cells.place(batch);
    n_seconds += seconds_since(begin);
    n_rows += kSequences;
  }
  return n_seconds / n_rows * 1e9;
}

void bench_places() {
  std::printf("a place for a row, ns (256 sequences, batches of one row each)\n");
  std::printf("%12s %14s %14s\n", "cells", "first free", "beside own");
  for (const int n_cells : {4'000, 32'000, 250'000, 1'000'000}) {
    std::printf("%12d %14.1f %14.1f\n", n_cells, place_ns(n_cells, cache::Placing::kFirstFree),
                place_ns(n_cells, cache::Placing::kBesideOwn));
  }
}

// Every second run of 16 cells of 8 heads' keys and values is dropped, and the rest moves together.
void bench_defragmentation() {
  constexpr int kRun = 16;
  constexpr int kRuns = 1024;
  constexpr int kHeads = 8;
  constexpr int kWidth = 128;
  double best = 0;
  std::size_t n_bytes = 0;
  int n_moves = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    cache::CellCache cells(
        {.cells = {.max_sequences = kRuns, .capacity = kRun, .max_batch = kRun}, .dtype = mx::float16});
    const mx::array rows = mx::zeros({1, kHeads, kRun, kWidth}, mx::float16);
    for (int s = 0; s < kRuns; ++s) {
      cache::CellBatch batch;
      for (int p = 0; p < kRun; ++p) {
        batch.sequences.push_back(s);
        batch.positions.push_back(p);
      }
      cells.begin(batch);
      cells.put(0, rows, rows);
      if (s % 64 == 63) cells.materialize();
    }
    for (int s = 0; s < kRuns; s += 2) cells.remove(s, 0);
    cells.materialize();
    n_bytes = cells.size_bytes() / 4;  // half of what is left moves
    const Clock::time_point begin = Clock::now();
    n_moves = cells.defragment();
    cells.materialize();
    const double n_seconds = seconds_since(begin);
    best = repeat == 0 ? n_seconds : std::min(best, n_seconds);
  }
  // From one part of a buffer as large to another, which has been written just before, as that has.
  std::vector<char> buffer(4 * n_bytes);
  double copy = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::memset(buffer.data(), repeat, buffer.size());
    const Clock::time_point begin = Clock::now();
    std::memcpy(buffer.data(), buffer.data() + 2 * n_bytes, n_bytes);
    const double n_seconds = seconds_since(begin);
    if (buffer[n_bytes / 2] != repeat) std::printf("memcpy failed\n");
    copy = repeat == 0 ? n_seconds : std::min(copy, n_seconds);
  }
  std::printf("a defragmentation of %.1f MB in %d moves: %.2f ms, memcpy on one thread %.2f ms, ratio %.2f\n",
              static_cast<double>(n_bytes) / 1e6, n_moves, best * 1e3, copy * 1e3, best / copy);
}

void bench_samples(const std::string& path) {
  const model::LoadedModel loaded = model::load_model(path);
  std::vector<TokenId> prompt;
  for (int i = 0; i < 1000; ++i) prompt.push_back((i * 37 + 11) % loaded.model->config().vocab_size);
  engine::GenerateOptions options;
  options.max_tokens = 32;
  options.sampler.temperature = 1;
  options.sampler.seed = 1;
  const auto run = [&](int n) {
    double prefill = 0;
    std::size_t n_bytes = 0;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const engine::Samples samples = engine::generate_samples(*loaded.model, {}, prompt, options, n, nullptr);
      const double one = samples.completions[0].prefill_s;
      prefill = repeat == 0 ? one : std::min(prefill, one);
      n_bytes = samples.cache_bytes;
    }
    return std::pair(prefill, n_bytes);
  };
  const auto [one_s, one_bytes] = run(1);
  const auto [eight_s, eight_bytes] = run(8);
  std::printf(
      "8 samples of 32 tokens behind a prompt of 1,000 against one: prefill %.2f s and %.2f s, ratio %.2f; cache "
      "%.1f MB and %.1f MB, ratio %.2f\n",
      eight_s, one_s, eight_s / one_s, static_cast<double>(eight_bytes) / 1e6, static_cast<double>(one_bytes) / 1e6,
      static_cast<double>(eight_bytes) / static_cast<double>(one_bytes));
}

}  // namespace
}  // namespace memoir

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each figure as it comes
  mx::set_default_device(mx::Device::cpu);
  memoir::bench_places();
  memoir::bench_defragmentation();
  if (argc > 1) memoir::bench_samples(argv[1]);
  return 0;
}
