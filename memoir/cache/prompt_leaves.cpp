#include "memoir/cache/prompt_leaves.h"

#include <cstring>

#include "memoir/base/error.h"

namespace memoir::cache {

void PromptLeaves::fail(const std::string& key, const std::string& reason) const {
  throw FormatError(file_.path(), key, reason);
}

std::optional<std::size_t> PromptLeaves::array_of(const PromptNode& node, const std::string& key) const {
  if (node.is_none()) return std::nullopt;
  if (!node.is_leaf || node.mark != PromptNode::Mark::kArray) fail(key, "is no tensor");
  return node.tensor;
}

int PromptLeaves::number_of(const PromptNode& node, const std::string& key) const {
  if (!node.is_leaf || node.mark != PromptNode::Mark::kScalar) fail(key, "is no scalar");
  const SafetensorsTensor& scalar = tensor(node.tensor);
  if (scalar.dtype != "I32" || !scalar.shape.empty()) fail(key, "is no single I32");
  return integers(scalar)[0];
}

std::string PromptLeaves::string_of(const PromptNode& node, const std::string& key) const {
  constexpr std::int64_t kMaxLength = 256;
  if (!node.is_leaf || node.mark != PromptNode::Mark::kString) fail(key, "is no string");
  const SafetensorsTensor& string = tensor(node.tensor);
  if (string.dtype != "I32" || string.shape.size() != 1 || string.shape[0] > kMaxLength) {
    fail(key, "is not the characters of a class's name");
  }
  std::string text;
  for (const std::int32_t character : integers(string)) {
    if (character < ' ' || character > '~') fail(key, "has a character that no class's name has");
    text += static_cast<char>(character);
  }
  return text;
}

std::vector<std::int32_t> PromptLeaves::integers(const SafetensorsTensor& from) const {
  std::vector<std::byte> bytes(from.size_bytes);
  file_.read(from, bytes);
  std::vector<std::int32_t> values(bytes.size() / sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

bool PromptLeaves::flag_of(const PromptNode& node, const std::string& key) const {
  if (!node.is_leaf || node.mark != PromptNode::Mark::kScalar) fail(key, "is no scalar");
  const SafetensorsTensor& scalar = tensor(node.tensor);
  if (scalar.dtype != "BOOL" || !scalar.shape.empty()) fail(key, "is no single BOOL");
  std::vector<std::byte> bytes(scalar.size_bytes);
  file_.read(scalar, bytes);
  return bytes.at(0) != std::byte{0};
}

std::vector<int> PromptLeaves::numbers_of(const PromptNode& node, const std::string& key) const {
  const std::optional<std::size_t> index = array_of(node, key);
  if (!index) fail(key, "is none, expected numbers");
  const SafetensorsTensor& numbers = tensor(*index);
  constexpr std::int64_t kMaxSequences = 1 << 20;
  if (numbers.dtype != "I32" || numbers.shape.size() != 1 || numbers.shape[0] > kMaxSequences) {
    fail(key, "is no I32 with a number for each sequence");
  }
  const std::vector<std::int32_t> values = integers(numbers);
  return {values.begin(), values.end()};
}

}  // namespace memoir::cache
