// Files that are absent, and those that only seem so.

#include "memoir/base/byte_source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "memoir/base/error.h"

namespace fs = std::filesystem;

namespace memoir {
namespace {

class Entries : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "file") << "text";
    fs::create_symlink("nothing", folder_ / "dangling");
    fs::create_symlink("circle", folder_ / "circle");
    fs::create_symlink("file", folder_ / "link");
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string refusal(const fs::path& path) {
    try {
      read_text_file(path);
    } catch (const FileError& error) {
      return error.what();
    }
    return "no error";
  }

  const fs::path folder_ = fs::temp_directory_path() / (std::string("memoir-entries-") +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(Entries, ALinkThatLeadsNowhereIsAnEntry) {
  for (const char* name : {"file", "link", "dangling", "circle"}) EXPECT_TRUE(entry_exists(folder_ / name)) << name;
  EXPECT_FALSE(entry_exists(folder_ / "nothing"));
  EXPECT_FALSE(entry_exists(folder_ / "file" / "x"));
  EXPECT_FALSE(entry_exists(""));
}

TEST_F(Entries, OpeningSaysWhatIsWrong) {
  EXPECT_EQ(refusal(folder_ / "link"), "no error");
  EXPECT_EQ(refusal(folder_ / "nothing"), (folder_ / "nothing").string() + ": no such file or directory");
  EXPECT_EQ(refusal(folder_ / "dangling"), (folder_ / "dangling").string() + ": is a symbolic link that leads nowhere");
  EXPECT_NE(refusal(folder_ / "circle").find(std::make_error_code(std::errc::too_many_symbolic_link_levels).message()),
            std::string::npos)
      << refusal(folder_ / "circle");
  EXPECT_EQ(refusal(""), "the path is empty");
}

TEST_F(Entries, AFolderThatOneMayNotEnterIsNoAbsence) {
  constexpr uid_t kNobody = 65534;
  const uid_t user = geteuid();
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::none);
  ASSERT_EQ(seteuid(user == 0 ? kNobody : user), 0);  // root may enter any
  const bool exists = entry_exists(folder_ / "closed" / "file");
  const std::string said = refusal(folder_ / "closed" / "file");
  ASSERT_EQ(seteuid(user), 0);
  fs::permissions(folder_ / "closed", fs::perms::owner_all);
  EXPECT_TRUE(exists);
  EXPECT_NE(said.find(std::make_error_code(std::errc::permission_denied).message()), std::string::npos) << said;
}

}  // namespace
}  // namespace memoir
