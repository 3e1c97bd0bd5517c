#include "memoir/kernels/cpu/recurrent_kernels.h"

namespace memoir::kernels::cpu {

RecurrentKernelList built_recurrent_kernels() {
  return {{&kRecurrentPortable}, 1};
}

}  // namespace memoir::kernels::cpu
