#include "memoir/engine/json_vocabulary.h"

#include <utility>

#include "memoir/engine/json_string.h"

namespace memoir::engine {

JsonVocabulary::Parts JsonVocabulary::divide(const std::vector<std::string>& pieces) {
  Parts parts{std::vector<std::string>(pieces.size()), std::vector<std::uint64_t>((pieces.size() + 63) / 64, 0)};
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    JsonStringState state = JsonStringState::kPlain;
    bool is_ended = false;
    for (const char c : pieces[id]) {
      is_ended = state == JsonStringState::kPlain && c == '"';
      if (is_ended || state == JsonStringState::kBad) break;
      state = step_json_string(state, static_cast<std::uint8_t>(c));
    }
    if (is_ended) {
      parts.ending[id] = pieces[id];
    } else if (!pieces[id].empty() && state != JsonStringState::kBad) {
      parts.inside[id / 64] |= std::uint64_t{1} << (id % 64);
    }
  }
  return parts;
}

JsonVocabulary::JsonVocabulary(std::vector<std::string> pieces, Parts parts)
    : all_(std::move(pieces)), inside_string_(std::move(parts.inside)), ending_string_(std::move(parts.ending)) {}

JsonVocabulary::JsonVocabulary(std::vector<std::string> pieces) : JsonVocabulary(pieces, divide(pieces)) {}

JsonVocabulary JsonVocabulary::of(const text::Tokenizer& tokenizer) {
  std::vector<std::string> pieces(static_cast<std::size_t>(tokenizer.n_vocab()));
  for (TokenId id = 0; id < tokenizer.n_vocab(); ++id) {
    if (!tokenizer.is_special(id)) pieces[static_cast<std::size_t>(id)] = tokenizer.piece(id);
  }
  return JsonVocabulary(std::move(pieces));
}

}  // namespace memoir::engine
