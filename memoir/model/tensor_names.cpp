#include "memoir/model/tensor_names.h"

#include <algorithm>
#include <array>

namespace memoir::model {
namespace {

// As transformers (before and since 4.52) and mlx-lm name them, behind "model." or not.
constexpr std::array<std::string_view, 8> kOtherParts = {"vision_tower.",          "vision_model.", "vision_embedder.",
                                                         "multi_modal_projector.", "embed_vision.", "visual.",
                                                         "audio_tower.",           "embed_audio."};

constexpr std::string_view kModel = "model.";
constexpr std::string_view kLanguage = "language_model.";

}  // namespace

std::optional<std::string> text_tensor_name(std::string_view name) {
  const std::string_view inner = name.starts_with(kModel) ? name.substr(kModel.size()) : name;
  if (std::ranges::any_of(kOtherParts, [&](std::string_view part) { return inner.starts_with(part); })) {
    return std::nullopt;
  }
  if (!inner.starts_with(kLanguage)) return std::string(name);
  const std::string_view rest = inner.substr(kLanguage.size());
  const bool is_whole_name = rest.starts_with(kModel) || rest.starts_with("lm_head.");
  return is_whole_name ? std::string(rest) : std::string(kModel) + std::string(rest);
}

}  // namespace memoir::model
