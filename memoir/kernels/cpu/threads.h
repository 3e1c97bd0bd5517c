#pragma once

// How many threads the CPU kernels use.

namespace memoir::kernels::cpu {

/// n >= 1, else std::invalid_argument.
void set_n_threads(int n);

/// As set; else the physical cores that the process may run on.
int n_threads();

}  // namespace memoir::kernels::cpu
