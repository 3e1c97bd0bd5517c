#pragma once

// Which device computes, and in which type.
//
// A model never asks; it calls kernels:: and the kernels look here. The device is MLX's default device of the calling
// thread, chosen once at start by the command line or the embedding program.

#include <mlx/array.h>

namespace memoir::kernels {

/// True if MLX's default device is the CPU.
bool on_cpu();

/// The type activations are kept in for weights stored as `weights`: float32 on the CPU (its units have no faster
/// one), on a GPU the weights' own floating type.
mlx::core::Dtype activation_dtype(mlx::core::Dtype weights);

/// Bounds the threads of the CPU kernels and of the BLAS behind MLX's own products. n_threads >= 1, else
/// std::invalid_argument.
void set_cpu_threads(int n_threads);

/// Threads that the CPU kernels use. Default: the physical cores that the process may run on.
int cpu_threads();

}  // namespace memoir::kernels
