#include "memoir/prefix/block_writer.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/base/checksum.h"
#include "memoir/base/error.h"

namespace memoir::prefix {
namespace {

std::size_t size_of(const BlockJob& job) {
  std::size_t n_bytes = job.beginning.size();
  for (const std::span<const std::byte> piece : job.payload) n_bytes += piece.size();
  return n_bytes;
}

}  // namespace

BlockWriter::BlockWriter(BlockFolder& folder, std::size_t max_queued_bytes,
                         std::function<void(const std::string&)> on_warning)
    : folder_(folder),
      max_queued_bytes_(max_queued_bytes),
      on_warning_(std::move(on_warning)),
      thread_([this] { run(); }) {
  try {
    folder_.check_writable();
  } catch (const FileError& error) {
    fail(error.what());
  }
}

BlockWriter::~BlockWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool BlockWriter::is_on() const {
  const std::lock_guard lock(mutex_);
  return is_on_;
}

bool BlockWriter::is_missing(const BlockName& name) const {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.contains(name.file_name())) return false;
  }
  return !folder_.contains(name);
}

void BlockWriter::add(BlockJob job) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_on_ || !waiting_.insert(job.name.file_name()).second) return;
    n_queued_bytes_ += size_of(job);
    jobs_.push_back(std::move(job));
    while (n_queued_bytes_ > max_queued_bytes_ && jobs_.size() > 1) {
      n_queued_bytes_ -= size_of(jobs_.front());
      waiting_.erase(jobs_.front().name.file_name());
      jobs_.pop_front();
      ++counters_.n_dropped;
    }
  }
  changed_.notify_all();
}

void BlockWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !is_busy_; });
}

BlockWriterCounters BlockWriter::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void BlockWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_over_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    {
      const BlockJob job = std::move(jobs_.front());
      jobs_.pop_front();
      is_busy_ = true;
      lock.unlock();
      try {
        write(job);
      } catch (const std::exception& error) {
        fail(error.what());
      }
      lock.lock();
      n_queued_bytes_ -= std::min(n_queued_bytes_, size_of(job));
      waiting_.erase(job.name.file_name());
      is_busy_ = false;
    }
    changed_.notify_all();
  }
}

void BlockWriter::write(const BlockJob& job) {
  if (!is_on()) return;
  folder_.refresh();
  if (folder_.contains(job.name)) return;
  std::vector<std::span<const std::byte>> pieces = {job.beginning};
  pieces.insert(pieces.end(), job.payload.begin(), job.payload.end());
  Checksum checksum;
  for (const std::span<const std::byte> piece : pieces) checksum.add(piece);
  const std::vector<std::byte> end = block_end(checksum.value());
  pieces.emplace_back(end);
  const std::size_t n_bytes = size_of(job) + end.size();
  if (!folder_.make_room(n_bytes)) {
    throw std::length_error("a part of it has " + std::to_string(n_bytes) + " bytes, more than all may have");
  }
  try {
    folder_.write(job.name, pieces);
  } catch (const FileError&) {
    folder_.write(job.name, pieces);  // somebody may have cleared the directory meanwhile
  }
  folder_.add(job.name, job.own_keys, n_bytes);
  const std::lock_guard lock(mutex_);
  ++counters_.n_written;
  counters_.n_bytes += n_bytes;
}

void BlockWriter::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    is_on_ = false;
  }
  if (on_warning_) on_warning_(why);
}

}  // namespace memoir::prefix
