#include "memoir/kernels/blas_threads.h"

// Declared here rather than by <cblas.h>, whose macros clash with other BLAS headers.
extern "C" void openblas_set_num_threads(int n_threads);

namespace memoir::kernels {

void set_blas_threads(int n_threads) {
  openblas_set_num_threads(n_threads);
}

}  // namespace memoir::kernels
