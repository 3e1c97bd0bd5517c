#include "memoir/cli/prompt_cache.h"

#include <stdexcept>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/output_file.h"
#include "memoir/cli/report.h"
#include "memoir/cli/text_checks.h"
#include "memoir/model/fingerprint.h"

namespace memoir::cli {

void PromptCache::add_to(CLI::App& command) {
  command
      .add_option("--prompt-cache", path_,
                  "begin with what FILE holds of the prompt, if there is one, and write the cache to it at the end")
      ->type_name("FILE")
      ->check(not_empty());
}

void PromptCache::open(const std::string& model) {
  if (!is_used()) return;
  check_replaced_path("--prompt-cache", path_);
  const std::filesystem::path model_path = resolve_model(model);
  metadata_.model = model::fingerprint(model_path);
  metadata_.model_name = model_path.stem().string();
  if (!entry_exists(path_)) return;
  // The index first: a file of another model may be large.
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const cache::PromptMetadata theirs = cache::read_prompt_index(file).metadata;
  if (theirs.model.empty() || !theirs.tokens) {
    throw UnsupportedError(path_, "", "does not say of which model and tokens it is: memoir did not write it");
  }
  if (theirs.model != metadata_.model) {
    throw UnsupportedError(path_, "",
                           "is of another model, \"" + theirs.model_name + "\" (" + theirs.model + "); this one is \"" +
                               metadata_.model_name + "\" (" + metadata_.model + ")");
  }
  found_ = cache::load_prompt_file(file);
  metadata_.user = found_->metadata.user;
}

void PromptCache::load_into(engine::Session& session) {
  if (!found_) return;
  try {
    session.adopt(std::move(found_->cache), std::move(*found_->metadata.tokens));
  } catch (const std::invalid_argument& refusal) {
    throw UnsupportedError(path_, "",
                           std::string(reason(refusal.what())) +
                               "; --kv and --max-kv-size have to be as when it was written, or --kv left out "
                               "(memoir cache convert --quantize makes codes of what it holds)");
  }
  found_.reset();
}

void PromptCache::save(const engine::Session& session) const {
  if (!is_used() || session.tokens().empty()) return;
  cache::PromptMetadata metadata = metadata_;
  metadata.tokens = session.tokens();
  cache::save_prompt_file(path_, session.cache(), metadata);
}

}  // namespace memoir::cli
