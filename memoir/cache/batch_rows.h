#pragma once

// Rows of a batch as the arrays of KVCache::state(): [B, H, S, D] each, two if they are dense, six if quantized. To
// cut, pad, move and join them by row or by sequence, the same for every array. All lazy.

#include <mlx/array.h>

#include <string>
#include <vector>

#include "memoir/cache/kv.h"

namespace memoir::cache {

inline constexpr int kRowsAxis = 2;

/// KVCache::meta_state() of a cache with these options after `offset` tokens, of which n_rows are stored in order.
std::vector<std::string> numbers_of(const KVOptions& options, int offset, int n_rows);

std::vector<mlx::core::array> first_rows(const std::vector<mlx::core::array>& rows, int n);
std::vector<mlx::core::array> last_rows(const std::vector<mlx::core::array>& rows, int n);

/// n rows, zeros before what there is of them. Rows of no array stay none.
std::vector<mlx::core::array> padded_left(const std::vector<mlx::core::array>& rows, int n);

/// n rows, zeros behind what there is of them; of no array, zeros in the shapes and types of `like`.
std::vector<mlx::core::array> padded_right(const std::vector<mlx::core::array>& rows,
                                           const std::vector<mlx::core::array>& like, int n);

/// The rows of `before`, if it has arrays, then those of `rows`.
/// Throws std::invalid_argument "[cache.<function>] ..." if they differ in more than the number of rows.
std::vector<mlx::core::array> rows_after(const char* function, const std::vector<mlx::core::array>& before,
                                         const std::vector<mlx::core::array>& rows);

/// The rows of sequence b moved by gaps[b] towards the end; the last ones come to the front.
std::vector<mlx::core::array> rolled(const std::vector<mlx::core::array>& rows, const std::vector<int>& gaps);

/// The n sequences of a, then the m of b; zeros for those of one without arrays.
/// Throws std::invalid_argument as above if they differ in more than the number of sequences.
std::vector<mlx::core::array> joined_sequences(const char* function, const std::vector<mlx::core::array>& a, int n,
                                               const std::vector<mlx::core::array>& b, int m);

/// Throws std::invalid_argument as above unless kept is like rows with `keep` rows, or both are without arrays.
void check_kept(const char* function, const std::vector<mlx::core::array>& kept,
                const std::vector<mlx::core::array>& rows, int keep);

/// The keys, or the values (is_second), among the arrays.
kernels::KvBuffer buffer_of(const std::vector<mlx::core::array>& rows, bool is_second, const KVOptions& options);

/// int32 [B] as numbers; evaluates. And numbers as text, at least one, each from 0 to 2^30.
/// Throw std::invalid_argument as above.
std::vector<int> integers_of(const char* function, const mlx::core::array& a);
std::vector<int> parsed_numbers(const char* function, const std::vector<std::string>& texts);

}  // namespace memoir::cache
