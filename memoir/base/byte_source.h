#pragma once

// Random-access bytes to parse: a file, or memory (tests, fuzzers).
//
// Invariant: the size is fixed when the source is made; a read never goes past it. A file that shrinks afterwards
// gives a FileError, never a signal (which is why files are read, not mapped).
// Threads: any number may read at the same time.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace memoir {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// What to call the source in messages: the file's path, or a name for bytes in memory.
  virtual const std::string& path() const = 0;

  virtual std::uint64_t size_bytes() const = 0;

  /// Fills `out` with the bytes [offset, offset + out.size()).
  /// Throws FormatError if the range passes the end, FileError if the system fails to read.
  virtual void read(std::uint64_t offset, std::span<std::byte> out) = 0;
};

/// False only where `path` certainly names nothing. True also for an entry that can't be opened, a symbolic link that
/// leads nowhere or in a circle, and where the system does not let one look: opening it then says what is wrong. For
/// files that may be absent.
bool entry_exists(const std::filesystem::path& path);

/// What `path` leads to. Throws FileError saying why where that is nothing: the path is empty, there is no such entry,
/// a symbolic link leads nowhere, the system refuses to look.
std::filesystem::file_status existing_status(const std::filesystem::path& path);

/// Opens a file for reading. Throws FileError as existing_status(), and if it is a directory or can't be opened.
std::unique_ptr<ByteSource> open_file(const std::filesystem::path& path);

/// Bytes in memory, named `name` in messages. Owns them.
std::unique_ptr<ByteSource> memory_source(std::string name, std::vector<std::byte> bytes);

/// The whole of a small file as text. Throws FileError as open_file, and FormatError if it is larger than
/// max_bytes (so that a wrong path can't fill memory).
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes = 256U << 20);

}  // namespace memoir
