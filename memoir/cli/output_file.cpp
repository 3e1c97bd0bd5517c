#include "memoir/cli/output_file.h"

#include <signal.h>  // NOLINT: sigaction is POSIX, not in <csignal>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "memoir/base/error.h"
#include "memoir/cli/status.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw FileError(path, "", "can't write: " + why);
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

void write_to(const std::string& opened, const std::string& path, const std::function<void(std::FILE*)>& write) {
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(opened.c_str(), "wb"));
  if (!file) refuse(path, std::strerror(errno));
  write(file.get());
  errno = 0;
  const bool is_written = std::fflush(file.get()) == 0 && std::ferror(file.get()) == 0;
  const bool is_closed = std::fclose(file.release()) == 0;
  if (!is_written || !is_closed) refuse(path, errno != 0 ? std::strerror(errno) : "the system does not say why");
}

const char* unfinished = nullptr;  // the file to remove when a signal ends the process
constexpr std::array kEndingSignals = {SIGHUP, SIGINT, SIGTERM};

void remove_unfinished(int signal_number) {
  unlink(unfinished);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

/// While it lives, the file is removed when a signal ends the process; at its end too, unless it was renamed.
class Unfinished {
 public:
  explicit Unfinished(const std::string& path) : path_(path) {
    unfinished = path_.c_str();
    for (std::size_t i = 0; i < kEndingSignals.size(); ++i) {
      sigaction(kEndingSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_DFL) continue;  // nohup has them ignored
      struct sigaction action {};
      action.sa_handler = remove_unfinished;
      sigaction(kEndingSignals[i], &action, nullptr);
    }
  }
  ~Unfinished() {
    std::error_code ignored;
    fs::remove(path_, ignored);
    for (std::size_t i = 0; i < kEndingSignals.size(); ++i) sigaction(kEndingSignals[i], &before_[i], nullptr);
    unfinished = nullptr;
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

 private:
  std::string path_;
  std::array<struct sigaction, kEndingSignals.size()> before_{};
};

// Where symbolic links lead, also if there is nothing yet.
fs::path resolve_links(fs::path path) {
  constexpr int kMaxLinks = 40;  // as Linux allows
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path)); ++i) {
    path = path.parent_path() / fs::read_symlink(path);
  }
  return path;
}

}  // namespace

void check_output_path(const std::string& option, const std::string& path) {
  if (path.empty()) throw UsageError(option + ": the file's name is empty");
  std::error_code error;
  if (path.ends_with('/') || fs::is_directory(path, error)) {
    throw UsageError(option + ": " + path + " is a directory, expected a file");
  }
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error)) throw FileError(path, "", "its folder does not exist");
}

void write_file(const std::string& path, const std::function<void(std::FILE*)>& write) {
  std::error_code error;
  const fs::file_status before = fs::status(path, error);
  if (fs::exists(before) && !fs::is_regular_file(before)) return write_to(path, path, write);
  try {
    const fs::path target = resolve_links(path);
    const std::string aside = target.string() + ".part-" + std::to_string(getpid());
    const Unfinished guard(aside);
    write_to(aside, path, write);
    if (fs::exists(before)) fs::permissions(aside, before.permissions());
    fs::rename(aside, target);
  } catch (const fs::filesystem_error& failure) {
    refuse(path, failure.code().message());
  }
}

}  // namespace memoir::cli
