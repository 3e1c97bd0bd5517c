// The program as its users run it: what comes out on stdout and stderr, and the exit status.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli_runner.h"
#include "tests/gguf_builder.h"
#include "tests/model_files.h"
#include "tests/mtp_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;

using test::Outcome;

class Cli : public test::Cli {
 protected:
  static void write_converted_model(const test::fs::path& path);
};

// A GGUF of one layer whose two matrices of 256 columns are Q6_K, a type that becomes float16; zeros, so that every
// block is right.
void Cli::write_converted_model(const test::fs::path& path) {
  constexpr std::uint32_t kF32 = 0;
  constexpr std::uint32_t kQ6_K = 14;
  test::GgufBuilder gguf;
  gguf.string("general.architecture", "llama").integer("llama.block_count", 1);
  gguf.integer("llama.embedding_length", 256).integer("llama.feed_forward_length", 32);
  gguf.integer("llama.attention.head_count", 2).integer("llama.attention.head_count_kv", 1);
  gguf.integer("llama.context_length", 64).integer("llama.vocab_size", 8);
  gguf.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt-2");
  gguf.strings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "g", "h"});
  gguf.strings("tokenizer.ggml.merges", {}).integers("tokenizer.ggml.token_type", {1, 1, 1, 1, 1, 1, 1, 1});
  gguf.number("llama.attention.layer_norm_rms_epsilon", 1e-5F).number("llama.rope.freq_base", 1e4F);
  std::uint64_t offset = 0;
  const auto tensor = [&](const std::string& name, std::uint64_t columns, std::uint64_t rows, std::uint32_t type) {
    const std::vector<std::uint64_t> dims = rows > 0 ? std::vector{columns, rows} : std::vector{columns};
    gguf.tensor(name, dims, type, offset);
    const std::uint64_t n_values = columns * std::max<std::uint64_t>(rows, 1);
    const std::uint64_t n_bytes = type == kF32 ? n_values * 4 : n_values / 256 * 210;
    offset += (n_bytes + 31) / 32 * 32;
  };
  tensor("token_embd.weight", 256, 8, kQ6_K);
  tensor("output_norm.weight", 256, 0, kF32);
  tensor("blk.0.attn_norm.weight", 256, 0, kF32);
  tensor("blk.0.attn_q.weight", 256, 256, kQ6_K);
  tensor("blk.0.attn_k.weight", 256, 128, kF32);
  tensor("blk.0.attn_v.weight", 256, 128, kF32);
  tensor("blk.0.attn_output.weight", 256, 256, kF32);
  tensor("blk.0.ffn_norm.weight", 256, 0, kF32);
  tensor("blk.0.ffn_gate.weight", 256, 32, kF32);
  tensor("blk.0.ffn_up.weight", 256, 32, kF32);
  tensor("blk.0.ffn_down.weight", 32, 256, kF32);
  gguf.data_bytes = offset;
  const std::vector<std::byte> bytes = gguf.bytes();
  test::write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

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

TEST_F(Cli, DraftsGiveTheSameTokens) {
  const std::string generate = "generate -m " + tiny() + " --tokens " + golden_tokens("prompt") + " -n 48 --json";
  const std::vector<int> greedy = json::parse("[" + golden_tokens("greedy") + "]");
  EXPECT_EQ(json::parse(run(generate).out)["rounds"], 0);
  EXPECT_EQ(json::parse(run(generate + " --draft ngram").out)["tokens"], greedy);
  const json by_itself = json::parse(run(generate + " --draft-max 3 --draft " + tiny()).out);
  EXPECT_EQ(by_itself["tokens"], greedy);
  EXPECT_EQ(by_itself["accepted"], by_itself["drafted"]);
  EXPECT_GT(by_itself["rounds"], 0);
  expect_failure("generate -m " + tiny() + " --tokens 1 --draft /nowhere", 1, "/nowhere");
  const std::string gemma = test::data("gemma4_assistant").string();
  const std::string gemma_run = "generate --json -n 30 --tokens 3,1,4,1,5,9,2,6 -m " + gemma + "/target";
  const json read = json::parse(run(gemma_run + " --draft " + gemma + "/assistant").out);
  EXPECT_EQ(read["tokens"], json::parse(run(gemma_run).out)["tokens"]);
  EXPECT_GT(read["drafted"], 0);
  const std::string qwen = test::model_with_head(folder_.path() / "qwen", "qwen3_5").string();
  const std::string qwen_run = "generate --json -n 30 --tokens 3,1,4,1,5,9,2,6 -m " + qwen;
  const json headed = json::parse(run(qwen_run + " --draft auto").out);
  EXPECT_EQ(headed["tokens"], json::parse(run(qwen_run).out)["tokens"]);
  EXPECT_GT(headed["drafted"], 0);
  expect_failure("generate -m " + tiny() + " --tokens 1 --draft auto", 1, "carries no head");
  expect_failure("generate -m " + tiny() + " --tokens 1 --draft " + gemma + "/assistant", 1, "made for another model");
  expect_failure("generate -m " + tiny() + " --tokens 1 --draft ngram --draft-max 16", 2, "draft-max");
  expect_failure("generate -m " + tiny() + " --tokens 1 --draft " MEMOIR_TEST_SMOLLM2, 2, "another vocabulary");
}

