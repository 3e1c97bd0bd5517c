#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "memoir/kernels/cpu/arm_features.h"

namespace memoir::kernels::cpu {

bool has_dot_product() {
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

}  // namespace memoir::kernels::cpu
