#include "memoir/base/error.h"

#include <limits>
#include <utility>

#include "memoir/base/printable.h"

namespace memoir {
namespace {

std::string join(const std::string& path, const std::string& key, const std::string& reason) {
  constexpr std::size_t kMaxKey = 200;
  constexpr std::size_t kMaxReason = 1000;  // it may list paths
  std::string text;
  if (!path.empty()) text += printable(path, std::numeric_limits<std::size_t>::max()) + ": ";
  if (!key.empty()) text += printable(key, kMaxKey) + ": ";
  return text + printable(reason, kMaxReason);
}

}  // namespace

InputError::InputError(std::string path, std::string key, const std::string& reason)
    : std::runtime_error(join(path, key, reason)), path_(std::move(path)), key_(std::move(key)), reason_(reason) {}

}  // namespace memoir
