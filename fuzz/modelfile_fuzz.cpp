// Any bytes as a Modelfile: an InputError, or a Modelfile whose text reads as the same again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "memoir/base/error.h"
#include "memoir/model/modelfile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    memoir::model::Modelfile first =
        memoir::model::parse_modelfile({reinterpret_cast<const char*>(data), size}, "fuzz");
    first.notes.clear();
    if (!(memoir::model::parse_modelfile(memoir::model::modelfile_text(first), "again") == first)) std::abort();
  } catch (const memoir::InputError&) {
  }
  return 0;
}
