#include "memoir/cli/model_path.h"

namespace memoir::cli {

std::filesystem::path executable_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

}  // namespace memoir::cli
