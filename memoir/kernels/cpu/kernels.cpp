#include "memoir/kernels/cpu/kernels.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/kernel_sets.h"

namespace memoir::kernels::cpu {
namespace {

// Null: not chosen yet.
std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

KernelList supported_kernels() {
  const KernelList built = built_kernels();
  KernelList list{};
  for (int i = 0; i < built.n_sets; ++i) {
    if (built.sets[i]->is_supported()) list.sets[list.n_sets++] = built.sets[i];
  }
  return list;
}

const Kernels& kernels() {
  const Kernels* set = chosen.load(std::memory_order_acquire);
  if (!set) {
    set = supported_kernels().sets[0];
    chosen = set;
  }
  return *set;
}

void choose_kernels(std::string_view name) {
  const KernelList list = supported_kernels();
  std::string known;
  for (int i = 0; i < list.n_sets; ++i) {
    if (name.empty() || name == list.sets[i]->name) {
      chosen = list.sets[i];
      return;
    }
    known += (i > 0 ? ", " : "") + std::string(list.sets[i]->name);
  }
  throw std::invalid_argument("[kernels.choose_kernels] there is no instruction set '" + std::string(name) +
                              "', expected one of " + known);
}

}  // namespace memoir::kernels::cpu
