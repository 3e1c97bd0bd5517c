// --prefix-cache-dir: what one run of the program has computed serves the next, and memoir cache tree shows it.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>

#include "tests/cli_runner.h"
#include "tests/mtp_files.h"

namespace fs = std::filesystem;

namespace memoir {
namespace {

using nlohmann::json;
using test::Outcome;

class CliPrefixCache : public test::Cli {
 protected:
  std::string directory() const { return in_folder("prefixes"); }

  Outcome generate(const std::string& tokens, const std::string& more = "", const std::string& model = "llama") const {
    return run("generate -m " + test::data(model).string() + " --tokens " + tokens + " -n 6 --temp 0 --json " + more);
  }

  /// The same with the directory.
  json generated(const std::string& tokens, const std::string& more = "", const std::string& model = "llama") const {
    const Outcome outcome = generate(tokens, "--prefix-cache-dir " + directory() + " " + more, model);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.status == 0 ? json::parse(outcome.out) : json::object();
  }

  static std::string counted(int begin, int end) {
    std::string text;
    for (int i = begin; i < end; ++i) text += (text.empty() ? "" : ",") + std::to_string(i);
    return text;
  }
};

TEST_F(CliPrefixCache, ASecondRunOfAPromptIsAHitWithTheSameTokens) {
  for (const char* const model : {"llama", "gemma3", "mamba2", "lfm2"}) {
    SCOPED_TRACE(model);
    const std::string prompt = counted(0, 60);
    const json alone = json::parse(generate(prompt, "", model).out);
    const json first = generated(prompt, "", model);
    EXPECT_EQ(first["cached_tokens"], 0);
    EXPECT_EQ(first["tokens"], alone["tokens"]);
    const json second = generated(prompt, "", model);
    EXPECT_EQ(second["cached_tokens"], std::string(model) == "llama" ? 59 : 56);
    EXPECT_EQ(second["tokens"], alone["tokens"]);
    const std::string longer = prompt + "," + counted(100, 110);
    EXPECT_GE(generated(longer, "", model)["cached_tokens"], 56);
  }
}

TEST_F(CliPrefixCache, OtherFormatsOfKeysAndValuesAreApart) {
  const std::string prompt = counted(0, 60);
  EXPECT_EQ(generated(prompt)["cached_tokens"], 0);
  EXPECT_EQ(generated(prompt, "--kv f16")["cached_tokens"], 0);
  EXPECT_EQ(generated(prompt, "--kv f16")["cached_tokens"], 59);
  EXPECT_EQ(generated(prompt, "--max-kv-size 40")["cached_tokens"], 0);
  EXPECT_EQ(generated(prompt)["cached_tokens"], 59);
}

// Two layers with rows and four with states. Codes take 36 bytes where float32 rows take 128, and are not mixed with
// them.
TEST_F(CliPrefixCache, AFormatWithCodesIsApartAndSmaller) {
  const std::string prompt = counted(0, 100);
  const std::string model = "qwen3_next";
  EXPECT_EQ(generated(prompt, "", model)["cached_tokens"], 0);
  const auto size = [&] {
    std::uint64_t n = 0;
    for (const auto& entry : fs::directory_iterator(directory())) n += entry.file_size();
    return n;
  };
  const std::uint64_t exact = size();
  EXPECT_EQ(generated(prompt, "--prefix-cache-format q8", model)["cached_tokens"], 0);
  EXPECT_LT(size() - exact, exact);
  EXPECT_EQ(generated(prompt, "--prefix-cache-format q8", model)["cached_tokens"], 96);
  EXPECT_EQ(generated(prompt, "--prefix-cache-format exact", model)["cached_tokens"], 96);
  test::write_file(in_folder("requests.jsonl"), R"({"tokens": [)" + counted(0, 100) + R"(], "max_tokens": 2})");
  const Outcome batch = run("generate -m " + test::data(model).string() + " --batch " + in_folder("requests.jsonl") +
                            " --prefix-cache-format q8 --prefix-cache-dir " + directory());
  ASSERT_EQ(batch.status, 0) << batch.err;
  EXPECT_EQ(json::parse(batch.out)["cached_tokens"], 96);
}

TEST_F(CliPrefixCache, AFormatWithCodesIsRefusedWhereItCannotBe) {
  const auto with = [&](const std::string& model, const std::string& more) {
    return "generate -m " + test::data(model).string() + " --tokens 1,2,3 -n 1 --prefix-cache-format q8 " + more;
  };
  const std::string kept = "--prefix-cache-dir " + directory();
  expect_failure(with("qwen3_next", kept + " --kv q8"), 2, "quantized already");
  expect_failure(with("qwen3_next", ""), 2, "nothing is kept");
  expect_failure(with("qwen3_next", "--n 2"), 2, "--prefix-cache-format");
  expect_failure(with("qwen3_next", kept + " --context-shift --context 64"), 2, "--prefix-cache-dir");
  expect_failure(with("mamba2", kept), 1, "memoir: --prefix-cache-format q8: the model keeps no rows");
  expect_failure(with("llama", kept), 1, "memoir: --prefix-cache-format q8: rows have 16 dimensions");
  // The head's rows are float32 whatever --kv says.
  const std::string headed = " -m " + test::model_with_head(in_folder("qwen"), "qwen3_5").string() +
                             " --draft auto --kv f16 --prefix-cache-format q8 ";
  const std::string types =
      "memoir: --prefix-cache-format q8 beside --kv f16: the head that drafts keeps float32 rows beside the model's "
      "float16 ones, expected one type\n";
  test::write_file(in_folder("requests.jsonl"), R"({"tokens": [1, 2]})");
  expect_failure("generate --tokens 1,2,3 " + kept + headed, 1, types);
  expect_failure("generate --batch " + in_folder("requests.jsonl") + headed, 1, types);
  test::fs::copy_file(test::data("tokenizer") / "smollm.json", in_folder("qwen") + "/tokenizer.json");
  expect_failure("serve --port 0" + headed, 1, types);
  expect_failure("generate -m " + tiny() + " --tokens 1 --prefix-cache-format q4 " + kept, 2, "--prefix-cache-format");
}

TEST_F(CliPrefixCache, RequestsOfABatchUseAndFillIt) {
  generated(counted(0, 60));
  test::write_file(in_folder("requests.jsonl"), R"({"tokens": [)" + counted(0, 50) +
                                                    R"(], "max_tokens": 2})"
                                                    "\n");
  const Outcome outcome =
      run("generate -m " + tiny() + " --batch " + in_folder("requests.jsonl") + " --prefix-cache-dir " + directory());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["cached_tokens"], 49);
}

TEST_F(CliPrefixCache, TreeShowsTokensBytesKindsAndAges) {
  generated(counted(0, 60));
  generated(counted(0, 40) + ",150,151");
  generated(counted(0, 60), "", "lfm2");
  const Outcome tree = run("cache tree --json --prefix-cache-dir " + directory());
  ASSERT_EQ(tree.status, 0) << tree.err;
  std::istringstream lines(tree.out);
  std::string line;
  std::size_t n_files = 0;
  std::uint64_t n_bytes = 0;
  int n_models = 0;
  while (std::getline(lines, line)) {
    const json model = json::parse(line);
    ++n_models;
    n_files += model["files"].get<std::size_t>();
    n_bytes += model["bytes"].get<std::uint64_t>();
    const bool is_llama = model["model_name"] == "llama";
    EXPECT_TRUE(is_llama || model["model_name"] == "lfm2") << line;
    EXPECT_EQ(model["kinds"].contains("RecurrentCache"), !is_llama);
    EXPECT_EQ(model["device"], "cpu");
    std::size_t n_checkpoints = 0;
    for (const json& node : model["nodes"]) {
      n_checkpoints += node["checkpoint_bytes"] > 0 ? 1U : 0U;
      EXPECT_EQ(node["tokens"].size(), node["to"].get<std::size_t>() - node["from"].get<std::size_t>());
      EXPECT_LT(node["age_s"], 600);
      if (node["from"] == 0) {
        EXPECT_EQ(node["tokens"][1], 1);
      }
    }
    EXPECT_EQ(n_checkpoints > 0, !is_llama);
  }
  EXPECT_EQ(n_models, 2);
  std::size_t n_there = 0;
  std::uint64_t n_bytes_there = 0;
  for (const auto& entry : fs::directory_iterator(directory())) {
    ++n_there;
    n_bytes_there += entry.file_size();
  }
  EXPECT_EQ(n_files, n_there);
  EXPECT_EQ(n_bytes, n_bytes_there);
  const Outcome text = run("cache tree --prefix-cache-dir " + directory());
  EXPECT_NE(text.out.find("model llama ("), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("checkpoint"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("0 1 2 3 4 5 6 7 8 9 10 11 ..."), std::string::npos) << text.out;
}

TEST_F(CliPrefixCache, TextOfATreeIsTheTokenizers) {
  const std::string smollm2 = MEMOIR_TEST_SMOLLM2;
  const Outcome first =
      run("generate -m " + smollm2 + " --raw -p 'abc abc abc abc' -n 2 --prefix-cache-dir " + directory());
  ASSERT_EQ(first.status, 0) << first.err;
  const Outcome tree = run("cache tree -m " + smollm2 + " --prefix-cache-dir " + directory());
  EXPECT_NE(tree.out.find("abc abc abc abc"), std::string::npos) << tree.out;
}

TEST_F(CliPrefixCache, ADamagedDirectoryIsNoReasonToFail) {
  const json expected = generated(counted(0, 60));
  for (const auto& entry : fs::directory_iterator(directory())) test::write_file(entry.path(), "damaged");
  EXPECT_EQ(run("cache tree --prefix-cache-dir " + directory()).out, "");
  const json after = generated(counted(0, 60));
  EXPECT_EQ(after["cached_tokens"], 0);
  EXPECT_EQ(after["tokens"], expected["tokens"]);
  EXPECT_EQ(generated(counted(0, 60))["cached_tokens"], 59);
}

// Killed while requests run and blocks are written; what is there then is used by the next run. Every answer that a run
// has given, and all of the last one's, are those without a cache. (benches/prefix_soak.py does it for longer.)
TEST_F(CliPrefixCache, AProgramThatIsKilledAtAnyMomentLeavesNothingWrong) {
  std::mt19937 random(20261128);
  std::string requests;
  for (int i = 0; i < 120; ++i) {
    std::string tokens = counted(0, 60);
    for (unsigned n = 1 + random() % 60; n > 0; --n) tokens += "," + std::to_string(random() % 150);
    requests += R"({"max_tokens": 3, "temperature": 0, "tokens": [)" + tokens + "]}\n";
  }
  test::write_file(in_folder("requests.jsonl"), requests);
  // By index, of the lines that are whole.
  const auto answers = [](const std::string& out) {
    std::map<int, json> result;
    std::istringstream lines(out.substr(0, out.rfind('\n') + 1));
    for (std::string line; std::getline(lines, line);) {
      const json answer = json::parse(line);
      result[answer["index"]] = answer["tokens"];
    }
    return result;
  };
  for (const char* const model : {"llama", "lfm2"}) {
    SCOPED_TRACE(model);
    const std::string program = std::string(MEMOIR_PROGRAM) + " generate -m " + test::data(model).string() +
                                " --batch " + in_folder("requests.jsonl") + " --prefix-cache-bytes ";
    const auto expected = answers(shell(program + "0").out);
    ASSERT_EQ(expected.size(), 120U);
    const std::string kept = program + "300000 --prefix-cache-disk-bytes 1500000 --prefix-cache-dir " + directory();
    for (int round = 0; round < 8; ++round) {
      const std::string moment = "0." + std::to_string(100 + random() % 250);
      const Outcome killed = shell(kept + " & sleep " + moment + "; kill -9 $!; wait $!");
      EXPECT_EQ(killed.err.find("memoir:"), std::string::npos) << killed.err;
      for (const auto& [index, tokens] : answers(killed.out)) EXPECT_EQ(tokens, expected.at(index)) << index;
    }
    const Outcome last = shell(kept);
    EXPECT_EQ(last.status, 0);
    EXPECT_EQ(last.err, "");
    EXPECT_EQ(answers(last.out), expected);
  }
}

TEST_F(CliPrefixCache, WhatCannotBeWrittenIsSaidOnce) {
  test::write_file(in_folder("file"), "");
  const Outcome outcome = generate(counted(0, 60), "--prefix-cache-dir " + in_folder("file") + "/inside");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err.find("memoir: --prefix-cache-dir: nothing more is kept there: "), 0U) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
}

TEST_F(CliPrefixCache, APartThatPassesTheBoundIsSaid) {
  const Outcome outcome =
      generate(counted(0, 60), "--prefix-cache-dir " + directory() + " --prefix-cache-disk-bytes 2000");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find("nothing more is kept there: a part of it has "), std::string::npos) << outcome.err;
}

