#include "memoir/engine/context_shift.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cache/kv.h"

namespace memoir::engine {
namespace {

// The layer's rows as a sequence of cells.
cache::CellCache in_cells(const cache::KVCache& layer, std::size_t index, const cache::KeyTurn& turn) {
  const cache::KVOptions kv = layer.options();
  cache::CellsOptions cells{.capacity = layer.offset(), .window = kv.window, .keep = kv.keep, .chunk = kv.chunk};
  cells.n_cells = layer.layout().held_by_snapshot(0).n_rows();
  cache::CellCache result({.cells = cells, .dtype = kv.dtype, .quantization = kv.quantization, .turn = turn});
  const std::unique_ptr<cache::Snapshot> snapshot = layer.snapshot(0);
  const cache::LayerSnapshot one{index, snapshot.get()};
  if (!result.restore(0, {&one, 1}, layer.offset())) {
    throw std::logic_error("[engine.remove_positions] layer " + std::to_string(index) + " can't be laid into cells");
  }
  return result;
}

}  // namespace

std::function<bool(TokenId)> goes_on_character(const text::Tokenizer& tokenizer) {
  return [&tokenizer](TokenId token) {
    constexpr unsigned kMask = 0xC0;
    constexpr unsigned kContinuation = 0x80;  // UTF-8: no character begins with such a byte
    const std::string piece = tokenizer.piece(token);
    return !piece.empty() && (static_cast<unsigned char>(piece[0]) & kMask) == kContinuation;
  };
}

int n_whole(const ContextShift& shift, std::span<const TokenId> tokens, int n_discarded, int n_left) {
  if (n_discarded == 0 || !shift.goes_on) return n_discarded;
  const int n_most = static_cast<int>(tokens.size()) - shift.keep - n_left;
  int n = n_discarded;
  while (n < n_most && shift.goes_on(tokens[static_cast<std::size_t>(shift.keep + n)])) ++n;
  return n;
}

cache::Removal remove_positions(cache::ModelCache& cache, int begin, int end, const cache::KeyTurn& turn) {
  std::vector<std::unique_ptr<cache::LayerCache>> layers(cache.n_layers());
  for (std::size_t index = 0; index < layers.size(); ++index) {
    const std::string_view unfit = cache::unfit_for_cells(cache, index);
    if (!unfit.empty()) {
      throw std::invalid_argument("[engine.remove_positions] layer " + std::to_string(index) + " has a " +
                                  std::string(unfit) + ", which has no positions to remove");
    }
    const auto* layer = dynamic_cast<const cache::KVCache*>(cache.find(index));
    if (!layer) continue;
    cache::CellCache cells = in_cells(*layer, index, turn);
    const cache::Removal result = cells.remove(0, begin, end);
    if (result != cache::Removal::kDone) return result;
    auto shifted = cache::make_kv_cache(layer->options());
    const std::unique_ptr<cache::Snapshot> snapshot = cells.snapshot(0, index);
    if (snapshot) shifted->restore(snapshot.get(), snapshot->to());
    layers[index] = std::move(shifted);
  }
  cache.replace(cache::ModelCache(std::move(layers)));
  return cache::Removal::kDone;
}

}  // namespace memoir::engine
