#include "memoir/model/model.h"

#include <stdexcept>
#include <string>

namespace mx = mlx::core;

namespace memoir::model {
namespace {

void check_tokens(std::span<const TokenId> tokens, int n_sequences, int n_vocab, int context, int offset) {
  if (tokens.empty()) throw std::invalid_argument("[model.forward] no tokens, expected at least one");
  if (n_sequences < 1 || tokens.size() % static_cast<std::size_t>(n_sequences) != 0) {
    throw std::invalid_argument("[model.forward] " + std::to_string(tokens.size()) + " tokens for " +
                                std::to_string(n_sequences) + " sequences, expected the same number for each");
  }
  for (const TokenId token : tokens) {
    if (token < 0 || token >= n_vocab) {
      throw std::invalid_argument("[model.forward] token " + std::to_string(token) + " is outside the vocabulary of " +
                                  std::to_string(n_vocab));
    }
  }
  const std::size_t n_tokens = tokens.size() / static_cast<std::size_t>(n_sequences);
  if (offset > context || n_tokens > static_cast<std::size_t>(context - offset)) {
    throw std::invalid_argument("[model.forward] " + std::to_string(n_tokens) + " tokens at offset " +
                                std::to_string(offset) + " pass the context of " + std::to_string(context));
  }
}

}  // namespace

mx::array Model::forward(std::span<const TokenId> tokens, cache::ModelCache& cache, LogitRows rows,
                         int n_sequences) const {
  if (cache.n_layers() != static_cast<std::size_t>(config_.n_layers)) {
    throw std::invalid_argument("[model.forward] the cache has " + std::to_string(cache.n_layers()) +
                                " layers, expected the model's " + std::to_string(config_.n_layers));
  }
  const int offset = cache.offset();
  check_tokens(tokens, n_sequences, config_.vocab_size, context(), offset);
  const mx::array ids(tokens.data(), {n_sequences, static_cast<int>(tokens.size()) / n_sequences}, mx::int32);
  try {
    return logits(ids, cache, rows);
  } catch (...) {
    // At 0 its buffers would keep the number of sequences, and a recurrent layer that got ahead can't go back.
    if (offset == 0 || !cache.rewind(offset)) cache.free();
    throw;
  }
}

}  // namespace memoir::model
