#include "memoir/engine/prefix_store.h"

#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/kernels/shape.h"
#include "memoir/prefix/directory_tier.h"
#include "memoir/prefix/narrow_rows.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

// The layers of both.
cache::ModelCache joined(cache::ModelCache first, cache::ModelCache second) {
  std::vector<std::unique_ptr<cache::LayerCache>> layers = std::move(first).release();
  for (auto& layer : std::move(second).release()) layers.push_back(std::move(layer));
  return cache::ModelCache(std::move(layers));
}

// Rows become again what one type says.
void check_one_type(const cache::ModelCache& model, const cache::ModelCache& companion) {
  const mx::Dtype mine = prefix::NarrowRows::of(model).dtype;
  const mx::Dtype other = prefix::NarrowRows::of(companion).dtype;
  if (mine == other) return;
  throw UnsupportedError("", prefix::NarrowRows::kFormatName,
                         "the head that drafts keeps " + kernels::dtype_text(other) + " rows beside the model's " +
                             kernels::dtype_text(mine) + " ones, expected one type");
}

// A cache whose arrays know their sizes, and are never computed; of the companion too.
cache::ModelCache sized_cache(const model::Model& model, const cache::CacheOptions& caches, prefix::StoreFormat format,
                              const std::optional<prefix::CompanionCaches>& companion) {
  cache::ModelCache cache = model.make_cache(caches);
  model.forward(std::vector<TokenId>{0}, cache, model::LogitRows::kLast);
  if (!companion) return cache;
  cache::ModelCache example = companion->example();
  if (format != prefix::StoreFormat::kAsComputed) check_one_type(cache, example);
  return joined(std::move(cache), std::move(example));
}

std::optional<prefix::NarrowRows> narrow_rows(const cache::ModelCache& cache, prefix::StoreFormat format) {
  if (format == prefix::StoreFormat::kAsComputed) return std::nullopt;
  return prefix::NarrowRows::of(cache);
}

prefix::StateSize size_of(const cache::ModelCache& cache, const std::optional<prefix::NarrowRows>& narrow) {
  prefix::StateSize size = prefix::state_size(cache);
  if (narrow) size.row_bytes = narrow->row_bytes(prefix::parts_of(cache));
  return size;
}

}  // namespace

prefix::StateSize kept_size(const model::Model& model, const cache::CacheOptions& caches, prefix::StoreFormat format,
                            const std::optional<prefix::CompanionCaches>& companion) {
  const cache::ModelCache cache = sized_cache(model, caches, format, companion);
  return size_of(cache, narrow_rows(cache, format));
}

std::unique_ptr<prefix::Store> make_prefix_store(const model::Model& model, const prefix::StoreOptions& options,
                                                 const cache::CacheOptions& caches,
                                                 const std::optional<prefix::DirectoryTierOptions>& directory,
                                                 const std::optional<prefix::CompanionCaches>& companion) {
  if (caches.quantization && caches.quantize_from > 0) {
    throw std::invalid_argument("[engine.make_prefix_store] rows are quantized from token " +
                                std::to_string(caches.quantize_from) + " on, expected one format from the first");
  }
  const cache::ModelCache cache = sized_cache(model, caches, options.format, companion);
  std::function<cache::ModelCache()> make_cache = [&model, caches] { return model.make_cache(caches); };
  prefix::StoreOptions settled = options;
  if (companion) {
    settled.n_companion_layers = static_cast<int>(companion->make().n_layers());
    make_cache = [make_cache, companion] { return joined(make_cache(), companion->make()); };
  }
  settled.narrow_rows = narrow_rows(cache, options.format);
  std::unique_ptr<prefix::Tier> tier;
  if (directory) {
    tier = std::make_unique<prefix::DirectoryTier>(*directory, prefix::CacheForm(cache, settled.narrow_rows));
  }
  return std::make_unique<prefix::Store>(make_cache, size_of(cache, settled.narrow_rows), settled, std::move(tier));
}

}  // namespace memoir::engine
