// `memoir logits`: the figures, and where they are written.

#include <gtest/gtest.h>
#include <mlx/mlx.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "tests/cli_runner.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::Outcome;

class CliLogits : public test::Cli {
 protected:
  std::string logits() const { return std::string(MEMOIR_PROGRAM) + " logits -m " + tiny() + " --tokens 1,2 -o "; }

  std::string expected_file() const {
    EXPECT_EQ(shell(logits() + in_folder("expected")).status, 0);
    return test::read_file(in_folder("expected"));
  }
};

TEST_F(CliLogits, AreTheReferencesInChunksOfAnySize) {
  for (const std::string chunk : {"", " --chunk 1", " --chunk 7"}) {
    const std::string file = in_folder("logits.safetensors");
    const Outcome outcome = run("logits -m " + tiny() + " --tokens " + golden_tokens("prompt") + " -o " + file + chunk);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    const test::Tensors written = mx::load_safetensors(file).first;
    ASSERT_EQ(written.size(), 1U);
    const mx::array expected = mx::load_safetensors(tiny() + "/expected.safetensors").first.at("logits");
    ASSERT_EQ(written.at("logits").shape(), expected.shape());
    ASSERT_EQ(written.at("logits").dtype(), mx::float32);
    EXPECT_LT(mx::max(mx::abs(mx::subtract(written.at("logits"), expected))).item<float>(), 2e-3F);
  }
}

TEST_F(CliLogits, LeavesNoHalfFileBehind) {
  expect_failure("logits -m " + tiny() + " --tokens 1,2 -o " + in_folder("none/x.safetensors"), 1,
                 "none/x.safetensors");
  // 4 KiB of disk: room for the file's beginning.
  const std::string command = std::string(MEMOIR_PROGRAM) + " logits -m " + tiny() + " --tokens " +
                              golden_tokens("prompt") + " -o " + in_folder("x.safetensors");
  const Outcome full = shell("ulimit -f 8; " + command);
  EXPECT_EQ(full.status, 1) << full.err;
  EXPECT_NE(full.err.find("x.safetensors: can't write"), std::string::npos) << full.err;
  EXPECT_FALSE(test::fs::exists(in_folder("x.safetensors")));
  for (const auto& entry : test::fs::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().string().find(".part"), std::string::npos) << entry.path();
  }
}

TEST_F(CliLogits, RefusesWhatIsNoFileBeforeItLoadsTheModel) {
  const std::string command = "logits -m no/such/model --tokens 1,2 -o ";
  expect_failure(command + "''", 2, "--output: the file's name is empty");
  expect_failure(command + in_folder("new/"), 2, "is a directory");
  expect_failure(command + folder_.path().string(), 2, "is a directory");
}

TEST_F(CliLogits, WritesThroughLinksAndIntoPipes) {
  const std::string logits = "logits -m " + tiny() + " --tokens 1,2 -o ";
  ASSERT_EQ(run(logits + in_folder("plain")).status, 0);
  const std::string expected = test::read_file(in_folder("plain"));

  test::fs::create_directory(in_folder("there"));
  test::fs::create_symlink("there/target", in_folder("link"));
  for (const std::string state : {"dangling", "leading to a file"}) {
    EXPECT_EQ(run(logits + in_folder("link")).status, 0) << state;
    EXPECT_TRUE(test::fs::is_symlink(in_folder("link"))) << state;
    EXPECT_EQ(test::read_file(in_folder("there/target")), expected) << state;
  }

  const std::string fifo = in_folder("fifo");
  const Outcome piped = shell("mkfifo " + fifo + "; timeout 60 cat " + fifo + " & " + MEMOIR_PROGRAM + " " + logits +
                              fifo + " && wait && test -p " + fifo);
  EXPECT_EQ(piped.status, 0) << piped.err;
  EXPECT_EQ(piped.out, expected);
  EXPECT_EQ(run(logits + "/dev/stdout | cat").out, expected);
  EXPECT_EQ(run(logits + "/dev/null").status, 0);
  if (test::fs::exists("/dev/full")) expect_failure(logits + "/dev/full", 1, "/dev/full: can't write");
  EXPECT_TRUE(test::fs::is_character_file("/dev/null"));
}

