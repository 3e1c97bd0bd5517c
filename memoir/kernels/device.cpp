#include "memoir/kernels/device.h"

#include <mlx/device.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "memoir/kernels/blas_threads.h"
#include "memoir/kernels/physical_cores.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

// 0: not chosen yet.
std::atomic<int> chosen_threads{0};

}  // namespace

bool on_cpu() {
  return mx::default_device() == mx::Device::cpu;
}

mx::Dtype activation_dtype(mx::Dtype weights) {
  return on_cpu() ? mx::float32 : weights;
}

void set_cpu_threads(int n_threads) {
  if (n_threads < 1) {
    throw std::invalid_argument("[kernels.set_cpu_threads] n_threads is " + std::to_string(n_threads) +
                                ", expected at least 1");
  }
  chosen_threads = n_threads;
  set_blas_threads(n_threads);
}

int cpu_threads() {
  const int n_threads = chosen_threads;
  return n_threads > 0 ? n_threads : physical_cores();
}

}  // namespace memoir::kernels
