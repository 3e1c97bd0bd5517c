// The file that a command writes, when writing it goes wrong.

#include "memoir/cli/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "memoir/base/error.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

class OutputFileTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write_file(path(), [](OutputFile& file) { file.write("before"); });
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

TEST_F(OutputFileTest, IsAsBeforeWhenASignalEndsTheProcess) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const auto write = [&](OutputFile& file) {
      file.write("half");
      file.flush();
      raise(number);
    };
    EXPECT_EXIT(write_file(path(), write), testing::KilledBySignal(number), "");
    expect_as_before();
  }
}

TEST_F(OutputFileTest, IsAsBeforeWhenTheWriterThrows) {
  const auto write = [](OutputFile& file) {
    file.write("half");
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(write_file(path(), write), std::runtime_error);
  expect_as_before();
}

// A buffer's worth and more, so that the error comes in the middle, and others succeed after it.
TEST_F(OutputFileTest, SaysWhyAWriteInTheMiddleFailed) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  try {
    write_file("/dev/full", [](OutputFile& file) { file.write(std::string(1 << 20, 'x')); });
    ADD_FAILURE() << "no error";
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), std::string("/dev/full: can't write: ") + std::strerror(ENOSPC));
  }
}

TEST_F(OutputFileTest, KeepsWhoMayReadIt) {
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write);
  write_file(path(), [](OutputFile& file) { file.write("after"); });
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace
}  // namespace memoir::cli
