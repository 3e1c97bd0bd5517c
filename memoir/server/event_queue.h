#pragma once

// From the engine's thread to the thread that answers: events of one HTTP request, which may be several of the
// engine's. The one that answers waits for an event and for the end of its connection at once.
//
// push() never blocks and the queue is bounded: where its reader falls so far behind that it is full, what comes is
// dropped and the reader told.
// Threads: push() from one, wait() from another.

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <variant>

#include "memoir/engine/service.h"
#include "memoir/server/socket.h"

namespace memoir::server {

class EventQueue {
 public:
  struct Item {
    int index;  // which of the engine's requests
    engine::Event event;
    std::chrono::steady_clock::time_point time;  // when it was pushed
  };
  enum class NoItem {
    kTimedOut,
    kClientGone,
    kOverflowed,  // events were dropped
  };

  /// max_items: of those that wait; a Finished or Failed is always taken. Throws std::runtime_error where no pipe can
  /// be made.
  explicit EventQueue(std::size_t max_items);
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  void push(int index, const engine::Event& event);

  /// The next item, or why there is none. The client's end is noticed at once, also before items that wait.
  std::variant<Item, NoItem> wait(ClientWatch& client, std::chrono::milliseconds timeout);

 private:
  std::optional<std::variant<Item, NoItem>> take();
  void drain_pipe();

  std::size_t max_items_;
  std::mutex mutex_;
  std::deque<Item> items_;
  bool has_overflowed_ = false;
  bool is_waiting_ = false;
  std::array<int, 2> pipe_{-1, -1};  // written to where the reader waits
};

}  // namespace memoir::server
