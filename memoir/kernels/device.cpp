#include "memoir/kernels/device.h"

#include <mlx/device.h>

#include "memoir/kernels/blas_threads.h"
#include "memoir/kernels/cpu/threads.h"

namespace mx = mlx::core;

namespace memoir::kernels {

bool on_cpu() {
  return mx::default_device() == mx::Device::cpu;
}

mx::Dtype activation_dtype(mx::Dtype weights) {
  return on_cpu() ? mx::float32 : weights;
}

void set_cpu_threads(int n_threads) {
  cpu::set_n_threads(n_threads);
  set_blas_threads(n_threads);
}

int cpu_threads() {
  return cpu::n_threads();
}

}  // namespace memoir::kernels
