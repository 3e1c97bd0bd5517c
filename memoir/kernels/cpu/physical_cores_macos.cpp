#include <sys/sysctl.h>

#include "memoir/kernels/cpu/physical_cores.h"

namespace memoir::kernels::cpu {

int physical_cores() {
  int n_cores = 0;
  std::size_t size = sizeof(n_cores);
  if (sysctlbyname("hw.physicalcpu", &n_cores, &size, nullptr, 0) != 0 || n_cores < 1) return 1;
  return n_cores;
}

}  // namespace memoir::kernels::cpu
