#include <sys/sysctl.h>

#include "memoir/kernels/cpu/physical_cores.h"

namespace memoir::kernels::cpu {

int physical_cores() {
  int n_cores = 0;
  std::size_t size = sizeof(n_cores);
  if (sysctlbyname("hw.physicalcpu", &n_cores, &size, nullptr, 0) != 0 || n_cores < 1) return 1;
  return n_cores;
}

bool cores_are_alike() {
  int n_levels = 0;
  std::size_t size = sizeof(n_levels);
  return sysctlbyname("hw.nperflevels", &n_levels, &size, nullptr, 0) != 0 || n_levels <= 1;
}

}  // namespace memoir::kernels::cpu
