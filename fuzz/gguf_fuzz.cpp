// Any bytes as a GGUF file: an InputError, or an object whose tensors can be read and decoded.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/base/gguf_blocks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const memoir::GgufFile file(memoir::memory_source("fuzz", {bytes, bytes + size}));
    for (const memoir::GgufTensor& tensor : file.tensors()) {
      std::vector<std::byte> raw(tensor.size_bytes);
      file.read(tensor, raw);
      if (!memoir::can_dequantize(tensor.type)) continue;
      std::vector<float> values(static_cast<std::size_t>(tensor.n_elements()));
      memoir::dequantize_blocks(tensor.type, raw, values);
    }
  } catch (const memoir::InputError&) {
  }
  return 0;
}
