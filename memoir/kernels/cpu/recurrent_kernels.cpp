#include "memoir/kernels/cpu/recurrent_kernels.h"

#include <string_view>

#include "memoir/kernels/cpu/kernels.h"

namespace memoir::kernels::cpu {

const RecurrentKernels& recurrent_kernels() {
  const std::string_view name = kernels().name;
  const RecurrentKernelList list = built_recurrent_kernels();
  int i = 0;
  // avx512vnni takes that of avx512, neondotprod that of neon. The last, portable, is there in every build.
  while (i + 1 < list.n_sets && !name.starts_with(list.sets[i]->name)) ++i;
  return *list.sets[i];
}

}  // namespace memoir::kernels::cpu
