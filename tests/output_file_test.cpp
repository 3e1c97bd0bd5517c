// The file that a command writes, when writing it goes wrong.

#include "memoir/cli/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

class OutputFile : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write_file(path(), [](std::FILE* file) { std::fputs("before", file); });
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "file").string(); }

  void expect_as_before() const {
    std::ifstream file(path());
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "before");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "something was left behind";
  }

  const fs::path folder_ = fs::temp_directory_path() / (std::string("memoir-output-") +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(OutputFile, IsAsBeforeWhenASignalEndsTheProcess) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const auto write = [&](std::FILE* file) {
      std::fputs("half", file);
      std::fflush(file);
      raise(number);
    };
    EXPECT_EXIT(write_file(path(), write), testing::KilledBySignal(number), "");
    expect_as_before();
  }
}

TEST_F(OutputFile, IsAsBeforeWhenTheWriterThrows) {
  const auto write = [](std::FILE* file) {
    std::fputs("half", file);
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(write_file(path(), write), std::runtime_error);
  expect_as_before();
}

TEST_F(OutputFile, KeepsWhoMayReadIt) {
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write);
  write_file(path(), [](std::FILE* file) { std::fputs("after", file); });
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace
}  // namespace memoir::cli
