// `memoir cache`, and --prompt-cache of generate and chat. Files of mlx-lm's are in data/prompt_cache.

#include <gtest/gtest.h>
#include <signal.h>  // NOLINT: SIGHUP is POSIX, not in <csignal>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/cli_runner.h"

namespace memoir {
namespace {

using test::Outcome;

class CliCache : public test::Cli {
 protected:
  static std::string golden(const std::string& name) {
    return test::data("prompt_cache/" + name + ".safetensors").string();
  }

  Outcome generate(const std::string& tokens, const std::string& more = "") const {
    return run("generate -m " + tiny() + " --tokens " + tokens + " -n 4 --temp 0 --json " + more);
  }

  std::string file() const { return in_folder("cache.safetensors"); }

  // Starts a command that says something, sends it the signal then, and waits. `more`: into its stdin at the begin.
  Outcome signalled(const std::string& command, const std::string& signal_name, const std::string& more) const {
    const std::string said = in_folder("said");
    const std::string stdin_pipe = in_folder("pipe");
    return shell("rm -f " + said + " " + stdin_pipe + "; mkfifo " + stdin_pipe + "; " + MEMOIR_PROGRAM + " " + command +
                 " <" + stdin_pipe + " >" + said + " & exec 3>" + stdin_pipe + "; printf '" + more +
                 "' >&3; while [ ! -s " + said + " ] && kill -0 $!; do sleep 0.02; done; kill -" + signal_name +
                 " $!; wait $!");
  }
};

TEST_F(CliCache, ShowTellsWhatAFileHolds) {
  const Outcome text = run("cache show " + golden("list.v2"));
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("format v2, offset 6, tokens not known"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("0.0.0  RotatingKVCache, 4 rows, F16 [1,4,4,8], F16 [1,4,4,8], 512 bytes"), std::string::npos)
      << text.out;

  const Outcome json = run("cache show --json " + golden("kv.v1") + " " + golden("arrays.v2"));
  ASSERT_EQ(json.status, 0) << json.err;
  const auto kv = nlohmann::json::parse(json.out.substr(0, json.out.find('\n')));
  EXPECT_EQ(kv.at("format"), "v1");
  EXPECT_EQ(kv.at("metadata"), (nlohmann::json{{"about", "five"}, {"model", "a/b"}}));
  EXPECT_EQ(kv.at("layers").size(), 2U);
  EXPECT_EQ(kv.at("layers")[0].at("arrays")[0], (nlohmann::json{{"dtype", "F16"}, {"shape", {1, 4, 5, 8}}}));
  const auto arrays = nlohmann::json::parse(json.out.substr(json.out.find('\n')));
  EXPECT_EQ(arrays.at("layers")[0].at("kind"), "ArraysCache");
}

TEST_F(CliCache, CheckGivesTheReasonAndGoesOn) {
  std::string bytes = test::read_file(golden("rotating.v2"));
  bytes.pop_back();
  test::write_file(file(), bytes);
  const Outcome outcome = run("cache check " + file() + " " + golden("rotating.v2"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find(file() + ": "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("truncated"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, golden("rotating.v2") + ": fine\n");
}

TEST_F(CliCache, ConvertChangesTheFormatAndQuantizes) {
  ASSERT_EQ(run("cache convert --format v1 -o " + file() + " " + golden("quantized.v2")).status, 0);
  EXPECT_NE(run("cache show " + file()).out.find("format v1"), std::string::npos);
  test::fs::copy_file(golden("list.v2"), in_folder("list"));
  const Outcome narrow = run("cache convert --quantize 8 --group-size 32 -o " + file() + " " + golden("kv.v2"));
  EXPECT_EQ(narrow.status, 1);  // rows of 8
  EXPECT_NE(narrow.err.find("kv.v2"), std::string::npos) << narrow.err;
  EXPECT_NE(run("cache show " + file()).out.find("format v1"), std::string::npos);
  expect_failure("cache convert --format v3 " + golden("kv.v2"), 2, "v3");
  expect_failure("cache convert --group-size 32 " + golden("kv.v2"), 2, "--quantize");
  expect_failure("cache convert --quantize 4 -o " + file() + " " + golden("quantized.v2"), 1, "not quantized yet");
  expect_failure("cache", 2, "subcommand");
}

TEST_F(CliCache, GenerateGoesOnWhereTheFileEnds) {
  const Outcome alone = generate("1,2,3,4,5,6");
  ASSERT_EQ(alone.status, 0) << alone.err;
  const auto expected = nlohmann::json::parse(alone.out).at("tokens");
  const Outcome first = generate("1,2,3,4", "--prompt-cache " + file());
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(nlohmann::json::parse(first.out).at("cached_tokens"), 0);
  const Outcome second = generate("1,2,3,4,5,6", "--prompt-cache " + file());
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(nlohmann::json::parse(second.out).at("cached_tokens"), 4);
  EXPECT_EQ(nlohmann::json::parse(second.out).at("tokens"), expected);
  EXPECT_EQ(run("cache check " + file()).status, 0);
}

TEST_F(CliCache, TheFormThatTheOptionsAskForStaysThatOfTheFile) {
  for (const std::string kv : {"f16", "bf16"}) {
    const auto expected = nlohmann::json::parse(generate("1,2,3,4,5,6", "--kv " + kv).out).at("tokens");
    std::filesystem::remove(file());
    ASSERT_EQ(generate("1,2,3,4", "--kv " + kv + " --prompt-cache " + file()).status, 0);
    test::fs::copy_file(file(), in_folder(kv));
    for (const std::string& again : {"--kv " + kv, std::string()}) {
      test::write_file(file(), test::read_file(in_folder(kv)));
      const Outcome second = generate("1,2,3,4,5,6", again + " --prompt-cache " + file());
      ASSERT_EQ(second.status, 0) << kv << second.err;
      EXPECT_EQ(nlohmann::json::parse(second.out).at("cached_tokens"), 4);
      EXPECT_EQ(nlohmann::json::parse(second.out).at("tokens"), expected) << kv;
    }
    const std::string bytes = test::read_file(file());
    const Outcome other = generate("1,2,3,4,5,6", "--kv f32 --prompt-cache " + file());
    EXPECT_EQ(other.status, 1);
    EXPECT_NE(other.err.find("--kv"), std::string::npos) << other.err;
    EXPECT_EQ(test::read_file(file()), bytes);
  }
}

// A ring that has turned can't go back, so nothing of the file is used.
TEST_F(CliCache, AMissGivesWhatTheSameCommandGivesWithoutAFile) {
  const std::string command = "generate -m " + test::data("mistral").string() +
                              " --tokens 1,2,3,4,5,6,7,8,9,10,11,12 -n 30 --temp 0 --json --kv bf16 ";
  const Outcome alone = run(command);
  ASSERT_EQ(alone.status, 0) << alone.err;
  const auto expected = nlohmann::json::parse(alone.out).at("tokens");
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = run(command + "--prompt-cache " + file());
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(nlohmann::json::parse(outcome.out).at("tokens"), expected) << i;
    EXPECT_NE(run("cache show " + file()).out.find("BF16"), std::string::npos);
  }
}

TEST_F(CliCache, GenerateLeavesFilesAloneThatItCanNotUse) {
  const auto refused = [&](const std::string& bytes, const std::string& reason) {
    test::write_file(file(), bytes);
    const Outcome outcome = generate("1,2,3", "--prompt-cache " + file());
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(file()), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
    EXPECT_EQ(test::read_file(file()), bytes);
  };
  refused("hello", "");
  refused(test::read_file(golden("kv.v2")), "does not say of which model");
  const Outcome other = run("generate -m " + test::data("mistral").string() + " --tokens 1,2,3 -n 2 --prompt-cache " +
                            in_folder("other"));
  ASSERT_EQ(other.status, 0) << other.err;
  refused(test::read_file(in_folder("other")), "is of another model, \"mistral\"");
  std::string damaged = test::read_file(in_folder("other"));
  damaged.back() = static_cast<char>(~damaged.back());
  test::write_file(in_folder("other"), damaged);
  EXPECT_EQ(run("cache check " + in_folder("other")).status, 1);
}

// A file of mlx-lm's does not say; what one says may be overruled.
TEST_F(CliCache, ConvertSaysOfWhichModelAndTokensAFileIs) {
  ASSERT_EQ(generate("1,2,3,4", "--prompt-cache " + file()).status, 0);
  const auto shown = nlohmann::json::parse(run("cache show --json " + file()).out);
  const std::string mistral = test::data("mistral").string();
  const std::string tokens = "1,2,3,4,9,9,9,9";
  const std::string own = tokens.substr(0, 2 * shown.at("tokens").size() - 1);
  expect_failure("cache convert -m " + mistral + " " + file(), 2, "--tokens");
  expect_failure("cache convert -m " + mistral + " --tokens 1,2 " + file(), 2, "--tokens has 2 tokens, the file ");
  expect_failure("cache convert -m /nowhere/model --tokens " + own + " " + file(), 1, "/nowhere/model");
  ASSERT_EQ(run("cache convert -m " + mistral + " --tokens " + own + " " + file()).status, 0);
  const auto again = nlohmann::json::parse(run("cache show --json " + file()).out);
  EXPECT_EQ(again.at("model_name"), "mistral");
  EXPECT_NE(again.at("model"), shown.at("model"));
  EXPECT_EQ(again.at("tokens"), nlohmann::json::parse("[" + own + "]"));
}

// As Ctrl-C does: what was computed is not lost.
TEST_F(CliCache, ATerminationOrAHangupSavesBeforeItEnds) {
  const std::string model = std::string(" -m ") + MEMOIR_TEST_SMOLLM2 + " --temp 0 --prompt-cache " + file();
  const std::string question = "Count for ever: 1 2 3 4 5 6 7 8 9";
  const std::pair<std::string, std::string> commands[] = {{"chat -n 8000" + model, question + "\\n"},
                                                          {"generate -n 8000" + model + " -p '" + question + "'", ""}};
  for (const auto& [command, input] : commands) {
    for (const auto& [name, number] : {std::pair("TERM", SIGTERM), std::pair("HUP", SIGHUP)}) {
      SCOPED_TRACE(command + " " + name);
      std::filesystem::remove(file());
      const Outcome outcome = signalled(command, name, input);
      EXPECT_EQ(outcome.status, 128 + number) << outcome.err;
      EXPECT_EQ(run("cache check " + file()).status, 0);
      const Outcome again = run("generate" + model + " -n 1 --json -p '" + question + "'");
      ASSERT_EQ(again.status, 0) << again.err;
      const auto json = nlohmann::json::parse(again.out);
      EXPECT_EQ(json.at("cached_tokens"), json.at("prompt_tokens").get<int>() - 1);
    }
  }
}

TEST_F(CliCache, AnAnswerThatNobodyTakesIsSaved) {
  const std::string generate =
      std::string(MEMOIR_PROGRAM) + " generate -m " + tiny() + " --tokens 1,2,3,4 -n 4 --temp 0 --prompt-cache ";
  const Outcome lost = shell(generate + file() + " >/dev/full");
  EXPECT_EQ(lost.status, 1);
  EXPECT_NE(lost.err.find("stdout"), std::string::npos) << lost.err;
  const Outcome again = this->generate("1,2,3,4", "--prompt-cache " + file());
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out).at("cached_tokens"), 3);
}

TEST_F(CliCache, ANumberOfBitsIsAFormAsAnyOther) {
  const std::string model = std::string("generate -m ") + MEMOIR_TEST_SMOLLM2 + " --temp 0 -n 4 --json --prompt-cache ";
  const std::string dense = in_folder("dense");
  const std::string longer = " --tokens 1,2,3,4,5,6";
  ASSERT_EQ(run(model + dense + " --tokens 1,2,3,4").status, 0);
  const std::string bytes = test::read_file(dense);
  for (const std::string kv : {"--kv q8", "--kv bf16", "--kv q8 --quantized-kv-start 3"}) {
    const Outcome other = run(model + dense + longer + " " + kv);
    EXPECT_EQ(other.status, 1) << kv;
    EXPECT_NE(other.err.find("--kv"), std::string::npos) << other.err;
    EXPECT_EQ(test::read_file(dense), bytes);
  }
  // It would be dense still.
  const Outcome later = run(model + dense + longer + " --kv q8 --quantized-kv-start 100");
  ASSERT_EQ(later.status, 0) << later.err;
  EXPECT_EQ(nlohmann::json::parse(later.out).at("cached_tokens"), 4);
  ASSERT_EQ(run("cache convert --quantize 8 " + dense).status, 0);
  for (const std::string kv : {"--kv q8", "", "--kv q8 --quantized-kv-start 100"}) {
    const Outcome codes = run(model + dense + longer + " " + kv);
    ASSERT_EQ(codes.status, 0) << kv << codes.err;
    EXPECT_GE(nlohmann::json::parse(codes.out).at("cached_tokens"), 4) << kv;
  }
}

TEST_F(CliCache, BytesBehindTheLastTensorAreFound) {
  ASSERT_EQ(generate("1,2,3", "--prompt-cache " + file()).status, 0);
  const std::string longer = test::read_file(file()) + "more";
  test::write_file(file(), longer);
  const std::string what = "4 bytes follow the last tensor";
  const Outcome check = run("cache check " + file());
  EXPECT_EQ(check.status, 1);
  EXPECT_NE(check.err.find(what), std::string::npos) << check.err;
  const Outcome use = generate("1,2,3", "--prompt-cache " + file());
  EXPECT_EQ(use.status, 1);
  EXPECT_NE(use.err.find(what), std::string::npos) << use.err;
  EXPECT_EQ(test::read_file(file()), longer);
}

TEST_F(CliCache, WhatCanNotBeWrittenIsSaidBeforeTheWork) {
  const auto refused = [&](const std::string& path, int status, const std::string& reason) {
    const Outcome outcome = run("generate -m " + in_folder("") + " --tokens 1 --prompt-cache " + path);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  };
  refused(in_folder(""), 2, "is a directory");
  refused(in_folder("nowhere/x"), 1, "its folder does not exist");
  refused("/dev/null", 2, "--prompt-cache: /dev/null is no regular file");
  refused("/dev/stdout", 2, "is no regular file");
  expect_failure("cache convert -o /dev/null " + golden("kv.v2"), 2, "--output: /dev/null is no regular file");
}

// As somebody who may not do everything.
TEST_F(CliCache, AFolderThatTakesNothingIsSaidBeforeTheWork) {
  const std::string nobody = geteuid() == 0 ? "setpriv --reuid=65534 --regid=65534 --clear-groups " : "";
  if (shell(nobody + MEMOIR_PROGRAM + " --version").status != 0) GTEST_SKIP() << "nobody can't run the program here";
  for (const std::string command : {" generate --tokens 1 --prompt-cache /usr/x", " logits --tokens 1 -o /usr/x"}) {
    const Outcome outcome = shell(nobody + MEMOIR_PROGRAM + command + " -m /usr");
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find("/usr/x: can't write: its folder /usr: "), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace memoir
