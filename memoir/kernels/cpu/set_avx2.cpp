#include "memoir/kernels/cpu/attention_impl.h"
#include "memoir/kernels/cpu/fixed_rows_impl.h"
#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/rows_impl.h"
#include "memoir/kernels/cpu/simd_avx2.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

const Kernels kAvx2 = {"avx2",         is_supported,         fix_row<Avx2>,     matmul_part<Avx2>,
                       norm_row<Avx2>, rotate_row<Avx2>,     gate_row<Avx2>,    clamped_gate_row<Avx2>,
                       cap_row<Avx2>,  attention_part<Avx2>, merge_blocks<Avx2>};

}  // namespace memoir::kernels::cpu
