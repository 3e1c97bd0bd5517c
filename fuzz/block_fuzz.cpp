// Any bytes as a block of the prefix cache: an InputError, or a block whose parts lie in the file. Any text as its
// name.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "memoir/base/error.h"
#include "memoir/prefix/block_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto name = memoir::prefix::BlockName::parse(text);
  if (name && name->file_name() != text) std::abort();
  try {
    const memoir::prefix::BlockFile file(memoir::memory_source("fuzz", {bytes, bytes + size}));
    if (file.payload_bytes() > size || file.keys().empty() || file.keys().size() > size) std::abort();
    file.check();
    const memoir::prefix::BlockHead head{file.identity(), file.note(), file.kind(), file.keys()};
    if (memoir::prefix::block_beginning(head, file.payload_bytes()).size() > size) std::abort();
  } catch (const memoir::InputError&) {
  }
  return 0;
}
