#include "memoir/server/served_model.h"

#include <mutex>
#include <utility>

namespace memoir::server {

struct ServedModel::LazyVocabulary {
  std::once_flag once;
  std::shared_ptr<const engine::JsonVocabulary> vocabulary;
};

ServedModel::ServedModel(Inputs inputs) : inputs_(std::move(inputs)), vocabulary_(std::make_shared<LazyVocabulary>()) {
  const std::optional<std::string>& source = inputs_.tokenizer.chat_template();
  if (!source) return;
  template_.emplace(*source);
  template_has_tools_ = source->find("tools") != std::string::npos;
  may_think_ = source->find("<think>") != std::string::npos || source->find("</think>") != std::string::npos;
  if (template_has_tools_) tool_format_ = tool_format_of(*source);
}

std::shared_ptr<const engine::JsonVocabulary> ServedModel::json_vocabulary() const {
  std::call_once(vocabulary_->once, [&] {
    vocabulary_->vocabulary =
        std::make_shared<const engine::JsonVocabulary>(engine::JsonVocabulary::of(inputs_.tokenizer));
  });
  return vocabulary_->vocabulary;
}

bool ServedModel::is_named(const std::string& name) const {
  return name.empty() || name == inputs_.name || name == inputs_.name + ":latest" || name + ":latest" == inputs_.name;
}

}  // namespace memoir::server
