// memoir serve --models-dir: what of a folder is served, and what is left out and why. The interfaces themselves are
// tested by server_*_test and tests/clients.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/cli_runner.h"
#include "tests/raw_client.h"

namespace memoir {
namespace {

using nlohmann::json;
using test::RawClient;
using test::RawResponse;
using test::fs::path;

class CliServe : public test::Cli {
 protected:
  void SetUp() override {
    models_ = folder_.path() / "models";
    test::fs::create_directory(models_);
    ASSERT_EQ(setenv("MEMOIR_MODELS", models_.c_str(), 1), 0);
  }

  void TearDown() override {
    if (pid_ > 0) ::kill(pid_, SIGTERM);
  }

  // A directory that can be served.
  path whole_model(const std::string& name) const {
    test::fs::copy(tiny(), models_ / name);
    test::fs::copy_file(test::data("tokenizer") / "smollm.json", models_ / name / "tokenizer.json");
    return models_ / name;
  }

  // Runs until the test's end. What it has logged so far is in log().
  void serve(const std::string& options) {
    const std::string address = in_folder("address");
    test::fs::remove(address);  // of a server before, which the shell below may take a while to empty
    const test::Outcome started = shell(std::string(MEMOIR_PROGRAM) + " serve --port 0 " + options + " >" + address +
                                        " 2>" + in_folder("log") + " & echo $!");
    pid_ = std::stoi(started.out);
    for (int i = 0; i < 600 && port_ == 0; ++i) {
      const std::string text = test::fs::exists(address) ? test::read_file(address) : "";
      if (text.ends_with('\n')) port_ = std::stoi(text.substr(text.rfind(':') + 1));
      if (port_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ASSERT_GT(port_, 0) << log();
  }

  // As at the test's end, so that another can be served.
  void stop() {
    ::kill(pid_, SIGTERM);
    for (int i = 0; i < 200 && ::kill(pid_, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pid_ = 0;
    port_ = 0;
  }

  std::string log() const { return test::read_file(in_folder("log")); }

  json ask(const std::string& method, const std::string& what, const json& body, int status = 200) const {
    RawClient client(port_);
    client.send_request(method, what, method == "POST" ? body.dump() : "");
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, status) << what << body << response.body;
    return response.json();
  }

  std::set<std::string> listed() const {
    std::set<std::string> names;
    const json models = ask("GET", "/v1/models", {});
    for (const json& model : models.at("data")) names.insert(model["id"].get<std::string>());
    return names;
  }

  path models_;
  int port_ = 0;
  pid_t pid_ = 0;
};

TEST_F(CliServe, WhatCanNotBeServedIsLeftOutAndToldOnce) {
  whole_model("whole");
  test::fs::copy(tiny(), models_ / "no_tokenizer");
  test::fs::remove(whole_model("no_weights") / "model.safetensors");
  const path sharded = whole_model("no_shard");
  test::fs::remove(sharded / "model.safetensors");
  test::write_file(sharded / "model.safetensors.index.json", R"({"weight_map": {"a": "model-1-of-2.safetensors"}})");
  test::fs::create_directory(models_ / "empty");
  test::fs::create_symlink("nowhere", models_ / "dangling.gguf");
  test::fs::create_symlink("nowhere", models_ / "dangling");
  ASSERT_EQ(::mkfifo((models_ / "pipe.gguf").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((models_ / "pipe").c_str(), 0600), 0);
  test::fs::create_directory(models_ / "package");
  test::write_file(models_ / "package" / "Modelfile", "FROM ../whole");
  test::fs::create_directory_symlink(models_ / "whole", models_ / "not\xffutf8");
  // These are not meant as models.
  test::write_file(models_ / "README.md", "x");
  test::fs::create_directory(models_ / ".hidden");
  serve("--models-dir " + models_.string());
  EXPECT_EQ(listed(), (std::set<std::string>{"whole"}));
  const std::string text = log();
  for (const auto& [name, why] : {std::pair<std::string, std::string>{"no_tokenizer", "tokenizer.json: no such file"},
                                  {"no_weights", "model.safetensors: no such file"},
                                  {"no_shard", "model-1-of-2.safetensors: no such file"},
                                  {"empty", "config.json: no such file"},
                                  {"dangling.gguf", "leads nowhere"},
                                  {"dangling", "leads nowhere"},
                                  {"pipe.gguf", "not a regular file"},
                                  {"pipe", "not a regular file"},
                                  {"package", "expected ./model"}}) {
    const std::string where = "path=" + (models_ / name).string() + " ";
    const std::size_t at = text.find(where);
    ASSERT_NE(at, std::string::npos) << name << "\n" << text;
    EXPECT_NE(text.substr(at, text.find('\n', at) - at).find(why), std::string::npos) << name << "\n" << text;
    EXPECT_EQ(text.find(where, at + 1), std::string::npos) << text;
  }
  EXPECT_NE(text.find("its name is not UTF-8"), std::string::npos) << text;
  EXPECT_EQ(text.find("README"), std::string::npos);
  EXPECT_EQ(text.find(".hidden"), std::string::npos);
  // What comes later is found.
  test::fs::copy_file(test::data("tokenizer") / "smollm.json", models_ / "no_tokenizer" / "tokenizer.json");
  EXPECT_EQ(listed(), (std::set<std::string>{"no_tokenizer", "whole"}));
}

TEST_F(CliServe, PackagesAreServedByTheirNameWithTheirTemplate) {
  const path whole = whole_model("whole");
  for (const std::string name : {"first", "second"}) {
    test::write_file(folder_.path() / "Modelfile",
                     "FROM " + whole.string() + "\nTEMPLATE " + name + " {{ messages[0].content }}");
    ASSERT_EQ(run("create " + name + " -f " + in_folder("Modelfile")).status, 0);
  }
  serve("--models-dir " + models_.string());
  EXPECT_EQ(listed(), (std::set<std::string>{"first", "second", "whole"}));
  for (const std::string name : {"first", "second"}) {
    EXPECT_EQ(ask("POST", "/api/show", {{"model", name}})["template"], name + " {{ messages[0].content }}");
    const json answer = ask("POST", "/v1/completions", {{"model", name}, {"prompt", {1, 2, 3}}, {"max_tokens", 2}});
    EXPECT_EQ(answer["model"], name);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
    // Of the loaded one too.
    EXPECT_EQ(ask("POST", "/api/show", {{"model", name}})["template"], name + " {{ messages[0].content }}");
  }
}

TEST_F(CliServe, SeveralPackagesNamedOneByOneKeepTheirNames) {
  const path whole = whole_model("whole");
  test::write_file(folder_.path() / "Modelfile", "FROM " + whole.string());
  for (const char* name : {"first", "second"}) {
    ASSERT_EQ(run(std::string("create ") + name + " -f " + in_folder("Modelfile")).status, 0);
  }
  serve("-m first -m second");
  EXPECT_EQ(listed(), (std::set<std::string>{"first", "second"}));
}

// Texts that repeat themselves, so that there is something to guess; sampled, penalized, stopped, and held to JSON.
TEST_F(CliServe, DraftsChangeNoAnswer) {
  const path model = whole_model("whole");
  std::vector<json> requests;
  for (int i = 0; i < 4; ++i) {
    json prompt = json::array();
    for (int k = 0; k < 60; ++k) prompt.push_back(k % (4 + i));
    requests.push_back({{"prompt", prompt}, {"max_tokens", 60}, {"temperature", i % 2}, {"seed", i}, {"logprobs", 2}});
  }
  requests[2]["frequency_penalty"] = 0.5;
  requests[3]["response_format"] = {{"type", "json_object"}};
  std::vector<json> plain;
  std::uint64_t n_drafted = 0;
  for (const std::string draft : {"none", "ngram", "whole"}) {
    serve("-m " + model.string() + " --draft " + draft);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      json answer = ask("POST", "/v1/completions", requests[i]);
      const json details = answer["usage"].value("completion_tokens_details", json::object());
      n_drafted += details.value("accepted_prediction_tokens", 0) + details.value("rejected_prediction_tokens", 0);
      if (draft == "none") plain.push_back(answer["choices"]);
      EXPECT_EQ(answer["choices"], plain[i]) << draft << i;
      if (draft == "none") {
        EXPECT_FALSE(answer["usage"].contains("completion_tokens_details"));
      }
    }
    RawClient client(port_);
    client.send_request("GET", "/metrics", "");
    const std::string metrics = client.read_response().body;
    EXPECT_NE(metrics.find("\nmemoir_draft_rounds_total " + std::string(draft == "none" ? "0\n" : "")),
              std::string::npos);
    stop();
  }
  EXPECT_GT(n_drafted, 0U);
}

TEST_F(CliServe, AnOriginThatNoPageCanHaveIsRefused) {
  for (const char* origin :
       {"\"\"", "foo", "null", "http://", "http://a/", "http://A", "http://a:b", "\"http://a b\""}) {
    expect_failure("serve -m nowhere --cors-origin " + std::string(origin), 2, "--cors-origin");
  }
  for (const char* origin :
       {"'*'", "http://localhost:3000", "https://a.example", "http://[::1]:80", "tauri://localhost"}) {
    expect_failure("serve -m nowhere --cors-origin " + std::string(origin), 1, "nowhere");  // the next thing at fault
  }
}

TEST_F(CliServe, DraftsThatCannotBeServedAreRefusedWithTheReason) {
  const path model = whole_model("whole");
  expect_failure("serve --port 0 -m " + model.string() + " --draft auto", 1, "carries no head");
  expect_failure("serve --port 0 -m " + model.string() + " --draft nowhere", 1, "nowhere");
  expect_failure("serve --port 0 -m " + model.string() + " --draft " + (test::data("qwen3_next")).string(), 2,
                 "another vocabulary");
  expect_failure("serve --port 0 --models-dir " + models_.string() + " --draft whole", 2,
                 "--draft whole: is for one model");
}

TEST_F(CliServe, TooFewBytesForOneTokenAreRefusedByTheOption) {
  expect_failure("serve --port 0 -m " + whole_model("whole").string() + " --max-cache-bytes 1", 2,
                 "--max-cache-bytes: 1 bytes for a model, expected at least the ");
}

TEST_F(CliServe, OfSeveralModelsThoseThatCarryNoDraftAreServedWithout) {
  const path whole = whole_model("whole");
  test::write_file(folder_.path() / "Modelfile", "FROM " + whole.string() + "\nDRAFT " + tiny());
  ASSERT_EQ(run("create pair -f " + in_folder("Modelfile")).status, 0);
  serve("--models-dir " + models_.string() + " --draft auto");
  json prompt = json::array();
  for (int k = 0; k < 20; ++k) prompt.push_back(k % 4);
  json choices;
  for (const std::string name : {"whole", "pair"}) {
    json answer =
        ask("POST", "/v1/completions", {{"model", name}, {"prompt", prompt}, {"max_tokens", 60}, {"temperature", 0}});
    EXPECT_EQ(answer["usage"].contains("completion_tokens_details"), name == "pair") << answer["usage"];
    if (name == "whole") choices = answer["choices"];
    EXPECT_EQ(answer["choices"], choices);
  }
  EXPECT_NE(log().find("whole: no drafts: "), std::string::npos) << log();
  EXPECT_EQ(log().find("pair: no drafts: "), std::string::npos) << log();
}

}  // namespace
}  // namespace memoir
