#pragma once

// Threads for connections: made when they are needed, kept for the next one, never more than a given number.

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace memoir::server {

class WorkerThreads {
 public:
  explicit WorkerThreads(std::size_t max_threads) : max_threads_(max_threads) {}
  /// Waits for all jobs.
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  /// Runs `job`, which must not throw, on a thread of its own. False, and nothing is run, where all threads are busy
  /// and no more may be made.
  bool run(std::function<void()> job);

 private:
  void work();

  std::size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::function<void()>> jobs_;
  std::size_t n_idle_ = 0;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace memoir::server
