#include "memoir/server/openai_routes.h"

#include <memory>
#include <utility>

#include "memoir/server/openai_request.h"
#include "memoir/server/openai_response.h"

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{60'000};

// One answer: the request, its stamp and the texts in the making.
struct Answer {
  Answer(BackendLease used, OpenAiRequest asked, bool is_of_chat)
      : lease(std::move(used)), request(std::move(asked)), is_chat(is_of_chat), generation(backend) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    stamp = {random_id(is_chat ? "chatcmpl-" : "cmpl-"), std::chrono::duration_cast<std::chrono::seconds>(now).count(),
             backend.model.name()};
    for (const Prompt& prompt : request.prompts) {
      generation.submit(prompt, request.options, is_chat ? "messages" : "prompt");
    }
    results.resize(static_cast<std::size_t>(generation.n_texts()));
  }

  bool has_logprobs() const { return request.options.n_likeliest.has_value(); }

  // Keeps the first call only, where the client wants no more.
  bool takes_call(const TextResult& result) const { return request.allows_several_calls || result.calls.empty(); }

  BackendLease lease;
  const Backend& backend = *lease;
  OpenAiRequest request;
  bool is_chat;
  OpenAiStamp stamp;
  Generation generation;
  std::vector<TextResult> results;
};

void add_pieces(const Answer& answer, TextResult& result, Update& update) {
  for (OutputPiece& piece : update.pieces) {
    if (auto* content = std::get_if<ContentPiece>(&piece)) result.content += content->text;
    if (auto* thought = std::get_if<ReasoningPiece>(&piece)) result.reasoning += thought->text;
    if (auto* call = std::get_if<ToolCall>(&piece); call && answer.takes_call(result)) {
      result.calls.push_back(std::move(*call));
    }
  }
  if (answer.has_logprobs()) {
    for (TokenLogprob& one : update.logprobs) result.logprobs.push_back(std::move(one));
  }
  if (update.finish) result.finish_reason = openai_finish_reason(*update.finish, !result.calls.empty());
}

void answer_whole(Exchange& exchange, Answer& answer) {
  const auto take = [&answer](Update& update) {
    add_pieces(answer, answer.results[static_cast<std::size_t>(update.index)], update);
  };
  if (!follow(exchange, answer.generation, take)) return;
  const Generation::Usage usage = answer.generation.usage();
  note_usage(exchange, usage);
  const auto make = answer.is_chat ? chat_completion : text_completion;
  exchange.reply(
      200, dump(make(answer.stamp, answer.results, usage, answer.backend.model.tokenizer(), answer.has_logprobs())));
}

class ChunkStream {
 public:
  ChunkStream(Exchange& exchange, StreamWriter& writer, Answer& answer, std::chrono::milliseconds keep_alive)
      : exchange_(exchange), writer_(writer), answer_(answer), keep_alive_(keep_alive) {
    offsets_.resize(answer.results.size(), 0);
    n_calls_.resize(answer.results.size(), 0);
  }

  void run() {
    if (answer_.is_chat) {
      for (int i = 0; i < answer_.generation.n_texts(); ++i) send_delta(i, {{"role", "assistant"}, {"content", ""}});
    }
    while (is_open_ && !answer_.generation.is_done()) step();
    note_usage(exchange_, answer_.generation.usage());
    if (!is_open_) return;
    if (answer_.request.includes_usage) {
      const Json usage = openai_usage(answer_.generation.usage());
      send(openai_chunk(answer_.stamp, answer_.is_chat, nullptr, &usage));
    }
    write("data: [DONE]\n\n");
  }

