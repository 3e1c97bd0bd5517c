#include "memoir/kernels/device.h"

#include <mlx/device.h>

#include <algorithm>
#include <atomic>

#include "memoir/kernels/blas_threads.h"
#include "memoir/kernels/cpu/fixed_rows.h"
#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/physical_cores.h"
#include "memoir/kernels/cpu/threads.h"

namespace mx = mlx::core;

namespace memoir::kernels {

namespace {
std::atomic<bool> composes_on_cpu{false};
}

bool on_cpu() {
  return mx::default_device() == mx::Device::cpu && !composes_on_cpu;
}

void compose_on_cpu(bool composes) {
  composes_on_cpu = composes;
}

mx::Dtype activation_dtype(mx::Dtype weights) {
  return on_cpu() ? mx::float32 : weights;
}

void set_cpu_threads(int n_threads) {
  cpu::set_n_threads(n_threads);
  // Never more than cores: OpenBLAS gains nothing from them, and its threads ask for much memory each.
  set_blas_threads(std::min(n_threads, cpu::physical_cores()));
}

int cpu_threads() {
  return cpu::n_threads();
}

std::string arithmetic() {
  if (!on_cpu()) return "gpu";
  // Another number whenever a kernel's bits change.
  return "cpu 4";
}

const char* cpu_kernels() {
  return cpu::kernels().name;
}

void choose_cpu_kernels(std::string_view name) {
  cpu::choose_kernels(name);
}

}  // namespace memoir::kernels