// With --n K a line for each continuation: what K runs with these seeds print.
TEST_F(Cli, SamplesAreTheRunsWithTheirSeeds) {
  const std::string command = "generate -m " + tiny() + " --tokens " + golden_tokens("prompt") + " -n 8 --temp 1.2";
  const Outcome samples = run(command + " --seed 40 --n 3 --json");
  ASSERT_EQ(samples.status, 0) << samples.err;
  std::istringstream lines(samples.out);
  std::string line;
  std::string texts;
  int n = 0;
  for (; std::getline(lines, line); ++n) {
    const json sample = json::parse(line);
    EXPECT_EQ(sample.at("sample"), n);
    EXPECT_EQ(sample.at("seed"), 40 + n);
    const Outcome alone = run(command + " --json --seed " + std::to_string(40 + n));
    EXPECT_EQ(sample.at("tokens"), json::parse(alone.out).at("tokens"));
    texts += (n > 0 ? "---\n" : "") + run(command + " --seed " + std::to_string(40 + n)).out;
  }
  EXPECT_EQ(n, 3);
  EXPECT_EQ(run(command + " --seed 40 --n 3").out, texts);
  expect_failure(command + " --n 0", 2, "--n");
  expect_failure(command + " --n 2 --draft ngram", 2, "--n: not together with --draft");
  expect_failure(command + " --n 2 --context-shift", 2, "--n: not together with --context-shift");
  expect_failure(command + " --n 2 --prompt-cache " + in_folder("a.safetensors"), 2,
                 "--n: not together with --prompt-cache");
  expect_failure("generate -m " + test::data("lfm2").string() + " --tokens 1 --n 2", 2,
                 "--n: layer 0 of the model has a");
}

TEST_F(Cli, AContextThatShiftsGoesOn) {
  const std::string command = "generate -m " + tiny() + " --tokens " + golden_tokens("prompt") + " -n 100 --json";
  const Outcome shifted = run(command + " --context-shift --context 40 --keep 2");
  ASSERT_EQ(shifted.status, 0) << shifted.err;
  const json object = json::parse(shifted.out);
  EXPECT_GT(object.at("prompt_tokens").get<std::size_t>() + object.at("tokens").size(), 41U);
  // A context that never gets full changes nothing.
  EXPECT_EQ(json::parse(run(command + " --context-shift").out).at("tokens"),
            json::parse(run(command).out).at("tokens"));
  expect_failure(command + " --context 40", 2, "--context-shift");
  expect_failure(command + " --context-shift --context 513", 2, "--context 513: the model's is 512");
  expect_failure(command + " --context-shift --context 40 --keep 40", 2, "--keep 40: the context has 40 tokens");
  expect_failure(command + " --context-shift --draft ngram", 2, "--context-shift: not together with --draft");
  expect_failure(command + " --context-shift --max-kv-size 9", 2, "--context-shift: not together with --max-kv-size");
  expect_failure("generate -m " + test::data("mamba2").string() + " --tokens 1 --context-shift", 2,
                 "--context-shift: a mamba2 can't shift its context: layer 0 has a");
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
  expect_failure("generate -m " + tiny() + " --messages x.json --raw", 2, "--raw excludes --messages");
}

