#pragma once

// Writes blocks behind the back of whoever computes them, on a thread of its own.
//
// The queue has a bound in bytes: beyond it, what has waited longest is not written. When a block can't be written (a
// full disk, a directory that is read-only, a bound that it alone passes), that is said once, and no other is tried;
// what is there can still be read. A directory that can't be written is said by the constructor already. Threads: any
// may call; on_warning is called on the writer's, or the constructor's. Destruction writes what is queued.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "memoir/prefix/block_folder.h"

namespace memoir::prefix {

struct BlockJob {
  BlockName name;
  std::vector<std::byte> beginning;  // block_beginning()
  std::vector<Key> own_keys;         // from name.from on
  std::vector<std::span<const std::byte>> payload;
  std::shared_ptr<const void> owner;  // of the payload's bytes
};

struct BlockWriterCounters {
  std::uint64_t n_written = 0;
  std::uint64_t n_bytes = 0;    // of these
  std::uint64_t n_dropped = 0;  // the queue was full
};

class BlockWriter {
 public:
  /// The folder must outlive it.
  BlockWriter(BlockFolder& folder, std::size_t max_queued_bytes, std::function<void(const std::string&)> on_warning);
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  /// False once a write has failed: there is no use in making jobs.
  bool is_on() const;

  /// Whether there is anything to do for a block of this name: it is neither in the folder nor waiting.
  bool is_missing(const BlockName& name) const;

  /// Queues it, however large it is if nothing else waits.
  void add(BlockJob job);

  /// Waits until nothing is queued or under way.
  void flush();

  BlockWriterCounters counters() const;

 private:
  void run();
  void write(const BlockJob& job);
  void fail(const std::string& why);

  BlockFolder& folder_;
  std::size_t max_queued_bytes_;
  std::function<void(const std::string&)> on_warning_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<BlockJob> jobs_;
  std::set<std::string> waiting_;  // names of these and of that under way
  std::size_t n_queued_bytes_ = 0;
  bool is_busy_ = false;
  bool is_over_ = false;
  bool is_on_ = true;
  BlockWriterCounters counters_;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace memoir::prefix
