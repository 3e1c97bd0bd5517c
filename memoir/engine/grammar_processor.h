#pragma once

// Holds a model to a grammar: forbids every token whose bytes the grammar refuses, and the end tokens until the text
// may end. A text may be made to begin with given tokens first (the beginning of a tool call).
//
// Which tokens a state takes is worked out once per state, by a walk over a trie (inside a string over that of the few
// tokens that end one, elsewhere few branches are taken), and kept in the Constraint, which all requests with the same
// schema may share. Threads: the engine's alone, also for a shared Constraint.

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/json_grammar.h"
#include "memoir/engine/json_vocabulary.h"
#include "memoir/engine/service.h"

namespace memoir::engine {

/// A grammar over one vocabulary, with what was worked out about it.
class Constraint {
 public:
  Constraint(std::shared_ptr<const JsonSchema> schema, std::shared_ptr<const JsonVocabulary> vocabulary);

  /// A bit for each token: whether the state takes it. Valid until the next call.
  const std::vector<std::uint64_t>& allowed(JsonGrammar::State state);

  JsonGrammar& grammar() { return grammar_; }
  const std::shared_ptr<const JsonVocabulary>& vocabulary() const { return vocabulary_; }

  /// True when it has grown so large that a new one should take its place.
  bool is_full() const;

 private:
  void walk(const TokenTrie& trie, JsonGrammar::State state, std::vector<std::uint64_t>& mask);

  std::shared_ptr<const JsonVocabulary> vocabulary_;
  JsonGrammar grammar_;
  std::unordered_map<JsonGrammar::State, std::vector<std::uint64_t>> masks_;
  std::vector<JsonGrammar::State> path_;
};

class GrammarProcessor : public LogitsProcessor {
 public:
  struct Options {
    std::vector<TokenId> end_tokens;
    std::vector<TokenId> prefix;  // what the text begins with, before the grammar's part
  };

  GrammarProcessor(std::shared_ptr<Constraint> constraint, Options options);

  void apply(std::span<float> logits) override;

  /// Throws std::invalid_argument for a token that apply() forbids.
  void accept(TokenId token) override;

 private:
  std::shared_ptr<Constraint> constraint_;
  Options options_;
  std::size_t n_prefix_done_ = 0;
  JsonGrammar::State state_;
};

}  // namespace memoir::engine
