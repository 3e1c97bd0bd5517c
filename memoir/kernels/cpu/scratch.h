#pragma once

// Memory that a kernel's driver keeps from call to call, so that a decode step allocates nothing.

#include <cstddef>
#include <memory>
#include <new>

namespace memoir::kernels::cpu {

/// A buffer of floats at a multiple of 64 bytes. It grows, and only a very large one is given back, when less is asked
/// for next. One thread at a time.
class Scratch {
 public:
  /// At least n_floats, with any contents. Throws std::bad_alloc.
  float* floats(std::size_t n_floats) {
    const bool is_too_large = n_floats_ > kMostKept && n_floats <= kMostKept;
    if (n_floats > n_floats_ || is_too_large) {
      memory_.reset();
      n_floats_ = 0;
      memory_.reset(static_cast<float*>(::operator new(n_floats * sizeof(float), kAlignment)));
      n_floats_ = n_floats;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr std::size_t kMostKept = std::size_t{1} << 25;  // 128 MiB
  struct Delete {
    void operator()(float* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<float, Delete> memory_;
  std::size_t n_floats_ = 0;
};

}  // namespace memoir::kernels::cpu
