#include "memoir/server/ollama_response.h"

#include <array>
#include <cstdio>
#include <utility>

#include "memoir/server/log.h"
#include "memoir/server/openai_response.h"

namespace memoir::server {
namespace {

constexpr const char* kNever = "2300-01-01T00:00:00Z";

std::int64_t nanoseconds(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::string tagged(const std::string& name) {
  return name.find(':') == std::string::npos ? name + ":latest" : name;
}

// Tells models apart by name, size and time; no checksum of the file, which would have to be read for it.
std::string digest_of(const ListedModel& model) {
  const auto& details = model.details;
  const std::string text = model.name + "\n" + std::to_string(details.size_bytes) + "\n" +
                           std::to_string(details.modified.time_since_epoch().count());
  std::string digest;
  for (std::uint64_t part = 0; part < 4; ++part) {
    std::uint64_t hash = 0xcbf29ce484222325U ^ part;  // FNV-1a
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
    digest += digits.data();
  }
  return digest;
}

Json details_of(const ModelDetails& details) {
  return {{"parent_model", ""},
          {"format", details.format},
          {"family", details.family},
          {"families", Json::array({details.family})},
          {"parameter_size", details.parameter_size},
          {"quantization_level", details.quantization}};
}

Json entry_of(const ListedModel& model) {
  return {{"name", tagged(model.name)},
          {"model", tagged(model.name)},
          {"size", model.details.size_bytes},
          {"digest", digest_of(model)},
          {"details", details_of(model.details)}};
}

}  // namespace

Json ollama_part(const std::string& model, bool is_chat, const OllamaPart& part, const text::Tokenizer& tokenizer,
                 bool has_logprobs) {
  Json made = {{"model", model}, {"created_at", utc_time(std::chrono::system_clock::now(), 9)}};
  if (is_chat) {
    Json message = {{"role", "assistant"}, {"content", part.content}};
    if (!part.thinking.empty()) message["thinking"] = part.thinking;
    for (const ToolCall& call : part.calls) {
      message["tool_calls"].push_back(
          {{"function", {{"name", call.name}, {"arguments", Json::parse(call.arguments)}}}});
    }
    made["message"] = std::move(message);
  } else {
    made["response"] = part.content;
    if (!part.thinking.empty()) made["thinking"] = part.thinking;
  }
  made["done"] = false;
  if (has_logprobs && !part.logprobs.empty()) made["logprobs"] = logprob_list(tokenizer, part.logprobs);
  return made;
}

void finish_ollama(Json& part, const std::string& reason, const Generation::Usage& usage,
                   std::chrono::nanoseconds total) {
  part["done"] = true;
  part["done_reason"] = reason;
  part["total_duration"] = total.count();
  part["load_duration"] = 0;
  part["prompt_eval_count"] = usage.prompt_tokens;
  part["prompt_eval_duration"] = nanoseconds(usage.prefill_s);
  part["eval_count"] = usage.completion_tokens;
  part["eval_duration"] = nanoseconds(usage.decode_s);
}

Json ollama_unloaded(const std::string& model, bool is_chat) {
  Json made = {{"model", model}, {"created_at", utc_time(std::chrono::system_clock::now(), 9)}};
  if (is_chat) {
    made["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    made["response"] = "";
  }
  made["done"] = true;
  made["done_reason"] = "unload";
  return made;
}

Json ollama_error(const ApiError& error) {
  return {{"error", error.what()}};
}

Json ollama_tags(const std::vector<ListedModel>& models) {
  Json list = Json::array();
  for (const ListedModel& model : models) {
    Json entry = entry_of(model);
    entry["modified_at"] = utc_time(model.details.modified, 9);
    list.push_back(std::move(entry));
  }
  return {{"models", std::move(list)}};
}

Json ollama_running(const ListedModel& listed, const ServedModel& model,
                    std::optional<std::chrono::milliseconds> expires_in) {
  Json entry = entry_of(listed);
  entry["size"] = model.details().size_bytes;
  entry["expires_at"] = expires_in ? utc_time(std::chrono::system_clock::now() + *expires_in, 9) : kNever;
  entry["size_vram"] = 0;
  entry["context_length"] = model.context();
  return entry;
}

Json ollama_show(const ServedModel& model) {
  const auto& details = model.details();
  Json info = {{"general.architecture", details.family}};
  if (details.n_parameters > 0) info["general.parameter_count"] = details.n_parameters;
  info[details.family + ".context_length"] = model.context();
  info[details.family + ".vocab_size"] = model.n_vocab();
  if (model.n_embedding() > 0) info[details.family + ".embedding_length"] = model.n_embedding();
  Json capabilities = Json::array({"completion"});
  if (model.chat_template()) capabilities.push_back("tools");
  if (model.may_think()) capabilities.push_back("thinking");
  return {{"modelfile", "FROM " + model.name()},
          {"parameters", ""},
          {"template", model.tokenizer().chat_template().value_or("")},
          {"license", ""},
          {"details", details_of(details)},
          {"model_info", std::move(info)},
          {"capabilities", std::move(capabilities)},
          {"modified_at", utc_time(details.modified, 9)}};
}

}  // namespace memoir::server
