// --kv, --max-kv-size and --quantized-kv-start, on the real model: what is kept is another, the rules are the same.

#include <gtest/gtest.h>

#include <string>

#include "tests/cli_runner.h"

namespace memoir {
namespace {

using test::Outcome;

class CliKv : public test::Cli {
 protected:
  // The bytes of `memoir logits` over 48 tokens.
  std::string logits(const std::string& options) const {
    std::string tokens = "504";
    for (int i = 1; i < 48; ++i) tokens += "," + std::to_string(504 + 37 * i);
    const test::fs::path file = folder_.path() / "logits.safetensors";
    const Outcome outcome = run(std::string("logits -m ") + MEMOIR_TEST_SMOLLM2 + " --tokens " + tokens + " -o " +
                                file.string() + " " + options);
    EXPECT_EQ(outcome.status, 0) << options << ": " << outcome.err;
    return test::read_file(file);
  }
};

TEST_F(CliKv, AnswersRightInEveryFormat) {
  for (const char* kv : {"f32", "f16", "bf16", "q8", "q6"}) {
    const Outcome outcome = run(std::string("generate -m ") + MEMOIR_TEST_SMOLLM2 +
                                " -p 'The capital of France is' -n 8 --raw --temp 0 --kv " + kv);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("Paris"), std::string::npos) << kv << ": " << outcome.out;
  }
}

// The bits don't depend on the chunks, in any format, also once a ring has turned.
TEST_F(CliKv, LogitsAreTheSameBytesInChunksOfAnySize) {
  for (const char* options : {"--kv f16", "--kv q8", "--kv q4", "--max-kv-size 16", "--kv q5 --max-kv-size 20",
                              "--kv q4 --quantized-kv-start 10", "--kv q8 --quantized-kv-start 20 --max-kv-size 30"}) {
    const std::string whole = logits(options);
    for (const char* chunk : {" --chunk 1", " --chunk 7"}) {
      EXPECT_TRUE(logits(std::string(options) + chunk) == whole) << options << chunk;
    }
  }
}

TEST_F(CliKv, ASizeThatIsNotReachedChangesNothing) {
  const std::string plain = logits("");
  EXPECT_TRUE(logits("--max-kv-size 48") == plain);
  EXPECT_TRUE(logits("--kv f16") == plain);
  EXPECT_TRUE(logits("--kv q8 --quantized-kv-start 100") == plain);
  EXPECT_FALSE(logits("--max-kv-size 40") == plain);
  EXPECT_FALSE(logits("--kv f32") == plain);
  EXPECT_FALSE(logits("--kv q8") == plain);
  EXPECT_FALSE(logits("--kv q8 --quantized-kv-start 10 --chunk 7") == plain);
}

// Drafts neither: those that would pass the number at which rows are quantized wait.
TEST_F(CliKv, DraftsChangeNothingWhereRowsAreQuantizedInTheMiddle) {
  for (const char* options : {"--kv q3 --quantized-kv-start 22", "--kv q2 --quantized-kv-start 24"}) {
    const std::string generate = std::string("generate -m ") + MEMOIR_TEST_SMOLLM2 +
                                 " --raw -n 40 --temp 0 -p 'the cat sat on the mat. the cat sat on the' " + options;
    const Outcome plain = run(generate);
    ASSERT_EQ(plain.status, 0) << plain.err;
    for (const char* draft : {" --draft ngram --draft-max 3", " --draft ngram --draft-max 8", " --prefill-chunk 3"}) {
      EXPECT_EQ(run(generate + draft).out, plain.out) << options << draft;
    }
  }
}

TEST_F(CliKv, RefusesWhatCannotBe) {
  const std::string generate = "generate -m " + tiny() + " --tokens 1,2 -n 1 ";
  EXPECT_EQ(run(generate + "--kv f8").status, 2);
  EXPECT_EQ(run(generate + "--max-kv-size 0").status, 2);
  EXPECT_EQ(run(generate + "--quantized-kv-start 4").status, 2);
  const Outcome heads = run(generate + "--kv q8");
  EXPECT_EQ(heads.status, 2);
  EXPECT_NE(heads.err.find("16 dimensions"), std::string::npos) << heads.err;
}

}  // namespace
}  // namespace memoir
