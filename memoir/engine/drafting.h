#pragma once

// Where the drafts of a model's texts come from: what makes a drafter for each, with the weights that they share. No
// MLX in this header.
//
// Ownership: `make` owns the weights of what it makes drafters of; it and the target must outlive them.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "memoir/engine/cache_cost.h"
#include "memoir/engine/speculate.h"
#include "memoir/prefix/companion_caches.h"

namespace memoir::cache {
class ModelCache;
}
namespace memoir::model {
class Gemma4Assistant;
class Model;
class MtpHead;
struct LoadedModel;
}  // namespace memoir::model

namespace memoir::engine {

struct Drafting {
  /// A drafter for one text of `target`. Used by one thread at a time, the one that owns MLX's work.
  std::function<std::unique_ptr<Drafter>(const model::Model& target)> make;
  CacheCost cost = {};                                              // what each drafter keeps for its text
  std::optional<prefix::CompanionCaches> companion = std::nullopt;  // for a prefix store, where they keep something
  int max_drafts = 8;                                               // in a pass, 1 to DraftLength::kMax
  bool adapts = true;  // in a service, as many as pay; else always max_drafts
};

/// What such drafters keep beside the model's caches; nullopt for none, and without drafting.
inline std::optional<prefix::CompanionCaches> companion_of(const std::optional<Drafting>& drafting) {
  return drafting ? drafting->companion : std::nullopt;
}

Drafting draft_by_lookup();

/// n_at_once: as DraftModel. Throws std::invalid_argument, naming the layer, if the draft model's cache can't take
/// drafts back.
Drafting draft_with_model(std::shared_ptr<const model::LoadedModel> draft, std::optional<int> n_at_once = std::nullopt);

/// The head that the target carries.
Drafting draft_with_head(std::shared_ptr<const model::MtpHead> head, const model::Model& target);

/// Throws UnsupportedError, naming the configuration's key, if the assistant was made for another target.
Drafting draft_with_assistant(std::shared_ptr<const model::Gemma4Assistant> assistant, const model::Model& target);

/// Throws std::invalid_argument, naming the layer and its kind, if it can't take back that many drafts and the token
/// before them.
void check_takes_drafts_back(const cache::ModelCache& cache, int max_drafts);

}  // namespace memoir::engine
