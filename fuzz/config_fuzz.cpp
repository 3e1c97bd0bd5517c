// Any bytes as config.json: an InputError, or a configuration.

#include <cstddef>
#include <cstdint>

#include "memoir/base/error.h"
#include "memoir/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    memoir::model::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const memoir::InputError&) {
  }
  return 0;
}
