#include "memoir/server/event_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "memoir/server/socket.h"

namespace memoir::server {

EventQueue::EventQueue(std::size_t max_items) : max_items_(max_items) {
  if (::pipe(pipe_.data()) != 0) throw std::runtime_error("can't make a pipe: too many files are open");
  for (const int fd : pipe_) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

EventQueue::~EventQueue() {
  for (const int fd : pipe_) ::close(fd);
}

void EventQueue::push(int index, const engine::Event& event) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  const bool is_last = std::holds_alternative<engine::Finished>(event) || std::holds_alternative<engine::Failed>(event);
  const bool is_prefill = std::holds_alternative<engine::PrefillEvent>(event);
  if (is_prefill && !items_.empty() && items_.back().index == index &&
      std::holds_alternative<engine::PrefillEvent>(items_.back().event)) {
    items_.back().event = event;  // only how far it is now matters
  } else if (items_.size() < max_items_ || is_last) {
    items_.push_back({index, event, now});
  } else {
    has_overflowed_ = true;
  }
  if (!is_waiting_) return;
  is_waiting_ = false;
  // A full pipe wakes the reader as well.
  [[maybe_unused]] const ssize_t ignored = ::write(pipe_[1], "x", 1);
}

std::optional<std::variant<EventQueue::Item, EventQueue::NoItem>> EventQueue::take() {
  const std::lock_guard lock(mutex_);
  is_waiting_ = false;
  if (has_overflowed_) return NoItem::kOverflowed;
  if (items_.empty()) {
    is_waiting_ = true;
    return std::nullopt;
  }
  Item item = std::move(items_.front());
  items_.pop_front();
  return item;
}

void EventQueue::drain_pipe() {
  std::array<char, 16> bytes;
  while (::read(pipe_[0], bytes.data(), bytes.size()) > 0) {
  }
}

std::variant<EventQueue::Item, EventQueue::NoItem> EventQueue::wait(ClientWatch& client,
                                                                    std::chrono::milliseconds timeout) {
  const int socket = client.socket();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    if (client.client_is_gone()) return NoItem::kClientGone;
    if (auto result = take()) return std::move(*result);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return NoItem::kTimedOut;
    // Where the client sent more ahead than is kept of it, poll() would return at once, for ever.
    const bool has_bytes = has_unread_bytes(socket);
    std::array<pollfd, 2> entries = {pollfd{pipe_[0], POLLIN, 0}, pollfd{has_bytes ? -1 : socket, POLLIN, 0}};
    const auto timeout_ms = std::clamp<std::int64_t>(left, 0, has_bytes ? 100 : 60'000);
    ::poll(entries.data(), entries.size(), static_cast<int>(timeout_ms));
    if (entries[0].revents) drain_pipe();
  }
}

}  // namespace memoir::server