TEST_F(Cli, AnOptionThatWouldHaveNoEffectIsRefused) {
  const std::string generate = "generate -m " + tiny() + " --tokens 1 -n 1 ";
  expect_failure(generate + "--draft-max 3", 2, "--draft-max: without --draft nothing is guessed");
  expect_failure(generate + "--draft none --draft-max 3", 2, "--draft-max: ");
  expect_failure("chat --draft-max 3", 2, "--draft-max: ");
  expect_failure("serve -m " + tiny() + " --draft-max 3", 2, "--draft-max: ");
  expect_failure(generate + "--raw", 2, "--raw excludes --tokens");
  expect_failure(generate + "--stop x", 2, "--stop: the model has no tokenizer");
  expect_failure(generate + "--n 2 --prefix-cache-bytes 99999999", 2, "--prefix-cache-bytes: nothing is kept");
  expect_failure("bench -m " + tiny() + " --batch 2 --kv q8 --quantized-kv-start 5", 2, "--quantized-kv-start: ");
  expect_failure("tokenize -m smollm2 --decode --special", 2, "--special excludes --decode");
  for (const std::string option : {"--model-keep-alive", "--max-loaded-models", "--max-model-bytes", "--load-wait"}) {
    expect_failure("serve -m " + tiny() + " " + option + " 5", 2, option + " is for several models");
  }
}

// Which has no rows of keys and values.
TEST_F(Cli, OptionsOfKeysAndValuesAreRefusedWhereThereAreNone) {
  const std::string mamba2 = " -m " + test::data("mamba2").string();
  const std::string commands[] = {"generate" + mamba2 + " --tokens 1 -n 1", "bench" + mamba2 + " --prompt 2 --decode 1",
                                  "logits" + mamba2 + " --tokens 1 -o " + in_folder("x")};
  for (const std::string& command : commands) {
    for (const std::string option : {"--kv q8", "--kv f16", "--max-kv-size 9"}) {
      expect_failure(command + " " + option, 2, option + ": a mamba2 keeps no keys and values");
    }
  }
  EXPECT_EQ(run(commands[0] + " --kv auto").status, 0);
  EXPECT_EQ(run("generate -m " + test::data("falcon_h1").string() + " --tokens 1 -n 1 --kv f16").status, 0);
  expect_failure("generate -m " + test::data("deepseek_v3").string() + " --tokens 1 -n 1 --kv q8", 2, "--kv q8: ");
}

TEST_F(Cli, ARunSaysWithWhichSeedItCanBeRepeated) {
  const std::string command = "generate -m " + tiny() + " --tokens 1,2,3 -n 20 --temp 3 --json";
  const json first = json::parse(run(command).out);
  const json second = json::parse(run(command).out);
  EXPECT_NE(first.at("seed"), second.at("seed"));
  const json again = json::parse(run(command + " --seed " + first.at("seed").dump()).out);
  EXPECT_EQ(again.at("tokens"), first.at("tokens"));
  EXPECT_EQ(again.at("seed"), first.at("seed"));
}

TEST_F(Cli, MessagesNameNoFunction) {
  for (const std::string& command : {"generate -m " + tiny() + " --tokens 160",
                                     "generate -m " + tiny() + " --tokens 1 --max-kv-size 3 --draft ngram",
                                     "generate -m " + test::data("llama4").string() + " --tokens 1 --max-kv-size 5",
                                     "generate -m " + test::data("mamba2").string() + " --tokens 1 --context-shift"}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.err.find('['), std::string::npos) << outcome.err;
  }
}

TEST_F(Cli, NumbersAreDecimalFiniteAndInRange) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"--seed -1", "--seed: '-1' is not a whole number from 0 to 18446744073709551615"},
      {"--seed 18446744073709551616", "--seed: '18446744073709551616' is not a whole number"},
      {"--seed 1e3", "--seed"},
      {"--seed ' 1'", "--seed"},
      {"-n 0x3", "--max-tokens: '0x3' is not a whole number from 0 to 1073741824"},
      {"-n 1.5", "--max-tokens"},
      {"--top-k -1", "--top-k"},
      {"--repeat-last-n -2", "--repeat-last-n: '-2' is not a whole number from -1 to"},
      {"--temp nan", "--temp: 'nan' is not a number from 0 to 1000000\n"},
      {"--temp inf", "--temp"},
      {"--temp 1e999", "--temp"},
      {"--temp 0x1", "--temp"},
      {"--temp ''", "--temp"},
      {"--top-p 0", "--top-p: '0' is not a number above 0 and at most 1\n"},
      {"--min-p nan", "--min-p"},
      {"--repeat-penalty 0", "--repeat-penalty"},
      {"--repeat-penalty inf", "--repeat-penalty"},
      {"--presence-penalty -inf", "--presence-penalty"},
      {"--frequency-penalty nan", "--frequency-penalty"},
      {"--threads 257", "--threads: '257' is not a whole number from 1 to 256"},
      {"--threads 1024", "--threads"},
  };
  for (const auto& [option, message] : wrong) {
    expect_failure("generate -m " + tiny() + " --tokens 1 " + option, 2, "memoir: " + message);
  }
  const std::string sampled = "generate -m " + tiny() + " --tokens 1 -n 010 --json --temp 1.5e0 --seed ";
  const Outcome largest = run(sampled + "18446744073709551615");
  ASSERT_EQ(largest.status, 0) << largest.err;
  EXPECT_LE(json::parse(largest.out)["tokens"].size(), 10U);
  EXPECT_GT(json::parse(largest.out)["tokens"].size(), 8U);  // ten, not the eight of C's octal numbers
  EXPECT_NE(json::parse(run(sampled + "0").out)["tokens"], json::parse(largest.out)["tokens"]);
}

