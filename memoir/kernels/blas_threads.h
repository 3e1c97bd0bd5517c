#pragma once

// The thread count of the BLAS that MLX's matrix products end in. One implementation per BLAS, chosen by CMake:
// blas_threads_openblas.cpp, or blas_threads_none.cpp where the BLAS chooses for itself (Accelerate, a GPU build).

namespace memoir::kernels {

/// n_threads >= 1.
void set_blas_threads(int n_threads);

}  // namespace memoir::kernels
