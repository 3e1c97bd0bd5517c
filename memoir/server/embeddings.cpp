#include "memoir/server/embeddings.h"

#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAtOnce = 16;
// What the engine sends of a text: an event a slice, of some thousand at most that wait.
constexpr std::size_t kMaxWaitingEvents = 8192;
constexpr std::chrono::milliseconds kWait{60'000};
// Texts wait for a place in a queue that others fill, the first excepted.
constexpr std::chrono::milliseconds kRetry{20};
constexpr std::chrono::seconds kPatience{60};

class Job {
 public:
  Job(const std::vector<Prompt>& texts, const Backend& backend, engine::Pooling pooling)
      : texts_(texts),
        backend_(backend),
        pooling_(pooling),
        queue_(std::make_shared<EventQueue>(kMaxWaitingEvents)),
        last_progress_(Clock::now()) {
    made_.vectors.resize(texts.size());
  }
  ~Job() {
    for (const auto& [index, id] : open_) backend_.service.cancel(id);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// False if the client has gone.
  bool run(ClientWatch& client) {
    while (n_done_ < texts_.size()) {
      bool has_place = true;
      while (has_place && next_ < texts_.size() && open_.size() < kAtOnce) has_place = submit();
      const auto news = queue_->wait(client, open_.empty() ? kRetry : kWait);
      if (const auto* item = std::get_if<EventQueue::Item>(&news)) {
        take(*item);
      } else if (std::get<EventQueue::NoItem>(news) != EventQueue::NoItem::kTimedOut) {
        backend_.metrics.add_client_gone();
        return false;
      }
    }
    return true;
  }

  Embeddings take_result() { return std::move(made_); }

 private:
  /// False if the engine's queue has no place now.
  bool submit() {
    const auto index = static_cast<int>(next_);
    engine::Request request;
    request.prompt = texts_[next_].tokens;
    request.max_tokens = 0;
    request.embedding = pooling_;
    request.on_event = [queue = queue_, index](const engine::Event& event) { queue->push(index, event); };
    const auto answer = submit_request(backend_.service, std::move(request));
    if (!answer) {
      if (next_ == 0 || Clock::now() - last_progress_ > kPatience) throw queue_full();
      return false;
    }
    open_.emplace(index, *answer);
    ++next_;
    last_progress_ = Clock::now();
    return true;
  }

  void take(const EventQueue::Item& item) {
    if (const auto* embedding = std::get_if<engine::EmbeddingEvent>(&item.event)) {
      made_.vectors[static_cast<std::size_t>(item.index)] = embedding->values;
    } else if (const auto* failed = std::get_if<engine::Failed>(&item.event)) {
      open_.erase(item.index);
      throw failure_of(*failed);
    } else if (const auto* finished = std::get_if<engine::Finished>(&item.event)) {
      open_.erase(item.index);
      if (finished->reason == engine::FinishReason::kCancelled) throw cancelled_by_stop();
      made_.n_prompt_tokens += finished->counts.prompt_tokens;
      backend_.metrics.add_queue_time(finished->counts.queued_s);
      ++n_done_;
      last_progress_ = Clock::now();
    }
  }

  const std::vector<Prompt>& texts_;
  const Backend& backend_;
  engine::Pooling pooling_;
  std::shared_ptr<EventQueue> queue_;
  std::map<int, engine::RequestId> open_;  // by text
  std::size_t next_ = 0;                   // text to ask for
  std::size_t n_done_ = 0;
  Clock::time_point last_progress_;
  Embeddings made_;
};

}  // namespace

std::optional<Embeddings> embed(const std::vector<Prompt>& texts, const Backend& backend, engine::Pooling pooling,
                                ClientWatch& client, const std::string& field) {
  for (const Prompt& text : texts) check_length(text, backend.model.context(), field);
  Job job(texts, backend, pooling);
  if (!job.run(client)) return std::nullopt;
  return job.take_result();
}

}  // namespace memoir::server
