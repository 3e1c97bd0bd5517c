#pragma once

// The instruction sets there are code for; which of them a build has, CMake decides by the processor it is for.

#include "memoir/kernels/cpu/kernels.h"

namespace memoir::kernels::cpu {

extern const Kernels kAvx512Vnni;
extern const Kernels kAvx512;
extern const Kernels kAvx2;
extern const Kernels kNeonDotprod;
extern const Kernels kNeon;
extern const Kernels kPortable;

/// The sets of this build, the best first.
KernelList built_kernels();

}  // namespace memoir::kernels::cpu
