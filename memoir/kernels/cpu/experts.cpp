#include "memoir/kernels/cpu/experts.h"

#include <algorithm>
#include <vector>

#include "memoir/kernels/cpu/row_parts.h"

namespace memoir::kernels::cpu {
namespace {

// Where each route's row lies when rows are sorted by expert.
struct Sorted {
  std::vector<int> begins;        // [n_experts + 1]: expert e has the rows [begins[e], begins[e + 1])
  std::vector<int> places;        // [n_rows * n_chosen]: of route r
  std::vector<std::size_t> used;  // the experts that have rows
};

Sorted sort_by_expert(const ExpertsArgs& args) {
  const int n_routes = args.n_rows * args.n_chosen;
  Sorted sorted;
  sorted.begins.resize(static_cast<std::size_t>(args.n_experts) + 1);
  sorted.places.resize(static_cast<std::size_t>(n_routes));
  for (int r = 0; r < n_routes; ++r) ++sorted.begins[static_cast<std::size_t>(args.experts[r]) + 1];
  for (std::size_t e = 1; e < sorted.begins.size(); ++e) {
    if (sorted.begins[e] > 0) sorted.used.push_back(e - 1);
    sorted.begins[e] += sorted.begins[e - 1];
  }
  std::vector<int> next(sorted.begins.begin(), sorted.begins.end() - 1);
  for (int r = 0; r < n_routes; ++r) {
    sorted.places[static_cast<std::size_t>(r)] = next[static_cast<std::size_t>(args.experts[r])]++;
  }
  return sorted;
}

void gather(const ExpertsArgs& args, const Sorted& sorted) {
  const std::ptrdiff_t n = args.gates.format.n_columns;
  for_rows(args.n_rows, static_cast<int>(n) * args.n_chosen, [&](std::ptrdiff_t row) {
    const float* x = args.x + row * n;
    for (int i = 0; i < args.n_chosen; ++i) {
      const std::ptrdiff_t route = row * args.n_chosen + i;
      float* out = args.gathered + sorted.places[static_cast<std::size_t>(route)] * n;
      const float weight = args.weights[route];
      if (args.weighs_inputs) {
        std::transform(x, x + n, out, [weight](float value) { return value * weight; });
      } else {
        std::copy_n(x, n, out);
      }
    }
  });
}

// The product of expert e with its rows of x, to its rows of y.
MatmulArgs expert_product(const ExpertLayer& layer, const Sorted& sorted, std::size_t e, const float* x, float* y) {
  const std::ptrdiff_t begin = sorted.begins[e];
  MatmulArgs args{layer.format, layer.weights + e * layer.stride_bytes, sorted.begins[e + 1] - sorted.begins[e]};
  args.x = x + begin * layer.format.n_columns;
  args.y = y + begin * layer.format.n_rows;
  if (layer.biases) args.bias = layer.biases + static_cast<std::ptrdiff_t>(e) * layer.format.n_rows;
  return args;
}

// y of each row from its routes' results, which lie in args.gathered.
void combine(const ExpertsArgs& args, const Sorted& sorted) {
  const std::ptrdiff_t n = args.down.format.n_rows;
  for_rows(args.n_rows, static_cast<int>(n) * args.n_chosen, [&](std::ptrdiff_t row) {
    float* y = args.y + row * n;
    for (int i = 0; i < args.n_chosen; ++i) {
      const std::ptrdiff_t route = row * args.n_chosen + i;
      const float* result = args.gathered + sorted.places[static_cast<std::size_t>(route)] * n;
      const float weight = args.weighs_inputs ? 1 : args.weights[route];
      for (std::ptrdiff_t c = 0; c < n; ++c) y[c] = (i == 0 ? 0 : y[c]) + weight * result[c];
    }
    if (!args.residual) return;
    for (std::ptrdiff_t c = 0; c < n; ++c) y[c] += args.residual[row * n + c];
  });
}

}  // namespace

void mix_experts(const ExpertsArgs& args) {
  const Sorted sorted = sort_by_expert(args);
  gather(args, sorted);
  std::vector<MatmulArgs> products;
  for (const std::size_t e : sorted.used) {  // the two beside each other, since they share their input
    products.push_back(expert_product(args.gates, sorted, e, args.gathered, args.inner));
    products.push_back(expert_product(args.ups, sorted, e, args.gathered, args.inner_ups));
  }
  matmul(products);
  gate_rows({args.gate, args.clamped, args.n_rows * args.n_chosen, args.gates.format.n_rows, args.inner, args.inner_ups,
             args.inner});
  products.clear();
  for (const std::size_t e : sorted.used) {
    products.push_back(expert_product(args.down, sorted, e, args.inner, args.gathered));
  }
  matmul(products);
  combine(args, sorted);
}

}  // namespace memoir::kernels::cpu
