#pragma once

// What the outside world can get wrong, as one small typed family.
//
// memoir has three kinds of error:
//   - the caller's mistake: std::invalid_argument, its message begins with the function ("[cache.update] ...");
//   - an expected refusal (no room, a miss, a rewind that can't be done): bool, std::optional or an enum;
//   - the outside world (a file, a model, a template): the family below, which carries the path and the key.
// The library catches none of them; only the command line reports them (docs/architecture.md).
// Threads: values, as the standard library's exceptions are; one may be thrown on one thread and caught on another.

#include <stdexcept>
#include <string>

namespace memoir {

/// Base of the family. what() reads "<path>: <key>: <reason>", without the parts that are empty. It is fit to be shown,
/// whatever the file said: control characters are written out, long keys and reasons cut (printable.h).
class InputError : public std::runtime_error {
 public:
  /// path: the file or directory at fault. key: the tensor, configuration key or line inside it, may be empty.
  InputError(std::string path, std::string key, const std::string& reason);

  /// As they were given, for programs; what() is for people.
  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }
  const std::string& reason() const { return reason_; }

 private:
  std::string path_;
  std::string key_;
  std::string reason_;
};

/// The file can't be opened, read or written.
class FileError : public InputError {
 public:
  using InputError::InputError;
};

/// The file was read and what it says is wrong: truncated, inconsistent, out of range.
class FormatError : public InputError {
 public:
  using InputError::InputError;
};

/// The file may well be right, but memoir can't do what it asks for (an architecture, a tensor type, a construct).
class UnsupportedError : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace memoir
