#include "memoir/kernels/cpu/recurrent_kernels.h"

namespace memoir::kernels::cpu {

RecurrentKernelList built_recurrent_kernels() {
  return {{&kRecurrentAvx512, &kRecurrentAvx2, &kRecurrentPortable}, 3};
}

}  // namespace memoir::kernels::cpu
