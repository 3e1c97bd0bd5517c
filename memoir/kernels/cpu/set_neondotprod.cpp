#include "memoir/kernels/cpu/arm_features.h"
#include "memoir/kernels/cpu/attention_impl.h"
#include "memoir/kernels/cpu/fixed_rows_impl.h"
#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/rows_impl.h"
#include "memoir/kernels/cpu/simd_neondotprod.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return has_dot_product();
}

}  // namespace

const Kernels kNeonDotprod = {"neondotprod",
                              is_supported,
                              fix_row<NeonDotprod>,
                              matmul_part<NeonDotprod>,
                              norm_row<NeonDotprod>,
                              rotate_row<NeonDotprod>,
                              gate_row<NeonDotprod>,
                              clamped_gate_row<NeonDotprod>,
                              cap_row<NeonDotprod>,
                              attention_part<NeonDotprod>,
                              merge_blocks<NeonDotprod>};

}  // namespace memoir::kernels::cpu
