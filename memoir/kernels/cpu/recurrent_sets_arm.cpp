#include "memoir/kernels/cpu/recurrent_kernels.h"

namespace memoir::kernels::cpu {

RecurrentKernelList built_recurrent_kernels() {
  return {{&kRecurrentNeon, &kRecurrentPortable}, 2};
}

}  // namespace memoir::kernels::cpu
