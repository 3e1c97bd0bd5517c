// The program as its users run it: what comes out on stdout and stderr, and the exit status.

#include <gtest/gtest.h>
#include <mlx/mlx.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

class Cli : public testing::Test {
 protected:
  /// Runs the program with arguments as a shell reads them.
  Outcome run(const std::string& arguments, const std::string& input = "") const {
    return shell(std::string(MEMOIR_PROGRAM) + " " + arguments, input);
  }

  Outcome shell(const std::string& command, const std::string& input = "") const {
    const test::fs::path in = folder_.path() / "in";
    const test::fs::path out = folder_.path() / "out";
    const test::fs::path err = folder_.path() / "err";
    test::write_file(in, input);
    const std::string line = "( " + command + " ) <" + in.string() + " >" + out.string() + " 2>" + err.string();
    const int result = std::system(line.c_str());
    return {WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result), test::read_file(out),
            test::read_file(err)};
  }

  std::string tiny() const { return test::data("llama").string(); }
  std::string in_folder(const std::string& name) const { return (folder_.path() / name).string(); }

  std::string golden_tokens(const char* name) const {
    mx::array a = mx::load_safetensors(tiny() + "/expected.safetensors").first.at(name);
    mx::eval(a);
    std::ostringstream text;
    for (std::size_t i = 0; i < a.size(); ++i) text << (i > 0 ? "," : "") << a.data<std::int32_t>()[i];
    return text.str();
  }

  void expect_failure(const std::string& arguments, int status, const std::string& message) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, status) << arguments << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Cli, GenerateContinuesTokens) {
  const std::string prompt = golden_tokens("prompt");
  const Outcome plain = run("generate -m " + tiny() + " --tokens " + prompt + " -n 48");
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(plain.out, golden_tokens("greedy") + "\n");
  EXPECT_EQ(plain.err, "");
}

TEST_F(Cli, GeneratePrintsOneJsonObject) {
  const Outcome outcome =
      run("generate -m " + tiny() + " --tokens " + golden_tokens("prompt") + " -n 5 --json --prefill-chunk 7");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  std::vector<int> greedy = json::parse("[" + golden_tokens("greedy") + "]");
  greedy.resize(5);
  EXPECT_EQ(result["tokens"], greedy);
  EXPECT_EQ(result["prompt_tokens"], 41);
  EXPECT_EQ(result["cached_tokens"], 0);
  EXPECT_EQ(result["finish_reason"], "length");
  EXPECT_GT(result["prefill_s"], 0.0);
  EXPECT_GE(result["decode_s"], 0.0);
}

TEST_F(Cli, LogitsAreTheReferencesInChunksOfAnySize) {
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

TEST_F(Cli, LogitsLeavesNoHalfFileBehind) {
  expect_failure("logits -m " + tiny() + " --tokens 1,2 -o " + in_folder("none/x.safetensors"), 1,
                 "none/x.safetensors");
  test::fs::create_directory(in_folder("taken.safetensors"));
  test::write_file(in_folder("taken.safetensors") + "/file", "x");
  expect_failure("logits -m " + tiny() + " --tokens 1,2 -o " + in_folder("taken.safetensors"), 1, "can't write");
  for (const auto& entry : test::fs::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().string().find(".part"), std::string::npos) << entry.path();
  }
}

TEST_F(Cli, ReportsTheVersionAndHelp) {
  EXPECT_EQ(run("--version").out, std::string(MEMOIR_VERSION) + "\n");
  const Outcome help = run("generate --help");
  EXPECT_EQ(help.status, 0);
  for (const char* option : {"--model", "--prompt", "--tokens", "--messages", "--temp", "--top-p", "--top-k", "--min-p",
                             "--repeat-penalty", "--seed", "--stop", "--raw", "--json", "--threads", "--device"}) {
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  }
}

TEST_F(Cli, WrongUsageExitsWith2) {
  expect_failure("", 2, "no command given");
  expect_failure("fly", 2, "fly");
  expect_failure("generate -p hello", 2, "--model is required");
  expect_failure("generate -m " + tiny(), 2, "prompt");
  expect_failure("generate -m " + tiny() + " --tokens 1 -p x", 2, "prompt");
  expect_failure("generate -m " + tiny() + " --tokens 1 --frobnicate", 2, "--frobnicate");
  expect_failure("generate -m " + tiny() + " --tokens 1,x", 2, "'1,x' is not a list of token ids");
  expect_failure("generate -m " + tiny() + " --tokens 1,,2", 2, "'1,,2' is not a list");
  expect_failure("generate -m " + tiny() + " --tokens 1, ", 2, "'1,' is not a list");
  expect_failure("generate -m " + tiny() + " --tokens -5", 2, "");
  expect_failure("generate -m " + tiny() + " --tokens 99999999999", 2, "is not a list");
  expect_failure("generate -m " + tiny() + " --tokens ''", 2, "the prompt is empty");
  expect_failure("generate -m " + tiny() + " --tokens 1 -n -1", 2, "--max-tokens");
  expect_failure("generate -m " + tiny() + " --tokens 1 --temp -1", 2, "--temp");
  expect_failure("generate -m " + tiny() + " --tokens 1 --top-p 0", 2, "--top-p");
  expect_failure("generate -m " + tiny() + " --tokens 1 --top-p 1.5", 2, "--top-p");
  expect_failure("generate -m " + tiny() + " --tokens 1 --threads 0", 2, "--threads");
  expect_failure("generate -m " + tiny() + " --tokens 1 --stop ''", 2, "--stop");
  expect_failure("generate -m " + tiny() + " --tokens 1 --device tpu", 2, "--device");
  expect_failure("logits -m " + tiny() + " --tokens 1 -o x --chunk 0", 2, "--chunk");
  expect_failure("bench -m " + tiny() + " --prompt 600 --decode 5", 2, "context of 512");
}

