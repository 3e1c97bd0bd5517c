#include "memoir/kernels/cpu/pool.h"

#include <memory>
#include <mutex>

#include "memoir/kernels/cpu/pause.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

// A worker looks for the next job this often before it sleeps: some tens of microseconds, longer than the pause between
// two operations of a decode step and much shorter than a system call pays off.
constexpr int kSpins = 4000;

}  // namespace

Pool::Pool(int n_threads) {
  for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() {
  is_ending_ = true;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::take_parts() {
  for (int part = next_part_.fetch_add(1); part < n_parts_; part = next_part_.fetch_add(1)) job_(context_, part);
}

void Pool::work() {
  std::uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause();
    generation_.wait(seen);
    seen = generation_.load();
    if (is_ending_) return;
    take_parts();
    n_working_.fetch_sub(1);
  }
}

void Pool::run(int n_parts, Job job, const void* context) {
  if (workers_.empty() || n_parts <= 1) {
    for (int part = 0; part < n_parts; ++part) job(context, part);
    return;
  }
  job_ = job;
  context_ = context;
  n_parts_ = n_parts;
  next_part_ = 0;
  n_working_ = static_cast<int>(workers_.size());
  generation_.fetch_add(1);
  generation_.notify_all();
  take_parts();
  while (n_working_.load() > 0) pause();
}

void run_parts(int n_parts, Pool::Job job, const void* context) {
  static std::mutex turn;
  static std::unique_ptr<Pool> pool;
  const std::lock_guard lock(turn);
  if (!pool || pool->n_threads() != n_threads()) pool = std::make_unique<Pool>(n_threads());
  pool->run(n_parts, job, context);
}

}  // namespace memoir::kernels::cpu
