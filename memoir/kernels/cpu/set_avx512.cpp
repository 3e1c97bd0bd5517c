#include "memoir/kernels/cpu/attention_impl.h"
#include "memoir/kernels/cpu/fixed_rows_impl.h"
#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/rows_impl.h"
#include "memoir/kernels/cpu/simd_avx512.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

}  // namespace

const Kernels kAvx512 = {"avx512",         is_supported,           fix_row<Avx512>,     matmul_part<Avx512>,
                         norm_row<Avx512>, rotate_row<Avx512>,     gate_row<Avx512>,    clamped_gate_row<Avx512>,
                         cap_row<Avx512>,  attention_part<Avx512>, merge_blocks<Avx512>};

}  // namespace memoir::kernels::cpu