// Qwen3.5 tiny, of 4 bytes each: two layers of attention keep a key and a value of 32; four of the delta rule states of
// 4 x 16 x 16, and 3 inputs of 2 x 32 + 64 for the convolution. The head: one layer of attention, a hidden state of 32.
TEST_F(CliPrefixCache, TooFewBytesForACheckpointAreRefusedWithWhatEachPartTakes) {
  const std::string model = test::model_with_head(in_folder("qwen"), "qwen3_5").string();
  const std::string kept = "generate --tokens 1,2,3 -n 1 --prefix-cache-dir " + directory() + " -m ";
  const auto message = [](int n_bytes, int checkpoint, int rows) {
    return "--prefix-cache-bytes " + std::to_string(n_bytes) +
           ": is too little, a checkpoint of states and full windows takes " + std::to_string(checkpoint) +
           " and the rows of a single token take " + std::to_string(rows) + "\n";
  };
  expect_failure(kept + model + " --prefix-cache-bytes 23039", 2, message(23039, 22528, 512));
  expect_failure(kept + model + " --draft auto --prefix-cache-bytes 23423", 2, message(23423, 22656, 768));
  EXPECT_EQ(run(kept + model + " --draft auto --prefix-cache-bytes 23424").status, 0);
  // Mamba 2, without rows: three layers of states of 6 x 16 x 16, and 3 inputs of 96 + 2 x 2 x 16.
  expect_failure(kept + test::data("mamba2").string() + " --prefix-cache-bytes 24191", 2,
                 ": is too little, a checkpoint of states and full windows takes 24192\n");
}

