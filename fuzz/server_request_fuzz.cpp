// Any bytes as the body of every kind of request, as a JSON schema and as a model's output. Only the server's and the
// library's own errors may come out.

#include <cstddef>
#include <cstdint>
#include <string>

#include "memoir/base/error.h"
#include "memoir/engine/json_grammar.h"
#include "memoir/engine/request_fault.h"
#include "memoir/server/ollama_request.h"
#include "memoir/server/openai_request.h"

namespace {

using namespace memoir;

constexpr const char* kTokenizer = R"({"version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "post_processor": null, "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "unk_token": null}})";

class NoService : public engine::Service {
 public:
  std::variant<engine::RequestId, engine::Refusal> submit(engine::Request) override {
    return engine::Refusal::kQueueFull;
  }
  void cancel(engine::RequestId) override {}
  engine::ServiceStats stats() const override { return {}; }
  void drain(std::chrono::steady_clock::time_point) override {}
};

const server::ServedModel& model() {
  static const server::ServedModel kModel(
      {"m", text::Tokenizer::from_json(kTokenizer, "tokenizer.json"), {3}, 4096, 4, {}});
  return kModel;
}

template <typename Function>
void run(const Function& function) {
  try {
    function();
  } catch (const server::ApiError&) {
  } catch (const InputError&) {
  } catch (const engine::RequestFault&) {
  }
}

void try_requests(const std::string& body) {
  static NoService service;
  static server::Metrics metrics;
  server::Constraints constraints;
  const server::Backend backend{service, model(), metrics, constraints};
  run([&] {
    const server::Json json = server::parse_body(body);
    run([&] { server::read_chat_request(json, backend); });
    run([&] { server::read_completion_request(json, backend); });
    run([&] { server::read_ollama_chat(json, backend); });
    run([&] { server::read_ollama_generate(json, backend); });
    if (json.contains("messages")) run([&] { server::template_messages(json["messages"], "messages"); });
    run([&] {
      auto schema = std::make_shared<const engine::JsonSchema>(engine::JsonSchema::parse(json));
      engine::JsonGrammar grammar(std::move(schema));
      engine::JsonGrammar::State state = grammar.start();
      for (const char c : body.substr(0, 200)) {
        if (state != engine::JsonGrammar::kRefused) state = grammar.step(state, static_cast<std::uint8_t>(c));
      }
    });
  });
}

void try_output(const std::string& text) {
  using server::ToolFormat;
  for (const ToolFormat format :
       {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral, ToolFormat::kHarmony}) {
    server::OutputParser parser({format, true, true, text.size() % 2 == 0});
    for (std::size_t at = 0; at < text.size(); at += 7) parser.push(std::string_view(text).substr(at, 7));
    parser.finish();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n_bytes) {
  const std::string text(reinterpret_cast<const char*>(data), n_bytes);
  try_requests(text);
  try_output(text);
  return 0;
}
