#include "memoir/model/model.h"

#include <stdexcept>
#include <string>

namespace mx = mlx::core;

namespace memoir::model {
namespace {

void check_tokens(std::span<const TokenId> tokens, int n_vocab, int context, int offset) {
  if (tokens.empty()) throw std::invalid_argument("[model.forward] no tokens, expected at least one");
  for (const TokenId token : tokens) {
    if (token < 0 || token >= n_vocab) {
      throw std::invalid_argument("[model.forward] token " + std::to_string(token) + " is outside the vocabulary of " +
                                  std::to_string(n_vocab));
    }
  }
  if (tokens.size() > static_cast<std::size_t>(context - offset)) {
    throw std::invalid_argument("[model.forward] " + std::to_string(tokens.size()) + " tokens at offset " +
                                std::to_string(offset) + " pass the context of " + std::to_string(context));
  }
}

}  // namespace

mx::array Model::forward(std::span<const TokenId> tokens, cache::ModelCache& cache, LogitRows rows) const {
  const int offset = cache.offset();
  check_tokens(tokens, config_.vocab_size, context(), offset);
  const mx::array ids(tokens.data(), {1, static_cast<int>(tokens.size())}, mx::int32);
  try {
    return logits(ids, cache, rows);
  } catch (...) {
    cache.rewind(offset);
    throw;
  }
}

}  // namespace memoir::model
