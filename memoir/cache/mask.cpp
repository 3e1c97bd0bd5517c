#include "memoir/cache/mask.h"

#include <mlx/ops.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[cache.mask] " + what);
}

void check_sizes(int n_tokens, int offset, std::optional<int> window, int keep) {
  if (n_tokens < 1 || offset < 0 || n_tokens > std::numeric_limits<int>::max() - offset) {
    refuse(std::to_string(n_tokens) + " queries at offset " + std::to_string(offset) +
           ", expected at least 1 and at least 0");
  }
  if ((window && *window < 1) || keep < 0) {
    refuse("window is " + std::to_string(window.value_or(1)) + ", keep " + std::to_string(keep) +
           ", expected at least 1 and at least 0");
  }
}

// [B] -> [B, 1, 1, 1].
mx::array per_sequence(const mx::array& padding) {
  if (padding.ndim() != 1) refuse("padding has shape " + kernels::shape_text(padding) + ", expected (B)");
  return mx::reshape(mx::astype(padding, mx::int32), {-1, 1, 1, 1});
}

mx::array columns(const mx::array& mask, int begin, int end) {
  mx::Shape start(mask.ndim(), 0);
  mx::Shape stop = mask.shape();
  start.back() = begin;
  stop.back() = end;
  return mx::slice(mask, start, stop);
}

mx::array both(const mx::array& a, const mx::array& b) {
  if (a.dtype() == mx::bool_ && b.dtype() == mx::bool_) return mx::logical_and(a, b);
  if (a.dtype() != mx::bool_ && b.dtype() != mx::bool_) return mx::add(a, b);
  const bool a_is_bool = a.dtype() == mx::bool_;
  const mx::array& added = a_is_bool ? b : a;
  const mx::array hidden = mx::astype(mx::array(-std::numeric_limits<float>::infinity()), added.dtype());
  return mx::where(a_is_bool ? a : b, added, hidden);
}

}  // namespace

std::string_view Mask::mode() const {
  if (kind == Kind::kCausal) return "causal";
  return kind == Kind::kArray ? "array" : "";
}

mx::array create_causal_mask(int n_tokens, int offset, const CausalMaskOptions& options) {
  check_sizes(n_tokens, offset, options.window, options.keep);
  const int end = offset + n_tokens;
  const mx::array queries = mx::expand_dims(mx::arange(offset, end), 1);
  const mx::array rows = mx::expand_dims(mx::arange(0, end), 0);
  mx::array mask = kernels::position_mask(queries, rows, {.window = options.window, .keep = options.keep});
  if (options.right_padding) {
    const mx::array limit = mx::subtract(mx::array(end), per_sequence(*options.right_padding));
    mask = mx::logical_and(mask, mx::less(rows, limit));
  }
  if (options.left_padding) {
    mask = mx::logical_and(mask, mx::less_equal(per_sequence(*options.left_padding), rows));
  }
  return mask;
}

Mask create_attention_mask(int n_tokens, int offset, std::optional<int> window, bool return_array) {
  check_sizes(n_tokens, offset, window, 0);
  if (window) return Mask::of(create_causal_mask(n_tokens, offset, {.window = window}));
  if (n_tokens == 1) return Mask::none();
  return return_array ? Mask::of(create_causal_mask(n_tokens, offset)) : Mask::causal();
}

Mask create_attention_mask(int n_tokens, std::optional<int> window, bool return_array) {
  check_sizes(n_tokens, 0, window, 0);
  if (n_tokens == 1) return Mask::none();
  if (return_array || (window && n_tokens > *window)) {
    return Mask::of(create_causal_mask(n_tokens, 0, {.window = window}));
  }
  return Mask::causal();
}

mx::array position_mask(const std::vector<int>& positions, int n_tokens, const PositionRule& rule) {
  const int n_rows = static_cast<int>(positions.size());
  if (n_tokens < 1 || n_tokens > n_rows) {
    refuse(std::to_string(n_tokens) + " queries, expected at least 1 and at most the " + std::to_string(n_rows) +
           " rows");
  }
  const mx::array rows = mx::array(positions.data(), {1, n_rows}, mx::int32);
  const mx::array queries = mx::array(positions.data() + (n_rows - n_tokens), {n_tokens, 1}, mx::int32);
  return kernels::position_mask(queries, rows, rule);
}

Mask intersect(const Mask& a, const Mask& b, int n_tokens, int n_rows) {
  if (a.is_none()) return b;
  if (b.is_none()) return a;
  if (a.is_causal() && b.is_causal()) return a;
  const auto as_array = [&](const Mask& mask) {
    if (!mask.is_causal() && !mask.array) refuse("a mask of an array has none");
    return mask.is_causal() ? create_causal_mask(n_tokens, n_rows - n_tokens) : *mask.array;
  };
  return Mask::of(both(as_array(a), as_array(b)));
}

mx::array gather_ring_columns(const mx::array& mask, int ring_index, int n_rows) {
  if (n_rows < 1 || mask.ndim() == 0 || (mask.shape(-1) != 1 && mask.shape(-1) != n_rows) || ring_index < 0) {
    refuse("shape " + kernels::shape_text(mask) + " at ring index " + std::to_string(ring_index) +
           ", expected a last axis of 1 or " + std::to_string(n_rows) + " (at least 1), and an index of at least 0");
  }
  if (mask.shape(-1) == 1 || ring_index % n_rows == 0) return mask;
  const int n_head = n_rows - ring_index % n_rows;
  return mx::concatenate({columns(mask, n_head, n_rows), columns(mask, 0, n_head)}, -1);
}

Mask RingApplier::apply(const Mask& logical) const {
  if (keep < 0) refuse("keep is " + std::to_string(keep) + ", expected at least 0");
  const int n_kept = std::min(keep, n_rows);
  if (n_tokens == 1) {
    if (!logical.array) return Mask::none();
    const mx::array& mask = *logical.array;
    if (n_kept == 0 || mask.ndim() == 0 || mask.shape(-1) != n_rows || n_kept == n_rows) {
      return Mask::of(gather_ring_columns(mask, ring_index, n_rows));
    }
    const mx::array turned = gather_ring_columns(columns(mask, n_kept, n_rows), ring_index, n_rows - n_kept);
    return Mask::of(mx::concatenate({columns(mask, 0, n_kept), turned}, -1));
  }
  // Between the kept rows and the others positions may be missing, which hides the same rows: those behind the window.
  const mx::array within = create_causal_mask(n_tokens, n_rows - n_tokens, {.window = window, .keep = keep});
  return intersect(logical, Mask::of(within), n_tokens, n_rows);
}

}  // namespace memoir::cache
