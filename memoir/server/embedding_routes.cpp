#include "memoir/server/embedding_routes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <utility>

#include "memoir/server/embeddings.h"
#include "memoir/server/ollama_request.h"
#include "memoir/server/openai_request.h"

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxTexts = 2048;  // as OpenAI's

void check_dimensions(const Fields& body, const ServedModel& model) {
  const auto dimensions = body.integer("dimensions", 0, 1 << 30);
  if (!dimensions || *dimensions == model.n_embedding()) return;
  throw unsupported_field("dimensions", "the model's embeddings have " + std::to_string(model.n_embedding()) +
                                            " values, others are not supported");
}

/// Answers nothing and returns nullopt if the client has gone.
std::optional<Embeddings> embed_for(Exchange& exchange, const Backend& backend, const RouteOptions& options,
                                    const std::vector<Prompt>& texts, const std::string& field) {
  std::optional<Embeddings> made = embed(texts, backend, options.pooling, exchange, field);
  if (made) {
    exchange.note("texts", texts.size());
    exchange.note("prompt_tokens", made->n_prompt_tokens);
  } else {
    reply_gone(exchange);
  }
  return made;
}

std::string list_of(const std::vector<std::vector<float>>& vectors) {
  std::string text = "[";
  for (const auto& vector : vectors) text += (text.size() > 1 ? "," : "") + json_list(vector);
  return text + "]";
}

// {"a": 1} and "b": [...] together. The numbers are many, and a tree of them would be large.
std::string with_member(const Json& object, const std::string& name, const std::string& value) {
  std::string text = dump(object);
  text.pop_back();
  return text + (object.empty() ? "" : ",") + dump(name) + ":" + value + "}";
}

// As text_prompt, but an empty text has no embedding.
std::vector<Prompt> read_input(const Fields& body, const ServedModel& model) {
  const Json* input = body.find("input");
  if (!input) throw bad_field("input", "is missing");
  const auto is_empty = [](const Json& one) { return one.empty() || one == ""; };
  if (is_empty(*input) || (input->is_array() && std::any_of(input->begin(), input->end(), is_empty))) {
    throw bad_field("input", "is empty, or has an empty member");
  }
  return read_prompts(body, "input", model, kMaxTexts);
}

// The texts of Ollama's input, of which empty ones have no embedding.
std::vector<Prompt> read_ollama_input(const Fields& body, const ServedModel& model) {
  std::vector<Prompt> texts;
  for (const std::string& text : body.texts("input", kMaxTexts)) {
    if (!text.empty()) texts.push_back(text_prompt(model, text));
  }
  if (body.flag("truncate").value_or(true)) {
    for (Prompt& text : texts) {
      text.tokens.resize(std::min(text.tokens.size(), static_cast<std::size_t>(model.context())));
    }
  }
  return texts;
}

}  // namespace

std::string json_list(const std::vector<float>& values) {
  std::string text = "[";
  for (const float value : values) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    if (text.size() > 1) text += ',';
    text.append(digits.data(), end);
  }
  return text + "]";
}

std::string base64(const std::vector<float>& values) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  std::uint32_t bits = 0;
  int n_bits = 0;
  for (const float value : values) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bits = bits << 8U | (word >> shift & 0xFFU);
      for (n_bits += 8; n_bits >= 6; n_bits -= 6) text += kLetters[bits >> (n_bits - 6) & 63U];
    }
  }
  if (n_bits > 0) text += kLetters[bits << (6 - n_bits) & 63U];
  while (text.size() % 4 != 0) text += '=';
  return text;
}

void answer_embeddings(Exchange& exchange, const Json& json, BackendLease lease, const RouteOptions& options) {
  const Backend& backend = *lease;
  const Fields body(json);
  check_model_name(body, backend.model);
  if (options.logs_prompts) exchange.note("prompt", json.value("input", Json()));
  const std::string format = body.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    throw unsupported_field("encoding_format", "is neither float nor base64");
  }
  check_dimensions(body, backend.model);
  const auto made = embed_for(exchange, backend, options, read_input(body, backend.model), "input");
  if (!made) return;
  std::string data = "[";
  for (std::size_t i = 0; i < made->vectors.size(); ++i) {
    const std::vector<float>& vector = made->vectors[i];
    data += (i > 0 ? "," : "") + with_member({{"object", "embedding"}, {"index", i}}, "embedding",
                                             format == "float" ? json_list(vector) : "\"" + base64(vector) + "\"");
  }
  exchange.reply(
      200, with_member({{"object", "list"},
                        {"model", backend.model.name()},
                        {"usage", {{"prompt_tokens", made->n_prompt_tokens}, {"total_tokens", made->n_prompt_tokens}}}},
                       "data", data + "]"));
}

void answer_ollama_embed(Exchange& exchange, const Json& json, BackendLease lease, const RouteOptions& options) {
  const Backend& backend = *lease;
  const auto begin = Clock::now();
  const Fields body(json);
  const std::string name = ollama_model_name(body, backend.model);
  if (options.logs_prompts) exchange.note("prompt", json.value("input", Json()));
  check_dimensions(body, backend.model);
  read_keep_alive(body);
  const auto made = embed_for(exchange, backend, options, read_ollama_input(body, backend.model), "input");
  if (!made) return;
  const std::chrono::nanoseconds elapsed = Clock::now() - begin;
  exchange.reply(200, with_member({{"model", name},
                                   {"total_duration", elapsed.count()},
                                   {"load_duration", 0},
                                   {"prompt_eval_count", made->n_prompt_tokens}},
                                  "embeddings", list_of(made->vectors)));
}

void answer_ollama_embeddings(Exchange& exchange, const Json& json, BackendLease lease, const RouteOptions& options) {
  const Backend& backend = *lease;
  const Fields body(json);
  ollama_model_name(body, backend.model);
  if (options.logs_prompts) exchange.note("prompt", json.value("prompt", Json()));
  read_keep_alive(body);
  const std::string prompt = body.text("prompt").value_or("");
  std::vector<Prompt> texts;
  if (!prompt.empty()) texts.push_back(text_prompt(backend.model, prompt));
  const auto made = embed_for(exchange, backend, options, texts, "prompt");
  if (!made) return;
  const std::vector<float> values = made->vectors.empty() ? std::vector<float>() : made->vectors[0];
  exchange.reply(200, with_member(Json::object(), "embedding", json_list(values)));
}

}  // namespace memoir::server
