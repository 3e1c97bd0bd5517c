#include "memoir/kernels/blas_threads.h"

namespace memoir::kernels {

void set_blas_threads(int) {}

}  // namespace memoir::kernels
