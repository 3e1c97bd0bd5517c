// memoir create and memoir models: what a Modelfile names is copied or quantized, checked, and run by name as it says.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "memoir/base/json_text.h"
#include "tests/cli_runner.h"
#include "tests/mtp_files.h"

namespace memoir {
namespace {

using nlohmann::json;
using test::fs::path;

class CliCreate : public test::Cli {
 protected:
  void SetUp() override {
    models_ = folder_.path() / "models";
    ASSERT_EQ(setenv("MEMOIR_MODELS", models_.c_str(), 1), 0);
    ASSERT_EQ(setenv("XDG_DATA_HOME", (folder_.path() / "data").c_str(), 1), 0);
  }

  path modelfile(const std::string& text) const {
    test::write_file(folder_.path() / "Modelfile", text);
    return folder_.path() / "Modelfile";
  }

  test::Outcome create(const std::string& name, const std::string& text, const std::string& options = "") const {
    return run("create " + name + " -f " + modelfile(text).string() + " " + options);
  }

  // Nothing of a failed run is left.
  void expect_refused(const test::Outcome& outcome, int status, const std::string& message) const {
    EXPECT_EQ(outcome.status, status);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    if (test::fs::exists(models_)) {
      EXPECT_TRUE(test::fs::is_empty(models_));
    }
  }

