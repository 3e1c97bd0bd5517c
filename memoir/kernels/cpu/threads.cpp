#include "memoir/kernels/cpu/threads.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/physical_cores.h"

namespace memoir::kernels::cpu {
namespace {

// 0: not chosen yet.
std::atomic<int> chosen{0};

}  // namespace

void set_n_threads(int n) {
  if (n < 1) {
    throw std::invalid_argument("[kernels.set_cpu_threads] n_threads is " + std::to_string(n) +
                                ", expected at least 1");
  }
  chosen = n;
}

int n_threads() {
  static const int n_cores = physical_cores();  // reads files, and every product asks
  const int n = chosen;
  return n > 0 ? n : n_cores;
}

}  // namespace memoir::kernels::cpu
