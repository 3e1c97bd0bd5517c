#pragma once

// Memory for packed weights. A decode step reads all of them once, in order, so they lie close together in huge pages:
// some tenth faster than in small ones, and quicker to load.
//
// Threads: the thread that owns MLX's work.

#include <mlx/array.h>

#include <cstddef>
#include <optional>

namespace memoir::kernels {

inline constexpr std::size_t kLineBytes = 64;  // of a processor's cache: no vector straddles two

/// While one is there, weight_memory() of its thread hands out pieces of chunks that several weights share; a chunk is
/// freed with the last of them. For the loading of a model.
class WeightChunks {
 public:
  WeightChunks();
  ~WeightChunks();
  WeightChunks(const WeightChunks&) = delete;
  WeightChunks& operator=(const WeightChunks&) = delete;

 private:
  friend mlx::core::array weight_memory(std::size_t n_bytes);
  mlx::core::array piece(std::size_t n_bytes);

  std::optional<mlx::core::array> chunk_;
  std::size_t n_used_ = 0;  // bytes of the chunk
  WeightChunks* outer_;     // another one of this thread, which goes on after this one
};

/// At least n_bytes with any contents, at a multiple of kLineBytes: uint8 [lines, kLineBytes]. Throws std::bad_alloc,
/// and std::invalid_argument where an axis can't count the lines.
mlx::core::array weight_memory(std::size_t n_bytes);

}  // namespace memoir::kernels
