#pragma once

// What Gemma 3 and 4 share.

#include "memoir/kernels/weight.h"

namespace memoir::model {

/// sqrt(size), by which rows of the table are multiplied: in the table's own precision where that is bfloat16, as the
/// models were trained.
float gemma_embedding_scale(const kernels::Weight& table, int size);

}  // namespace memoir::model
