#pragma once

// Several continuations of one prompt, each with a seed of its own: the prompt is computed once, its keys and values
// lie in cells that all continuations share (cache/cells.h), and one pass computes the next token of each.
//
// A continuation's tokens are those that generate() gives alone with its seed, on the CPU bit for bit.
// Threads: the thread that owns MLX's work. Callbacks are called on it and may throw; the throw passes through.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/kv.h"
#include "memoir/engine/generate.h"
#include "memoir/model/model.h"
#include "memoir/text/tokenizer.h"

namespace memoir::engine {

struct Samples {
  std::vector<Completion> completions;  // the prompt's tokens are cached ones in all but the first
  std::vector<std::uint64_t> seeds;     // of each: options.sampler.seed, or a random one, and the numbers after it
  std::size_t cache_bytes = 0;          // of the cells
};

/// n >= 1 continuations. on_finished, if not empty, gets each as it ends, and its number.
/// Of the options a drafter must be null. Where should_cancel says so all that still run end as cancelled.
/// Throws std::invalid_argument as Generation does, if n < 1, there is a drafter, rows are to be quantized later
/// (quantize_from), or the model has a layer that isn't attention, or can't have a cache as `cache` says.
Samples generate_samples(const model::Model& model, const cache::CacheOptions& cache, std::span<const TokenId> prompt,
                         const GenerateOptions& options, int n, const text::Tokenizer* tokenizer,
                         const std::function<void(int number, const Completion&)>& on_finished = {});

}  // namespace memoir::engine
