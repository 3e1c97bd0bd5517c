#include "memoir/kernels/position_mask.h"

#include <mlx/ops.h>
#include <mlx/utils.h>

namespace mx = mlx::core;

namespace memoir::kernels {

mx::array position_mask(const mx::array& queries, const mx::array& rows, const PositionRule& rule) {
  mx::array mask = rule.is_causal ? mx::less_equal(rows, queries)
                                  : mx::ones(mx::broadcast_shapes(queries.shape(), rows.shape()), mx::bool_);
  if (rule.window) {
    // Not row + window, which could overflow.
    mx::array near = mx::less(mx::subtract(queries, rows), mx::array(*rule.window));
    if (rule.keep > 0) near = mx::logical_or(near, mx::less(rows, mx::array(rule.keep)));
    mask = mx::logical_and(mask, near);
  }
  if (rule.chunk) {
    const mx::array chunk(*rule.chunk);
    mask = mx::logical_and(mask, mx::equal(mx::floor_divide(rows, chunk), mx::floor_divide(queries, chunk)));
  }
  return mask;
}

}  // namespace memoir::kernels
