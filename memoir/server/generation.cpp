#include "memoir/server/generation.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memoir/base/error.h"

namespace memoir::server {
namespace {

// Some thousand tokens that wait for a client that reads slowly.
constexpr std::size_t kMaxWaitingEvents = 8192;

// The engine's message without the function's name: "[engine.submit] the prompt ..."
std::string reason_of(const std::invalid_argument& error) {
  const std::string text = error.what();
  const std::size_t bracket = text.find("] ");
  return text.starts_with('[') && bracket != std::string::npos ? text.substr(bracket + 2) : text;
}

int max_tokens_for(const Prompt& prompt, const GenerationOptions& options, int context, const std::string& field) {
  check_length(prompt, context, field);
  const int room = std::max(1, context - static_cast<int>(prompt.tokens.size()));
  return options.max_tokens ? std::min(*options.max_tokens, room) : room;
}

}  // namespace

ApiError failure_of(const engine::Failed& failed) {
  if (!failed.faulty_field) return engine_failure(failed.message);
  return failed.faulty_field->empty() ? ApiError(400, failed.message) : bad_field(*failed.faulty_field, failed.message);
}

void check_length(const Prompt& prompt, int context, const std::string& field) {
  const std::size_t n_prompt = prompt.tokens.size();
  if (n_prompt <= static_cast<std::size_t>(context)) return;
  throw ApiError(400,
                 field + ": the prompt has " + std::to_string(n_prompt) + " tokens, more than the model's context of " +
                     std::to_string(context),
                 field, "context_length_exceeded");
}

std::optional<engine::RequestId> submit_request(engine::Service& service, engine::Request request) {
  std::variant<engine::RequestId, engine::Refusal> answer;
  try {
    answer = service.submit(std::move(request));
  } catch (const std::invalid_argument& error) {
    throw ApiError(400, reason_of(error));
  }
  if (const auto* refusal = std::get_if<engine::Refusal>(&answer)) {
    if (*refusal == engine::Refusal::kQueueFull) return std::nullopt;
    throw not_ready("the server is stopping");
  }
  return std::get<engine::RequestId>(answer);
}

std::shared_ptr<engine::Constraint> Constraints::of(const ServedModel& model, const Json& schema,
                                                    const std::string& field) {
  const std::string key = dump(schema);
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.first == key; });
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return known->second;
  }
  std::shared_ptr<const engine::JsonSchema> parsed;
  try {
    parsed = std::make_shared<const engine::JsonSchema>(schema.is_null() ? engine::JsonSchema::any_object()
                                                                         : engine::JsonSchema::parse(schema));
  } catch (const InputError& error) {
    throw bad_field(field, error.what());
  }
  auto constraint = std::make_shared<engine::Constraint>(std::move(parsed), model.json_vocabulary());
  kept_.emplace_front(key, constraint);
  if (kept_.size() > kMaxKept) kept_.pop_back();
  return constraint;
}

Generation::Generation(const Backend& backend)
    : backend_(backend), queue_(std::make_shared<EventQueue>(kMaxWaitingEvents)) {}

Generation::~Generation() {
  for (const Text& text : texts_) {
    if (!text.has_ended) backend_.service.cancel(text.id);
  }
}

void Generation::submit(const Prompt& prompt, const GenerationOptions& options, const std::string& field) {
  const int max_texts = backend_.service.max_requests();
  if (options.n > max_texts - n_texts()) {
    throw bad_field(options.n > 1 ? "n" : field,
                    "asks for more texts than the " + std::to_string(max_texts) + " that this server takes at once");
  }
  for (int i = 0; i < options.n; ++i) {
    engine::Request request;
    request.prompt = prompt.tokens;
    request.turn_ends = prompt.turn_ends;
    request.max_tokens = max_tokens_for(prompt, options, backend_.model.context(), field);
    request.sampler = options.sampler;
    if (request.sampler.seed) *request.sampler.seed += static_cast<std::uint64_t>(i);
    request.stop_tokens = backend_.model.end_tokens();
    request.stop_strings = options.stops;
    request.n_likeliest = options.n_likeliest;
    request.priority = options.priority;
    if (!options.branches.empty()) {
      request.processor = std::make_unique<engine::GrammarProcessor>(options.branches, backend_.model.end_tokens());
    }
    const int index = n_texts();
    request.on_event = [queue = queue_, index](const engine::Event& event) { queue->push(index, event); };
    const auto now = std::chrono::steady_clock::now();
    const auto id = submit_request(backend_.service, std::move(request));
    if (!id) throw queue_full();
    OutputParser::Options output = options.output;
    output.begins_in_thoughts = prompt.begins_in_thoughts && output.finds_thoughts;
    texts_.push_back({.id = *id,
                      .parser = OutputParser(output),
                      .parses_output = options.parses_output,
                      .is_first = i == 0,
                      .submitted = now,
                      .counts = {}});
    texts_.back().counts.prompt_tokens = static_cast<int>(prompt.tokens.size());
    ++n_open_;
  }
}

