#include "memoir/kernels/cpu/kernel_sets.h"

namespace memoir::kernels::cpu {

KernelList built_kernels() {
  return {{&kAvx512Vnni, &kAvx512, &kAvx2, &kPortable}, 4};
}

}  // namespace memoir::kernels::cpu
