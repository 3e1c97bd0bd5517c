#include "memoir/cli/output_file.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT: sigaction is POSIX, not in <csignal>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/cli/status.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw FileError(path, "", "can't write: " + why);
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

constexpr int kMaxLinks = 40;  // as Linux allows

// Where the symbolic link leads.
fs::path target_of(const fs::path& link) {
  return link.parent_path() / fs::read_symlink(link);
}

// N where `path` is /dev/fd/N or another name of that: /proc/self/fd/N is.
std::optional<int> descriptor_here(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::canonical("/dev/fd", error);
  if (error || fs::canonical(path.parent_path().empty() ? "." : path.parent_path(), error) != folder || error) {
    return std::nullopt;
  }
  const std::string name = path.filename().string();
  int number = -1;
  const auto [end, parsed] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (parsed != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

// The same where links lead there, as /dev/stdout does.
std::optional<int> descriptor_of(fs::path path) {
  for (int i = 0; i < kMaxLinks; ++i) {
    if (const std::optional<int> number = descriptor_here(path)) return number;
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(path, error))) return std::nullopt;
    path = target_of(path);
  }
  return std::nullopt;
}

void check_descriptor(int number, const std::string& path) {
  const int flags = fcntl(number, F_GETFL);
  if (flags == -1 || (flags & O_ACCMODE) == O_RDONLY) refuse(path, std::strerror(EBADF));
}

std::FILE* open_descriptor(int number) {
  const int own = dup(number);
  return own == -1 ? nullptr : fdopen(own, "wb");
}

// What `path` leads to, nothing included. Refuses what the system does: links in a circle, folders it can't enter.
fs::file_status status_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) refuse(path, error.message());
  return status;
}

// Where symbolic links lead, also if there is nothing yet.
fs::path resolve_links(fs::path path) {
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path)); ++i) path = target_of(path);
  return path;
}

// A file is replaced by one that is made beside it, so that the folder counts; of a device its own permission does.
void check_permission(const std::string& path) {
  const fs::file_status status = status_of(path);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    if (access(path.c_str(), W_OK) != 0) refuse(path, std::strerror(errno));
    return;
  }
  const fs::path folder = resolve_links(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return;
  const std::string why = std::strerror(errno);
  refuse(path, "its folder " + (folder.empty() ? "." : folder.string()) + ": " + why);
}

}  // namespace

void check_output_path(const std::string& option, const std::string& path) {
  if (path.empty()) throw UsageError(option + ": the file's name is empty");
  if (const std::optional<int> number = descriptor_of(path)) return check_descriptor(*number, path);
  if (path.ends_with('/') || fs::is_directory(status_of(path))) {
    throw UsageError(option + ": " + path + " is a directory, expected a file");
  }
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(status_of(folder.string()))) {
    throw FileError(path, "", "its folder does not exist");
  }
  check_permission(path);
}

void check_replaced_path(const std::string& option, const std::string& path) {
  check_output_path(option, path);
  const fs::file_status status = status_of(path);
  if (descriptor_of(path) || (fs::exists(status) && !fs::is_regular_file(status))) {
    throw UsageError(option + ": " + path + " is no regular file, expected one that can be replaced");
  }
}

OutputFile::OutputFile(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {
  if (!file_) refuse(path_, std::strerror(errno));
}

void OutputFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) refuse(path_, std::strerror(errno));
}

void OutputFile::flush() {
  if (std::fflush(file_.get()) != 0) refuse(path_, std::strerror(errno));
}

void OutputFile::close() {
  flush();
  if (std::fclose(file_.release()) != 0) refuse(path_, std::strerror(errno));
}

void write_file(const std::string& path, const std::function<void(OutputFile&)>& write) {
  const auto write_to = [&](std::FILE* opened) {
    OutputFile file(opened, path);
    write(file);
    file.close();
  };
  if (const std::optional<int> number = descriptor_of(path)) {
    check_descriptor(*number, path);
    return write_to(open_descriptor(*number));
  }
  const fs::file_status before = status_of(path);
  if (fs::exists(before) && !fs::is_regular_file(before)) return write_to(std::fopen(path.c_str(), "wb"));
  try {
    const fs::path target = resolve_links(path);
    const std::string aside = target.string() + ".part-" + std::to_string(getpid());
    const Unfinished guard(aside);
    write_to(std::fopen(aside.c_str(), "wb"));
    if (fs::exists(before)) fs::permissions(aside, before.permissions());
    fs::rename(aside, target);
  } catch (const fs::filesystem_error& failure) {
    refuse(path, failure.code().message());
  }
}

}  // namespace memoir::cli
