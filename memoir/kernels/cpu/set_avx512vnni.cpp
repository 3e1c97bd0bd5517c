#include "memoir/kernels/cpu/attention_impl.h"
#include "memoir/kernels/cpu/fixed_rows_impl.h"
#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/rows_impl.h"
#include "memoir/kernels/cpu/simd_avx512vnni.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Kernels kAvx512Vnni = {"avx512vnni",
                             is_supported,
                             fix_row<Avx512Vnni>,
                             matmul_part<Avx512Vnni>,
                             norm_row<Avx512Vnni>,
                             rotate_row<Avx512Vnni>,
                             gate_row<Avx512Vnni>,
                             clamped_gate_row<Avx512Vnni>,
                             cap_row<Avx512Vnni>,
                             attention_part<Avx512Vnni>,
                             merge_blocks<Avx512Vnni>};

}  // namespace memoir::kernels::cpu
