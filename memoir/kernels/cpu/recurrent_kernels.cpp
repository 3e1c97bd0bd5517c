#include "memoir/kernels/cpu/recurrent_kernels.h"

#include <string_view>

#include "memoir/kernels/cpu/kernels.h"

namespace memoir::kernels::cpu {

const RecurrentKernels& recurrent_kernels() {
  const std::string_view name = kernels().name;
  const RecurrentKernelList list = built_recurrent_kernels();
  int i = 0;
  while (i + 1 < list.n_sets && name != list.sets[i]->name) ++i;  // the last, portable, is there in every build
  return *list.sets[i];
}

}  // namespace memoir::kernels::cpu
