#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/matmul_impl.h"
#include "memoir/kernels/cpu/simd_portable.h"

namespace memoir::kernels::cpu {
namespace {

bool is_supported() {
  return true;
}

}  // namespace

const Kernels kPortable = {"portable", is_supported, matmul_tiles<Portable>};

}  // namespace memoir::kernels::cpu
