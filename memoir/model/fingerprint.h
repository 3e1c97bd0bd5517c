#pragma once

// What tells one model from another: enough of its files that caches of one are never taken for those of another, at
// the price of reading a megabyte or two.

#include <filesystem>
#include <string>

namespace memoir::model {

/// 16 hexadecimal digits, of config.json, and of each file of weights its name, its size and 4 KiB at 64 places, evenly
/// over it with both ends (a header among them). A tokenizer or a chat template does not count, nor where the files
/// lie. Throws FileError if something can't be read.
std::string fingerprint(const std::filesystem::path& model);

}  // namespace memoir::model
