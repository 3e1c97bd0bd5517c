#include "memoir/kernels/cpu/kernel_sets.h"

namespace memoir::kernels::cpu {

KernelList built_kernels() {
  return {{&kNeonDotprod, &kNeon, &kPortable}, 3};
}

}  // namespace memoir::kernels::cpu
