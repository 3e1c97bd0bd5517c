#include "memoir/kernels/cpu/attention_impl.h"
#include "memoir/kernels/cpu/fixed_rows_impl.h"
#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/rows_impl.h"
#include "memoir/kernels/cpu/simd_portable.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return true;
}

}  // namespace

const Kernels kPortable = {"portable",
                           is_supported,
                           fix_row<Portable>,
                           matmul_part<Portable>,
                           norm_row<Portable>,
                           rotate_row<Portable>,
                           gate_row<Portable>,
                           clamped_gate_row<Portable>,
                           cap_row<Portable>,
                           attention_part<Portable>,
                           merge_blocks<Portable>};

}  // namespace memoir::kernels::cpu
