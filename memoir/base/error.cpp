#include "memoir/base/error.h"

#include <utility>

namespace memoir {
namespace {

std::string join(const std::string& path, const std::string& key, const std::string& reason) {
  std::string text;
  for (const std::string* part : {&path, &key}) {
    if (!part->empty()) text += *part + ": ";
  }
  return text + reason;
}

}  // namespace

InputError::InputError(std::string path, std::string key, const std::string& reason)
    : std::runtime_error(join(path, key, reason)), path_(std::move(path)), key_(std::move(key)) {}

}  // namespace memoir
