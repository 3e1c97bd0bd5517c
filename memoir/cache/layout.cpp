#include "memoir/cache/layout.h"

#include <stdexcept>
#include <string>

namespace memoir::cache {
namespace {

// Far beyond any context, and far enough below INT_MAX that rounding up to a step can't overflow.
constexpr int kMaxRows = 1 << 30;

}  // namespace

FlatWrite FlatLayout::plan(int n_tokens) const {
  if (n_tokens < 1 || n_tokens > kMaxRows - offset_) {
    throw std::invalid_argument("[cache.update] " + std::to_string(n_tokens) + " rows at offset " +
                                std::to_string(offset_) + ", expected at least 1 and at most 2^30 in all");
  }
  FlatWrite write{offset_, offset_ + n_tokens, capacity_, 0};
  if (write.end > capacity_) {
    write.kept_rows = offset_ % kStep == 0 ? capacity_ : offset_;
    write.added_rows = (n_tokens + kStep - 1) / kStep * kStep;
  }
  return write;
}

void FlatLayout::apply(const FlatWrite& write) {
  offset_ = write.end;
  capacity_ = write.kept_rows + write.added_rows;
}

bool FlatLayout::rewind(int target) {
  if (target < 0 || target > offset_) return false;
  offset_ = target;
  return true;
}

void FlatLayout::clear() {
  offset_ = 0;
  capacity_ = 0;
}

}  // namespace memoir::cache
