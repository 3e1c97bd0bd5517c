#pragma once

// What tells one model from another: all bytes of its weights, so that caches of one are never taken for those of
// another, an edited copy among them. The price is to read the files once more, mostly from the system's cache.

#include <filesystem>
#include <string>

namespace memoir::model {

/// 16 hexadecimal digits, of config.json, and of each file of weights that is loaded its name and its bytes, which all
/// processors read. A tokenizer or a chat template does not count, nor where the files lie. Throws FileError if
/// something can't be read, FormatError if an index of weights is wrong.
std::string fingerprint(const std::filesystem::path& model);

}  // namespace memoir::model
