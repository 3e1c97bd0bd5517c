#include "memoir/model/model.h"

#include <mlx/ops.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/model/step.h"

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

void check_layers(std::size_t n_of_cache, int n_of_model) {
  if (n_of_cache == static_cast<std::size_t>(n_of_model)) return;
  throw std::invalid_argument("[model.forward] the cache has " + std::to_string(n_of_cache) +
                              " layers, expected the model's " + std::to_string(n_of_model));
}

// The first of the rows [begin, end) whose logits are wanted.
int first_row(LogitRows rows, int begin, int end) {
  switch (rows) {
    case LogitRows::kAll:
      return begin;
    case LogitRows::kLast:
      return end - 1;
    case LogitRows::kNone:
      break;
  }
  return end;
}

std::vector<int> wanted_rows(LogitRows rows, int n_tokens) {
  std::vector<int> wanted;
  for (int row = first_row(rows, 0, n_tokens); row < n_tokens; ++row) wanted.push_back(row);
  return wanted;
}

}  // namespace

void Model::check(const SequenceTokens& sequence, int n_sequences) const {
  check_layers(sequence.cache->n_layers(), config_.n_layers);
  check_tokens(sequence.tokens, n_sequences, config_.vocab_size, context(), sequence.cache->offset());
}

mx::array Model::forward(std::span<const TokenId> tokens, cache::ModelCache& cache, LogitRows rows,
                         int n_sequences) const {
  check({tokens, &cache, rows}, n_sequences);
  const int n_tokens = static_cast<int>(tokens.size()) / n_sequences;
  Step step{mx::array(tokens.data(), {n_sequences, n_tokens}, mx::int32), {{&cache, 0, n_tokens, cache.offset()}}};
  return run(step, wanted_rows(rows, n_tokens), Output::kLogits);
}

Pass Model::forward_with_hidden(std::span<const TokenId> tokens, cache::ModelCache& cache, LogitRows rows,
                                LogitRows hidden_rows) const {
  check({tokens, &cache, rows}, 1);
  const auto n_tokens = static_cast<int>(tokens.size());
  Step step{mx::array(tokens.data(), {1, n_tokens}, mx::int32), {{&cache, 0, n_tokens, cache.offset()}}};
  const int n_rows = n_tokens - first_row(rows, 0, n_tokens);
  const int n_hidden = n_tokens - first_row(hidden_rows, 0, n_tokens);
  const mx::array hidden = run(step, wanted_rows(n_rows > n_hidden ? rows : hidden_rows, n_tokens), Output::kStates);
  const auto last = [&](int n) {
    return mx::slice(hidden, {0, hidden.shape(1) - n, 0}, {1, hidden.shape(1), hidden.shape(2)});
  };
  return {logits_of(last(n_rows)), last(n_hidden)};
}

mx::array Model::run(Step& step, const std::vector<int>& rows, Output output) const {
  try {
    const mx::array x = states(step, rows);
    return output == Output::kLogits ? logits_of(x) : x;
  } catch (...) {
    for (const StepSequence& sequence : step.sequences) {
      if (!sequence.cache) continue;
      // At 0 its buffers would keep the number of sequences, and a recurrent layer that got ahead can't go back.
      if (sequence.offset == 0 || !sequence.cache->rewind(sequence.offset)) sequence.cache->free();
    }
    throw;
  }
}

mx::array Model::forward(std::span<const SequenceTokens> sequences) const {
  return run(sequences, Output::kLogits);
}

mx::array Model::hidden_states(std::span<const SequenceTokens> sequences) const {
  return run(sequences, Output::kStates);
}

mx::array Model::run(std::span<const SequenceTokens> sequences, Output output) const {
  if (sequences.empty()) throw std::invalid_argument("[model.forward] no sequences, expected at least one");
  std::set<const cache::ModelCache*> caches;
  std::vector<TokenId> ids;
  std::vector<int> rows;
  std::vector<StepSequence> parts;
  for (const SequenceTokens& sequence : sequences) {
    check(sequence, 1);
    if (!caches.insert(sequence.cache).second) {
      throw std::invalid_argument("[model.forward] two sequences have one cache, expected one for each");
    }
    const auto begin = static_cast<int>(ids.size());
    ids.insert(ids.end(), sequence.tokens.begin(), sequence.tokens.end());
    const auto end = static_cast<int>(ids.size());
    parts.push_back({sequence.cache, begin, end - begin, sequence.cache->offset()});
    for (int row = first_row(sequence.rows, begin, end); row < end; ++row) rows.push_back(row);
  }
  Step step{mx::array(ids.data(), {1, static_cast<int>(ids.size())}, mx::int32), std::move(parts)};
  return mx::squeeze(run(step, rows, output), 0);
}

void Model::check(const cache::CellCaches& cells, std::span<const CellTokens> sequences) const {
  if (sequences.empty()) throw std::invalid_argument("[model.forward] no sequences, expected at least one");
  check_layers(cells.n_layers(), config_.n_layers);
  std::set<int> numbers;
  for (const CellTokens& sequence : sequences) {
    check_tokens(sequence.tokens, 1, config_.vocab_size, context(), cells.offset(sequence.sequence));
    if (!numbers.insert(sequence.sequence).second) {
      throw std::invalid_argument("[model.forward] sequence " + std::to_string(sequence.sequence) +
                                  " is named twice, expected each once");
    }
  }
}

std::optional<mx::array> Model::forward(cache::CellCaches& cells, std::span<const CellTokens> sequences) const {
  check(cells, sequences);
  std::vector<TokenId> ids;
  std::vector<int> rows;
  Step step{mx::array(0), {}};
  cache::CellBatch batch;
  for (const CellTokens& sequence : sequences) {
    const int offset = cells.offset(sequence.sequence);
    const auto begin = static_cast<int>(ids.size());
    ids.insert(ids.end(), sequence.tokens.begin(), sequence.tokens.end());
    const auto end = static_cast<int>(ids.size());
    for (int t = 0; t < end - begin; ++t) {
      batch.sequences.push_back(sequence.sequence);
      batch.positions.push_back(offset + t);
    }
    step.sequences.push_back({nullptr, begin, end - begin, offset});
    for (int row = first_row(sequence.rows, begin, end); row < end; ++row) rows.push_back(row);
  }
  step.ids = mx::array(ids.data(), {1, static_cast<int>(ids.size())}, mx::int32);
  step.cells = &cells;
  if (!cells.begin(batch)) return std::nullopt;
  try {
    return mx::squeeze(run(step, rows, Output::kLogits), 0);
  } catch (...) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int number = sequences[i].sequence;
      if (cells.remove(number, step.sequences[i].offset) != cache::Removal::kDone) cells.remove(number, 0);
    }
    throw;
  }
}

}  // namespace memoir::model
