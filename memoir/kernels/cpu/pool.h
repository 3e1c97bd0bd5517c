#pragma once

// The threads of the CPU kernels. One pool for the process; its workers sleep when there is nothing to do.
//
// Threads: run_parts() may be called from any thread; calls take turns. Pool itself: one thread at a time.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace memoir::kernels::cpu {

class Pool {
 public:
  /// Does one part of a job, 0 <= part < n_parts.
  using Job = void (*)(const void* context, int part);

  /// n_threads >= 1 counts the calling thread.
  explicit Pool(int n_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls job(context, part) for every part, on any thread and in any order, and returns when all are done. What the
  /// parts write must not overlap. The job must not throw.
  void run(int n_parts, Job job, const void* context);

 private:
  void work();
  void take_parts();

  std::vector<std::thread> workers_;
  Job job_ = nullptr;
  const void* context_ = nullptr;
  int n_parts_ = 0;
  std::atomic<int> next_part_{0};
  std::atomic<int> n_working_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> is_ending_{false};
};

/// Pool::run on the process's pool, of n_threads() threads (threads.h); it is remade when that number has changed. Not
/// to be called from inside a job.
void run_parts(int n_parts, Pool::Job job, const void* context);

template <typename Callable>
void run_parts(int n_parts, const Callable& job) {
  run_parts(
      n_parts, [](const void* context, int part) { (*static_cast<const Callable*>(context))(part); }, &job);
}

}  // namespace memoir::kernels::cpu
