#include "memoir/model/weights.h"

#include "memoir/base/error.h"

namespace mx = mlx::core;

namespace memoir::model {

kernels::Weight Weights::matrix(const std::string& module, int rows, int columns) {
  const std::string name = module + ".weight";
  if (!has(name)) throw FormatError(path_, name, "missing");
  take(name);
  return kernels::prepared(read_matrix(module, rows, columns));
}

mx::array Weights::vector(const std::string& name, int size) {
  if (!has(name)) throw FormatError(path_, name, "missing");
  take(name);
  return read_vector(name, size);
}

void Weights::finish() const {
  constexpr std::size_t kNamed = 5;
  std::string unused;
  std::size_t n_unused = 0;
  const auto report = [&](const std::string& name) {
    if (++n_unused <= kNamed) unused += (unused.empty() ? "" : ", ") + name;
  };
  for (const std::string& name : available_) {
    if (!taken_.contains(name)) report(name);
  }
  for (const std::string& name : unknown_) report(name);
  if (n_unused == 0) return;
  if (n_unused > kNamed) unused += ", ...";
  throw FormatError(path_, "", std::to_string(n_unused) + " tensors that this model does not have: " + unused);
}

}  // namespace memoir::model
