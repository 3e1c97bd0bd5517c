#include "memoir/kernels/shape.h"

#include <mlx/utils.h>

#include <sstream>
#include <vector>

namespace memoir::kernels {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (const std::int64_t n : shape) text += (text.size() > 1 ? "," : "") + std::to_string(n);
  return text + ')';
}

std::string shape_text(const mlx::core::array& a) {
  return shape_text(std::vector<std::int64_t>(a.shape().begin(), a.shape().end()));
}

std::string dtype_text(mlx::core::Dtype dtype) {
  std::ostringstream text;
  text << dtype;
  return text.str();
}

}  // namespace memoir::kernels
