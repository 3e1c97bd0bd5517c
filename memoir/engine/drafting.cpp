#include "memoir/engine/drafting.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cache/transaction.h"
#include "memoir/engine/assistant_drafter.h"
#include "memoir/engine/draft_model.h"
#include "memoir/engine/measured_cost.h"
#include "memoir/engine/mtp_drafter.h"
#include "memoir/model/load.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

CacheCost cost_of(const model::MtpHead& head, const model::Model& target) {
  const int n_hidden = target.config().hidden_size;
  return measured_cost(target.context(), [&](int n_tokens) {
    cache::ModelCache cache = head.make_cache();
    const mx::array ids = mx::zeros({1, n_tokens}, mx::int32);
    head.forward(target.embed(ids), mx::zeros({1, n_tokens, n_hidden}), cache);
    return cache.size_bytes();
  });
}

}  // namespace

Drafting draft_by_lookup() {
  Drafting drafting;
  drafting.make = [](const model::Model&) { return std::make_unique<NgramDrafter>(); };
  return drafting;
}

Drafting draft_with_model(std::shared_ptr<const model::LoadedModel> draft, std::optional<int> n_at_once) {
  const DraftModel checked(*draft->model, draft->model->config().vocab_size);
  Drafting drafting;
  drafting.cost = measured_cost(*draft->model, {});
  drafting.make = [draft = std::move(draft), n_at_once](const model::Model& target) {
    return std::make_unique<DraftModel>(*draft->model, target.config().vocab_size, n_at_once);
  };
  return drafting;
}

Drafting draft_with_head(std::shared_ptr<const model::MtpHead> head, const model::Model& target) {
  Drafting drafting;
  drafting.cost = cost_of(*head, target);
  drafting.companion = companion_caches(head, target);
  drafting.make = [head = std::move(head)](const model::Model& model) {
    return std::make_unique<MtpDrafter>(head, model);
  };
  return drafting;
}

Drafting draft_with_assistant(std::shared_ptr<const model::Gemma4Assistant> assistant, const model::Model& target) {
  assistant->check_fits(target);
  Drafting drafting;
  drafting.make = [assistant = std::move(assistant)](const model::Model& model) {
    return std::make_unique<AssistantDrafter>(assistant, model);
  };
  return drafting;
}

void check_takes_drafts_back(const cache::ModelCache& cache, int max_drafts) {
  const auto refusal = cache::Transaction::refusal(cache, max_drafts + 1);
  if (!refusal) return;
  throw std::invalid_argument("[engine.drafting] layer " + std::to_string(refusal->layer) + " has a " + refusal->kind +
                              ", which can't take drafts back");
}

}  // namespace memoir::engine
