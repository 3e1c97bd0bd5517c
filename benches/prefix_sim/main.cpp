// How much of what is asked need not be computed: memoir's prefix cache against others, on traces of requests.
//
//   build/release/bin/prefix_sim                          all four kinds of traces, all kinds of models
//   build/release/bin/prefix_sim --trace chat --model hybrid --requests 2000 --seed 7 --seeds 1
//   build/release/bin/prefix_sim --read conversation_trace.jsonl            one of Mooncake's, in blocks of 512 tokens
//   build/release/bin/prefix_sim --trace agent --write agent.jsonl          writes it instead, in blocks of one token
//
// For each trace and kind of model a table: schemes (replay.h) by budgets, told in parts of what the oracle holds. Each
// cell is the token hit rate, in percent of all prompt tokens, and the FLOPs of those that had to be computed, in
// percent of what computing every prompt whole takes: the means of several traces, made up from --seed and the numbers
// behind it, since in one trace luck in the order of two evictions may be worth more than a rule. The last lines count
// the cells in which memoir's hit rate is at or above all others'.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
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
  int n_seeds = 8;
  WorkloadOptions workload;
  std::vector<double> budgets = {1. / 16, 1. / 8, 1. / 4, 1. / 2, 1};
};

// What all the tables of a run come to.
struct Verdict {
  std::size_t n_cells = 0;
  std::size_t n_below = 0;         // cells in which memoir is below another
  std::vector<std::string> below;  // which, and by how much below whom
};

double whole_cost(const Trace& trace, const Model& model) {
  double flops = 0;
  for (const Request& request : trace) flops += model.cost(0, static_cast<int>(request.prompt.size()));
  return flops;
}

// Means over the traces.
struct Cell {
  double hit_rate = 0;
  double recomputed = 0;  // of computing all prompts whole
  std::vector<double> hit_rates;
};

// By how many points a is below b, with the standard error of the traces' differences.
std::string difference(const Cell& a, const Cell& b) {
  const double mean = b.hit_rate - a.hit_rate;
  const auto n = static_cast<double>(a.hit_rates.size());
  double squares = 0;
  for (std::size_t i = 0; i < a.hit_rates.size(); ++i) {
    const double rest = b.hit_rates[i] - a.hit_rates[i] - mean;
    squares += rest * rest;
  }
  std::array<char, 64> text = {};
  std::snprintf(text.data(), text.size(), "%.4f", 100 * mean);
  std::string result = text.data();
  if (n < 2) return result;
  std::snprintf(text.data(), text.size(), " (standard error %.4f)", 100 * std::sqrt(squares / (n * (n - 1))));
  return result + text.data();
}

// One kind of model over several traces.
class Table {
 public:
  Table(const std::vector<Trace>& traces, const Model& model) : traces_(traces), model_(model) {
    for (const Trace& trace : traces) {
      best_.push_back(oracle(trace, model));
      whole_.push_back(whole_cost(trace, model));
    }
  }

  Cell best() const {
    return mean([](const Score& best) { return best; });
  }

  Cell of(Scheme scheme, double part) const {
    std::size_t i = 0;
    return mean([&](const Score& best) {
      const auto budget = static_cast<std::size_t>(part * static_cast<double>(best.most_bytes));
      return replay(traces_[i++], model_, {.scheme = scheme, .budget = budget});
    });
  }

  void print_head(const std::string& name) const {
    double n_requests = 0, n_tokens = 0, flops = 0, n_bytes = 0;
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      n_requests += static_cast<double>(best_[i].n_requests);
      n_tokens += static_cast<double>(best_[i].n_tokens);
      flops += whole_[i];
      n_bytes += static_cast<double>(best_[i].most_bytes);
    }
    const auto n = static_cast<double>(traces_.size());
    std::printf("\n%s, %s (%s): %zu x %.0f requests, %.2f M tokens, %.3g FLOPs; the oracle holds %.2f GB\n",
                name.c_str(), std::string(model_.name).c_str(), std::string(model_.like).c_str(), traces_.size(),
                n_requests / n, n_tokens / n / 1e6, flops / n, n_bytes / n / 1e9);
  }

 private:
  template <class ScoreOf>
  Cell mean(const ScoreOf& score_of) const {
    Cell cell;
    const auto n = static_cast<double>(traces_.size());
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      const Score score = score_of(best_[i]);
      cell.hit_rates.push_back(score.hit_rate());
      cell.hit_rate += score.hit_rate() / n;
      cell.recomputed += score.recomputed / whole_[i] / n;
    }
    return cell;
  }

  const std::vector<Trace>& traces_;
  const Model& model_;
  std::vector<Score> best_;
  std::vector<double> whole_;
};

