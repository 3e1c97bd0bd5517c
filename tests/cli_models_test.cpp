// The list of families: docs/models.md has it word for word.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli_runner.h"

namespace memoir {
namespace {

using test::Cli;
using test::Outcome;

class CliModels : public Cli {};

TEST_F(CliModels, TheTableIsThatOfTheDocumentation) {
  const Outcome outcome = run("models");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("qwen3_next"), std::string::npos);
  // Behind an empty line come the models of this machine.
  const std::string table = outcome.out.substr(0, outcome.out.find("|\n\n") + 2);
  const std::string document = test::read_file(MEMOIR_DOCS "/models.md");
  EXPECT_NE(document.find("\n\n" + table + "\n"), std::string::npos) << table;
}

TEST_F(CliModels, JsonHasAnObjectForEachFamily) {
  const Outcome outcome = run("models --json");
  EXPECT_EQ(outcome.status, 0);
  const nlohmann::json list = nlohmann::json::parse(outcome.out)["families"];
  const auto of = [&](const std::string& model_type) {
    for (const nlohmann::json& family : list) {
      if (family["model_type"] == model_type) return family;
    }
    return nlohmann::json();
  };
  EXPECT_EQ(of("llama")["rewinds_anywhere"], true);
  EXPECT_EQ(of("falcon_h1")["rewinds_anywhere"], false);
  EXPECT_EQ(of("falcon_h1")["caches"], "CacheList of RecurrentCache, KVCache");
  EXPECT_EQ(of("qwen3_next")["gguf"], "qwen3next");
}

TEST_F(CliModels, TakesNoModel) {
  expect_failure("models llama", 2, "models");
}

}  // namespace
}  // namespace memoir