TEST_F(Cli, FailuresNameWhatIsWrongAndExitWith1) {
  test::write_file(in_folder("empty.gguf"), "");
  test::write_file(in_folder("text.gguf"), "this is not a model");
  test::fs::create_directory(in_folder("folder"));
  expect_failure("generate -m " + in_folder("nothing") + " --tokens 1", 1, "no such file or directory");
  expect_failure("generate -m nothing --tokens 1", 1, "nothing: no such file, directory or known model");
  expect_failure("generate -m " + in_folder("empty.gguf") + " --tokens 1", 1, "empty.gguf");
  expect_failure("generate -m " + in_folder("text.gguf") + " --tokens 1", 1, "text.gguf");
  expect_failure("generate -m " + in_folder("folder") + " --tokens 1", 1, "config.json: no such file");
  expect_failure("generate -m " + tiny() + " --tokens 160", 1, "token 160 is outside the vocabulary of 160");
  expect_failure("generate -m " + tiny() + " -p hello", 1, "tokenizer.json");
  expect_failure("chat -m " + tiny(), 1, "tokenizer.json");
  expect_failure("tokenize -m " + tiny(), 1, "tokenizer.json");
  std::string long_prompt = "1";
  for (int i = 0; i < 512; ++i) long_prompt += ",1";
  expect_failure("generate -m " + tiny() + " --tokens " + long_prompt, 1,
                 "513 tokens, more than the model's context of 512");
  expect_failure("logits -m " + tiny() + " --tokens " + long_prompt + " -o " + in_folder("x.safetensors"), 1, "512");
}

TEST_F(Cli, AClosedStdoutIsAnErrorNotACrash) {
  const std::string command = std::string(MEMOIR_PROGRAM) + " generate -m " + tiny() + " --tokens 1,2 -n 4";
  const Outcome closed = shell(command + " >&-");
  EXPECT_EQ(closed.status, 1);
  EXPECT_NE(closed.err.find("stdout: can't write"), std::string::npos) << closed.err;
  if (test::fs::exists("/dev/full")) {
    const Outcome full = shell(command + " >/dev/full");
    EXPECT_EQ(full.status, 1);
    EXPECT_NE(full.err.find("stdout: can't write"), std::string::npos) << full.err;
  }
}

TEST_F(Cli, BenchPrintsItsFigures) {
  const Outcome outcome = run("bench -m " + tiny() + " --prompt 32 --decode 8 --repeat 3 --threads 1 --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  for (const char* speed : {"prefill_tok_s", "decode_tok_s"}) {
    EXPECT_LE(result[speed]["min"], result[speed]["median"]);
    EXPECT_LE(result[speed]["median"], result[speed]["max"]);
    EXPECT_GT(result[speed]["min"], 0.0);
  }
  EXPECT_GT(result["peak_rss_bytes"], 1 << 20);
  EXPECT_GT(result["load_s"], 0.0);
  EXPECT_EQ(result["threads"], 1);
  EXPECT_EQ(result["model"], tiny());
  EXPECT_EQ(result["kv"], "f32");
  EXPECT_NE(run("bench -m " + tiny() + " --prompt 32 --decode 8 --repeat 1").out.find("decode tok/s"),
            std::string::npos);
}

// ---- With SmolLM2

constexpr const char* kSmolLM2 = MEMOIR_TEST_SMOLLM2;

TEST_F(Cli, GenerateSaysParis) {
  const Outcome outcome =
      run(std::string("generate -m ") + kSmolLM2 + " -p 'The capital of France is' -n 8 --raw --temp 0");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("Paris"), std::string::npos) << outcome.out;
}

TEST_F(Cli, ATruncatedModelIsAnError) {
  const std::string path = in_folder("short.gguf");
  for (const std::string size : {"100", "1000000", "50000000"}) {
    ASSERT_EQ(shell("head -c " + size + " " + kSmolLM2 + " > " + path).status, 0);
    expect_failure("generate -m " + path + " -p x", 1, "short.gguf");
  }
}

