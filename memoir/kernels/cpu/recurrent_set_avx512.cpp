#include "memoir/kernels/cpu/gated_delta_impl.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/selective_scan_impl.h"
#include "memoir/kernels/cpu/short_convolution_impl.h"
#include "memoir/kernels/cpu/simd_avx512.h"

namespace memoir::kernels::cpu {

const RecurrentKernels kRecurrentAvx512 = {
    "avx512",           block_rows<Avx512>(), prepare_delta<Avx512>, delta_block<Avx512>, prepare_scan<Avx512>,
    scan_block<Avx512>, convolve<Avx512>};

}  // namespace memoir::kernels::cpu
