// `memoir chat` with lines from a file, as programs use it.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <nlohmann/json.hpp>

#include "tests/cli_runner.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::Outcome;

constexpr const char* kSmolLM2 = MEMOIR_TEST_SMOLLM2;

class CliChat : public test::Cli {
 protected:
  // The tiny model with the vocabulary of tests/data/tokenizer/llama3.json, 526 tokens, and n_padding more.
  std::string chat_model(const std::string& chat_template, int n_padding = 0) const {
    const test::fs::path model = test::copied_model(folder_, "llama");
    const int n_vocab = 526 + n_padding;
    test::edit_config(model, [&](nlohmann::json& config) {
      config["vocab_size"] = n_vocab;
      config["max_position_embeddings"] = 64;
    });
    test::edit_tensors(model, [&](test::Tensors& tensors) {
      for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
        mx::array& rows = tensors.at(name);  // 160 of them, over and over
        rows = mx::contiguous(mx::slice(mx::tile(rows, {5, 1}), {0, 0}, {n_vocab, rows.shape(1)}));
        mx::eval(rows);
      }
    });
    test::fs::copy_file(test::data("tokenizer/llama3.json"), model / "tokenizer.json");
    test::write_file(model / "tokenizer_config.json", nlohmann::json{{"chat_template", chat_template}}.dump());
    return model.string();
  }

  static int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
};

constexpr const char* kPlain = "{% for m in messages %}<{{ m.content }}>{% endfor %}";

TEST_F(CliChat, AnswersLinesAndReusesTheConversation) {
  const Outcome outcome =
      run(std::string("chat -m ") + kSmolLM2 + " -n 12 --temp 0 --stats",
          "What is the capital of France?\nAnd of Italy?\n\n/frob\n/reset \n/help\nWhat is the capital of France?\n"
          "/exit\nWhat is the capital of France?\n");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string first = outcome.out.substr(0, outcome.out.find('\n') + 1);
  EXPECT_NE(first.find("Paris"), std::string::npos) << outcome.out;
  std::vector<int> cached;
  const std::string key = "cached_tokens ";
  for (std::size_t at = outcome.err.find(key); at != std::string::npos; at = outcome.err.find(key, at + 1)) {
    cached.push_back(std::atoi(outcome.err.c_str() + at + key.size()));
  }
  EXPECT_NE(outcome.err.find("memoir: unknown command /frob"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("/reset  a new conversation"), std::string::npos) << outcome.err;
  ASSERT_EQ(cached.size(), 3U) << outcome.err;
  EXPECT_EQ(cached[0], 0);
  EXPECT_GT(cached[1], 40);  // the first prompt of 37 tokens, and its answer
  EXPECT_EQ(cached[2], 36);  // the first question again: all but its last token
}

TEST_F(CliChat, GoesOnAfterAMessageThatTheTemplateRefuses) {
  const std::string model = chat_model(
      "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no bad words') }}{% endif %}"
      "<{{ m.content }}>{% endfor %}");
  const Outcome outcome = run("chat -m " + model + " -n 2 --stats --temp 0", "hi\nbad\nhello\n");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(count(outcome.err, "no bad words"), 1) << outcome.err;
  EXPECT_EQ(count(outcome.err, "[prompt_tokens "), 2) << outcome.err;
  EXPECT_EQ(count(outcome.err, "cached_tokens 0"), 1) << outcome.err;  // the second answer has the first one's cache
  EXPECT_EQ(run("chat -m " + model + " -n 2", "hi\nhello\n").status, 0);
}

TEST_F(CliChat, GoesOnAfterAMessageThatIsTooLong) {
  const std::string model = chat_model(kPlain);
  const Outcome outcome = run("chat -m " + model + " -n 2 --stats", "hi\n" + std::string(200, '!') + "?\nhello\n");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(count(outcome.err, "the model's context is 64: shorten it"), 1) << outcome.err;
  EXPECT_EQ(count(outcome.err, "[prompt_tokens "), 2) << outcome.err;
}

TEST_F(CliChat, AContextThatShiftsHoldsAnyConversation) {
  const std::string command = "chat -m " + chat_model(kPlain) + " -n 30 --stats --temp 0";
  const std::string lines = "hi\nhello there\nand more\n" + std::string(200, '!') + "?\nonce again\n";
  EXPECT_EQ(run(command, lines).status, 1);
  const Outcome outcome = run(command + " --context-shift --keep 2", lines);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(count(outcome.err, "[prompt_tokens "), 5) << outcome.err;
}

// Hot, so that every token is as likely as another: half of them are padding.
TEST_F(CliChat, PaddingOfTheVocabularyIsNeverSaid) {
  const std::string model = chat_model(kPlain, 270);
  const std::string options = " -m " + model + " -n 20 --temp 1000 --seed 1";
  const Outcome chat = run("chat" + options, "hi\nhello\n");
  EXPECT_EQ(chat.status, 0) << chat.err;
  EXPECT_EQ(run("generate" + options + " --tokens 1,2").status, 0);
}

// What a model's file says could otherwise fake a line, or move the cursor.
TEST_F(CliChat, MessagesShowControlCharactersOfAFileWrittenOut) {
  const std::string model = chat_model("{{ raise_exception('x\\nmemoir: fake\\x1b[31m' ~ messages[0].content) }}");
  const Outcome outcome = run("chat -m " + model, std::string(100000, 'y') + "\n");
  EXPECT_NE(outcome.err.find("x\\nmemoir: fake\\x1b[31myyyy"), std::string::npos) << outcome.err;
  EXPECT_EQ(count(outcome.err, "\n"), 1) << outcome.err;
  EXPECT_LT(outcome.err.size(), 2000U);
}

}  // namespace
}  // namespace memoir
