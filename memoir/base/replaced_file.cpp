#include "memoir/base/replaced_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "memoir/base/error.h"

namespace fs = std::filesystem;

namespace memoir {
namespace {

constexpr int kMaxLinks = 40;  // as Linux allows
constexpr std::string_view kAside = ".part-";
constexpr std::size_t kMostOfName = 200;

fs::path where_links_lead(fs::path path) {
  std::error_code ignored;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path, ignored)); ++i) {
    path = path.parent_path() / fs::read_symlink(path, ignored);
  }
  return path;
}

// What a file written aside for `target` is called before kAside: a part of a long name, so that it stays within 255
// bytes.
std::string name_aside(const fs::path& target) {
  return target.filename().string().substr(0, kMostOfName);
}

}  // namespace

ReplacedFile::ReplacedFile(const fs::path& path) : path_(path), target_(where_links_lead(path)) {
  if (path.empty()) refuse("the path is empty");
  std::error_code error;
  const fs::file_status before = fs::status(target_, error);
  if (before.type() == fs::file_type::none) refuse(error.message());
  if (fs::exists(before) && !fs::is_regular_file(before)) refuse("it is no regular file");
  aside_ = target_.parent_path() / (name_aside(target_) + std::string(kAside) + std::to_string(std::random_device{}()));
  file_.reset(std::fopen(aside_.c_str(), "wb"));
  if (!file_) refuse(std::strerror(errno));
  flock(fileno(file_.get()), LOCK_EX | LOCK_NB);  // where that can't be done, it is only not told from an abandoned one
  if (fs::exists(before)) fs::permissions(aside_, before.permissions(), error);
}

ReplacedFile::~ReplacedFile() {
  if (aside_.empty()) return;
  std::error_code ignored;
  fs::remove(aside_, ignored);
}

void ReplacedFile::refuse(const std::string& why) const {
  throw FileError(path_.string(), "", "can't write: " + why);
}

void ReplacedFile::write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) refuse(std::strerror(errno));
}

void ReplacedFile::write_at(std::uint64_t offset, std::string_view text) {
  if (std::fseek(file_.get(), static_cast<long>(offset), SEEK_SET) != 0) refuse(std::strerror(errno));
  write(text);
  if (std::fseek(file_.get(), 0, SEEK_END) != 0) refuse(std::strerror(errno));
}

void ReplacedFile::commit(Durability durability) {
  if (std::fflush(file_.get()) != 0) refuse(std::strerror(errno));
  if (durability == Durability::kOnDisk && fsync(fileno(file_.get())) != 0) refuse(std::strerror(errno));
  if (std::fclose(file_.release()) != 0) refuse(std::strerror(errno));
  std::error_code error;
  fs::rename(aside_, target_, error);
  if (error) refuse(error.message());
  aside_.clear();
}

std::optional<fs::path> ReplacedFile::target_of(const fs::path& aside) {
  const std::string name = aside.filename().string();
  const std::size_t at = name.rfind(kAside);
  if (at == std::string::npos || at == 0) return std::nullopt;
  const std::string_view number = std::string_view(name).substr(at + kAside.size());
  if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return aside.parent_path() / name.substr(0, at);
}

bool ReplacedFile::remove_abandoned(const fs::path& aside) noexcept {
  try {
    if (!target_of(aside)) return false;
    const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(aside.c_str(), "rb"));
    if (!file || flock(fileno(file.get()), LOCK_EX | LOCK_NB) != 0) return false;
    std::error_code error;
    return fs::remove(aside, error);
  } catch (...) {
    return false;
  }
}

// One that was opened this moment may not be locked yet.
void ReplacedFile::remove_all_abandoned(const fs::path& path) noexcept {
  try {
    const fs::path target = where_links_lead(path);
    const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
    const auto long_ago = fs::file_time_type::clock::now() - std::chrono::minutes(1);
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::optional<fs::path> name = target_of(entry.path());
      if (name && name->filename() == name_aside(target) && entry.last_write_time() < long_ago) found.push_back(entry);
    }
    for (const fs::path& aside : found) remove_abandoned(aside);
  } catch (...) {  // the folder can't be read: what is there stays
  }
}

}  // namespace memoir
