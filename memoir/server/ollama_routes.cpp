#include "memoir/server/ollama_routes.h"

#include <memory>
#include <utility>

#include "memoir/server/ollama_request.h"
#include "memoir/server/ollama_response.h"

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{60'000};

struct Answer {
  Answer(BackendLease used, OllamaRequest asked, bool is_of_chat)
      : lease(std::move(used)), request(std::move(asked)), is_chat(is_of_chat), generation(backend) {
    if (request.prompt) generation.submit(*request.prompt, request.options, is_chat ? "messages" : "prompt");
  }

  Json part(const OllamaPart& news) const {
    return ollama_part(request.model, is_chat, news, backend.model.tokenizer(),
                       request.options.n_likeliest.has_value());
  }

  Json last_part(const OllamaPart& news) const {
    Json made = part(news);
    if (!request.prompt) {
      made["done"] = true;
      made["done_reason"] = "load";
    } else {
      finish_ollama(made, reason, generation.usage(), Clock::now() - begin);
    }
    return made;
  }

  BackendLease lease;
  const Backend& backend = *lease;
  OllamaRequest request;
  bool is_chat;
  Generation generation;
  std::string reason;
  Clock::time_point begin = Clock::now();
};

void add_update(const Answer& answer, Update& update, OllamaPart& part) {
  for (OutputPiece& piece : update.pieces) {
    if (auto* content = std::get_if<ContentPiece>(&piece)) part.content += content->text;
    if (auto* thought = std::get_if<ReasoningPiece>(&piece); thought && !answer.request.hides_thoughts) {
      part.thinking += thought->text;
    }
    if (auto* call = std::get_if<ToolCall>(&piece)) part.calls.push_back(std::move(*call));
  }
  for (TokenLogprob& one : update.logprobs) part.logprobs.push_back(std::move(one));
}

void answer_whole(Exchange& exchange, Answer& answer) {
  OllamaPart part;
  const auto take = [&](Update& update) {
    add_update(answer, update, part);
    if (update.finish) answer.reason = finish_reason_name(*update.finish);
  };
  if (!follow(exchange, answer.generation, take)) return;
  note_usage(exchange, answer.generation.usage());
  exchange.reply(200, dump(answer.last_part(part)));
}

void write_lines(Exchange& exchange, StreamWriter& writer, Answer& answer) {
  const auto write = [&](const Json& value) { return writer.write(dump(value) + "\n"); };
  bool is_open = true;
  while (is_open && !answer.generation.is_done()) {
    auto news = answer.generation.next(exchange, kPatience);
    if (const auto* idle = std::get_if<Generation::Idle>(&news)) {
      if (*idle == Generation::Idle::kTimedOut) continue;
      exchange.note("client", *idle == Generation::Idle::kClientGone ? "gone" : "too slow");
      return;
    }
    auto& update = std::get<Update>(news);
    if (const auto failure = failure_of(update)) {
      exchange.note("error", std::string(failure->what()).substr(0, 300));
      write(ollama_error(*failure));
      return;
    }
    if (update.finish) answer.reason = finish_reason_name(*update.finish);
    OllamaPart part;
    add_update(answer, update, part);
    const bool has_news = !part.content.empty() || !part.thinking.empty() || !part.calls.empty() ||
                          (answer.request.options.n_likeliest && !part.logprobs.empty());
    if (has_news) is_open = write(answer.part(part));
  }
  note_usage(exchange, answer.generation.usage());
  if (!is_open || !write(answer.last_part({}))) exchange.note("client", "gone");
}

void give_answer(Exchange& exchange, std::shared_ptr<Answer> answer) {
  if (!answer->request.is_stream) return answer_whole(exchange, *answer);
  exchange.stream("application/x-ndjson",
                  [&exchange, answer](StreamWriter& writer) { write_lines(exchange, writer, *answer); });
}

}  // namespace

void answer_ollama_generate(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options) {
  if (options.logs_prompts) exchange.note("prompt", body.value("prompt", Json()));
  OllamaRequest request = read_ollama_generate(body, *backend);
  give_answer(exchange, std::make_shared<Answer>(std::move(backend), std::move(request), false));
}

void answer_ollama_chat(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options) {
  if (options.logs_prompts) exchange.note("prompt", body.value("messages", Json()));
  OllamaRequest request = read_ollama_chat(body, *backend);
  give_answer(exchange, std::make_shared<Answer>(std::move(backend), std::move(request), true));
}

bool only_unloads(const Json& json, bool is_chat) {
  const Fields body(json);
  const KeepAlive keep_alive = read_keep_alive(body).value_or(KeepAlive{});
  if (!keep_alive.time || keep_alive.time->count() > 0) return false;
  if (!is_chat) return body.text("prompt").value_or("").empty();
  const Json* messages = body.list("messages");
  return !messages || messages->empty();
}

void answer_unloaded(Exchange& exchange, const Json& json, bool is_chat) {
  const Fields body(json);
  const bool is_stream = body.flag("stream").value_or(true);
  const std::string text = dump(ollama_unloaded(requested_model(body), is_chat));
  exchange.reply(200, text + (is_stream ? "\n" : ""), is_stream ? "application/x-ndjson" : "application/json");
}

}  // namespace memoir::server
