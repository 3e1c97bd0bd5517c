#pragma once

// Runs the program as a shell does: what comes out on stdout and stderr, and the exit status.

#include <gtest/gtest.h>
#include <mlx/mlx.h>
#include <sys/wait.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/model_files.h"

namespace memoir::test {

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
    const fs::path in = folder_.path() / "in";
    const fs::path out = folder_.path() / "out";
    const fs::path err = folder_.path() / "err";
    write_file(in, input);
    const std::string line = "( " + command + " ) <" + in.string() + " >" + out.string() + " 2>" + err.string();
    const int result = std::system(line.c_str());
    return {WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result), read_file(out), read_file(err)};
  }

  std::string tiny() const { return data("llama").string(); }
  std::string in_folder(const std::string& name) const { return (folder_.path() / name).string(); }

  std::string golden_tokens(const char* name) const {
    mlx::core::array a = mlx::core::load_safetensors(tiny() + "/expected.safetensors").first.at(name);
    mlx::core::eval(a);
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

  TemporaryFolder folder_;
};

}  // namespace memoir::test
