#include "memoir/kernels/cpu/gated_delta_impl.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/selective_scan_impl.h"
#include "memoir/kernels/cpu/short_convolution_impl.h"
#include "memoir/kernels/cpu/simd_portable.h"

namespace memoir::kernels::cpu {

const RecurrentKernels kRecurrentPortable = {"portable",
                                             block_rows<Portable>(),
                                             prepare_delta<Portable>,
                                             delta_block<Portable>,
                                             prepare_scan<Portable>,
                                             scan_block<Portable>,
                                             convolve<Portable>};

}  // namespace memoir::kernels::cpu
