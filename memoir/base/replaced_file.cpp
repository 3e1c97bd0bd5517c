#include "memoir/base/replaced_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <system_error>

#include "memoir/base/error.h"

namespace fs = std::filesystem;

namespace memoir {
namespace {

constexpr int kMaxLinks = 40;  // as Linux allows

fs::path where_links_lead(fs::path path) {
  std::error_code ignored;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path, ignored)); ++i) {
    path = path.parent_path() / fs::read_symlink(path, ignored);
  }
  return path;
}

}  // namespace

ReplacedFile::ReplacedFile(const fs::path& path) : path_(path), target_(where_links_lead(path)) {
  if (path.empty()) refuse("the path is empty");
  std::error_code error;
  const fs::file_status before = fs::status(target_, error);
  if (before.type() == fs::file_type::none) refuse(error.message());
  if (fs::exists(before) && !fs::is_regular_file(before)) refuse("it is no regular file");
  aside_ = target_;
  aside_ += ".part-" + std::to_string(std::random_device{}());
  file_.reset(std::fopen(aside_.c_str(), "wb"));
  if (!file_) refuse(std::strerror(errno));
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

void ReplacedFile::commit() {
  if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0) refuse(std::strerror(errno));
  if (std::fclose(file_.release()) != 0) refuse(std::strerror(errno));
  std::error_code error;
  fs::rename(aside_, target_, error);
  if (error) refuse(error.message());
  aside_.clear();
}

}  // namespace memoir
