#include "memoir/base/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "memoir/base/error.h"

namespace memoir {
namespace {

void check_range(const std::string& path, std::uint64_t offset, std::uint64_t n_bytes, std::uint64_t size_bytes) {
  if (offset > size_bytes || n_bytes > size_bytes - offset) {
    throw FormatError(path, "",
                      "truncated: needs " + std::to_string(n_bytes) + " bytes at offset " + std::to_string(offset) +
                          ", the file has " + std::to_string(size_bytes));
  }
}

class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path) : path_(path.string()) {
    const std::filesystem::file_status status = existing_status(path);
    if (std::filesystem::is_directory(status)) throw FileError(path_, "", "is a directory, expected a file");
    if (!std::filesystem::is_regular_file(status)) throw FileError(path_, "", "is not a regular file");
    std::error_code error;
    size_bytes_ = std::filesystem::file_size(path, error);
    if (error) throw FileError(path_, "", "can't tell its size: " + error.message());
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) throw FileError(path_, "", std::string("can't open: ") + std::strerror(errno));
  }
  ~FileSource() override { ::close(descriptor_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  const std::string& path() const override { return path_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }

  void read(std::uint64_t offset, std::span<std::byte> out) override {
    check_range(path_, offset, out.size(), size_bytes_);
    constexpr std::size_t kLargestRead = std::size_t{1} << 30;  // macOS refuses 2^31 bytes and more
    while (!out.empty()) {
      const ssize_t n =
          ::pread(descriptor_, out.data(), std::min(out.size(), kLargestRead), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        throw FileError(path_, "",
                        "reading failed at offset " + std::to_string(offset) + ": " +
                            (n < 0 ? std::strerror(errno) : "the file has become shorter"));
      }
      offset += static_cast<std::uint64_t>(n);
      out = out.subspan(static_cast<std::size_t>(n));
    }
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

class MemorySource : public ByteSource {
 public:
  MemorySource(std::string name, std::vector<std::byte> bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}

  const std::string& path() const override { return name_; }
  std::uint64_t size_bytes() const override { return bytes_.size(); }

  void read(std::uint64_t offset, std::span<std::byte> out) override {
    check_range(name_, offset, out.size(), bytes_.size());
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::string name_;
  std::vector<std::byte> bytes_;
};

}  // namespace

bool entry_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

std::filesystem::file_status existing_status(const std::filesystem::path& path) {
  if (path.empty()) throw FileError("", "", "the path is empty");
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status)) return status;
  if (status.type() == std::filesystem::file_type::none) {
    throw FileError(path.string(), "", "can't open: " + error.message());
  }
  if (entry_exists(path)) throw FileError(path.string(), "", "is a symbolic link that leads nowhere");
  throw FileError(path.string(), "", "no such file or directory");
}

std::unique_ptr<ByteSource> open_file(const std::filesystem::path& path) {
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<ByteSource> memory_source(std::string name, std::vector<std::byte> bytes) {
  return std::make_unique<MemorySource>(std::move(name), std::move(bytes));
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  FileSource source(path);
  if (source.size_bytes() > max_bytes) {
    throw FormatError(source.path(), "",
                      "has " + std::to_string(source.size_bytes()) + " bytes, more than the " +
                          std::to_string(max_bytes) + " expected of such a file");
  }
  std::string text(source.size_bytes(), '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace memoir
