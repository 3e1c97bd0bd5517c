#pragma once

// What one evaluation allocates on the CPU stream, the same in every run: the stream is held while the evaluation's
// operations are encoded (each allocates its result then), so no buffer is given back before the last is taken.

#include <mlx/backend/cpu/encoder.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <vector>

namespace memoir::test {

/// @param outputs_of Builds the lazy arrays to evaluate; at most some 80 operations (MLX waits for a held stream after
///     that; the hold ends by itself after 5 seconds).
/// @return The bytes that MLX holds more at the highest than before, results included.
template <class OutputsOf>
std::size_t held_allocation_bytes(const OutputsOf& outputs_of) {
  namespace mx = mlx::core;
  mx::synchronize();
  mx::reset_peak_memory();
  const std::size_t before = mx::get_active_memory();
  std::promise<void> released;
  mx::cpu::get_command_encoder(mx::default_stream(mx::Device::cpu)).dispatch([hold = released.get_future().share()] {
    hold.wait_for(std::chrono::seconds(5));
  });
  const std::vector<mx::array> outputs = outputs_of();
  mx::async_eval(outputs);
  released.set_value();
  mx::synchronize();
  return std::max(mx::get_peak_memory(), before) - before;  // no allocation, no new peak
}

}  // namespace memoir::test
