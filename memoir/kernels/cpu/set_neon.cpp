#include "memoir/kernels/cpu/attention_impl.h"
#include "memoir/kernels/cpu/fixed_rows_impl.h"
#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/rows_impl.h"
#include "memoir/kernels/cpu/simd_neon.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return true;
}

}  // namespace

const Kernels kNeon = {"neon",         is_supported,         fix_row<Neon>,     matmul_part<Neon>,
                       norm_row<Neon>, rotate_row<Neon>,     gate_row<Neon>,    clamped_gate_row<Neon>,
                       cap_row<Neon>,  attention_part<Neon>, merge_blocks<Neon>};

}  // namespace memoir::kernels::cpu
