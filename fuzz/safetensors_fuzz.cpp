// Any bytes as a safetensors file: an InputError, or an object whose tensors can be read.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/base/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const memoir::SafetensorsFile file(memoir::memory_source("fuzz", {bytes, bytes + size}));
    for (const memoir::SafetensorsTensor& tensor : file.tensors()) {
      std::vector<std::byte> raw(tensor.size_bytes);
      file.read(tensor, raw);
    }
  } catch (const memoir::InputError&) {
  }
  return 0;
}
