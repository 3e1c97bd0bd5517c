#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "memoir/kernels/cpu/physical_cores.h"

namespace memoir::kernels::cpu {
namespace {

// The hardware threads that the process may run on; empty if the system doesn't say.
std::vector<int> allowed_cpus() {
  constexpr int kMostCpus = 1 << 20;
  for (int n_cpus = CPU_SETSIZE; n_cpus <= kMostCpus; n_cpus *= 2) {  // too small a set is refused
    const std::size_t n_bytes = CPU_ALLOC_SIZE(n_cpus);
    std::vector<cpu_set_t> set(n_bytes / sizeof(cpu_set_t) + 1);
    if (sched_getaffinity(0, n_bytes, set.data()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < n_cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, n_bytes, set.data())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

// Cores' worth of time that a container's quota leaves, rounded up; 0: no quota. "max 100000" or "150000 100000".
int cores_of_quota() {
  double quota = 0;
  double period = 0;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::ceil(std::min(quota / period, 1e6)));
}

}  // namespace

int physical_cores() {
  // The list of siblings is the same text for the hardware threads of one core.
  std::set<std::string> cores;
  for (const int cpu : allowed_cpus()) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  const int n_cores = std::max(1, static_cast<int>(cores.size()));
  const int n_quota = cores_of_quota();
  return n_quota > 0 ? std::min(n_cores, n_quota) : n_cores;
}

bool cores_are_alike() {
  std::error_code ignored;
  if (std::filesystem::exists("/sys/devices/cpu_atom", ignored)) return false;  // Intel's small cores
  std::set<std::string> capacities;                                             // Arm's; other processors have none
  for (const int cpu : allowed_cpus()) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpu_capacity");
    std::string capacity;
    std::getline(file, capacity);
    capacities.insert(capacity);
  }
  return capacities.size() <= 1;
}

}  // namespace memoir::kernels::cpu
