#include "memoir/kernels/cpu/gated_delta_impl.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/selective_scan_impl.h"
#include "memoir/kernels/cpu/short_convolution_impl.h"
#include "memoir/kernels/cpu/simd_avx2.h"

namespace memoir::kernels::cpu {

const RecurrentKernels kRecurrentAvx2 = {
    "avx2",           block_rows<Avx2>(), prepare_delta<Avx2>, delta_block<Avx2>, prepare_scan<Avx2>,
    scan_block<Avx2>, convolve<Avx2>};

}  // namespace memoir::kernels::cpu