TEST_F(Cli, AnEmptyPathIsSaidToBeEmpty) {
  expect_failure("generate -m '' --tokens 1", 2, "memoir: --model: the path is empty\n");
  expect_failure(std::string("template '' -m ") + MEMOIR_TEST_SMOLLM2, 1, "the path of the messages is empty");
}

TEST_F(Cli, EveryErrorSaysWhoseItIs) {
  for (const std::string arguments : {"", "fly", "generate", "generate -m x", "chat --fly", "bench -m x --prompt x",
                                      "generate -m x --tokens 1", "logits -m x --tokens x -o y"}) {
    EXPECT_TRUE(run(arguments).err.starts_with("memoir: ")) << arguments << "\n" << run(arguments).err;
  }
}

TEST_F(Cli, AnUnreadableStdinIsAnError) {
  test::write_file(in_folder("chat.json"), R"([{"role": "user", "content": "x"}])");
  for (const std::string command :
       {"tokenize", "tokenize --decode", "chat", "generate --messages -", "template -", "template /dev/stdin"}) {
    const std::string line = std::string(MEMOIR_PROGRAM) + " " + command + " -m " + MEMOIR_TEST_SMOLLM2;
    for (const std::string& input : {" <" + folder_.path().string(), std::string(" <&-")}) {
      const Outcome outcome = shell(line + input);
      EXPECT_EQ(outcome.status, 1) << command << input;
      EXPECT_TRUE(outcome.err.starts_with("memoir: ")) << command << input << "\n" << outcome.err;
      EXPECT_EQ(outcome.out, "") << command << input;
    }
  }
}

TEST_F(Cli, AModelThatIsNowhereIsLookedForInFoldersThatItNames) {
  const Outcome outcome = shell("MEMOIR_MODELS=/my/models " + std::string(MEMOIR_PROGRAM) + " chat -m nothing");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("nothing: no such file or directory, nor a model in /my/models, "), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("/share/memoir/models"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("set MEMOIR_MODELS to the folder that has nothing.gguf"), std::string::npos);
  const Outcome file = shell("MEMOIR_MODELS=/my/models " + std::string(MEMOIR_PROGRAM) + " chat -m nothing.gguf");
  EXPECT_NE(file.err.find("the folder that has nothing.gguf;"), std::string::npos) << file.err;
}

// Below what 64 threads of a BLAS ask for, which some BLAS go on asking for when the program ends.
TEST_F(Cli, EndsWhereMemoryIsLimited) {
  const Outcome outcome = shell("ulimit -v 2000000; timeout 60 " + std::string(MEMOIR_PROGRAM) + " generate -m " +
                                tiny() + " --tokens 1,2 -n 2 --threads 64");
  EXPECT_NE(outcome.status, 124) << outcome.err;
}

TEST_F(Cli, SaysWhichWeightsWereConverted) {
  const std::string path = in_folder("q6.gguf");
  write_converted_model(path);
  const Outcome outcome = run("generate -m " + path + " --tokens 1,2 -n 1");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "memoir: " + path + ": 2 tensors of type Q6_K became float16\n");
}

