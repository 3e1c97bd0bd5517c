#pragma once

// What a waiting thread does between two looks: lets the other hardware thread of its core run. The one place that
// knows each processor's instruction for it.

namespace memoir::kernels::cpu {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace memoir::kernels::cpu
