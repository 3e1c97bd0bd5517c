// Speed of each CPU kernel by itself, in bytes and operations per second: which of a step's parts is how far from what
// the machine can do.
//
//   build/release/bin/kernel_bench [--benchmark_filter=matmul] [--benchmark_counters_tabular=true]
//
// Shapes are SmolLM2-135M's. `bytes_per_second` counts what must come from memory (weights, or a cache's rows), to be
// compared with read_memory; `items_per_second` counts multiply-adds as two operations. MEMOIR_CPU=avx2 and so on
// chooses the instruction set, MEMOIR_THREADS the threads.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/kv_write.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

// More than the caches hold, so that each product streams its weights from memory, as in a decode step.
constexpr std::size_t kStreamedBytes = std::size_t{96} << 20;

std::vector<float> random_floats(std::size_t n) {
  std::mt19937 random(1);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  return values;
}

// As many matrices of one format as make kStreamedBytes, with any codes and small scales.
class Matrices {
 public:
  explicit Matrices(PackedFormat format)
      : format_(format), n_(std::max<std::size_t>(1, kStreamedBytes / format.size_bytes())) {
    bytes_.resize(n_ * format.size_bytes() / sizeof(std::uint64_t) + 9, 0x2020202020202020U);
  }

  const PackedFormat& format() const { return format_; }
  const std::byte* next() {
    at_ = (at_ + 1) % n_;
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return reinterpret_cast<const std::byte*>((address + 63) / 64 * 64) + at_ * format_.size_bytes();
  }

 private:
  PackedFormat format_;
  std::size_t n_;
  std::size_t at_ = 0;
  std::vector<std::uint64_t> bytes_;
};

void read_memory(benchmark::State& state) {
  const std::vector<std::uint64_t> words(kStreamedBytes / sizeof(std::uint64_t), 1);
  const int n_parts = 16 * n_threads();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(n_parts) * 8);
  for (auto _ : state) {
    run_parts(n_parts, [&](int part) {
      const std::size_t n = words.size() / static_cast<std::size_t>(n_parts);
      const auto begin = words.begin() + static_cast<std::ptrdiff_t>(n * static_cast<std::size_t>(part));
      sums[static_cast<std::size_t>(part) * 8] =
          std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(n), std::uint64_t{0});
    });
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * words.size() * sizeof(std::uint64_t)));
}

void matmul_of(benchmark::State& state, PackedFormat format) {
  Matrices weights(format);
  const auto n_rows = static_cast<int>(state.range(0));
  const std::vector<float> x = random_floats(static_cast<std::size_t>(n_rows * format.n_columns));
  std::vector<float> y(static_cast<std::size_t>(n_rows * format.n_rows));
  for (auto _ : state) {
    MatmulArgs args = product({format, weights.next()}, n_rows, x.data(), y.data());
    matmul({&args, 1});
    benchmark::DoNotOptimize(y.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * format.size_bytes()));
  state.SetItemsProcessed(state.iterations() * 2 * n_rows * format.n_rows * format.n_columns);
}

struct CacheCase {
  Element element;
  int bits;
};

// SmolLM2's 9 heads over 3 of the cache; `state`: queries, rows.
void attention_of(benchmark::State& state, CacheCase c) {
  constexpr int kHeads = 9, kKvHeads = 3, kDim = 64, kGroup = 32;
  const auto n_queries = static_cast<int>(state.range(0));
  const auto n_rows = static_cast<int>(state.range(1));
  const int row_elements = c.bits > 0 ? kDim * c.bits / 32 : kDim;
  const std::size_t element_size = c.bits > 0 ? 4 : element_bytes(c.element);
  const std::vector<std::uint64_t> data(static_cast<std::size_t>(kKvHeads * n_rows * row_elements) * element_size / 8);
  const std::vector<std::uint64_t> scales(
      static_cast<std::size_t>(kKvHeads * n_rows * kDim / kGroup) * element_bytes(c.element) / 8 + 1);
  KvRows rows{kDim, c.element, data.data(), std::ptrdiff_t{n_rows} * row_elements, row_elements};
  if (c.bits > 0) {
    rows.bits = c.bits;
    rows.group_size = kGroup;
    rows.scales = rows.biases = scales.data();
    rows.scale_row_stride = kDim / kGroup;
    rows.scale_head_stride = rows.scale_row_stride * n_rows;
  }
  const std::vector<float> queries = random_floats(static_cast<std::size_t>(kHeads * n_queries * kDim));
  std::vector<float> out(queries.size());
  const std::vector<KvRange> ranges = {{0, 0, n_rows}};
  AttentionArgs args{};
  args.n_heads = kHeads;
  args.n_kv_heads = kKvHeads;
  args.n_queries = n_queries;
  args.first_position = n_rows - n_queries;
  args.queries = queries.data();
  args.query_head_stride = std::ptrdiff_t{n_queries} * kDim;
  args.query_row_stride = kDim;
  args.keys = args.values = rows;
  args.ranges = ranges;
  args.scale = 0.125F;
  args.out = out.data();
  args.out_head_stride = kDim;
  args.out_row_stride = std::ptrdiff_t{kHeads} * kDim;
  for (auto _ : state) {
    attention({&args, 1});
    benchmark::DoNotOptimize(out.data());
  }
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(static_cast<std::size_t>(row_elements) * element_size) +
      (c.bits > 0 ? 2 * kDim / kGroup * static_cast<std::int64_t>(element_bytes(c.element)) : 0);
  const std::int64_t n_pairs = std::int64_t{n_queries} * n_rows - std::int64_t{n_queries} * (n_queries - 1) / 2;
  state.SetBytesProcessed(state.iterations() * 2 * kKvHeads * n_rows * row_bytes);
  state.SetItemsProcessed(state.iterations() * 4 * kHeads * kDim * n_pairs);
}