void print_cell(const Cell& cell) {
  std::printf("  %6.2f /%6.2f", 100 * cell.hit_rate, 100 * cell.recomputed);
  std::fflush(stdout);
}

void print_table(const std::string& name, const std::vector<Trace>& traces, const Model& model, const Options& options,
                 Verdict& verdict) {
  const Table table(traces, model);
  table.print_head(name);
  std::printf("%-10s", "of that");
  for (const double part : options.budgets) std::printf("  %14.4g", part);
  std::printf("\n");
  std::vector<Cell> memoir;
  std::vector<bool> is_below(options.budgets.size());
  for (const Scheme scheme : kSchemes) {
    const std::string scheme_is(scheme_name(scheme));
    std::printf("%-10s", scheme_is.c_str());
    for (std::size_t i = 0; i < options.budgets.size(); ++i) {
      const Cell cell = table.of(scheme, options.budgets[i]);
      print_cell(cell);
      if (scheme == Scheme::kMemoir) {
        memoir.push_back(cell);
      } else if (memoir[i].hit_rate < cell.hit_rate) {
        is_below[i] = true;
        std::ostringstream line;
        line << name << ", " << model.name << " at " << options.budgets[i] << ": below " << scheme_is << " by "
             << difference(memoir[i], cell);
        verdict.below.push_back(line.str());
      }
    }
    std::printf("\n");
  }
  std::printf("%-10s", "oracle");
  print_cell(table.best());
  std::printf("\n");
  verdict.n_cells += is_below.size();
  verdict.n_below += static_cast<std::size_t>(std::count(is_below.begin(), is_below.end(), true));
}

void run_traces(const std::string& name, const std::vector<Trace>& traces, const Options& options, Verdict& verdict) {
  for (const Model& model : models()) {
    if (options.model.empty() || options.model == model.name) print_table(name, traces, model, options, verdict);
  }
}

void print(const Verdict& verdict) {
  std::printf("\nmemoir's hit rate is at or above all others' in %zu of %zu cells\n", verdict.n_cells - verdict.n_below,
              verdict.n_cells);
  for (const std::string& line : verdict.below) std::printf("%s\n", line.c_str());
}

Trace read_file(const Options& options) {
  std::ifstream in(options.read);
  if (!in || std::filesystem::is_directory(options.read)) throw FileError(options.read, "", "can't be opened");
  Trace trace = read_trace(in, options.read, options.block > 0 ? options.block : 512);
  if (in.bad()) throw FileError(options.read, "", "can't be read");
  if (trace.empty()) throw FormatError(options.read, "", "has no requests");
  return trace;
}

void write_file(const Trace& trace, const Options& options) {
  std::ofstream out(options.write);
  write_trace(out, trace, options.block > 0 ? options.block : 1);
  if (!out.flush()) throw FileError(options.write, "", "can't be written");
}

void run(const Options& options) {
  Verdict verdict;
  if (!options.read.empty()) run_traces(options.read, {read_file(options)}, options, verdict);
  for (const Workload& workload : workloads()) {
    if (!options.read.empty() || (!options.trace.empty() && options.trace != workload.name)) continue;
    if (!options.write.empty()) {
      write_file(workload.make(options.workload), options);
      return;
    }
    std::vector<Trace> traces;
    WorkloadOptions next = options.workload;
    for (int i = 0; i < options.n_seeds; ++i, ++next.seed) traces.push_back(workload.make(next));
    run_traces(std::string(workload.name), traces, options, verdict);
  }
  print(verdict);
}

int run_main(int argc, char** argv) {
  Options options;
  CLI::App app("Replays traces of requests through prefix caches.");
  auto* const trace = app.add_option("--trace", options.trace, "chat, agent, users or search; all of them if not given")
                          ->check(CLI::IsMember({"chat", "agent", "users", "search"}));
  app.add_option("--model", options.model, "flat, window, hybrid or recurrent; all of them if not given")
      ->check(CLI::IsMember({"flat", "window", "hybrid", "recurrent"}));
  auto* const read = app.add_option("--read", options.read, "a trace in Mooncake's format, in place of those made up");
  read->excludes(trace);
  app.add_option("--write", options.write, "write the trace there, and replay nothing")->needs(trace)->excludes(read);
  app.add_option("--block", options.block, "tokens of a block in files; 512 to read, 1 to write if not given")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", options.workload.seed, "of the first of the traces made up")->excludes(read);
  app.add_option("--seeds", options.n_seeds, "how many traces of each kind, of which the means are printed")
      ->check(CLI::Range(1, 10'000))
      ->excludes(read)
      ->excludes("--write");
  app.add_option("--requests", options.workload.n_requests, "of each")->check(CLI::Range(1, 1'000'000))->excludes(read);
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