std::variant<Update, Generation::Idle> Generation::next(ClientWatch& client, std::chrono::milliseconds timeout) {
  const auto result = queue_->wait(client, timeout);
  if (const auto* none = std::get_if<EventQueue::NoItem>(&result)) {
    if (*none == EventQueue::NoItem::kTimedOut) return Idle::kTimedOut;
    backend_.metrics.add_client_gone();
    return *none == EventQueue::NoItem::kClientGone ? Idle::kClientGone : Idle::kTooSlow;
  }
  const auto& item = std::get<EventQueue::Item>(result);
  Text& text = texts_[static_cast<std::size_t>(item.index)];
  Update update;
  update.index = item.index;
  if (const auto* token = std::get_if<engine::TokenEvent>(&item.event)) {
    take_token(text, item, *token, update);
  } else if (const auto* finished = std::get_if<engine::Finished>(&item.event)) {
    if (text.parses_output) {
      update.pieces = text.parser.push(finished->text);
      for (OutputPiece& piece : text.parser.finish()) update.pieces.push_back(std::move(piece));
    } else if (!finished->text.empty()) {
      update.pieces.emplace_back(ContentPiece{finished->text});
    }
    update.finish = finished->reason;
    end(text, finished->counts);
  } else if (const auto* failed = std::get_if<engine::Failed>(&item.event)) {
    update.failure = failure_of(*failed);
    end(text, failed->counts);
  }
  return update;
}

void Generation::take_token(Text& text, const EventQueue::Item& item, const engine::TokenEvent& event, Update& update) {
  if (!std::exchange(text.has_token, true)) {
    backend_.metrics.add_first_token(std::chrono::duration<double>(item.time - text.submitted).count());
  }
  ++text.n_tokens;
  std::string added = event.text;
  if (text.parses_output && backend_.model.tokenizer().is_special(event.token)) {
    // Special tokens leave no text, and some are what a call is known by.
    const std::string& marker = backend_.model.tokenizer().token_text(event.token);
    if (text.parser.wants(marker)) added = marker + added;
  }
  if (!text.parses_output) {
    if (!added.empty()) update.pieces.emplace_back(ContentPiece{std::move(added)});
  } else {
    update.pieces = text.parser.push(added);
  }
  update.logprobs.push_back({event.token, event.log_probability, event.likeliest});
}

void Generation::end(Text& text, const engine::Counts& counts) {
  const int n_prompt = text.counts.prompt_tokens;
  text.has_ended = true;
  text.counts = counts;
  text.counts.prompt_tokens = std::max(counts.prompt_tokens, n_prompt);
  --n_open_;
  backend_.metrics.add_queue_time(counts.queued_s);
  if (counts.completion_tokens > 1)
    backend_.metrics.add_token_interval(counts.decode_s / (counts.completion_tokens - 1));
}

Generation::Usage Generation::usage() const {
  Usage usage;
  for (const Text& text : texts_) {
    if (text.is_first) {
      usage.prompt_tokens += text.counts.prompt_tokens;
      usage.cached_tokens += text.counts.cached_tokens;
    }
    usage.completion_tokens += text.has_ended ? text.counts.completion_tokens : text.n_tokens;
    usage.drafted_tokens += text.counts.drafted_tokens;
    usage.accepted_tokens += text.counts.accepted_tokens;
    usage.prefill_s += text.counts.prefill_s;
    usage.decode_s += text.counts.decode_s;
    usage.queued_s += text.counts.queued_s;
  }
  return usage;
}

}  // namespace memoir::server