TEST_F(Cli, FailuresNameWhatIsWrongAndExitWith1) {
  test::write_file(in_folder("empty.gguf"), "");
  test::write_file(in_folder("text.gguf"), "this is not a model");
  test::fs::create_directory(in_folder("folder"));
  expect_failure("generate -m " + in_folder("nothing") + " --tokens 1", 1, "no such file or directory");
  expect_failure("generate -m nothing --tokens 1", 1, "nothing: no such file or directory, nor a model in ");
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

TEST_F(Cli, AStdoutThatTakesNothingIsAnErrorNotACrash) {
  test::write_file(in_folder("chat.json"), R"([{"role": "user", "content": "x"}])");
  const std::string real = std::string(" -m ") + MEMOIR_TEST_SMOLLM2;
  const std::vector<std::string> commands = {"--help",
                                             "--version",
                                             "generate --help",
                                             "generate --tokens 1,2 -n 4 -m " + tiny(),
                                             "generate --tokens 1,2 -n 4 --json -m " + tiny(),
                                             "bench --prompt 4 --decode 2 --repeat 1 -m " + tiny(),
                                             "bench --prompt 4 --decode 2 --repeat 1 --json -m " + tiny(),
                                             "tokenize" + real,
                                             "template " + in_folder("chat.json") + real,
                                             "chat -n 2" + real};
  for (const std::string& command : commands) {
    for (const std::string output : {">&-", ">/dev/full"}) {
      if (output == ">/dev/full" && !test::fs::exists("/dev/full")) continue;
      const Outcome outcome = shell(std::string(MEMOIR_PROGRAM) + " " + command + " " + output, "hello\n");
      EXPECT_EQ(outcome.status, 1) << command << output << "\n" << outcome.err;
      EXPECT_NE(outcome.err.find("can't write"), std::string::npos) << command << output << "\n" << outcome.err;
    }
  }
}

TEST_F(Cli, BenchNamesAModelWhosePathIsNoUtf8) {
  const std::string path = in_folder("\xff");
  std::error_code refused;  // some file systems do
  test::fs::create_directory_symlink(tiny(), path, refused);
  if (refused) GTEST_SKIP() << refused.message();
  const Outcome outcome = run("bench -m '" + path + "' --prompt 4 --decode 2 --repeat 1 --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["model"], in_folder("\xEF\xBF\xBD"));
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
  EXPECT_EQ(result["batch"], 1);
  EXPECT_NE(run("bench -m " + tiny() + " --prompt 32 --decode 8 --repeat 1").out.find("decode tok/s"),
            std::string::npos);
  const Outcome batch = run("bench -m " + tiny() + " --prompt 9 --decode 3 --repeat 1 --batch 3 --prefill-chunk 4");
  EXPECT_EQ(batch.status, 0) << batch.err;
  EXPECT_NE(batch.out.find("batch          3\n"), std::string::npos) << batch.out;
  EXPECT_NE(run("bench -m " + tiny() + " --prompt 4 --decode 1 --repeat 1").out.find("kv             f32\n"),
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
  for (const std::string wrong : {"nonsense", "3"}) {
    EXPECT_EQ(run("tokenize --decode" + model, "[1]\n" + wrong).err.find("memoir: stdin: line 2: "), 0U) << wrong;
  }
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

TEST_F(Cli, MessagesComeFromPipesToo) {
  const std::string chat = R"([{"role": "user", "content": "Hi"}])";
  test::write_file(in_folder("chat.json"), chat);
  const std::string model = std::string(" -m ") + kSmolLM2;
  const std::string expected = run("template " + in_folder("chat.json") + model).out;
  EXPECT_NE(expected.find("Hi"), std::string::npos);
  EXPECT_EQ(run("template -" + model, chat).out, expected);
  EXPECT_EQ(run("template /dev/stdin" + model, chat).out, expected);
  const std::string fifo = in_folder("fifo");
  EXPECT_EQ(shell("mkfifo " + fifo + "; cat >" + fifo + " <" + in_folder("chat.json") + " & " + MEMOIR_PROGRAM +
                  " template " + fifo + model)
                .out,
            expected);
  EXPECT_EQ(
      shell("cat " + in_folder("chat.json") + " | " + MEMOIR_PROGRAM + " generate -n 1 --json --messages -" + model)
          .out.find("{\"tokens\""),
      0U);
}

TEST_F(Cli, MessagesThatAreNoJsonAreErrorsThatSayWhere) {
  const std::string command = std::string("template - -m ") + kSmolLM2;
  EXPECT_EQ(run(command, "{\"messages\":\n [{\"role\" \"user\"}]}")
                .err.find("memoir: stdin: is not JSON: parse error at line 2, column 16: "),
            0U);
  EXPECT_EQ(run(command, "{\"messages\": [1e999]}").err, "memoir: stdin: number overflow parsing '1e999'\n");
  EXPECT_EQ(run(command, "{}").err, "memoir: stdin: messages: expected an array of messages\n");
}

TEST_F(Cli, MessagesFilesThatAreNoneAreErrors) {
  for (const std::string text : {"", "{", "{}", "7", R"({"messages": 3})", "[]", R"({"messages": [7], "tools": 3})",
                                 R"({"messages": [7], "add_generation_prompt": "yes"})"}) {
    test::write_file(in_folder("chat.json"), text);
    expect_failure(std::string("template -m ") + kSmolLM2 + " " + in_folder("chat.json"), 1, "chat.json");
  }
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
