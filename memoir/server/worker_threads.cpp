#include "memoir/server/worker_threads.h"

#include <system_error>
#include <utility>

namespace memoir::server {

WorkerThreads::~WorkerThreads() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerThreads::run(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() < n_idle_) {
    jobs_.push_back(std::move(job));
    wake_.notify_one();
    return true;
  }
  if (threads_.size() >= max_threads_) return false;
  jobs_.push_back(std::move(job));
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // the system has no more
    jobs_.pop_back();
    return false;
  }
  return true;
}

void WorkerThreads::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++n_idle_;
    wake_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
    --n_idle_;
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace memoir::server
