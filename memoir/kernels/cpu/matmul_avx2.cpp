#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/simd_avx2.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

const Kernels kAvx2 = {"avx2", is_supported, matmul_tiles<Avx2>};

}  // namespace memoir::kernels::cpu
