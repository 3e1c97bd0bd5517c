#pragma once

// Which device computes, and in which type.
//
// A model never asks; it calls kernels:: and the kernels look here. The device is MLX's default device of the calling
// thread, chosen once at start by the command line or the embedding program.

#include <mlx/array.h>

#include <string>
#include <string_view>

namespace memoir::kernels {

/// True if the CPU kernels compute: MLX's default device is the CPU, and compose_on_cpu() doesn't say otherwise.
bool on_cpu();

/// Whether operations are composed from MLX's own on the CPU too, as on a GPU: how a machine without one tests that
/// way. For the whole process; before a model is loaded, since weights are laid out for the one or the other.
void compose_on_cpu(bool composes);

/// The type activations are kept in for weights stored as `weights`: float32 on the CPU (its units have no faster
/// one), on a GPU the weights' own floating type.
mlx::core::Dtype activation_dtype(mlx::core::Dtype weights);

/// Sets the threads of the CPU kernels, and bounds those of the BLAS behind MLX's own products. n_threads >= 1, else
/// std::invalid_argument.
void set_cpu_threads(int n_threads);

/// Threads that the CPU kernels use. Default: the physical cores that the process may run on.
int cpu_threads();

/// A name for all that decides the bits of results, but for model and formats: states that were computed under another
/// one are not exchanged. "gpu", where nothing is promised, or the CPU kernels' arithmetic.
std::string arithmetic();

/// The instruction set that the CPU kernels use ("avx512vnni", "avx512", "avx2", "neondotprod", "neon", "portable").
const char* cpu_kernels();

/// Uses the set of this name from now on; empty: the best that the processor has. All give the same bits.
/// Throws std::invalid_argument, naming those there are, if this build or processor doesn't have it.
void choose_cpu_kernels(std::string_view name);

}  // namespace memoir::kernels
