// Any bytes as a prompt-cache file: an InputError, or layers whose arrays lie in the file.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "memoir/base/error.h"
#include "memoir/cache/prompt_index.h"

namespace {

void check(const memoir::SafetensorsFile& file, const memoir::cache::PromptLayer& layer) {
  for (const auto& index : layer.tensors) {
    if (!index) continue;
    if (*index >= file.tensors().size()) std::abort();
    const auto& shape = file.tensors()[*index].shape;
    if (layer.n_rows > 0 && (shape.size() != 4 || shape[2] < layer.n_rows)) std::abort();
  }
  for (const auto& child : layer.children) check(file, child);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const memoir::SafetensorsFile file(memoir::memory_source("fuzz", {bytes, bytes + size}));
    const memoir::cache::PromptIndex index = memoir::cache::read_prompt_index(file);
    for (const auto& layer : index.layers) check(file, layer);
  } catch (const memoir::InputError&) {
  }
  return 0;
}
