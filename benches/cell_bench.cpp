// What cells cost, each figure beside what it is to be compared with in the same run.
//
//   build/release/bin/cell_bench [places] [moves] [MODEL]      without arguments places and moves
//
// Finding a place: a step of 256 sequences' next rows, in cells where sequences come and go, from a thousand cells to a
// few millions. A defragmentation: its rows against memcpy of as many bytes. With a MODEL (a folder or .gguf): 8
// samples of one prompt of 1,000 tokens against one, prefill and the bytes of the cache.

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

struct PlaceCost {
  double ns;       // a row
  double n_steps;  // words and nodes looked at, a row
};

// Of batches of one row of each of 256 sequences. Sequences of random lengths fill the cells to nine tenths; whenever
// they are full one of them goes and begins again.
PlaceCost place_cost(int n_cells, cache::Placing placing) {
  constexpr int kSequences = 256;
  const int n_measured = std::max(400'000, 2 * n_cells);  // so that every cell has been given back and taken again
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
  const std::int64_t n_before = cells.n_steps();
  while (n_rows < n_measured) {
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
  return {n_seconds / n_rows * 1e9, static_cast<double>(cells.n_steps() - n_before) / n_rows};
}

void bench_places() {
  std::printf("a place for a row: ns, and words and nodes looked at (256 sequences, batches of one row each)\n");
  std::printf("%12s %20s %20s %20s\n", "cells", "first free", "beside own", "side by side");
  for (const int n_cells : {4'000, 32'000, 250'000, 1'000'000}) {
    std::printf("%12d", n_cells);
    for (const auto placing : {cache::Placing::kFirstFree, cache::Placing::kBesideOwn, cache::Placing::kSideBySide}) {
      const PlaceCost cost = place_cost(n_cells, placing);
      std::printf(" %11.1f %8.2f", cost.ns, cost.n_steps);
    }
    std::printf("\n");
  }
}

// Takes the place of everything else in the processor's caches.
void chill() {
  static std::vector<char> other(std::size_t{128} << 20);
  static char value = 0;
  std::memset(other.data(), ++value, other.size());
}

// 1,024 sequences of 16 cells of 8 heads' keys and values, of which every second has gone.
cache::CellCache fragmented_cells() {
  constexpr int kRun = 16;
  constexpr int kRuns = 1024;
  constexpr int kInBatch = 128;
  cache::CellCache cells(
      {.cells = {.max_sequences = kRuns, .capacity = kRun, .max_batch = kRun * kInBatch}, .dtype = mx::float16});
  const mx::array rows = mx::zeros({1, 8, kRun * kInBatch, 128}, mx::float16);
  for (int first = 0; first < kRuns; first += kInBatch) {
    cache::CellBatch batch;
    for (int i = 0; i < kInBatch * kRun; ++i) {
      batch.sequences.push_back(first + i / kRun);
      batch.positions.push_back(i % kRun);
    }
    cells.begin(batch);
    cells.put(0, rows, rows);
    cells.materialize();
  }
  for (int s = 0; s < kRuns; s += 2) cells.remove(s, 0);
  return cells;
}

// Half of what is left moves, a quarter of the buffers; beside it a memcpy of as many bytes from the end of a buffer as
// large to its beginning. Both buffers have been written whole, and neither is in the processor's caches.
void bench_defragmentation() {
  std::vector<double> moves_s;
  std::vector<double> copies_s;
  std::size_t n_bytes = 0;
  int n_moves = 0;
  for (int repeat = 0; repeat < 25; ++repeat) {
    cache::CellCache cells = fragmented_cells();
    n_bytes = cells.size_bytes() / 4;
    chill();
    const Clock::time_point begin = Clock::now();
    n_moves = cells.defragment();
    cells.materialize();
    moves_s.push_back(seconds_since(begin));

    std::vector<char> buffer(4 * n_bytes, static_cast<char>(repeat + 1));
    chill();
    const Clock::time_point copy_begin = Clock::now();
    std::memcpy(buffer.data(), buffer.data() + 3 * n_bytes, n_bytes);
    copies_s.push_back(seconds_since(copy_begin));
    if (buffer[n_bytes / 2] != static_cast<char>(repeat + 1)) std::printf("memcpy failed\n");
  }
  const double move = *std::min_element(moves_s.begin(), moves_s.end());
  const double copy = *std::min_element(copies_s.begin(), copies_s.end());
  std::printf(
      "a defragmentation of %.1f MB in %d moves: %.2f ms, memcpy on one thread %.2f ms, ratio %.2f (least of 25)\n",
      static_cast<double>(n_bytes) / 1e6, n_moves, move * 1e3, copy * 1e3, move / copy);
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
  std::vector<std::string> parts(argv + 1, argv + argc);
  if (parts.empty()) parts = {"places", "moves"};
  for (const std::string& part : parts) {
    if (part == "places") {
      memoir::bench_places();
    } else if (part == "moves") {
      memoir::bench_defragmentation();
    } else {
      memoir::bench_samples(part);
    }
  }
  return 0;
}
