#pragma once

// What this Arm processor can do beyond what each of them can. One implementation per system, chosen by CMake.

namespace memoir::kernels::cpu {

/// Whether it has the instructions for products of bytes (FEAT_DotProd). False where the system doesn't say.
bool has_dot_product();

}  // namespace memoir::kernels::cpu
