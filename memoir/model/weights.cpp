#include "memoir/model/weights.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "memoir/base/error.h"
#include "memoir/kernels/device.h"

namespace mx = mlx::core;

namespace memoir::model {

std::vector<std::int64_t> MatrixShape::sizes(std::int64_t last) const {
  if (n == 0) return {rows, last};
  return {n, rows, last};
}

void Weights::check_is_there(const std::string& name) const {
  if (!has(name)) throw FormatError(path_of(name), name, "missing");
}

kernels::Weight Weights::matrix(const std::string& module, int rows, int columns) {
  const MatrixShape shape{rows, columns};
  take_matrix(module);
  if (kernels::on_cpu()) {
    const std::optional<kernels::WeightSource> source = matrix_source(module, shape);
    std::optional<kernels::Weight> weight = source ? kernels::prepared(*source) : std::nullopt;
    if (weight) return *std::move(weight);
  }
  return kernels::prepared(read_matrix(module, shape));
}

kernels::Weight Weights::stored_matrix(const std::string& module, const MatrixShape& shape) {
  take_matrix(module);
  return read_matrix(module, shape);
}

void Weights::take_matrix(const std::string& module) {
  const std::string name = module + ".weight";
  check_is_there(name);
  take(name);
}

kernels::WeightStack Weights::stack(const std::string& module, const MatrixShape& shape) {
  const kernels::Weight all = stored_matrix(module, shape);
  return kernels::stacked(shape.n,
                          [&](int i) { return kernels::some_rows(all, i * shape.rows, (i + 1) * shape.rows); });
}

kernels::WeightStack Weights::stack(const std::vector<std::string>& modules, const MatrixShape& shape) {
  std::optional<kernels::Weight> first;
  return kernels::stacked(static_cast<int>(modules.size()), [&](int i) {
    const std::string& module = modules[static_cast<std::size_t>(i)];
    kernels::Weight weight = stored_matrix(module, {shape.rows, shape.columns});
    if (!first) first = weight;
    const auto bits = [](const kernels::Weight& w) { return w.quantization ? w.quantization->bits : 0; };
    const auto group = [](const kernels::Weight& w) { return w.quantization ? w.quantization->group_size : 0; };
    if (weight.dtype() != first->dtype() || bits(weight) != bits(*first) || group(weight) != group(*first)) {
      throw FormatError(path_of(module + ".weight"), module + ".weight",
                        "is of another type than " + modules.front() + ".weight");
    }
    return weight;
  });
}

kernels::Weight Weights::mxfp4_blocks(const std::string& name, const MatrixShape& shape) {
  for (const char* suffix : {"_blocks", "_scales"}) {
    check_is_there(name + suffix);
    take(name + suffix);
  }
  return read_mxfp4_blocks(name, shape);
}

mx::array Weights::tensor(const std::string& name, const std::vector<std::int64_t>& shape) {
  check_is_there(name);
  take(name);
  return read_tensor(name, shape);
}

mx::array Weights::convolution(const std::string& name, int n_channels, int width) {
  check_is_there(name);
  const std::vector<std::int64_t> shape = shape_of(name);
  const bool is_last_one = shape.size() == 3 && shape[2] == 1;  // both forms are the same where the width is 1
  const mx::array weight = shape.size() == 2 ? tensor(name, {n_channels, width})
                           : is_last_one     ? tensor(name, {n_channels, width, 1})
                                             : tensor(name, {n_channels, 1, width});
  const mx::array columns = mx::transpose(mx::reshape(weight, {n_channels, width}));
  mx::array typed = mx::contiguous(mx::astype(columns, kernels::activation_dtype(weight.dtype())));
  mx::eval(typed);
  return typed;
}

bool Weights::is_mlx_convolution(const std::string& name) const {
  if (!has(name)) return false;
  const std::vector<std::int64_t> shape = shape_of(name);
  return shape.size() == 3 && shape[1] != 1 && shape[2] == 1;
}

mx::array Weights::vector(const std::string& name, int size) {
  return tensor(name, {size});
}

mx::array Weights::indices(const std::string& name, int size, int end) {
  check_is_there(name);
  take(name);
  const mx::array values = read_integers(name, {size});
  if (mx::any(mx::logical_or(mx::less(values, mx::array(0)), mx::greater_equal(values, mx::array(end)))).item<bool>()) {
    throw FormatError(path_of(name), name, "holds a number outside 0 to " + std::to_string(end - 1));
  }
  mx::array indices = mx::astype(values, mx::int32);
  mx::eval(indices);
  return indices;
}

mx::array Weights::decay_rates(const std::string& name, int size) {
  mx::array rates = mx::negative(mx::exp(mx::astype(vector(name, size), mx::float32)));
  mx::eval(rates);
  return rates;
}

mx::array Weights::centered_norm(const std::string& name, int size) {
  return mx::add(mx::astype(vector(name, size), mx::float32), mx::array(1.0F));
}

bool Weights::has_any(const std::string& prefix) const {
  const auto name = available_.lower_bound(prefix);
  return name != available_.end() && name->starts_with(prefix);
}

void Weights::pass_over(const std::string& prefix) {
  for (auto name = available_.lower_bound(prefix); name != available_.end() && name->starts_with(prefix); ++name) {
    take(*name);
  }
}

void Weights::finish() const {
  constexpr std::size_t kNamed = 5;
  std::string unused;
  std::string path;
  std::size_t n_unused = 0;
  const auto report = [&](const std::string& name) {
    if (n_unused == 0) path = path_of(name);
    if (++n_unused <= kNamed) unused += (unused.empty() ? "" : ", ") + name;
  };
  for (const std::string& name : available_) {
    if (!taken_.contains(name)) report(name);
  }
  for (const std::string& name : unknown_) report(name);
  if (n_unused == 0) return;
  if (n_unused > kNamed) unused += ", ...";
  throw FormatError(path, "", std::to_string(n_unused) + " tensors that this model does not have: " + unused);
}

}  // namespace memoir::model