TEST_F(CliLogits, AnOpenDescriptorIsWrittenToAsItIs) {
  const std::string expected = expected_file();
  const std::string file = in_folder("f");
  for (const std::string name : {"/dev/stdout", "/dev/fd/1", "/dev/../dev/fd/1", "/proc/self/fd/1"}) {
    if (!test::fs::exists(name)) continue;
    test::write_file(file, "before\n");
    EXPECT_EQ(shell(logits() + name + " >> " + file).status, 0) << name;
    EXPECT_EQ(test::read_file(file), "before\n" + expected) << name;
    EXPECT_EQ(shell("{ echo head; " + logits() + name + "; echo tail; } > " + file).status, 0) << name;
    EXPECT_EQ(test::read_file(file), "head\n" + expected + "tail\n") << name;
  }
  EXPECT_EQ(shell(logits() + "/dev/fd/3 3> " + file).status, 0);
  EXPECT_EQ(test::read_file(file), expected);
  test::fs::create_symlink("/dev/stdout", in_folder("to-stdout"));
  EXPECT_EQ(shell(logits() + in_folder("to-stdout") + " | cat").out, expected);
}

TEST_F(CliLogits, ADescriptorThatTakesNothingIsAnError) {
  for (const std::string output : {"/dev/stdout >&-", "/dev/fd/7", "/dev/stdin", "/dev/stdout 1</dev/null"}) {
    const Outcome outcome = shell(logits() + output);
    EXPECT_EQ(outcome.status, 1) << output;
    EXPECT_NE(outcome.err.find("can't write: Bad file descriptor"), std::string::npos) << output << outcome.err;
  }
}

TEST_F(CliLogits, LinksInACircleAreAnError) {
  test::fs::create_symlink("l2", in_folder("l1"));
  test::fs::create_symlink("l1", in_folder("l2"));
  const Outcome outcome = shell(logits() + in_folder("l1"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find(std::strerror(ELOOP)), std::string::npos) << outcome.err;
  EXPECT_TRUE(test::fs::is_symlink(in_folder("l1")));
}

TEST_F(CliLogits, SaysWhyAWriteFailed) {
  if (test::fs::exists("/dev/full")) {
    expect_failure("logits -m " + tiny() + " --tokens " + golden_tokens("prompt") + " -o /dev/full", 1,
                   std::string("/dev/full: can't write: ") + std::strerror(ENOSPC));
  }
}

// A pipe can't be taken back.
TEST_F(CliLogits, WritesNothingForTokensThatItCannotTake) {
  std::string tokens = "1";
  for (int i = 0; i < 512; ++i) tokens += ",1";
  const std::string command = "logits -m " + tiny() + " -o /dev/stdout --chunk 1 --tokens ";
  expect_failure(command + tokens, 1, "513 tokens pass the model's context of 512");
  expect_failure(command + "1,160", 1, "token 160 is outside the vocabulary of 160");
}

// With a large vocabulary, so that all logits together would outweigh the rest of the program.
TEST_F(CliLogits, MemoryHoldsTheLogitsOfOneChunk) {
  static constexpr int kVocabulary = 60000;
  const test::fs::path model = test::copied_model(folder_, "llama");
  test::edit_config(model, [](nlohmann::json& config) { config["vocab_size"] = kVocabulary; });
  test::edit_tensors(model, [](test::Tensors& tensors) {
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      tensors.at(name) = mx::zeros({kVocabulary, 48}, mx::float16);
    }
  });
  const auto peak = [&](int n_tokens) {  // in the system's unit; the largest of all runs so far
    std::string tokens = "1";
    for (int i = 1; i < n_tokens; ++i) tokens += ",1";
    const Outcome outcome = run("logits -m " + model.string() + " --chunk 16 -o /dev/null --tokens " + tokens);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    return static_cast<double>(usage.ru_maxrss);
  };
  const double with_one_chunk = peak(16);
  EXPECT_LT(peak(512), 1.3 * with_one_chunk);  // held at once, they are 123 MB more
}

}  // namespace
}  // namespace memoir
