// The real model, SmolLM2-135M-Instruct in Q4_1, against transformers on its dequantized weights in float32.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "memoir/engine/conversation.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/kernels/device.h"
#include "memoir/model/load.h"
#include "memoir/text/chat_template.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

// Activations are rounded to 16 bits, and so are keys and values unless float32 is asked for. llama.cpp, which rounds
// activations to 8, is off by up to 1.8 in the last rows, and its mean divergence is 2.5e-3
// (benches/compare_accuracy.py).
struct Bounds {
  cache::CacheOptions rows;
  float difference;
  float divergence;
};
const Bounds kBounds[] = {{{.dtype = mx::float32}, 2e-2F, 1e-6F}, {{}, 5e-2F, 5e-6F}};

// The mean over rows of the Kullback-Leibler divergence of softmax(logits) from softmax(expected).
float divergence(const mx::array& logits, const mx::array& expected) {
  const auto log_softmax = [](const mx::array& a) { return mx::subtract(a, mx::logsumexp(a, -1, true)); };
  const mx::array p = log_softmax(expected);
  return mx::mean(mx::sum(mx::multiply(mx::exp(p), mx::subtract(p, log_softmax(logits))), -1)).item<float>();
}

std::vector<TokenId> tokens_of(mx::array a) {
  mx::eval(a);
  return {a.data<std::int32_t>(), a.data<std::int32_t>() + a.size()};
}

class SmolLM2 : public testing::Test {
 protected:
  static void SetUpTestSuite() { loaded_ = new model::LoadedModel(model::load_model(MEMOIR_TEST_SMOLLM2)); }
  static void TearDownTestSuite() { delete loaded_; }

  const model::Model& model() const { return *loaded_->model; }
  const text::Tokenizer& tokenizer() const { return *loaded_->tokenizer; }

  std::string answer(engine::Session& session, const std::vector<TokenId>& prompt, int max_tokens,
                     std::vector<std::string> stops = {}) {
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.stop_tokens = loaded_->end_tokens;
    options.stop_strings = std::move(stops);
    std::string streamed;
    completion_ =
        engine::generate(session, prompt, options, &tokenizer(), [&](std::string_view text) { streamed += text; });
    EXPECT_EQ(streamed, completion_.text);
    return completion_.text;
  }

  static inline model::LoadedModel* loaded_ = nullptr;
  test::Tensors expected_ = mx::load_safetensors((test::data("smollm2_logits.safetensors")).string()).first;
  engine::Completion completion_;
};

TEST_F(SmolLM2, KeepsTheFilesQuantization) {
  EXPECT_TRUE(loaded_->notes.empty());
  // The file has 98,362,432 bytes, of which 1.8 million are metadata.
  EXPECT_LT(model().size_bytes(), 98'362'432U);
}

TEST_F(SmolLM2, LogitsAgreeWithTheReference) {
  for (const Bounds& bounds : kBounds) {
    for (int i = 0; i < 3; ++i) {
      const std::string prefix = std::to_string(i) + ".";
      const std::vector<TokenId> ids = tokens_of(expected_.at(prefix + "ids"));
      engine::Session session(model(), bounds.rows);
      const mx::array logits = mx::squeeze(session.forward(ids, model::LogitRows::kAll), 0);
      const auto expect_near = [&](const mx::array& rows, const mx::array& expected) {
        EXPECT_LT(mx::max(mx::abs(mx::subtract(rows, expected))).item<float>(), bounds.difference);
        EXPECT_LT(divergence(rows, expected), bounds.divergence);
      };
      expect_near(mx::take_along_axis(logits, expected_.at(prefix + "top10_ids"), 1),
                  expected_.at(prefix + "top10_logits"));
      expect_near(mx::take(logits, static_cast<int>(ids.size()) - 1, 0), expected_.at(prefix + "last_logits"));
    }
  }
}

TEST_F(SmolLM2, LogitsAreTheSameBitsInChunksOfAnySizeAndOnAnyThreads) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 140; ++i) tokens.push_back(100 + i * 211);
  const auto logits = [&](std::size_t n_chunk) {
    engine::Session session(model());
    std::vector<mx::array> parts;
    for (std::size_t begin = 0; begin < tokens.size(); begin += n_chunk) {
      const auto chunk = std::span(tokens).subspan(begin, std::min(n_chunk, tokens.size() - begin));
      parts.push_back(session.forward(chunk, model::LogitRows::kAll));
      mx::eval(parts.back());
    }
    return mx::concatenate(parts, 1);
  };
  const int before = kernels::cpu_threads();
  const mx::array whole = logits(tokens.size());
  for (const std::size_t n_chunk : {1U, 7U, 64U}) {
    kernels::set_cpu_threads(n_chunk == 7 ? 1 : 2);
    EXPECT_TRUE(mx::array_equal(logits(n_chunk), whole).item<bool>()) << "chunks of " << n_chunk;
  }
  kernels::set_cpu_threads(before);
}

