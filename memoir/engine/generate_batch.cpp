#include "memoir/engine/generate_batch.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

namespace memoir::engine {
namespace {

// What events become, until the caller takes it.
class Results {
 public:
  /// On the service's thread.
  void take(BatchResult& result, const Event& event) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      result.tokens.push_back(token->token);
      result.text += token->text;
      return;
    }
    if (const auto* finished = std::get_if<Finished>(&event)) {
      result.text += finished->text;
      result.finish_reason = finished->reason;
      result.counts = finished->counts;
    } else if (const auto* failed = std::get_if<Failed>(&event)) {
      result.counts = failed->counts;
      result.error = failed->message;
    } else {
      return;
    }
    add(std::move(result));
  }

  void add(BatchResult result) {
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::move(result));
    has_ended_.notify_one();
  }

  /// Those that have ended since; waits for the first, or that long.
  std::vector<BatchResult> wait(std::optional<std::chrono::milliseconds> most) {
    std::unique_lock lock(mutex_);
    const auto has_some = [this] { return !ended_.empty(); };
    if (most) {
      has_ended_.wait_for(lock, *most, has_some);
    } else {
      has_ended_.wait(lock, has_some);
    }
    return std::exchange(ended_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_ended_;
  std::vector<BatchResult> ended_;
};

class Batch {
 public:
  Batch(Service& service, const std::function<void(const BatchResult&)>& on_result)
      : service_(service), on_result_(on_result) {}

  ~Batch() {
    for (const auto& [index, id] : open_) service_.cancel(id);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  std::size_t n_open() const { return open_.size(); }

  void submit(Request request) {
    BatchResult result;
    result.index = n_submitted_++;
    const std::size_t index = result.index;
    // Shared with the events, which may come after the batch was given up.
    request.on_event = [results = results_, made = std::make_shared<BatchResult>(result)](const Event& event) {
      results->take(*made, event);
    };
    try {
      const std::variant<RequestId, Refusal> answer = service_.submit(std::move(request));
      if (const auto* id = std::get_if<RequestId>(&answer)) {
        open_.emplace(index, *id);
        return;
      }
      result.error = std::get<Refusal>(answer) == Refusal::kQueueFull ? "the queue is full" : "the service is ending";
    } catch (const std::invalid_argument& error) {
      result.error = error.what();
    }
    on_result_(result);
  }

  void hand_out_ended(std::optional<std::chrono::milliseconds> most) {
    for (const BatchResult& result : results_->wait(most)) {
      open_.erase(result.index);
      on_result_(result);
    }
  }

 private:
  Service& service_;
  const std::function<void(const BatchResult&)>& on_result_;
  std::shared_ptr<Results> results_ = std::make_shared<Results>();
  std::map<std::size_t, RequestId> open_;
  std::size_t n_submitted_ = 0;
};

}  // namespace

void generate_batch(Service& service, int max_open, const BatchSource& next,
                    const std::function<void(const BatchResult&)>& on_result, const std::function<bool()>& is_ready) {
  if (max_open < 1) {
    throw std::invalid_argument("[engine.generate_batch] max_open is " + std::to_string(max_open) +
                                ", expected at least 1");
  }
  constexpr std::chrono::milliseconds kUntilAskedAgain(20);
  Batch batch(service, on_result);
  for (bool is_at_end = false; !is_at_end || batch.n_open() > 0;) {
    const auto takes_more = [&] { return !is_at_end && batch.n_open() < static_cast<std::size_t>(max_open); };
    while (takes_more() && (batch.n_open() == 0 || !is_ready || is_ready())) {
      std::optional<Request> request = next();
      is_at_end = !request;
      if (request) batch.submit(std::move(*request));
    }
    if (batch.n_open() > 0) batch.hand_out_ended(takes_more() ? std::optional(kUntilAskedAgain) : std::nullopt);
  }
}

}  // namespace memoir::engine
