// A chat with a SentencePiece tokenizer: each prompt has the tokens of the rendered text encoded at once, and begins
// with those of the prompt and answer before it. The ids are by `tokenizers` (data/tokenizer/make_continuations.py).

#include "memoir/engine/conversation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memoir/base/byte_source.h"

namespace memoir::engine {
namespace {

using Ids = std::vector<TokenId>;

const std::string kData = MEMOIR_TEST_DATA "/tokenizer/";

// As Llama 2's template writes it.
constexpr const char* kTemplate =
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<s>[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + ' </s>' }}{% endif %}{% endfor %}";

class Llama2Chat : public testing::Test {
 protected:
  Ids ids(const char* name) const { return golden_[name].get<Ids>(); }

  static Ids joined(Ids ids, const Ids& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  }

  nlohmann::json golden_ = nlohmann::json::parse(read_text_file(kData + "llama2.chat.json"));
  text::Tokenizer tokenizer_ = text::Tokenizer::from_json(read_text_file(kData + "llama2.json"), "llama2.json");
  text::ChatTemplate template_{kTemplate};
  Conversation conversation_{tokenizer_, template_};
};

TEST_F(Llama2Chat, TheSecondPromptIsTheWholeEncodedAtOnce) {
  conversation_.add_message("user", "Where is the dog?");
  EXPECT_EQ(conversation_.prompt(), ids("first"));
  conversation_.add_answer("It is at 246", ids("answer"));
  conversation_.add_message("user", "And the fox?");
  EXPECT_EQ(conversation_.prompt(), joined(joined(ids("first"), ids("answer")), ids("rest")));
}

TEST_F(Llama2Chat, TokensThatTheTokenizerWouldNotChooseAreKept) {
  conversation_.add_message("user", "Where is the dog?");
  conversation_.prompt();
  Ids spelled;  // one token for each character
  for (const char* text : {"\u2581", "I", "t", "\u2581", "i", "s", "\u2581", "a", "t", "\u2581", "2", "4", "6"}) {
    spelled.push_back(tokenizer_.id(text).value());
  }
  ASSERT_NE(spelled, ids("answer"));
  conversation_.add_answer("It is at 246", spelled);
  conversation_.add_message("user", "And the fox?");
  EXPECT_EQ(conversation_.prompt(), joined(joined(ids("first"), spelled), ids("rest")));
}

TEST_F(Llama2Chat, ARewrittenTurnIsEncodedAnew) {
  conversation_.add_message("user", "Where is the dog?");
  conversation_.prompt();
  conversation_.add_answer("It is at 246", tokenizer_.encode("something else"));
  conversation_.add_message("user", "And the fox?");
  EXPECT_EQ(conversation_.prompt(), joined(joined(ids("first"), ids("answer")), ids("rest")));
}

}  // namespace
}  // namespace memoir::engine
