#include "memoir/kernels/cpu/kernel_sets.h"

namespace memoir::kernels::cpu {

KernelList built_kernels() {
  return {{&kPortable}, 1};
}

}  // namespace memoir::kernels::cpu
