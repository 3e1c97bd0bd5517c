#include "memoir/kernels/cpu/gated_delta_impl.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/selective_scan_impl.h"
#include "memoir/kernels/cpu/short_convolution_impl.h"
#include "memoir/kernels/cpu/simd_neon.h"

namespace memoir::kernels::cpu {

const RecurrentKernels kRecurrentNeon = {
    "neon",           block_rows<Neon>(), prepare_delta<Neon>, delta_block<Neon>, prepare_scan<Neon>,
    scan_block<Neon>, convolve<Neon>};

}  // namespace memoir::kernels::cpu
