#pragma once

// Connections beyond the limit: each is answered once, with health or a refusal, and closed. None makes another wait:
// they are polled together by the thread that accepts, and what is done for one takes no longer than the system call.
//
//   add() --its head is there--> answered --the peer closes--> closed
// One that has not come so far in kWait is answered or closed as it stands; so is the oldest when there are kMax.
// Owns the sockets. Threads: one.

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memoir/server/connection.h"
#include "memoir/server/socket.h"

namespace memoir::server {

class Crowd {
 public:
  static constexpr std::size_t kMax = 128;
  static constexpr std::chrono::milliseconds kWait{2000};

  /// Tells the whole answer to a request line; to an empty one where no whole head has come.
  using Answer = std::function<std::string(const std::string& request_line)>;

  Crowd(ConnectionLimits limits, Answer answer);

  void add(int fd, SteadyTime now);

  /// What to wait for, in the order of serve()'s.
  void append_to(std::vector<pollfd>& entries) const;

  /// When serve() has something to do though nothing arrives. Only where size() > 0.
  SteadyTime next_deadline() const { return waiting_.front()->deadline; }

  /// Goes on with those that are ready, and ends those whose time is over. `entries` are as append_to() made them.
  void serve(std::span<const pollfd> entries, SteadyTime now);

  std::size_t size() const { return waiting_.size(); }

 private:
  struct Waiting {
    Waiting(int fd, const ConnectionLimits& limits, SteadyTime until) : connection(fd, limits), deadline(until) {}
    Connection connection;
    SteadyTime deadline;
    bool is_answered = false;
  };

  bool go_on(Waiting& waiting);
  void answer(Waiting& waiting, const std::string& request_line);
  void end_oldest();

  ConnectionLimits limits_;
  Answer answer_;
  std::deque<std::unique_ptr<Waiting>> waiting_;  // the oldest first
};

}  // namespace memoir::server
