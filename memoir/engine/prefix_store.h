#pragma once

// A prefix::Store for a model, with what it has to know of the model's caches measured on one.

#include <memory>
#include <optional>

#include "memoir/cache/kv.h"
#include "memoir/model/model.h"
#include "memoir/prefix/companion_caches.h"
#include "memoir/prefix/directory_options.h"
#include "memoir/prefix/store.h"

namespace memoir::engine {

/// What one token's rows and one checkpoint, with full windows, take in such a store; a companion's are among them.
/// Computes nothing. Throws as make_prefix_store.
prefix::StateSize kept_size(const model::Model& model, const cache::CacheOptions& caches, prefix::StoreFormat format,
                            const std::optional<prefix::CompanionCaches>& companion = {});

/// For caches that model.make_cache(caches) makes; the model must outlive the store. With `directory` what is kept also
/// goes there, and comes from there. With `companion` so does what a drafter keeps beside (prefix/companion.h).
/// Computes nothing.
/// Throws std::invalid_argument as make_cache and prefix::Store do, and if the caches' format changes on the way
/// (caches.quantize_from > 0); UnsupportedError as NarrowRows::of, if options.format asks for codes, and then also if
/// the companion's rows are of another type than the model's.
std::unique_ptr<prefix::Store> make_prefix_store(const model::Model& model, const prefix::StoreOptions& options,
                                                 const cache::CacheOptions& caches = {},
                                                 const std::optional<prefix::DirectoryTierOptions>& directory = {},
                                                 const std::optional<prefix::CompanionCaches>& companion = {});

}  // namespace memoir::engine
