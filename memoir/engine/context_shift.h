#pragma once

// What to do when a context is full and the text goes on: keep the first tokens, drop half of the others, and let the
// rest move down to where they were. The rest keeps what it was computed from, so the tokens that follow are not those
// of a text without the dropped ones; that is the price of not computing it again.
// Threads: the thread that owns MLX's work.

#include <algorithm>
#include <functional>
#include <span>

#include "memoir/base/types.h"
#include "memoir/cache/cell_caches.h"
#include "memoir/text/tokenizer.h"

namespace memoir::engine {

struct ContextShift {
  int context;   // the most tokens that the cache holds, at most the model's
  int keep = 4;  // of the first ones, that stay; less than the context

  // True for a token that only goes on what the one before it began: the two are dropped together. May be empty.
  std::function<bool(TokenId)> goes_on = {};
};

/// ContextShift::goes_on for a tokenizer's characters of several tokens. It refers to the tokenizer.
std::function<bool(TokenId)> goes_on_character(const text::Tokenizer& tokenizer);

/// How many of n_tokens to drop behind the first `keep`, for half of the others' room to be free: 0 where it is
/// already.
inline int n_to_discard(const ContextShift& shift, int n_tokens) {
  const int n_free_wanted = std::max((shift.context - shift.keep) / 2, 1);
  return std::max(0, n_free_wanted - (shift.context - n_tokens));
}

/// n_discarded, and of the tokens behind those as many as go on what the last discarded one began; but `n_left` tokens
/// stay. 0 stays 0.
int n_whole(const ContextShift& shift, std::span<const TokenId> tokens, int n_discarded, int n_left = 0);

/// Drops the positions [begin, end) of every layer; later ones come down, their keys turned. On a refusal, or a throw,
/// the cache is as before: kWindow where a window would see what it has let go, kNoTurn where `turn` is empty. For a
/// moment there are two caches.
/// Throws std::invalid_argument naming the kind of a layer that holds no keys and values (cache::unfit_for_cells).
cache::Removal remove_positions(cache::ModelCache& cache, int begin, int end, const cache::KeyTurn& turn);

}  // namespace memoir::engine
