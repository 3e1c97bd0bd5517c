#pragma once

// Drafts from Gemma 4's assistant (model/gemma4_assistant.h), which reads the keys and values that the model holds: it
// has none of its own, so nothing is to be taken back.

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/engine/speculate.h"
#include "memoir/model/gemma4_assistant.h"

namespace memoir::engine {

class AssistantDrafter final : public Drafter {
 public:
  /// The model that is drafted for must outlive this. Throws UnsupportedError, naming the configuration's key, if the
  /// assistant was made for another one.
  AssistantDrafter(std::shared_ptr<const model::Gemma4Assistant> assistant, const model::Model& target);

  /// None where `tokens` is not what was taken in, and one more.
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int n_max) override;

  Reads reads() const override { return Reads::kLastToken; }
  void taken_in(const TakenIn& taken) override;

 private:
  std::shared_ptr<const model::Gemma4Assistant> assistant_;
  const model::Model& target_;
  model::SharedLayers layers_;
  const cache::ModelCache* cache_ = nullptr;  // of the session that was told of last
  int n_taken_in_ = 0;
  std::optional<mlx::core::array> hidden_;  // of the last token, [1, 1, hidden]
};

}  // namespace memoir::engine
