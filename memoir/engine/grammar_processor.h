#pragma once

// Holds a model to a grammar: forbids every token whose bytes the grammar refuses, and the end tokens until the text
// may end. A text may be made to begin with given tokens first (the beginning of a tool call),
// or with one of several beginnings, each with a grammar of its own.
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
  /// A text: it begins with the prefix, token by token, and goes on as the constraint says.
  struct Branch {
    std::shared_ptr<Constraint> constraint;
    std::vector<TokenId> prefix = {};
  };

  /// Of several branches the model takes one, by the tokens that their prefixes differ in.
  /// Throws std::invalid_argument if there is none, or one's prefix begins with another's.
  GrammarProcessor(std::vector<Branch> branches, std::vector<TokenId> end_tokens);

  void apply(std::span<float> logits) override;

  /// Throws std::invalid_argument for a token that apply() forbids.
  void accept(TokenId token) override;

 private:
  bool is_in_prefix() const { return !constraint_; }
  void settle();
  void apply_prefix(std::span<float> logits) const;
  void accept_prefix(TokenId token);

  std::vector<Branch> branches_;  // that the text may be of still
  std::size_t n_prefix_done_ = 0;
  std::vector<TokenId> end_tokens_;
  std::shared_ptr<Constraint> constraint_;  // once the prefix is done
  JsonGrammar::State state_ = JsonGrammar::kRefused;
};

}  // namespace memoir::engine
