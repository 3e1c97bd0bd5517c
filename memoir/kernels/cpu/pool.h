#pragma once

// The threads of the CPU kernels. One pool for the process; its workers sleep when there is nothing to do.
//
// A job is a number of parts that any thread may take. The caller takes parts too and waits only for workers that have
// taken one: a worker that the system hasn't run in time is not waited for.
// Threads: run_parts() may be called from any thread; calls take turns. Pool itself: one thread at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace memoir::kernels::cpu {

class Pool {
 public:
  /// Does one part of a job, 0 <= part < n_parts, on a thread, 0 <= thread < n_threads(): two parts that run at the
  /// same time have different ones.
  using Job = void (*)(const void* context, int part, int thread);

  /// n_threads >= 1 counts the calling thread. Fewer where the system refuses to start one.
  explicit Pool(int n_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls job(context, part, thread) for every part, in any order, and returns when all are done. What the parts
  /// write must not overlap. The job must not throw.
  void run(int n_parts, Job job, const void* context);

 private:
  void work(int thread);
  bool enter(std::uint64_t& seen);
  void take_parts(int thread);

  // A job's number in the upper half; kOpen while workers may enter it; below, how many are in it.
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kInside = kOpen - 1;
  static constexpr std::uint64_t kNextJob = std::uint64_t{1} << 32;

  std::vector<std::thread> workers_;
  Job job_ = nullptr;
  const void* context_ = nullptr;
  int n_parts_ = 0;
  alignas(64) std::atomic<int> next_part_{0};
  alignas(64) std::atomic<std::uint64_t> state_{0};
  std::atomic<std::uint32_t> n_jobs_{0};  // what sleepers wait for
  std::atomic<bool> is_ending_{false};
};

/// Does one part of a job with scratch that no other part uses at the same time.
using ScratchJob = void (*)(const void* context, int part, float* scratch);

/// All parts of a job on the process's pool, of n_threads() threads (threads.h); it is remade when that number has
/// changed. Each thread has n_scratch floats at a multiple of 64 bytes, with any contents; the pool keeps that memory
/// from call to call, so that a decode step allocates nothing. Not to be called from inside a job. Throws
/// std::bad_alloc before any part is done.
void run_parts(int n_parts, std::size_t n_scratch, ScratchJob job, const void* context);

/// The same for anything that can be called with (part, scratch).
template <typename Callable>
void run_parts(int n_parts, std::size_t n_scratch, const Callable& job) {
  run_parts(
      n_parts, n_scratch,
      [](const void* context, int part, float* scratch) { (*static_cast<const Callable*>(context))(part, scratch); },
      &job);
}

/// And for what needs none.
template <typename Callable>
void run_parts(int n_parts, const Callable& job) {
  run_parts(n_parts, 0, [&job](int part, float*) { job(part); });
}

/// The first exception that parts of a job end with; the rest of the job is left out then.
class PartFailure {
 public:
  bool is_none() const { return is_none_.load(std::memory_order_relaxed); }

  /// The exception that is being handled.
  void note();

  /// Throws the one that was noted, if one was. Once the job is done.
  void rethrow() const;

 private:
  std::atomic<bool> is_none_{true};
  std::mutex mutex_;
  std::exception_ptr first_;
};

/// run_parts() for a job whose parts may throw: throws what the first of them threw, when none is at work any more.
template <typename Callable>
void run_fallible_parts(int n_parts, std::size_t n_scratch, const Callable& job) {
  PartFailure failure;
  run_parts(n_parts, n_scratch, [&](int part, float* scratch) {
    if (!failure.is_none()) return;
    try {
      job(part, scratch);
    } catch (...) {
      failure.note();
    }
  });
  failure.rethrow();
}

/// Part `part` of several jobs one after the other, the i-th of n_parts_of(i) parts: which job, and which of its parts.
struct JobPart {
  std::size_t job;
  int part;
};
template <typename Count>
JobPart find_part(int part, const Count& n_parts_of) {
  std::size_t job = 0;
  for (int n = n_parts_of(job); part >= n; n = n_parts_of(job)) {
    part -= n;
    ++job;
  }
  return {job, part};
}

}  // namespace memoir::kernels::cpu
