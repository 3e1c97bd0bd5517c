#pragma once

// A file that is written aside and takes its name only when it is whole: whoever opens the name, and whenever the
// process is killed, finds the old file or the new one.
//
// One that is killed leaves "<name>.part-<number>" behind, which remove_abandoned() tells from one that is being
// written: that is locked. A symbolic link stays, what it leads to is replaced; the permissions of an old file stay
// too. Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace memoir {

/// Whether a file that was renamed is on the disk, or may be lost or hold anything after a failure of power.
enum class Durability { kOnDisk, kLater };

class ReplacedFile {
 public:
  /// Throws FileError naming `path`, with the system's reason, if there can be no such file: no such folder, a
  /// directory or a device of that name, no permission.
  explicit ReplacedFile(const std::filesystem::path& path);

  /// Removes what was written unless commit() was called.
  ~ReplacedFile();
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  /// Appends. Throws FileError.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Writes over what is at `offset` already. Throws FileError.
  void write_at(std::uint64_t offset, std::string_view text);

  /// Waits until the disk has it all (kOnDisk), then renames. Throws FileError; the old file is as it was then.
  void commit(Durability durability = Durability::kOnDisk);

  /// The name that the file `aside` is to take, of more than 200 bytes its beginning, if it is called as those are that
  /// are written aside.
  static std::optional<std::filesystem::path> target_of(const std::filesystem::path& aside);

  /// Removes such a file, unless somebody is writing it. Returns whether it did.
  static bool remove_abandoned(const std::filesystem::path& aside) noexcept;

  /// Removes all such files that are to take the name `path` and that nobody has written to for a minute.
  static void remove_all_abandoned(const std::filesystem::path& path) noexcept;

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  std::filesystem::path target_;  // where symbolic links lead
  std::filesystem::path aside_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace memoir
