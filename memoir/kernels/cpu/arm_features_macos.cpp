#include <sys/sysctl.h>

#include "memoir/kernels/cpu/arm_features.h"

namespace memoir::kernels::cpu {

bool has_dot_product() {
  int has = 0;
  std::size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
}

}  // namespace memoir::kernels::cpu
