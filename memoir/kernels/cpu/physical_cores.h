#pragma once

// How many cores there are to run on. One implementation per system, chosen by CMake.

namespace memoir::kernels::cpu {

/// Physical cores that this process may use, at least 1. Two hardware threads of a core count once: a matrix product
/// fills the core's vector units with one.
int physical_cores();

/// Whether these cores are all as fast: false for processors with large and small ones.
bool cores_are_alike();

}  // namespace memoir::kernels::cpu
