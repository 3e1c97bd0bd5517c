#include "memoir/cache/transaction.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace memoir::cache {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[transaction.") + function + "] " + what);
}

void check_begin(const ModelCache& cache, int n_max) {
  if (n_max < 1) refuse("begin", "n_max is " + std::to_string(n_max) + ", expected at least 1");
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    const LayerCache* layer = cache.find(i);
    if (layer && layer->is_in_transaction()) refuse("begin", "a transaction is open, and they don't nest");
  }
  const std::optional<Transaction::Refusal> refusal = Transaction::refusal(cache, n_max);
  if (!refusal) return;
  refuse("begin", "layer " + std::to_string(refusal->layer) + " has a " + refusal->kind +
                      ", which can't take back any of " + std::to_string(n_max) + " positions");
}

void roll_back_layers(const ModelCache& cache) noexcept {
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    LayerCache* layer = cache.find(i);
    if (layer) layer->roll_back();
  }
}

}  // namespace

std::optional<Transaction::Refusal> Transaction::refusal(const ModelCache& cache, int n_max) {
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    const LayerCache* layer = cache.find(i);
    const std::string_view kind = layer ? layer->unfit_for_transaction(n_max) : std::string_view();
    if (!kind.empty()) return Refusal{i, std::string(kind)};
  }
  return std::nullopt;
}

Transaction::Transaction(ModelCache& cache, int n_max, InsideStates inside, Target target)
    : live_(cache), begin_(cache.offset()) {
  check_begin(cache, n_max);
  if (target == Target::kCopy) copy_.emplace(cache.copy());
  held_.reserve(cache.n_layers());
  try {
    for (std::size_t i = 0; i < cache.n_layers(); ++i) {
      LayerCache* layer = subject().find(i);
      if (layer) layer->begin(n_max, inside);
    }
  } catch (...) {
    roll_back_layers(subject());
    throw;
  }
}

Transaction Transaction::begin(ModelCache& cache, int n_max, InsideStates inside) {
  return Transaction(cache, n_max, inside, Target::kLive);
}

Transaction Transaction::begin_isolated(ModelCache& cache, int n_max, InsideStates inside) {
  return Transaction(cache, n_max, inside, Target::kCopy);
}

Transaction::~Transaction() {
  roll_back();
}

int Transaction::n_written() const {
  if (!is_open_) return 0;
  int n = std::numeric_limits<int>::max();
  for (std::size_t i = 0; i < subject().n_layers(); ++i) {
    const LayerCache* layer = subject().find(i);
    if (layer) n = std::min(n, layer->n_written());
  }
  return n;
}

void Transaction::commit(int n) {
  if (!is_open_) refuse("commit", "the transaction has ended");
  const int n_written = this->n_written();
  if (n < 0 || n > n_written) {
    refuse("commit",
           "n is " + std::to_string(n) + ", expected 0 to " + std::to_string(n_written) + ", the positions written");
  }
  for (std::size_t i = 0; i < subject().n_layers(); ++i) {
    const LayerCache* layer = subject().find(i);
    if (layer && !layer->is_in_transaction()) refuse("commit", "layer " + std::to_string(i) + " was freed meanwhile");
  }
  if (copy_ && live_.offset() != begin_) {
    refuse("commit", "the live cache is at offset " + std::to_string(live_.offset()) + ", expected " +
                         std::to_string(begin_) + " as at the begin");
  }
  for (std::size_t i = 0; i < subject().n_layers(); ++i) {
    LayerCache* layer = subject().find(i);
    if (!layer) continue;
    if (LayerCache::Held held = layer->commit(n)) held_.push_back(std::move(held));
  }
  is_open_ = false;
  if (copy_) {
    live_.replace(std::move(*copy_));
    copy_.reset();
  }
}

void Transaction::roll_back() noexcept {
  if (!std::exchange(is_open_, false)) return;
  roll_back_layers(subject());
  copy_.reset();
}

}  // namespace memoir::cache
