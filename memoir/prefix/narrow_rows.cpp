#include "memoir/prefix/narrow_rows.h"

#include <mlx/ops.h>

#include <vector>

#include "memoir/base/error.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::prefix {
namespace {

using cache::KVSnapshot;
using kernels::KvBuffer;

constexpr int kBits = 8;

[[noreturn]] void refuse(const std::string& why) {
  throw UnsupportedError("", NarrowRows::kFormatName, why);
}

// Keys and values of all flat parts: [1, H, S, D] each.
std::vector<mx::array> rows_of(const CacheParts& parts) {
  std::vector<mx::array> arrays;
  for (const cache::KVCache* const flat : parts.flat) {
    if (flat->options().quantization) refuse("the caches' rows are quantized already");
    for (mx::array& a : flat->state()) arrays.push_back(std::move(a));
  }
  return arrays;
}

KvBuffer dense(const KvBuffer& codes, mx::Dtype dtype) {
  const kernels::Quantization& q = codes.quantization.value();
  return {mx::astype(mx::dequantize(codes.data, q.scales, q.biases, q.group_size, q.bits), dtype)};
}

}  // namespace

NarrowRows NarrowRows::of(const cache::ModelCache& cache) {
  const std::vector<mx::array> rows = rows_of(parts_of(cache));
  if (rows.empty()) refuse("the model keeps no rows that could be narrower, all of its state is in checkpoints");
  NarrowRows narrow{{kBits, 64}, rows.front().dtype()};
  for (const mx::array& a : rows) {
    const int n = a.shape(-1);
    if (n % 32 != 0) refuse("rows have " + std::to_string(n) + " dimensions, expected a multiple of 32");
    if (n % 64 != 0) narrow.codes.group_size = 32;
    if (a.dtype() != narrow.dtype) {
      refuse("some layers keep " + kernels::dtype_text(narrow.dtype) + " rows, others " +
             kernels::dtype_text(a.dtype()) + " ones, expected one type");
    }
  }
  return narrow;
}

std::size_t NarrowRows::row_bytes(const CacheParts& parts) const {
  std::size_t n_bytes = 0;
  for (const mx::array& a : rows_of(parts)) {
    const auto n = static_cast<std::size_t>(a.shape(-1));
    const std::size_t n_groups = n / static_cast<std::size_t>(codes.group_size);
    n_bytes += static_cast<std::size_t>(a.shape(1)) * (n * kBits / 8 + n_groups * 2 * mx::size_of(mx::float16));
  }
  return n_bytes;
}

std::unique_ptr<KVSnapshot> NarrowRows::narrowed(const KVSnapshot& rows) const {
  const cache::RowFormat format{mx::float16, codes};
  return std::make_unique<KVSnapshot>(rows.layout(), rows.from(), rows.held(), cache::encoded(rows.keys().data, format),
                                      cache::encoded(rows.values().data, format));
}

std::unique_ptr<KVSnapshot> NarrowRows::widened(const KVSnapshot& rows) const {
  return std::make_unique<KVSnapshot>(rows.layout(), rows.from(), rows.held(), dense(rows.keys(), dtype),
                                      dense(rows.values(), dtype));
}

}  // namespace memoir::prefix
