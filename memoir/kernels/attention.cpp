#include "memoir/kernels/attention.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

void check_attention(const mx::array& q, const mx::array& k, const mx::array& v, const AttentionOptions& options) {
  const bool ranks = q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4;
  if (!ranks || k.shape(0) != q.shape(0) || k.shape(3) != q.shape(3) || k.shape(1) == 0 ||
      q.shape(1) % k.shape(1) != 0 || k.shape(2) < q.shape(2)) {
    throw std::invalid_argument("[kernels.attention] keys have shape " + shape_text(k) + ", queries " + shape_text(q) +
                                ": expected (B,Hkv,S,Dk) and (B,H,T,Dk), H a multiple of Hkv, S >= T");
  }
  if (v.shape(0) != k.shape(0) || v.shape(1) != k.shape(1) || v.shape(2) != k.shape(2)) {
    throw std::invalid_argument("[kernels.attention] values have shape " + shape_text(v) + ", keys " + shape_text(k) +
                                ": expected the same B, H and S");
  }
  if (options.window && *options.window <= 0) {
    throw std::invalid_argument("[kernels.attention] window is " + std::to_string(*options.window) +
                                ", expected at least 1");
  }
}

// [T, S] bool: true where query row t (position S - T + t) sees row s.
mx::array window_mask(int n_queries, int n_rows, int window) {
  const mx::array query = mx::expand_dims(mx::arange(n_rows - n_queries, n_rows), 1);
  const mx::array row = mx::expand_dims(mx::arange(0, n_rows), 0);
  return mx::logical_and(mx::less_equal(row, query), mx::less(query, mx::add(row, mx::array(window))));
}

}  // namespace

mx::array attention(const mx::array& queries, const mx::array& keys, const mx::array& values,
                    const AttentionOptions& options) {
  check_attention(queries, keys, values, options);
  const int n_queries = queries.shape(2);
  const int n_rows = keys.shape(2);
  if (options.window && n_rows > *options.window) {
    return mx::fast::scaled_dot_product_attention(queries, keys, values, options.scale, "array",
                                                  window_mask(n_queries, n_rows, *options.window));
  }
  return mx::fast::scaled_dot_product_attention(queries, keys, values, options.scale, n_queries > 1 ? "causal" : "");
}

}  // namespace memoir::kernels