void norm(benchmark::State& state) {
  constexpr int kHidden = 576;
  const auto n_rows = static_cast<int>(state.range(0));
  const std::vector<float> x = random_floats(static_cast<std::size_t>(n_rows) * kHidden);
  const std::vector<float> weight = random_floats(kHidden);
  std::vector<float> out(x.size());
  NormArgs args{};
  args.n = kHidden;
  args.weight = weight.data();
  args.eps = 1e-5F;
  for (auto _ : state) {
    norm_rows(args, n_rows, x.data(), out.data());
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * n_rows * kHidden * 2 * static_cast<std::int64_t>(sizeof(float)));
}

// `state`: bits, 0 for float16.
void kv_write(benchmark::State& state) {
  constexpr int kKvHeads = 3, kDim = 64, kGroup = 32, kCapacity = 4096;
  const auto bits = static_cast<int>(state.range(0));
  const auto n_tokens = static_cast<int>(state.range(1));
  const std::vector<float> x = random_floats(static_cast<std::size_t>(kKvHeads * n_tokens * kDim));
  std::vector<std::uint32_t> data(std::size_t{kKvHeads} * kCapacity * kDim);
  std::vector<std::uint16_t> scales(std::size_t{kKvHeads} * kCapacity * kDim / kGroup);
  const int row_elements = bits > 0 ? kDim * bits / 32 : kDim;
  KvWriteArgs args{1, kKvHeads, n_tokens, x.data(), 0, std::ptrdiff_t{n_tokens} * kDim, kDim, {}, 0, 0, {}};
  args.rows = {kDim, Element::kF16, data.data(), std::ptrdiff_t{kCapacity} * row_elements, row_elements};
  args.rows.bits = bits;
  args.rows.group_size = kGroup;
  args.rows.scales = args.rows.biases = scales.data();
  args.rows.scale_row_stride = kDim / kGroup;
  args.rows.scale_head_stride = args.rows.scale_row_stride * kCapacity;
  const std::vector<RowRun> runs = {{7, n_tokens}};
  args.runs = runs;
  for (auto _ : state) {
    write_rows(args);
    benchmark::DoNotOptimize(data.data());
  }
  state.SetBytesProcessed(state.iterations() * kKvHeads * n_tokens * kDim * static_cast<std::int64_t>(sizeof(float)));
}

void register_matmul(const std::string& name, PackedFormat format) {
  format.n_rows = 1536;
  format.n_columns = 576;
  benchmark::RegisterBenchmark(("matmul/" + name).c_str(),
                               [format](benchmark::State& state) { matmul_of(state, format); })
      ->Arg(1)
      ->Arg(4)
      ->Arg(512)
      ->UseRealTime();
}

void register_attention(const std::string& name, CacheCase c) {
  benchmark::RegisterBenchmark(("attention/" + name).c_str(), [c](benchmark::State& state) { attention_of(state, c); })
      ->Args({1, 512})
      ->Args({1, 4096})
      ->Args({4, 4096})
      ->Args({512, 512})
      ->UseRealTime();
}

void register_all() {
  benchmark::RegisterBenchmark("read_memory", read_memory)->UseRealTime();
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    register_matmul("q" + std::to_string(bits), {0, 0, Element::kF16, bits, 32});
  }
  register_matmul("f16", {0, 0, Element::kF16});
  register_matmul("bf16", {0, 0, Element::kBF16});
  register_matmul("f32", {0, 0, Element::kF32});
  register_attention("f32", {Element::kF32, 0});
  register_attention("f16", {Element::kF16, 0});
  register_attention("q8", {Element::kF16, 8});
  register_attention("q4", {Element::kF16, 4});
  benchmark::RegisterBenchmark("norm", norm)->Arg(1)->Arg(512)->UseRealTime();
  benchmark::RegisterBenchmark("kv_write", kv_write)
      ->Args({0, 1})
      ->Args({0, 512})
      ->Args({8, 1})
      ->Args({4, 512})
      ->UseRealTime();
}

}  // namespace
}  // namespace memoir::kernels::cpu

int main(int argc, char** argv) {
  using namespace memoir::kernels;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (const char* set = std::getenv("MEMOIR_CPU")) cpu::choose_kernels(set);
  if (const char* threads = std::getenv("MEMOIR_THREADS")) cpu::set_n_threads(std::atoi(threads));
  benchmark::AddCustomContext("instruction_set", cpu::kernels().name);
  benchmark::AddCustomContext("threads", std::to_string(cpu::n_threads()));
  cpu::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
