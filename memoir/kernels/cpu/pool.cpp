#include "memoir/kernels/cpu/pool.h"

#include <memory>
#include <mutex>
#include <system_error>

#include "memoir/kernels/cpu/packed.h"
#include "memoir/kernels/cpu/pause.h"
#include "memoir/kernels/cpu/scratch.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

// Looks at something that another thread is about to change: with pauses first, then letting other threads run, which
// is what they need where there are more of them than cores. Returns false when that has taken longer than the pause
// between two operations of a decode step, so that sleeping is cheaper.
template <typename Condition>
bool watch(const Condition& has_changed) {
  constexpr int kPauses = 2000;
  constexpr int kYields = 50;
  for (int i = 0; i < kPauses; ++i) {
    if (has_changed()) return true;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (has_changed()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

Pool::Pool(int n_threads) {
  workers_.reserve(static_cast<std::size_t>(n_threads));
  try {
    for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    // No more threads to be had: those that started do the work.
  }
}

Pool::~Pool() {
  is_ending_ = true;
  n_jobs_.fetch_add(1);
  n_jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::take_parts(int thread) {
  const int n_parts = n_parts_;
  for (int part = next_part_.fetch_add(1); part < n_parts; part = next_part_.fetch_add(1)) job_(context_, part, thread);
}

// Enters the present job if it is open and newer than the one `seen`.
bool Pool::enter(std::uint64_t& seen) {
  std::uint64_t state = state_.load();
  while ((state & kOpen) != 0 && state / kNextJob != seen) {
    if (!state_.compare_exchange_weak(state, state + 1)) continue;
    seen = state / kNextJob;
    return true;
  }
  return false;
}

void Pool::work(int thread) {
  std::uint64_t seen = 0;
  while (true) {
    const std::uint32_t n_jobs = n_jobs_.load();
    if (is_ending_) return;
    if (enter(seen)) {
      take_parts(thread);
      state_.fetch_sub(1);
    }
    if (!watch([&] { return n_jobs_.load(std::memory_order_acquire) != n_jobs; })) n_jobs_.wait(n_jobs);
  }
}

void Pool::run(int n_parts, Job job, const void* context) {
  if (workers_.empty() || n_parts <= 1) {
    for (int part = 0; part < n_parts; ++part) job(context, part, 0);
    return;
  }
  job_ = job;
  context_ = context;
  n_parts_ = n_parts;
  next_part_ = 0;
  state_ = (state_.load() / kNextJob + 1) * kNextJob + kOpen;
  n_jobs_.fetch_add(1);
  n_jobs_.notify_all();
  take_parts(0);
  state_.fetch_and(~kOpen);
  const auto is_done = [this] { return (state_.load() & kInside) == 0; };
  while (!watch(is_done)) {
  }
}

void PartFailure::note() {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = std::current_exception();
  is_none_ = false;
}

void PartFailure::rethrow() const {
  if (first_) std::rethrow_exception(first_);
}

namespace {

// Never destroyed: at exit MLX's stream may still be at work.
struct SharedPool {
  std::mutex turn;
  std::unique_ptr<Pool> pool;
  int n_wanted = 0;
  Scratch scratch;
};

struct ScratchContext {
  ScratchJob job;
  const void* context;
  float* scratch;
  std::size_t n_floats;
};

}  // namespace

void run_parts(int n_parts, std::size_t n_scratch, ScratchJob job, const void* context) {
  static SharedPool& shared = *new SharedPool;
  const std::lock_guard lock(shared.turn);
  const int n_wanted = n_threads();
  if (!shared.pool || shared.n_wanted != n_wanted) {
    shared.pool.reset();
    shared.pool = std::make_unique<Pool>(n_wanted);
    shared.n_wanted = n_wanted;
  }
  const std::size_t n_floats = (n_scratch + kLanes - 1) / kLanes * kLanes;
  float* scratch = shared.scratch.floats(n_floats * static_cast<std::size_t>(shared.pool->n_threads()));
  const ScratchContext with_scratch{job, context, scratch, n_floats};
  shared.pool->run(
      n_parts,
      [](const void* opaque, int part, int thread) {
        const auto& c = *static_cast<const ScratchContext*>(opaque);
        c.job(c.context, part, c.scratch + c.n_floats * static_cast<std::size_t>(thread));
      },
      &with_scratch);
}

}  // namespace memoir::kernels::cpu
