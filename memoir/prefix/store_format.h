#pragma once

// How the prefix cache keeps rows: what --prefix-cache-format chooses.

namespace memoir::prefix {

enum class StoreFormat {
  kAsComputed,  // as the caches have them: restored to the bit
  kQ8,          // as 8-bit codes (narrow_rows.h)
};

}  // namespace memoir::prefix
