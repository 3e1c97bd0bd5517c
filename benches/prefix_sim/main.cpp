// How much of what is asked need not be computed: memoir's prefix cache against others, on traces of requests.
//
//   build/release/bin/prefix_sim                          all four made-up traces, all kinds of models
//   build/release/bin/prefix_sim --trace chat --model hybrid --requests 2000 --seed 7
//   build/release/bin/prefix_sim --read conversation_trace.jsonl            one of Mooncake's, in blocks of 512 tokens
//   build/release/bin/prefix_sim --trace agent --write agent.jsonl          writes it instead, in blocks of one token
//
// For each trace and kind of model a table: schemes (replay.h) by budgets, told in parts of what the oracle holds. Each
// cell is the token hit rate, in percent of all prompt tokens, and the FLOPs of those that had to be computed, in
// percent of what computing every prompt whole takes.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "benches/prefix_sim/replay.h"
#include "benches/prefix_sim/workloads.h"
#include "memoir/base/error.h"

namespace memoir::prefix_sim {
namespace {

struct Options {
  std::string trace;  // empty: all
  std::string model;
  std::string read;
  std::string write;
  int block = 0;  // 0: 512 to read, 1 to write
  WorkloadOptions workload;
  std::vector<double> budgets = {1. / 16, 1. / 8, 1. / 4, 1. / 2, 1};
};

double whole_cost(const Trace& trace, const Model& model) {
  double flops = 0;
  for (const Request& request : trace) flops += model.cost(0, static_cast<int>(request.prompt.size()));
  return flops;
}

void print_cell(const Score& score, double whole) {
  std::printf("  %5.1f /%5.1f", 100 * score.hit_rate(), 100 * score.recomputed / whole);
}

void print_table(const std::string& name, const Trace& trace, const Model& model, const Options& options) {
  const Score best = oracle(trace, model);
  const double whole = whole_cost(trace, model);
  std::printf("\n%s, %s (%.*s): %zu requests, %.2f M tokens, %.3g FLOPs; the oracle holds %.2f GB\n", name.c_str(),
              std::string(model.name).c_str(), static_cast<int>(model.like.size()), model.like.data(), best.n_requests,
              static_cast<double>(best.n_tokens) / 1e6, whole, static_cast<double>(best.most_bytes) / 1e9);
  std::printf("%-10s", "of that");
  for (const double part : options.budgets) std::printf("  %12.4g", part);
  std::printf("\n");
  for (const Scheme scheme : kSchemes) {
    std::printf("%-10s", std::string(scheme_name(scheme)).c_str());
    for (const double part : options.budgets) {
      const auto budget = static_cast<std::size_t>(part * static_cast<double>(best.most_bytes));
      print_cell(replay(trace, model, {.scheme = scheme, .budget = budget}), whole);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  std::printf("%-10s", "oracle");
  print_cell(best, whole);
  std::printf("\n");
}

void run_trace(const std::string& name, const Trace& trace, const Options& options) {
  for (const Model& model : models()) {
    if (options.model.empty() || options.model == model.name) print_table(name, trace, model, options);
  }
}

Trace read_file(const Options& options) {
  std::ifstream in(options.read);
  if (!in) throw FileError(options.read, "", "can't be opened");
  return read_trace(in, options.read, options.block > 0 ? options.block : 512);
}

void write_file(const Trace& trace, const Options& options) {
  std::ofstream out(options.write);
  write_trace(out, trace, options.block > 0 ? options.block : 1);
  if (!out.flush()) throw FileError(options.write, "", "can't be written");
}

void run(const Options& options) {
  if (!options.read.empty()) {
    run_trace(options.read, read_file(options), options);
    return;
  }
  for (const Workload& workload : workloads()) {
    if (!options.trace.empty() && options.trace != workload.name) continue;
    const Trace trace = workload.make(options.workload);
    if (!options.write.empty()) {
      write_file(trace, options);
    } else {
      run_trace(std::string(workload.name), trace, options);
    }
  }
}

int run_main(int argc, char** argv) {
  Options options;
  CLI::App app("Replays traces of requests through prefix caches.");
  auto* const trace = app.add_option("--trace", options.trace, "chat, agent, users or search; all of them if not given")
                          ->check(CLI::IsMember({"chat", "agent", "users", "search"}));
  app.add_option("--model", options.model, "flat, window, hybrid or recurrent; all of them if not given")
      ->check(CLI::IsMember({"flat", "window", "hybrid", "recurrent"}));
  auto* const read = app.add_option("--read", options.read, "a trace in Mooncake's format, in place of those made up");
  app.add_option("--write", options.write, "write the trace there, and replay nothing")->needs(trace)->excludes(read);
  app.add_option("--block", options.block, "tokens of a block in files; 512 to read, 1 to write if not given")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", options.workload.seed, "of the traces made up");
  app.add_option("--requests", options.workload.n_requests, "of each")->check(CLI::Range(1, 1'000'000));
  app.add_option("--budgets", options.budgets, "parts of what the oracle holds")->check(CLI::Range(0.0, 1000.0));
  CLI11_PARSE(app, argc, argv);
  run(options);
  return 0;
}

}  // namespace
}  // namespace memoir::prefix_sim

int main(int argc, char** argv) {
  try {
    return memoir::prefix_sim::run_main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