TEST_F(CliPrefixCache, RefusesWhatCannotWork) {
  test::write_file(in_folder("file"), "");
  const std::string generate = "generate -m " + tiny() + " --tokens 1,2,3 ";
  expect_failure(generate + "--prefix-cache-dir " + in_folder("file"), 2, "is no directory");
  expect_failure(generate + "--prefix-cache-dir d --prefix-cache-bytes 0", 2, "--prefix-cache-bytes 0");
  expect_failure(generate + "--prefix-cache-bytes 1000", 2, "--prefix-cache-bytes: nothing is kept");
  expect_failure(generate + "--prefix-cache-disk-bytes 5", 2, "--prefix-cache-dir");
  // 4 layers of 2 heads of 16, keys and values of 4 bytes
  const std::string token = ": nothing can be kept, the rows of a single token take 1024";
  const std::string kept = generate + "--prefix-cache-dir " + in_folder("d");
  for (const std::string bytes : {"0", "1023"}) {
    expect_failure(kept + " --prefix-cache-disk-bytes " + bytes, 2, "--prefix-cache-disk-bytes " + bytes + token);
  }
  expect_failure(kept + " --prefix-cache-bytes 1023", 2, "--prefix-cache-bytes 1023" + token);
  EXPECT_FALSE(test::fs::exists(in_folder("d")));
  expect_failure(std::string("generate -m ") + MEMOIR_TEST_SMOLLM2 +
                     " --tokens 1,2,3 --kv q8 --quantized-kv-start 5 --prefix-cache-dir d",
                 2, "--quantized-kv-start");
  expect_failure("cache tree --prefix-cache-dir " + in_folder("nowhere"), 1, "nowhere");
}

}  // namespace
}  // namespace memoir
