#pragma once

// Options that several subcommands share, and what they are for: loading a model and choosing tokens.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/engine/drafting.h"
#include "memoir/engine/generate.h"
#include "memoir/model/load.h"
#include "memoir/model/package.h"

namespace memoir::cli {

struct RunOptions {
  std::string model;
  int threads = 0;  // 0: the physical cores
  std::string device = "cpu";

  /// Adds -m/--model (required unless `model` has a default), --threads and --device.
  void add_to(CLI::App& command);
  /// The last two alone.
  void add_device_to(CLI::App& command);

  /// prepare(), and loads the model, of a package with its template. Notes about the file go to stderr.
  model::LoadedModel load() const;

  /// Sets threads and device up, for the process. n_stated: threads that a package asks for where --threads says
  /// nothing; 0: none. Throws UsageError if the device is not there.
  void prepare(int n_stated = 0) const;
  /// Computes on the device, for the calling thread.
  void use_device() const;
};

/// How a model's keys and values are kept.
struct KvArguments {
  std::string kv = "auto";
  int max_size = 0;       // 0: as much as the context
  int quantize_from = 0;  // tokens

  /// Adds --kv, --max-kv-size and --quantized-kv-start.
  void add_to(CLI::App& command);
  /// The first two alone.
  void add_formats_to(CLI::App& command);

  /// The --kv that asks for such rows.
  static std::string name_of(mlx::core::Dtype dtype);

  /// Throws UsageError if --quantized-kv-start comes without a quantized --kv.
  cache::CacheOptions cache_options(const model::ModelConfig& config) const;

  /// Throws UsageError, naming the options, if the model can't have its caches so, or keeps no keys and values at all.
  void check(const model::Model& model) const;
};

/// Sampling and stopping, with defaults as the struct has them when add_to() is called.
struct SamplingOptions {
  engine::SamplerOptions sampler;
  int max_tokens = 256;
  int prefill_chunk = 256;
  std::vector<std::string> stop_strings;

  void add_to(CLI::App& command);

  /// What a package says, for options that are not given.
  void use_defaults(const model::ModelfileParameters& parameters);

  /// Throws UsageError for an empty --stop, and one for a model that has no texts.
  engine::GenerateOptions generate_options(const model::LoadedModel& loaded) const;

 private:
  bool is_given(const char* name) const {
    const auto found = options_.find(name);
    return found != options_.end() && found->second->count() > 0;
  }

  std::uint64_t seed_ = 0;
  bool has_seed_ = false;
  std::map<std::string, CLI::Option*> options_;
};

/// --draft: where drafts come from.
class DraftOptions {
 public:
  void add_to(CLI::App& command);

  /// What a package says, for options that are not given, and for "auto" as use_for_auto.
  void use_defaults(const model::Package& package);

  /// Makes the drafter, if one is asked for, and has `options` use it. It lives as long as this. Throws as drafting(),
  /// but for the model's caches.
  void use(const std::string& model, const model::LoadedModel& loaded, engine::GenerateOptions& options);

  /// What the drafter in use keeps beside a model's cache, for a prefix store.
  std::optional<prefix::CompanionCaches> companion() const { return engine::companion_of(drafting_); }

  /// What a service's drafts come from, nullopt where none are asked for. model: what the model was named, or its path;
  /// caches: what it runs with; n_at_once: as engine::DraftModel.
  /// Throws UsageError if the draft model's vocabulary is another than the model's, or caches can't take drafts back,
  /// its own or the model's; UnsupportedError for an assistant that was made for another model, and for "auto" where
  /// the model carries no head.
  std::optional<engine::Drafting> drafting(const std::string& model, const model::LoadedModel& loaded,
                                           const cache::CacheOptions& caches, int n_at_once) const;

  /// Has "auto" mean the DRAFT that a package names, if it names one; else it means the head that the model carries.
  void use_for_auto(const std::optional<std::filesystem::path>& draft) {
    if (draft && draft_ == "auto") draft_ = draft->string();
  }

  bool is_used() const { return !draft_.empty() && draft_ != "none"; }

  /// Once defaults are settled. Throws UsageError for --draft-max where nothing is guessed.
  void check() const;

  /// Whether it is meant for whatever model there is: nothing, "ngram" or "auto".
  bool is_for_any() const { return !is_used() || draft_ == "ngram" || draft_ == "auto"; }

  const std::string& name() const { return draft_; }

  /// Whether the user asked for one, whatever the package has.
  bool is_asked_for() const { return option_->count() > 0 && draft_ != "none"; }

  /// Does without the package's draft, and says on stderr that `reason` ("--n") is why. Nothing where the draft is the
  /// user's, or there is none.
  void leave_out_default(const std::string& reason);

 private:
  engine::Drafting made(const std::string& model, const model::LoadedModel& loaded, std::optional<int> n_at_once) const;

  std::string draft_;  // "ngram", "auto", a model or an assistant; empty or "none": none
  CLI::Option* option_ = nullptr;
  CLI::Option* max_option_ = nullptr;
  int max_drafts_ = 8;
  std::optional<engine::Drafting> drafting_;  // before the drafter, which refers to it
  std::shared_ptr<engine::Drafter> drafter_;
};

/// --context-shift: a text that goes on when the context is full.
class ContextShiftOptions {
 public:
  /// Adds --context-shift, --context and --keep.
  void add_to(CLI::App& command);

  bool is_used() const { return is_used_; }

  /// nullopt where the option isn't used. Throws UsageError if the numbers don't fit the model's, or another option
  /// that can't be used with it is used: `others` by name, and whether they are. Refers to the model's tokenizer.
  std::optional<engine::ContextShift> shift(const model::LoadedModel& loaded,
                                            const std::vector<std::pair<const char*, bool>>& others) const;

 private:
  bool is_used_ = false;
  int context_ = 0;  // 0: the model's
  int keep_ = 4;
};

/// Token by token where both have a tokenizer (their paddings may differ), else by their number. Throws UsageError,
/// naming the draft model, for another vocabulary.
void check_same_vocabulary(const model::LoadedModel& target, const model::LoadedModel& draft, const std::string& name);

/// Any seed, for a run that shall be told which it had.
std::uint64_t random_seed();

/// "1,2,3" as token ids. Throws UsageError naming what is no number.
std::vector<TokenId> parse_tokens(const std::string& text);

}  // namespace memoir::cli
