#include "memoir/model/gemma.h"

#include <cmath>

#include "memoir/base/half.h"

namespace memoir::model {

float gemma_embedding_scale(const kernels::Weight& table, int size) {
  const float scale = std::sqrt(static_cast<float>(size));
  return table.dtype() == mlx::core::bfloat16 ? bfloat16_to_float(float_to_bfloat16(scale)) : scale;
}

}  // namespace memoir::model
