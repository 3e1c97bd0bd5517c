#include <sched.h>

#include <fstream>
#include <set>
#include <string>

#include "memoir/kernels/cpu/physical_cores.h"

namespace memoir::kernels::cpu {

int physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  // The list of siblings is the same text for the hardware threads of one core.
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return cores.empty() ? 1 : static_cast<int>(cores.size());
}

}  // namespace memoir::kernels::cpu
