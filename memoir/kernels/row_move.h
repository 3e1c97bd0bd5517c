#pragma once

// Rows of an array to other places in it.

#include <mlx/array.h>

#include <vector>

#include "memoir/kernels/cpu/row_move.h"

namespace memoir::kernels {

using cpu::RowMove;

/// The array with runs along `axis` copied to other places of that axis; what lay there is lost. Lazy. Done in place
/// where this is the last handle on an evaluated array, so pass it by move; else, and on a GPU, in a copy.
/// Throws std::invalid_argument if there is no such axis, a run lies outside it, or a row is in two runs, as source or
/// as destination.
mlx::core::array move_rows(mlx::core::array a, int axis, const std::vector<RowMove>& moves);

}  // namespace memoir::kernels
