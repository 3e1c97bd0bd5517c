// memoir generate --batch: each line's answer is the one that `memoir generate` gives it alone.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli_runner.h"

namespace memoir {
namespace {

using nlohmann::json;
using test::Outcome;

class CliBatch : public test::Cli {
 protected:
  // The results by their line.
  static std::map<int, json> results_of(const Outcome& outcome) {
    std::map<int, json> results;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      json result = json::parse(line);
      const int index = result.at("index").get<int>();
      EXPECT_TRUE(results.emplace(index, std::move(result)).second) << line;
    }
    return results;
  }

  json alone(const std::string& arguments) const {
    const Outcome outcome = run("generate --json " + arguments);
    EXPECT_EQ(outcome.status, 0) << arguments << "\n" << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(CliBatch, EachLineGetsTheTokensThatItGetsAlone) {
  std::string lines;
  std::vector<std::string> options;
  for (int i = 0; i < 12; ++i) {
    std::string tokens = std::to_string(3 + i);
    for (int k = 0; k < i * 9; ++k) tokens += "," + std::to_string((i * 31 + k * 7) % 160);
    const std::string n = std::to_string(1 + i * 3 % 20);
    const std::string seed = std::to_string(i);
    lines += R"({"id": "r)" + seed + R"(", "tokens": [)" + tokens + R"(], "n": )" + n + R"(, "seed": )" + seed;
    options.push_back(" --tokens " + tokens + " -n " + n + " --seed " + seed);
    if (i % 2 == 1) {
      lines += R"(, "temperature": 1.5, "top_k": 50, "repeat_penalty": 1.2)";
      options.back() += " --temp 1.5 --top-k 50 --repeat-penalty 1.2";
    }
    lines += "}\n" + std::string(i % 5 == 0 ? "\n" : "");
  }
  for (const char* size : {"1", "3", "8"}) {
    const Outcome outcome = run("generate -m " + tiny() + " --batch - --batch-size " + size, lines);
    ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    const std::map<int, json> results = results_of(outcome);
    ASSERT_EQ(results.size(), options.size());
    for (const auto& [index, result] : results) {
      const json expected = alone("-m " + tiny() + options[static_cast<std::size_t>(index)]);
      EXPECT_EQ(result["id"], "r" + std::to_string(index));
      for (const char* key : {"tokens", "text", "prompt_tokens", "finish_reason"}) {
        EXPECT_EQ(result[key], expected[key]) << index << " " << key;
      }
    }
  }
}

TEST_F(CliBatch, TextsAndChatsAreAnsweredAsAlone) {
  const std::string model = std::string("-m ") + MEMOIR_TEST_SMOLLM2;
  const std::string chat = R"([{"role": "user", "content": "Name a colour."}])";
  test::write_file(in_folder("chat.json"), chat);
  test::write_file(in_folder("batch.jsonl"), R"({"prompt": "The capital of France is", "raw": true})"
                                             "\n"
                                             R"({"messages": )" +
                                                 chat + "}\n" + R"({"prompt": "Name a colour.", "stop": "."})");
  const Outcome outcome = run("generate " + model + " -n 8 --batch " + in_folder("batch.jsonl"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::map<int, json> results = results_of(outcome);
  EXPECT_NE(results[0]["text"].get<std::string>().find("Paris"), std::string::npos);
  EXPECT_EQ(results[0]["tokens"], alone(model + " -n 8 --raw -p 'The capital of France is'")["tokens"]);
  EXPECT_EQ(results[1]["tokens"], alone(model + " -n 8 --messages " + in_folder("chat.json"))["tokens"]);
  EXPECT_EQ(results[2]["text"], alone(model + " -n 8 --stop . -p 'Name a colour.'")["text"]);
}

TEST_F(CliBatch, CachesAreKeptAsTheOptionsSay) {
  const std::string model = std::string("-m ") + MEMOIR_TEST_SMOLLM2;
  for (const char* kv : {" --kv q4", " --kv f16 --max-kv-size 12"}) {
    const Outcome outcome = run("generate " + model + kv + " -n 24 --batch -", R"({"prompt": "Name a colour."})");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(results_of(outcome)[0]["tokens"], alone(model + kv + " -n 24 -p 'Name a colour.'")["tokens"]) << kv;
  }
}

TEST_F(CliBatch, LinesThatAreWrongAreToldAndTheOthersAnswered) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{", "line"},
      {"[]", "object"},
      {R"({"id": "a", "tokens": [1], "n": -1})", "n: is no whole number"},
      {R"({"id": "a", "tokens": [1], "zz": 1})", "zz"},
      {R"({"zz": 1, "id": "a"})", "exactly one"},
      {R"({"n": 3})", "exactly one"},
      {R"({"tokens": [1], "prompt": "a"})", "exactly one"},
      {R"({"tokens": [1, -1]})", "token ids"},
      {R"({"tokens": [1, 99999]})", "vocabulary"},
      {R"({"tokens": []})", "empty"},
      {R"({"tokens": [1], "n": -1})", "n: is no whole number"},
      {R"({"tokens": [1], "n": 1, "max_tokens": 1})", "max_tokens"},
      {R"({"tokens": [1], "temperature": "hot"})", "temperature"},
      {R"({"tokens": [1], "top_p": 2})", "top_p"},
      {R"({"tokens": [1], "stop": [""]})", "stop"},
      {R"({"tokens": [1], "seed": -1})", "seed"},
      {R"({"tokens": [1], "temprature": 1})", "temprature"},
      {R"({"tokens": [1], "raw": true})", "raw: is only for \"prompt\""},
      {R"({"messages": [{"role": "user", "content": "x"}], "raw": true})", "raw: is only for \"prompt\""},
      {R"({"prompt": "x"})", "tokenizer.json"},
  };
  std::string lines = R"({"tokens": [1, 2], "n": 2})"
                      "\n";
  for (const auto& [line, part] : wrong) lines += line + "\n";
  lines += R"({"tokens": [1, 2], "n": 2, "id": 7})";
  const Outcome outcome = run("generate -m " + tiny() + " --batch -", lines);
  EXPECT_EQ(outcome.status, 1);
  std::map<int, json> results = results_of(outcome);
  ASSERT_EQ(results.size(), wrong.size() + 2);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const std::string error = results[static_cast<int>(i) + 1].value("error", "");
    EXPECT_NE(error.find(wrong[i].second), std::string::npos) << wrong[i].first << ": " << error;
    EXPECT_EQ(results[static_cast<int>(i) + 1].contains("id"), wrong[i].first.find("id\":") != std::string::npos);
    EXPECT_TRUE(error.starts_with("stdin:" + std::to_string(i + 2) + ": ")) << error;
  }
  EXPECT_EQ(results[0]["tokens"], results[static_cast<int>(wrong.size()) + 1]["tokens"]);
  EXPECT_EQ(results[static_cast<int>(wrong.size()) + 1]["id"], 7);
}

TEST_F(CliBatch, ChatsWithoutMessagesOrThatTheTemplateRefusesAreTold) {
  const Outcome outcome =
      run(std::string("generate --batch - -m ") + MEMOIR_TEST_SMOLLM2, "{\"messages\": []}\n{\"messages\": [7]}\n");
  EXPECT_EQ(outcome.status, 1);
  std::map<int, json> results = results_of(outcome);
  EXPECT_EQ(results[0]["error"], "stdin:1: messages: the list is empty");
  EXPECT_TRUE(results[1].value("error", "").starts_with("stdin:2: ")) << outcome.out;
}

TEST_F(CliBatch, DraftsChangeNoAnswer) {
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    json tokens = json::array();
    for (int k = 0; k < 40; ++k) tokens.push_back(k % (5 + i));
    lines += json{{"tokens", tokens}, {"n", 30}, {"temperature", i % 2}, {"seed", i}}.dump() + "\n";
  }
  const std::string command = "generate -m " + tiny() + " --batch - ";
  std::map<int, json> plain = results_of(run(command, lines));
  for (const std::string& draft : {std::string("ngram"), tiny()}) {
    std::map<int, json> drafted = results_of(run(command + "--draft " + draft, lines));
    ASSERT_EQ(drafted.size(), 8U);
    for (const auto& [index, result] : plain) EXPECT_EQ(drafted[index]["tokens"], result["tokens"]) << draft;
  }
}

TEST_F(CliBatch, RefusesWhatCannotBe) {
  expect_failure("generate -m " + tiny() + " --batch nowhere.jsonl", 1, "nowhere.jsonl");
  expect_failure("generate -m " + tiny() + " --batch " + tiny(), 1, "directory");
  for (const char* options : {" --json", " -p x", " --prompt-cache c", " --batch-size 0"}) {
    EXPECT_EQ(run("generate -m " + tiny() + " --batch -" + options).status, 2) << options;
  }
  EXPECT_EQ(run("generate -m " + tiny() + " --tokens 1 --batch-size 2").status, 2);
  expect_failure("generate -m " + tiny() + " --batch ''", 2, "--batch: the text is empty");
  expect_failure("generate -m " + tiny() + " --tokens 1 --draft ''", 2, "--draft: the text is empty");
  expect_failure("generate -m " + tiny() + " --tokens 1 --prompt-cache ''", 2, "--prompt-cache: ");
  for (const char* command : {"generate --tokens 1", "chat", "serve"}) {
    expect_failure(std::string(command) + " -m " + tiny() + " --prefix-cache-dir ''", 2,
                   "--prefix-cache-dir: the text is empty");
  }
  for (const char* option : {"--models-dir", "--api-key", "--alias"}) {
    expect_failure("serve -m " + tiny() + " " + option + " ''", 2, std::string(option) + ": the text is empty");
  }
  expect_failure("generate -m " + tiny() + " --batch - --draft-max 2", 2, "--draft-max: ");
  expect_failure("generate -m " + test::data("mamba2").string() + " --batch - --kv q8", 2, "--kv q8: ");
  const Outcome nothing = run("generate -m " + tiny() + " --batch -", "\n\n");
  EXPECT_EQ(nothing.status, 0);
  EXPECT_EQ(nothing.out, "");
}

TEST_F(CliBatch, EachAnswerSaysWithWhichSeedItCanBeRepeated) {
  const std::string command = "generate -m " + tiny() + " --temp 3 -n 20 --batch -";
  const std::string lines = "{\"tokens\": [1, 2]}\n{\"tokens\": [1, 2]}\n{\"tokens\": [1, 2], \"seed\": 7}\n";
  std::istringstream answers(run(command, lines).out);
  std::set<std::string> seeds;
  int n_answers = 0;
  for (std::string line; std::getline(answers, line); ++n_answers) {
    const auto answer = nlohmann::json::parse(line);
    const std::string seed = answer.at("seed").dump();
    seeds.insert(seed);
    const Outcome alone = run("generate -m " + tiny() + " --temp 3 -n 20 --tokens 1,2 --json --seed " + seed);
    EXPECT_EQ(nlohmann::json::parse(alone.out).at("tokens"), answer.at("tokens"));
  }
  EXPECT_EQ(n_answers, 3);
  EXPECT_EQ(seeds.size(), 3U);
  EXPECT_EQ(seeds.count("7"), 1U);
}

// Each line is written when the answers to those before it are read; before the third a blank one and a wrong one.
TEST_F(CliBatch, AnswersDoNotWaitForLinesThatNobodyHasWritten) {
  const std::string in = in_folder("lines");
  const std::string out = in_folder("answers");
  const Outcome outcome =
      shell("mkfifo " + in + " " + out + " && { timeout 120 " + MEMOIR_PROGRAM + " generate -m " + tiny() +
            " -n 1 --batch " + in + " --batch-size 2 > " + out + " & } && exec 4< " + out + " 3> " + in +
            " && echo '{\"tokens\": [1], \"id\": \"a\"}' >&3 && read -r a <&4"
            " && printf '\\n{\"tokens\": [2], \"id\": \"b\"}\\nnone\\n' >&3 && read -r b <&4 && read -r c <&4"
            " && echo '{\"tokens\": [3], \"id\": \"d\"}' >&3 && read -r d <&4; exec 3>&-; wait;"
            " for line in \"$a\" \"$b\" \"$c\" \"$d\"; do echo \"$line\"; done");
  for (const char* id : {R"("id":"a")", R"("id":"b")", R"("id":"d")", "lines:4: "}) {
    EXPECT_NE(outcome.out.find(id), std::string::npos) << id << " in " << outcome.out << outcome.err;
  }
}

TEST_F(CliBatch, WhatHasNoEffectInALineIsTold) {
  const Outcome outcome =
      run("generate -m " + tiny() + " --batch -", "{\"tokens\": [1], \"stop\": \"x\"}\n{\"tokens\": [160]}\n");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("stop: is there, and the model has no tokenizer"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("stdin:2: token 160 "), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace memoir