  json generated(const std::string& arguments) const {
    const test::Outcome outcome = run("generate --json " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  path models_;
};

TEST_F(CliCreate, AModelIsCopiedListedAndRunByName) {
  const test::Outcome outcome = create("tiny", "FROM " + tiny() + "\nPARAMETER num_predict 7\n");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, (models_ / "tiny").string() + "\n");
  const json plain = generated("-m " + tiny() + " --tokens 1,2,3 -n 7");
  EXPECT_EQ(generated("-m tiny --tokens 1,2,3")["tokens"], plain["tokens"]);
  EXPECT_EQ(generated("-m tiny --tokens 1,2,3 -n 3")["tokens"].size(), 3U);
  EXPECT_EQ(generated("-m " + (models_ / "tiny").string() + " --tokens 1,2,3")["tokens"], plain["tokens"]);
  const test::Outcome list = run("models");
  EXPECT_EQ(list.status, 0);
  EXPECT_NE(list.out.find("tiny"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find((models_ / "tiny").string()), std::string::npos) << list.out;
  // A second one of the name is refused, the first stays.
  const test::Outcome again = create("tiny", "FROM " + tiny() + "\n");
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find("there is such a model already"), std::string::npos) << again.err;
  // One made of it.
  ASSERT_EQ(create("second", "FROM tiny\nPARAMETER num_predict 2").status, 0);
  EXPECT_EQ(generated("-m second --tokens 1,2,3")["tokens"].size(), 2U);
  for (const auto& entry : test::fs::directory_iterator(models_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

TEST_F(CliCreate, ParametersAreDefaults) {
  ASSERT_EQ(
      create("warm", "FROM " + tiny() +
                         "\nPARAMETER temperature 0.9\nPARAMETER seed 5\nPARAMETER top_p 0.8\nPARAMETER num_predict "
                         "12\nPARAMETER repeat_penalty 1.3\nPARAMETER repeat_last_n 4\nPARAMETER num_thread 1\n")
          .status,
      0);
  const std::string stated =
      " --tokens 1,2,3 --seed 5 --top-p 0.8 -n 12 --repeat-penalty 1.3 --repeat-last-n 4 --temp ";
  EXPECT_EQ(generated("-m warm --tokens 1,2,3")["tokens"], generated("-m " + tiny() + stated + "0.9")["tokens"]);
  EXPECT_EQ(generated("-m warm --tokens 1,2,3 --temp 0")["tokens"], generated("-m " + tiny() + stated + "0")["tokens"]);
}

TEST_F(CliCreate, SystemMessagesAndTemplateGoBeforeWhatIsSaid) {
  const std::string from = std::string("FROM ") + MEMOIR_TEST_SMOLLM2 + "\n";
  ASSERT_EQ(create("pirate", from + "SYSTEM You are a pirate.\nMESSAGE user Hi\nMESSAGE assistant Arr!\n").status, 0);
  const auto messages = [&](const char* text) {
    test::write_file(folder_.path() / "chat.json", text);
    return " --messages " + (folder_.path() / "chat.json").string() + " -n 4";
  };
  const std::string plain = std::string("-m ") + MEMOIR_TEST_SMOLLM2;
  const std::string said = R"({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Arr!"},
                              {"role": "user", "content": "Who?"})";
  const json whole =
      generated(plain + messages((R"([{"role": "system", "content": "You are a pirate."}, )" + said + "]").c_str()));
  const json asked = generated("-m pirate -p 'Who?' -n 4");
  EXPECT_EQ(asked["tokens"], whole["tokens"]);
  EXPECT_EQ(asked["prompt_tokens"], whole["prompt_tokens"]);
  EXPECT_EQ(generated("-m pirate" + messages(R"([{"role": "user", "content": "Who?"}])"))["prompt_tokens"],
            whole["prompt_tokens"]);
  // A conversation with a system message of its own keeps that.
  const json own = generated("-m pirate" + messages(R"([{"role": "system", "content": "Be brief."},
                                                        {"role": "user", "content": "Who?"}])"));
  EXPECT_EQ(
      own["prompt_tokens"],
      generated(plain +
                messages((R"([{"role": "system", "content": "Be brief."}, )" + said + "]").c_str()))["prompt_tokens"]);
  EXPECT_EQ(generated("-m pirate --raw -p Who -n 1")["prompt_tokens"],
            generated(plain + " --raw -p Who -n 1")["prompt_tokens"]);

  ASSERT_EQ(create("loud", from + "TEMPLATE {% for m in messages %}<{{ m.content | upper }}>{% endfor %}").status, 0);
  test::write_file(folder_.path() / "chat.json", R"([{"role": "user", "content": "who"}])");
  EXPECT_EQ(run("template -m loud " + (folder_.path() / "chat.json").string()).out, "<WHO>");
  EXPECT_EQ(generated("-m loud -p who -n 1")["prompt_tokens"],
            generated(plain + " --raw -p '<WHO>' -n 1")["prompt_tokens"]);
}

TEST_F(CliCreate, ADraftIsUsedUnlessNoneIsWanted) {
  const path gemma = test::data("gemma4_assistant");
  ASSERT_EQ(create("gemma", "FROM " + (gemma / "target").string() + "\nDRAFT " + (gemma / "assistant").string() +
                                "\nPARAMETER draft_num_predict 3\n")
                .status,
            0);
  const std::string prompt = " --tokens 3,1,4,1,5,9,2,6 -n 40";
  const json plain = generated("-m " + (gemma / "target").string() + prompt);
  const json drafted = generated("-m gemma" + prompt);
  EXPECT_EQ(drafted["tokens"], plain["tokens"]);
  EXPECT_GT(drafted["drafted"], 0);
  EXPECT_EQ(generated("-m gemma --draft none" + prompt)["drafted"], 0);
  // A draft model with the same vocabulary, and parameters that say that nothing is drafted.
  const std::string llama =
      "FROM " + tiny() + "\nDRAFT " + test::model_with_head(folder_.path() / "q", "qwen3_5").string();
  ASSERT_EQ(create("pair", llama).status, 0);
  EXPECT_GT(generated("-m pair" + prompt)["drafted"], 0);
  ASSERT_EQ(create("parked", llama + "\nPARAMETER draft_num_predict 0").status, 0);
  EXPECT_EQ(generated("-m parked" + prompt)["drafted"], 0);
  // What is said on the command line comes first.
  EXPECT_GT(generated("-m parked --draft-max 4" + prompt)["drafted"], 0);
  expect_failure("generate -m parked --draft none --draft-max 4" + prompt, 2, "nothing is guessed");
}

TEST_F(CliCreate, AutoIsThePackagesDraftAndWithoutOneTheHead) {
  const path model = test::model_with_head(folder_.path() / "qwen", "qwen3_5");
  test::fs::copy_file(test::data("tokenizer") / "smollm.json", model / "tokenizer.json");
  const std::string from = "FROM " + model.string() + "\nTEMPLATE \"{{ messages[0].content }}\"";
  const std::string same = test::data("qwen3_5").string();  // whose guesses are all right
  ASSERT_EQ(create("headed", from).status, 0);
  ASSERT_EQ(create("both", from + "\nDRAFT " + same + "\nPARAMETER draft_num_predict 0").status, 0);
  const std::string prompt = " --tokens 3,1,4,1,5,9,2,6 -n 40";
  EXPECT_GT(generated("-m headed --draft auto" + prompt)["drafted"], 0);
  const json drafted = generated("-m both --draft auto" + prompt);
  EXPECT_GT(drafted["drafted"], 0);
  EXPECT_EQ(drafted["accepted"], drafted["drafted"]);
  EXPECT_EQ(generated("-m both" + prompt)["drafted"], 0);
  // Every command takes the DRAFT: one that was made for another model is refused by each, though there is a head.
  for (const char* file : {"config.json", "model.safetensors"}) {
    test::fs::copy_file(test::data("gemma4_assistant") / "assistant" / file, models_ / "both" / "draft" / file,
                        test::fs::copy_options::overwrite_existing);
  }
  test::write_file(folder_.path() / "requests.jsonl", R"({"tokens": [1, 2]})");
  const std::string batch = "generate --batch " + in_folder("requests.jsonl");
  for (const std::string& command :
       {std::string("generate --tokens 1,2"), std::string("chat"), std::string("serve --port 0"), batch}) {
    expect_failure(command + " -m both --draft auto", 1, (models_ / "both" / "draft" / "config.json").string());
  }
  // Without either.
  ASSERT_EQ(create("bare", "FROM " + tiny()).status, 0);
  expect_failure("generate --tokens 1,2 -m bare --draft auto", 1,
                 "--draft auto: the model carries no head that predicts further tokens, and no package names a DRAFT");
}

TEST_F(CliCreate, WhatCanNotBeDraftedForRunsWithoutThePackagesDraft) {
  ASSERT_EQ(
      create("pair", "FROM " + tiny() + "\nDRAFT " + test::model_with_head(folder_.path() / "q", "qwen3_5").string())
          .status,
      0);
  for (const char* options : {" --n 2 --seed 1 --temp 1", " --context-shift"}) {
    const std::string rest = std::string(" --tokens 3,1,4,1,5,9,2,6 -n 20") + options;
    const test::Outcome packaged = run("generate -m pair" + rest);
    EXPECT_EQ(packaged.status, 0) << packaged.err;
    EXPECT_EQ(packaged.out, run("generate -m " + tiny() + rest).out) << options;
    EXPECT_EQ(packaged.err, "memoir: with " + std::string(options + 1, std::strcspn(options + 1, " ")) +
                                " the model's DRAFT is not used\n");
    EXPECT_EQ(run("generate -m pair --draft none" + rest).err, "");
    expect_failure("generate -m pair --draft ngram" + rest, 2, "not together with --draft");
  }
  const test::Outcome batch = run("generate -m pair --batch -", "{\"tokens\": [1, 2], \"n\": 2}");
  EXPECT_EQ(batch.status, 0);
  EXPECT_EQ(batch.err, "");
}

TEST_F(CliCreate, QuantizedModelsRun) {
  const path gemma = test::data("gemma4_assistant");
  for (const std::string bits : {"4", "8"}) {
    const std::string name = "gemma" + bits;
    const test::Outcome outcome =
        create(name, "FROM " + (gemma / "target").string() + "\nDRAFT " + (gemma / "assistant").string(),
               "--quantize q" + bits + (bits == "8" ? " --draft-quantize q8" : ""));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const json config = json::parse(test::read_file(models_ / name / "model" / "config.json"));
    EXPECT_EQ(config["quantization"]["bits"], std::stoi(bits));
    EXPECT_EQ(config["quantization"]["model.embed_tokens"]["group_size"], 32);
    EXPECT_LT(test::fs::file_size(models_ / name / "model" / "model.safetensors"),
              test::fs::file_size(gemma / "target" / "model.safetensors"));
    const std::string prompt = " --tokens 3,1,4,1,5,9,2,6 -n 20";
    EXPECT_EQ(generated("-m " + name + prompt)["tokens"], generated("-m " + name + " --draft none" + prompt)["tokens"]);
  }
  // Experts one by one and stacked, a router, recurrent layers.
  for (const char* model : {"qwen3_next", "gemma4_moe", "qwen3_5"}) {
    ASSERT_EQ(create(model, "FROM " + test::data(model).string(), "--quantize q8").status, 0) << model;
    EXPECT_EQ(generated(std::string("-m ") + model + " --tokens 1,2,3 -n 5")["tokens"].size(), 5U);
  }
  // A configuration with a number that is no JSON, as python writes it and as newer files have it.
  const path mamba = folder_.path() / "mamba";
  test::fs::copy(test::data("mamba2"), mamba);
  for (const char* infinity : {R"({"__float__": "Infinity"})", "Infinity"}) {
    json config = parse_json(test::read_file(test::data("mamba2") / "config.json"), "config.json");
    config["time_step_limit"] = {0.0, "LIMIT"};
    std::string text = config.dump();
    text.replace(text.find("\"LIMIT\""), 7, infinity);
    test::write_file(mamba / "config.json", text);
    const std::string name = infinity[0] == '{' ? "tagged" : "bare";
    ASSERT_EQ(create(name, "FROM " + mamba.string(), "--quantize q8").err, "") << infinity;
    EXPECT_NE(test::read_file(models_ / name / "model" / "config.json").find("    Infinity\n"), std::string::npos);
    EXPECT_EQ(generated("-m " + name + " --tokens 1,2,3 -n 5")["tokens"].size(), 5U);
  }
  expect_failure("create again -f " + modelfile("FROM gemma8").string() + " --quantize q4", 1, "quantized already");
}

TEST_F(CliCreate, WhatCanNotBeIsRefusedAndLeavesNothing) {
  const std::string from = "FROM " + tiny() + "\n";
  expect_refused(create("x", from + "WHAT 1"), 1, "Modelfile: line 2: WHAT is no command");
  expect_refused(create("x", from + from), 1, "line 2: FROM is there already, in line 1");
  expect_refused(create("x", from + "ADAPTER a"), 1, "line 2: ADAPTER is not supported");
  expect_refused(create("x", from + "DRAFT " + tiny()), 1,
                 "Modelfile: line 2: DRAFT " + tiny() + ": is the same model as FROM\n");
  expect_refused(create("x", from + "DRAFT " + test::data("gemma4_assistant").string() + "/assistant"), 1,
                 "made for another model");
  expect_refused(create("x", from + "\nDRAFT " + test::data("qwen2").string()), 2,
                 "Modelfile: line 3: DRAFT " + test::data("qwen2").string() + ": another vocabulary");
  expect_refused(create("x", from, "--draft-quantize q8"), 2, "has no DRAFT");
  expect_refused(create("x", from, "--quantize q5"), 2, "q5");
  test::fs::create_directory(folder_.path() / "empty");
  expect_refused(create("x", "FROM ./empty"), 1, "config.json");
  expect_refused(create("../x", from), 2, "is no name");
  expect_refused(create(".x", from), 2, "is no name");
  expect_refused(run("create x -f /nowhere/Modelfile"), 1, "/nowhere/Modelfile");
  expect_refused(run("create"), 2, "name is required");
}

TEST_F(CliCreate, WhatIsNotThereIsSaidWithItsLine) {
  const std::string file = in_folder("Modelfile");
  expect_refused(create("x", "\n  FROM ./nope"), 1,
                 "memoir: " + file + ": line 2: FROM ./nope: no such file or directory\n");
  expect_refused(create("x", "FROM nope"), 1, file + ": line 1: FROM nope: no such file or directory, nor a model in ");
  expect_refused(create("x", "FROM " + tiny() + "\nDRAFT /no/where"), 1,
                 file + ": line 2: DRAFT /no/where: no such file or directory\n");
  test::fs::create_symlink("nowhere", in_folder("link"));
  expect_refused(create("x", "FROM " + tiny() + "\nDRAFT link"), 1,
                 file + ": line 2: DRAFT link: " + in_folder("link") + ": is a symbolic link that leads nowhere\n");
}

TEST_F(CliCreate, AStdoutThatTakesNothingLeavesNothing) {
  expect_refused(run("create x -f " + modelfile("FROM " + tiny()).string() + " >/dev/full"), 1, "stdout: can't write");
}

// A file of weights with one matrix that no model has, in rows of 32.
void write_stray(const path& file) {
  mlx::core::save_safetensors(file.string(), {{"stray.weight", mlx::core::ones({2, 32})}});
}

TEST_F(CliCreate, OnlyWeightsThatAreLoadedAreTaken) {
  test::fs::copy(tiny(), in_folder("single"));
  write_stray(in_folder("single/other.safetensors"));
  const path sharded = test::model_with_head(in_folder("sharded"), "qwen3_5");
  write_stray(sharded / "consolidated.safetensors");
  test::write_file(sharded / "consolidated.safetensors.index.json", "{}");
  test::fs::copy(test::data("qwen3_5"), in_folder("head"));
  test::fs::copy_file(test::data("mtp") / "qwen3_5.safetensors", in_folder("head/mtp.safetensors"));
  for (const std::string model : {"single", "sharded", "head"}) {
    const std::string tokens = " --tokens 1,2,3 -n 5";
    ASSERT_EQ(create(model + "1", "FROM ./" + model).err, "");
    ASSERT_EQ(create(model + "8", "FROM ./" + model, "--quantize q8").err, "");
    EXPECT_EQ(generated("-m " + model + "1" + tokens)["tokens"],
              generated("-m " + in_folder(model) + tokens)["tokens"]);
    EXPECT_EQ(generated("-m " + model + "8" + tokens)["tokens"].size(), 5U);
    for (const char* bits : {"1", "8"}) {
      for (const auto& entry : test::fs::directory_iterator(models_ / (model + bits) / "model")) {
        const std::string name = entry.path().filename().string();
        EXPECT_TRUE(!name.ends_with(".safetensors") || name.starts_with("model")) << name;
        EXPECT_FALSE(name.starts_with("consolidated")) << name;
      }
    }
  }
}

TEST_F(CliCreate, QuantizedTensorsAreWhatMlxMakesAndTheRestIsUntouched) {
  const path from = test::data("gemma4_moe");
  ASSERT_EQ(create("x", "FROM " + from.string(), "--quantize q8").err, "");
  const path made = models_ / "x" / "model";
  const json config = json::parse(test::read_file(made / "config.json"))["quantization"];
  const test::Tensors before = mlx::core::load_safetensors((from / "model.safetensors").string()).first;
  const test::Tensors after = mlx::core::load_safetensors((made / "model.safetensors").string()).first;
  const auto same = [](const mlx::core::array& a, const mlx::core::array& b) {
    return a.dtype() == b.dtype() && mlx::core::array_equal(a, b).item<bool>();
  };
  std::size_t n_dense = 0;
  std::size_t n_quantized = 0;
  for (const auto& [name, tensor] : before) {
    const std::string module = name.substr(0, name.rfind('.'));
    if (!after.contains(module + ".scales")) {
      EXPECT_TRUE(same(after.at(name), tensor)) << name;
      ++n_dense;
      continue;
    }
    const auto parts = mlx::core::quantize(tensor, config.value(module, config)["group_size"].get<int>(), 8);
    EXPECT_TRUE(same(after.at(name), parts[0])) << name;
    EXPECT_TRUE(same(after.at(module + ".scales"), parts[1])) << name;
    EXPECT_TRUE(same(after.at(module + ".biases"), parts[2])) << name;
    ++n_quantized;
  }
  EXPECT_GT(n_dense, 0U);
  EXPECT_GT(n_quantized, 0U);
  EXPECT_EQ(after.size(), n_dense + 3 * n_quantized);
}

TEST_F(CliCreate, AFileThatCanNotBeWrittenIsNamedWithTheReason) {
  // 20 blocks of 512 or 1024 bytes, fewer than each of the weights has.
  const auto limited = [&](const std::string& from, const std::string& options) {
    return shell("ulimit -f 20 && " + std::string(MEMOIR_PROGRAM) + " create x -f " +
                 modelfile("FROM " + from).string() + options);
  };
  const std::string why = ": can't write: File too large\n";
  const std::string weights = "memoir: " + (models_ / "x" / "model" / "model.safetensors").string();
  expect_refused(limited(tiny(), ""), 1, weights + why);
  expect_refused(limited(tiny(), " --quantize q8"), 1, weights + why);
  expect_refused(limited(MEMOIR_TEST_SMOLLM2, ""), 1, "memoir: " + (models_ / "x" / "model.gguf").string() + why);
}

TEST_F(CliCreate, MessagesNameTheUsersFiles) {
  const auto refused = [&](const std::string& text, const std::string& message, const std::string& options = "") {
    const test::Outcome outcome = create("x", text, options);
    expect_refused(outcome, 1, message);
    EXPECT_EQ(outcome.err.find(".part-"), std::string::npos) << outcome.err;
  };
  // Before anything is copied.
  test::fs::copy(tiny(), in_folder("other"));
  test::edit_config(in_folder("other"), [](json& config) { config["model_type"] = "unheard_of"; });
  const std::string from = "FROM " + tiny() + "\n";
  refused("FROM other", "memoir: " + in_folder("other/config.json") + ": model_type: ");
  refused(from + "DRAFT other", "memoir: " + in_folder("other/config.json") + ": model_type: ");
  refused("FROM ./other/config.json", "memoir: " + in_folder("./other/config.json") + ": not a GGUF file");
  refused(from + "DRAFT " + MEMOIR_TEST_SMOLLM2,
          std::string("memoir: ") + MEMOIR_TEST_SMOLLM2 + ": a GGUF file is taken", "--draft-quantize q8");
  EXPECT_FALSE(test::fs::exists(models_));
  // What only loading finds.
  test::fs::copy(tiny(), in_folder("damaged"));
  test::edit_tensors(in_folder("damaged"), [](test::Tensors& tensors) { tensors.erase("model.norm.weight"); });
  const std::string weights = "memoir: " + in_folder("damaged/model.safetensors") + ": model.norm.weight: missing";
  refused("FROM damaged", weights);
  refused(from + "DRAFT damaged", weights);
  refused("FROM damaged", weights, "--quantize q8");
  test::fs::remove(in_folder("damaged/model.safetensors"));
  refused("FROM damaged", "memoir: " + in_folder("damaged/model.safetensors") + ": no such file or directory\n");
  refused("FROM damaged", "memoir: " + in_folder("damaged/model.safetensors") + ": no such file or directory\n",
          "--quantize q4");
}

TEST_F(CliCreate, ANameThatMeansAModelAlreadyIsRefused) {
  const std::string from = "FROM " + tiny() + "\n";
  // In a later one of the models folders, under both of its forms, and where the program runs.
  const path later = folder_.path() / "data" / "memoir" / "models";
  test::fs::create_directories(later / "folder");
  test::write_file(later / "file.gguf", "");
  expect_refused(create("file", from), 1, (later / "file.gguf").string() + ": there is such a model already");
  expect_refused(create("folder", from), 1, (later / "folder").string() + ": there is such a model already");
  expect_refused(shell("cd " + folder_.path().string() + " && mkdir here && " + MEMOIR_PROGRAM + " create here -f " +
                       modelfile(from).string()),
                 1, "here: there is such a model already");
  // -m x would mean it too.
  expect_refused(create("x.gguf", from), 2, "no .gguf at the end");
}

TEST_F(CliCreate, AFileComesBeforeAFolderOfTheNameInListsToo) {
  ASSERT_EQ(create("tiny", "FROM " + tiny()).status, 0);
  test::fs::copy_file(MEMOIR_TEST_SMOLLM2, models_ / "tiny.gguf");
  EXPECT_NE(run("models").out.find((models_ / "tiny.gguf").string()), std::string::npos);
  EXPECT_EQ(generated("-m tiny -p Hi -n 1 --raw")["tokens"],
            generated("-m " + (models_ / "tiny.gguf").string() + " -p Hi -n 1 --raw")["tokens"]);
  // A folder is no .gguf file.
  test::fs::rename(models_ / "tiny", models_ / "other.gguf");
  expect_failure("generate -m other --tokens 1", 1, "no such file or directory");
}

TEST_F(CliCreate, NamesBesideTheModelfileAreTakenFirst) {
  test::fs::copy(tiny(), folder_.path() / "beside");
  ASSERT_EQ(create("x", "FROM ./beside").status, 0);
  EXPECT_TRUE(test::fs::exists(models_ / "x" / "model" / "model.safetensors"));
  EXPECT_EQ(test::read_file(models_ / "x" / "Modelfile"), "FROM ./model\n");
}

TEST_F(CliCreate, ADamagedPackageIsNamed) {
  ASSERT_EQ(create("x", "FROM " + tiny()).status, 0);
  test::write_file(models_ / "x" / "Modelfile", "FROM ../other\n");
  expect_failure("generate -m x --tokens 1", 1, "is '../other', expected ./model or ./model.gguf");
  test::write_file(models_ / "x" / "Modelfile", "FROM ./model\nDRAFT ./draft\n");
  expect_failure("generate -m x --tokens 1", 1, "draft");
}

TEST_F(CliCreate, OfRunsOfOneNameAtOnceOneGetsItAndTheOthersAreRefused) {
  test::write_file(in_folder("Modelfile"), "FROM " + tiny() + "\n");
  const std::string one = std::string(MEMOIR_PROGRAM) + " create same -f " + in_folder("Modelfile");
  const test::Outcome outcome = shell("for i in 1 2 3 4; do (" + one + " >/dev/null && echo made) & done; wait");
  EXPECT_EQ(outcome.out, "made\n") << outcome.err;
  std::size_t n_refused = 0;
  for (std::size_t at = outcome.err.find("such a model already"); at != std::string::npos;
       at = outcome.err.find("such a model already", at + 1)) {
    ++n_refused;
  }
  EXPECT_EQ(n_refused, 3U) << outcome.err;
  EXPECT_EQ(run("generate -m same --tokens 1,2 -n 2").status, 0);
  for (const auto& entry : test::fs::directory_iterator(models_)) EXPECT_EQ(entry.path().filename(), "same");
}

}  // namespace
}  // namespace memoir