 private:
  void step() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(last_write_ + keep_alive_ - Clock::now());
    if (left.count() <= 0) return write(": keep-alive\n\n");
    auto news = answer_.generation.next(exchange_, left);
    if (const auto* idle = std::get_if<Generation::Idle>(&news)) {
      if (*idle == Generation::Idle::kTimedOut) return;
      exchange_.note("client", *idle == Generation::Idle::kClientGone ? "gone" : "too slow");
      is_open_ = false;
      return;
    }
    auto& update = std::get<Update>(news);
    if (const auto failure = failure_of(update)) {
      exchange_.note("error", std::string(failure->what()).substr(0, 300));
      send(openai_error(*failure));
      is_open_ = false;
      return;
    }
    answer_.is_chat ? send_chat(update) : send_completion(update);
  }

  void send_chat(const Update& update) {
    const auto at = static_cast<std::size_t>(update.index);
    Json logprobs;
    if (answer_.has_logprobs() && !update.logprobs.empty()) {
      logprobs = chat_logprobs(answer_.backend.model.tokenizer(), update.logprobs);
    }
    for (const OutputPiece& piece : update.pieces) {
      Json delta;
      if (const auto* content = std::get_if<ContentPiece>(&piece)) delta = {{"content", content->text}};
      if (const auto* thought = std::get_if<ReasoningPiece>(&piece)) delta = {{"reasoning_content", thought->text}};
      if (const auto* call = std::get_if<ToolCall>(&piece)) {
        if (n_calls_[at] > 0 && !answer_.request.allows_several_calls) continue;
        Json made = chat_tool_calls({*call})[0];
        Json indexed = {{"index", n_calls_[at]++}};
        indexed.update(made);
        delta = {{"tool_calls", Json::array({std::move(indexed)})}};
      }
      send_delta(update.index, std::move(delta), std::exchange(logprobs, nullptr));
    }
    // Tokens whose text is held back have probabilities all the same.
    if (!logprobs.is_null()) send_delta(update.index, {{"content", ""}}, std::move(logprobs));
    if (update.finish) {
      send_delta(update.index, Json::object(), nullptr, openai_finish_reason(*update.finish, n_calls_[at] > 0));
    }
  }

  void send_completion(const Update& update) {
    std::string text;
    for (const OutputPiece& piece : update.pieces) {
      if (const auto* content = std::get_if<ContentPiece>(&piece)) text += content->text;
    }
    Json logprobs;
    if (answer_.has_logprobs() && !update.logprobs.empty()) {
      int& offset = offsets_[static_cast<std::size_t>(update.index)];
      logprobs = completion_logprobs(answer_.backend.model.tokenizer(), update.logprobs, offset);
    }
    if (text.empty() && logprobs.is_null() && !update.finish) return;
    Json finish = update.finish ? Json(openai_finish_reason(*update.finish, false)) : Json();
    send_choice({{"index", update.index},
                 {"text", text},
                 {"logprobs", std::move(logprobs)},
                 {"finish_reason", std::move(finish)}});
  }

  void send_delta(int index, Json delta, Json logprobs = nullptr, Json finish = nullptr) {
    send_choice({{"index", index},
                 {"delta", std::move(delta)},
                 {"logprobs", std::move(logprobs)},
                 {"finish_reason", std::move(finish)}});
  }

  void send_choice(Json choice) {
    const Json none;
    send(openai_chunk(answer_.stamp, answer_.is_chat, std::move(choice),
                      answer_.request.includes_usage ? &none : nullptr));
  }

  void send(const Json& value) { write(server_sent_event(value)); }

  void write(std::string_view data) {
    if (is_open_ && !writer_.write(data)) {
      exchange_.note("client", "gone");
      is_open_ = false;
    }
    last_write_ = Clock::now();
  }

  Exchange& exchange_;
  StreamWriter& writer_;
  Answer& answer_;
  std::chrono::milliseconds keep_alive_;
  std::vector<int> offsets_;
  std::vector<int> n_calls_;
  Clock::time_point last_write_ = Clock::now();
  bool is_open_ = true;
};

void give_answer(Exchange& exchange, std::shared_ptr<Answer> answer, const RouteOptions& options) {
  if (!answer->request.is_stream) return answer_whole(exchange, *answer);
  exchange.stream("text/event-stream",
                  [&exchange, answer, keep_alive = options.keep_alive_interval](StreamWriter& writer) {
                    ChunkStream(exchange, writer, *answer, keep_alive).run();
                  });
}

}  // namespace

bool follow(Exchange& exchange, Generation& generation, const std::function<void(Update&)>& take) {
  while (!generation.is_done()) {
    auto news = generation.next(exchange, kPatience);
    if (const auto* idle = std::get_if<Generation::Idle>(&news)) {
      if (*idle == Generation::Idle::kTimedOut) continue;
      reply_gone(exchange);
      return false;
    }
    auto& update = std::get<Update>(news);
    if (const auto failure = failure_of(update)) throw *failure;
    take(update);
  }
  return true;
}

void reply_gone(Exchange& exchange) {
  exchange.note("client", "gone");
  exchange.set_header("Connection", "close");
  exchange.reply(499, "");
}

void note_usage(Exchange& exchange, const Generation::Usage& usage) {
  exchange.note("prompt_tokens", usage.prompt_tokens);
  exchange.note("cached_tokens", usage.cached_tokens);
  exchange.note("completion_tokens", usage.completion_tokens);
  if (usage.drafted_tokens == 0) return;
  exchange.note("drafted_tokens", usage.drafted_tokens);
  exchange.note("accepted_tokens", usage.accepted_tokens);
}

std::optional<ApiError> failure_of(const Update& update) {
  if (update.failure) return update.failure;
  if (update.finish == engine::FinishReason::kCancelled) return cancelled_by_stop();
  return std::nullopt;
}

void answer_chat_completions(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options) {
  if (options.logs_prompts) exchange.note("prompt", body.value("messages", Json()));
  OpenAiRequest request = read_chat_request(body, *backend);
  give_answer(exchange, std::make_shared<Answer>(std::move(backend), std::move(request), true), options);
}

void answer_completions(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options) {
  if (options.logs_prompts) exchange.note("prompt", body.value("prompt", Json()));
  OpenAiRequest request = read_completion_request(body, *backend);
  give_answer(exchange, std::make_shared<Answer>(std::move(backend), std::move(request), false), options);
}

}  // namespace memoir::server