TEST_F(SmolLM2, GreedyTokensAgreeWithTheReference) {
  for (int i = 0; i < 3; ++i) {
    const std::string prefix = std::to_string(i) + ".";
    engine::Session session(model());
    engine::GenerateOptions options;
    options.max_tokens = 32;
    const auto completion = engine::generate(session, tokens_of(expected_.at(prefix + "ids")), options, &tokenizer());
    EXPECT_EQ(completion.tokens, tokens_of(expected_.at(prefix + "greedy")));
  }
}

TEST_F(SmolLM2, KnowsTheCapitalOfFrance) {
  engine::Session session(model());
  EXPECT_NE(answer(session, tokenizer().encode("The capital of France is"), 8).find("Paris"), std::string::npos);
}

TEST_F(SmolLM2, StopStringsEndTheTextBeforeThem) {
  engine::Session session(model());
  const std::string text = answer(session, tokenizer().encode("The capital of France is"), 16, {"Par", "xyz"});
  EXPECT_EQ(text, " ");
  EXPECT_EQ(completion_.finish_reason, engine::FinishReason::kStop);
}

// A generation that is left in the middle has a pass scheduled ahead, which must not go on in memory that the end of
// the process frees. Several times, since it depends on how far the pass has come.
TEST_F(SmolLM2, AProcessMayEndWhileAPassIsUnderWay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave_in_the_middle = [this] {
    {
      engine::Session session(model());
      engine::Generation generation(session, {});
      generation.start(std::vector<TokenId>{1, 2, 3, 5, 7, 9});
      generation.next();
    }
    std::exit(0);
  };
  for (int i = 0; i < 12; ++i) EXPECT_EXIT(leave_in_the_middle(), testing::ExitedWithCode(0), "");
}

TEST_F(SmolLM2, AChatComputesNothingTwice) {
  const text::ChatTemplate chat_template(*tokenizer().chat_template());
  engine::Conversation conversation(tokenizer(), chat_template);
  engine::Session session(model());
  std::size_t n_known = 0;
  for (const char* message : {"What is the capital of France?", "And of Italy?", "Thank you. \xF0\x9F\x98\x80"}) {
    conversation.add_message("user", message);
    const std::vector<TokenId> prompt = conversation.prompt();
    answer(session, prompt, 24);
    EXPECT_EQ(completion_.cached_tokens, static_cast<int>(n_known)) << message;
    EXPECT_EQ(completion_.prompt_tokens, static_cast<int>(prompt.size()));
    conversation.add_answer(completion_.text, completion_.tokens);
    n_known = session.tokens().size();
  }
  EXPECT_EQ(conversation.messages().size(), 6U);
}

TEST_F(SmolLM2, AChatsPromptIsWhatItsTemplateRenders) {
  const text::ChatTemplate chat_template(*tokenizer().chat_template());
  engine::Conversation conversation(tokenizer(), chat_template);
  conversation.add_message("user", "1+1?");
  conversation.prompt();
  const std::vector<TokenId> answer_tokens = tokenizer().encode("2");
  conversation.add_answer("2", answer_tokens);
  conversation.add_message("user", "And 2+2?\n");
  const auto json = nlohmann::json::parse(test::read_file(test::data("smollm2_chat.json")));
  const nlohmann::json& golden = json["conversations"][2];
  EXPECT_EQ(tokenizer().decode(conversation.prompt()), golden["text"].get<std::string>());
  EXPECT_EQ(conversation.prompt(), golden["ids"].get<std::vector<TokenId>>());
}

TEST_F(SmolLM2, AMessageThatCannotBeAnsweredIsTakenBack) {
  const text::ChatTemplate chat_template(*tokenizer().chat_template());
  engine::Conversation conversation(tokenizer(), chat_template);
  conversation.add_message("user", "one");
  const std::vector<TokenId> before = conversation.prompt();
  conversation.add_message("user", "two");
  EXPECT_NE(conversation.prompt(), before);
  conversation.drop_last_message();
  EXPECT_EQ(conversation.prompt(), before);
}

}  // namespace
}  // namespace memoir
