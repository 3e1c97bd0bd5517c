#pragma once

// How many cores there are to run on. One implementation per system, chosen by CMake.

namespace memoir::kernels::cpu {

/// Physical cores that this process may use, at least 1. Two hardware threads of a core count once: a matrix product
/// fills the core's vector units with one.
int physical_cores();

}  // namespace memoir::kernels::cpu
