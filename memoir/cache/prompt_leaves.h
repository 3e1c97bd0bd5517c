#pragma once

// The leaves of a prompt-cache file's tree (prompt_tree.h): tensors, and numbers and texts that are stored as tensors.
// Threads and ownership: of the file, which must outlive this.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memoir/base/safetensors.h"
#include "memoir/cache/prompt_tree.h"

namespace memoir::cache {

class PromptLeaves {
 public:
  explicit PromptLeaves(const SafetensorsFile& file) : file_(file) {}

  /// Throws FormatError.
  [[noreturn]] void fail(const std::string& key, const std::string& reason) const;

  const std::string& path() const { return file_.path(); }
  const SafetensorsTensor& tensor(std::size_t index) const { return file_.tensors()[index]; }

  // Each throws FormatError naming `key` for a leaf of another sort.

  /// The index of a tensor; nullopt for none.
  std::optional<std::size_t> array_of(const PromptNode& node, const std::string& key) const;

  /// A whole number, I32 []; true or false, BOOL [].
  int number_of(const PromptNode& node, const std::string& key) const;
  bool flag_of(const PromptNode& node, const std::string& key) const;

  /// The name of a class.
  std::string string_of(const PromptNode& node, const std::string& key) const;

  /// The elements of an I32 [B].
  std::vector<int> numbers_of(const PromptNode& node, const std::string& key) const;

 protected:
  std::vector<std::int32_t> integers(const SafetensorsTensor& from) const;

  const SafetensorsFile& file_;
};

}  // namespace memoir::cache
