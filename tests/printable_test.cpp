// Text from elsewhere in messages.

#include "memoir/base/printable.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "memoir/base/error.h"
#include "memoir/cli/report.h"

namespace memoir {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  for (const std::string text :
       {"", "plain 'text' \\ with \"marks\"", "Grüße, 日本語, שלום", "👨‍👩‍👧 family"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable(printable(text)), text);
  }
}

TEST(Printable, WritesOutWhatATerminalWouldObey) {
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("a\nb\r\tc\x1b[31m\x7f"), "a\\nb\\r\\tc\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\x9b31m");  // U+009B, the one-character CSI
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "abc"),
            "\\u{202e}abc");  // right-to-left override
  EXPECT_EQ(printable("a\xE2\x80\xA8"
                      "b"),
            "a\\u{2028}b");  // line separator
}

TEST(Printable, WritesOutBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xff\xC3"), "a\\xff\\xc3");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(Printable, CutsWhatIsEndless) {
  EXPECT_EQ(printable("äöü", 3), "äöü");
  EXPECT_EQ(printable("äöüx", 3), "äöü...");
  EXPECT_EQ(printable(std::string(100'000, 'x')), std::string(200, 'x') + "...");
}

TEST(InputError, ShowsPartsPrintablyAndKeepsThemForPrograms) {
  const FormatError error("a\nfile", "k\x1b", "is " + std::string(100'000, 'x'));
  EXPECT_EQ(std::string(error.what()).find("a\\nfile: k\\x1b: is xxx"), 0U) << error.what();
  EXPECT_LT(std::string(error.what()).size(), 1100U);
  EXPECT_EQ(error.path(), "a\nfile");
  EXPECT_EQ(error.key(), "k\x1b");
  EXPECT_EQ(error.reason(), "is " + std::string(100'000, 'x'));
  const std::string long_path(3000, 'p');
  EXPECT_EQ(FileError(long_path, "", "gone").what(), long_path + ": gone");
}

TEST(Report, IsOneLineWhateverTheTextSays) {
  testing::internal::CaptureStderr();
  cli::report(std::runtime_error("a\nmemoir: fake\x1b[31m"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "memoir: a\\nmemoir: fake\\x1b[31m\n");
}

TEST(Report, SaysThatMemoryRanOut) {
  testing::internal::CaptureStderr();
  cli::report(std::bad_alloc());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "memoir: out of memory\n");
  testing::internal::CaptureStderr();
  cli::report(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  EXPECT_TRUE(testing::internal::GetCapturedStderr().starts_with("memoir: can't start a thread"));
}

}  // namespace
}  // namespace memoir
