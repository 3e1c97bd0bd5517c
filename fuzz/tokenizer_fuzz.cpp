// Any bytes as a tokenizer.json and a text: up to the first NUL byte the file, behind it the text. An InputError, or a
// tokenizer whose decoding at once and in a stream agree.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/text/detokenizer.h"
#include "memoir/text/tokenizer.h"
#include "memoir/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace memoir;
  using namespace memoir::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  const std::string_view text = end == std::string_view::npos ? std::string_view() : bytes.substr(end + 1);
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(bytes.substr(0, end), "fuzz");
    const std::vector<TokenId> ids = tokenizer.encode(text, {.add_special = true, .parse_special = true});
    for (const bool is_continuation : {false, true}) {
      const Tokenizer::DecodeOptions options{.is_continuation = is_continuation};
      StreamingDetokenizer stream(tokenizer, options);
      std::string streamed;
      for (const TokenId id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      if (streamed != tokenizer.decode(ids, options) || !utf8::valid(streamed)) std::abort();
    }
    if (!ids.empty()) tokenizer.encode(text, {.add_special = true, .previous = ids.back()});
  } catch (const InputError&) {
  }
  return 0;
}
