#include <mach-o/dyld.h>

#include <string>

#include "memoir/cli/model_path.h"

namespace memoir::cli {

std::filesystem::path executable_path() {
  std::uint32_t size = 0;
  _NSGetExecutablePath(nullptr, &size);  // asks for the size
  std::string path(size, '\0');
  if (_NSGetExecutablePath(path.data(), &size) != 0) return {};
  std::error_code error;
  return std::filesystem::canonical(path.c_str(), error);
}

}  // namespace memoir::cli
