#pragma once

// The engine of a server: requests of many users on one model, run side by side in steps. No MLX in this header.
//
// docs/scheduler.md tells how a step is planned (planner.h), what happens when memory runs short, and who fails when
// something throws.
// Threads: the service has one of its own, which owns all MLX work and calls the requests' on_event. Its functions may
// be called from any thread, also from on_event, except drain() and destruction there.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "memoir/engine/drafting.h"
#include "memoir/engine/service.h"
#include "memoir/engine/step_runner.h"
#include "memoir/prefix/directory_options.h"
#include "memoir/prefix/store_format.h"
#include "memoir/text/tokenizer.h"

namespace memoir::cache {
struct CacheOptions;
}
namespace memoir::model {
struct LoadedModel;
}

namespace memoir::engine {

struct ServiceOptions {
  int max_running = 16;                // requests in a step, >= 1
  int max_queued = 256;                // accepted beyond those, >= 0; then Refusal::kQueueFull
  int prefill_tokens_per_step = 256;   // of all prompts together, >= 1
  std::size_t prefix_cache_bytes = 0;  // kept of ended requests for later ones; 0: nothing
  prefix::StoreFormat prefix_cache_format = prefix::StoreFormat::kAsComputed;
  std::optional<prefix::DirectoryTierOptions> prefix_cache_directory = std::nullopt;  // where that goes on
  std::optional<std::size_t> max_cache_bytes = std::nullopt;  // of all running requests; absent: no limit
  std::optional<int> max_context = std::nullopt;              // at most the model's, >= 1
  std::optional<Drafting> drafting = std::nullopt;            // for all requests, where it pays (draft_shares.h)
};

/// Runs the model from now on; nobody else may use it. The model's weights are evaluated (as load_model() leaves them).
/// The service's thread computes on the device that is the calling thread's default.
/// Throws std::invalid_argument for an option out of its range, if the first token's cache passes max_cache_bytes, or
/// if drafts are to be made and a layer's cache can't take them back. Destruction ends what is left as cancelled,
/// within a step.
std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options);

/// The same with caches as these options say. Throws as make_prefix_store() too.
std::unique_ptr<Service> make_service(model::LoadedModel loaded, const ServiceOptions& options,
                                      const cache::CacheOptions& caches);

/// The same over another runner, which is made, used and destroyed on the service's thread. prefix_cache_bytes
/// and drafting are the runner's matter. What make_runner throws passes through.
std::unique_ptr<Service> make_service(std::function<std::unique_ptr<StepRunner>()> make_runner,
                                      std::optional<text::Tokenizer> tokenizer, const ServiceOptions& options);

}  // namespace memoir::engine