TEST_F(Cli, TokenizeGoesBothWays) {
  const json golden = json::parse(test::read_file(test::data("smollm2_tokens.json")));
  std::string lines;
  std::string ids;
  std::string special_ids;
  std::string decodable_ids;
  std::string decodable_lines;
  for (const json& item : golden["items"]) {
    const std::string line = item["text"].dump() + "\n";
    lines += line;
    ids += item["ids"].dump() + "\n";
    special_ids += item["ids_special"].dump() + "\n";
    if (item.contains("detokenized_hex")) continue;  // bytes that the vocabulary lacks
    decodable_ids += item["ids"].dump() + "\n";
    decodable_lines += line;
  }
  const std::string model = std::string(" -m ") + kSmolLM2;
  EXPECT_EQ(run("tokenize --json" + model, lines).out, ids);
  EXPECT_EQ(run("tokenize --json --special" + model, lines).out, special_ids);
  EXPECT_EQ(run("tokenize --json --decode" + model, decodable_ids).out, decodable_lines);
}

TEST_F(Cli, TokenizeTakesLinesAsTheyAre) {
  const std::string model = std::string(" -m ") + kSmolLM2;
  EXPECT_EQ(run("tokenize --decode" + model, run("tokenize" + model, "two  words\r\n\n<|im_end|>\n").out).out,
            "two  words\r\n\n<|im_end|>\n");
  EXPECT_EQ(run("tokenize --special" + model, "<|im_end|>").out, "[2]\n");
  EXPECT_EQ(run("tokenize --decode" + model, "[1, 99999]").status, 1);
  EXPECT_EQ(run("tokenize --decode" + model, "nonsense").status, 1);
  EXPECT_EQ(run("tokenize --json" + model, "nonsense").status, 1);
  EXPECT_EQ(run("tokenize --decode" + model, std::string(1'000'000, '[')).status, 1);
  EXPECT_EQ(run("tokenize --decode" + model, "[" + std::string(1000, '[') + std::string(1000, ']') + "]").status, 1);
}

TEST_F(Cli, TemplateRendersTheGoldenChats) {
  const json golden = json::parse(test::read_file(test::data("smollm2_chat.json")));
  for (const json& chat : golden["conversations"]) {
    test::write_file(
        in_folder("chat.json"),
        json{{"messages", chat["messages"]}, {"add_generation_prompt", chat["add_generation_prompt"]}}.dump());
    const Outcome outcome = run(std::string("template -m ") + kSmolLM2 + " " + in_folder("chat.json"));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, chat["text"].get<std::string>());
  }
}

TEST_F(Cli, MessagesFilesThatAreNoneAreErrors) {
  for (const std::string text : {"", "{", "{}", "7", R"({"messages": 3})", R"({"messages": [], "tools": 3})",
                                 R"({"messages": [], "add_generation_prompt": "yes"})"}) {
    test::write_file(in_folder("chat.json"), text);
    expect_failure(std::string("template -m ") + kSmolLM2 + " " + in_folder("chat.json"), 1, "chat.json");
  }
}

TEST_F(Cli, ChatAnswersLinesAndReusesTheConversation) {
  const Outcome outcome =
      run(std::string("chat -m ") + kSmolLM2 + " -n 12 --temp 0 --stats",
          "What is the capital of France?\nAnd of Italy?\n\n/frob\n/clear \nWhat is the capital of France?\n");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string first = outcome.out.substr(0, outcome.out.find('\n') + 1);
  EXPECT_NE(first.find("Paris"), std::string::npos) << outcome.out;
  std::vector<int> cached;
  const std::string key = "cached_tokens ";
  for (std::size_t at = outcome.err.find(key); at != std::string::npos; at = outcome.err.find(key, at + 1)) {
    cached.push_back(std::atoi(outcome.err.c_str() + at + key.size()));
  }
  ASSERT_EQ(cached.size(), 3U) << outcome.err;
  EXPECT_EQ(cached[0], 0);
  EXPECT_GT(cached[1], 40);  // the first prompt of 37 tokens, and its answer
  EXPECT_EQ(cached[2], 36);  // the first question again: all but its last token
}

TEST_F(Cli, GenerateRendersMessages) {
  test::write_file(in_folder("chat.json"), R"([{"role": "user", "content": "What is the capital of France?"}])");
  const Outcome outcome = run(std::string("generate -m ") + kSmolLM2 + " --messages " + in_folder("chat.json") +
                              " -n 16 --json --stop France");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["prompt_tokens"], 37);
  EXPECT_EQ(result["text"], "The capital of ");
  EXPECT_EQ(result["finish_reason"], "stop");
  const Outcome ended =
      run(std::string("generate -m ") + kSmolLM2 + " -p 'What is the capital of France?' -n 32 --json");
  EXPECT_EQ(json::parse(ended.out)["finish_reason"], "stop");
  EXPECT_EQ(json::parse(ended.out)["text"], "The capital of France is Paris.");
}

}  // namespace
}  // namespace memoir
