#include "memoir/server/crowd.h"

#include <utility>

namespace memoir::server {

Crowd::Crowd(ConnectionLimits limits, Answer answer) : limits_(limits), answer_(std::move(answer)) {
  limits_.idle_timeout = limits_.head_timeout = limits_.write_timeout = std::chrono::milliseconds(0);
}

void Crowd::add(int fd, SteadyTime now) {
  if (waiting_.size() == kMax) end_oldest();
  waiting_.push_back(std::make_unique<Waiting>(fd, limits_, now + kWait));
  if (!go_on(*waiting_.back())) waiting_.pop_back();
}

void Crowd::append_to(std::vector<pollfd>& entries) const {
  for (const auto& one : waiting_) entries.push_back({one->connection.fd(), POLLIN, 0});
}

void Crowd::serve(std::span<const pollfd> entries, SteadyTime now) {
  std::deque<std::unique_ptr<Waiting>> left;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const bool is_ready = i < entries.size() && entries[i].revents != 0;
    if (!is_ready || go_on(*waiting_[i])) left.push_back(std::move(waiting_[i]));
  }
  waiting_ = std::move(left);
  while (!waiting_.empty() && waiting_.front()->deadline <= now) end_oldest();
}

// Returns whether there is more to come.
bool Crowd::go_on(Waiting& waiting) {
  if (waiting.is_answered) return waiting.connection.discard();
  switch (waiting.connection.read_head()) {
    case Connection::Head::kClosed:
      return false;
    case Connection::Head::kSilent:
    case Connection::Head::kTimedOut:  // not yet whole
      return true;
    case Connection::Head::kRead:
      answer(waiting, waiting.connection.request_line());
      return true;
    default:
      answer(waiting, "");
      return true;
  }
}

// The peer may still be sending. What is closed before all of it is read takes the answer back, so the rest is read.
void Crowd::answer(Waiting& waiting, const std::string& request_line) {
  waiting.connection.write_all(answer_(request_line));
  waiting.connection.end_writing();
  waiting.is_answered = true;
}

void Crowd::end_oldest() {
  if (!waiting_.front()->is_answered) answer(*waiting_.front(), "");
  waiting_.pop_front();
}

}  // namespace memoir::server
