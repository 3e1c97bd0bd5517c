#include "memoir/engine/grammar_processor.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::engine {
namespace {

constexpr std::size_t kMaxStates = 16'384;
constexpr std::size_t kMaxMaskBytes = 16U << 20;
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

Constraint::Constraint(std::shared_ptr<const JsonSchema> schema, std::shared_ptr<const JsonVocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), grammar_(std::move(schema)), path_(vocabulary_->all().max_depth() + 1) {}

bool Constraint::is_full() const {
  return grammar_.n_states() > kMaxStates;
}

const std::vector<std::uint64_t>& Constraint::allowed(JsonGrammar::State state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  std::vector<std::uint64_t> mask;
  if (grammar_.is_plain_string(state)) {
    mask = vocabulary_->inside_string();
    walk(vocabulary_->ending_string(), state, mask);
  } else {
    mask.resize(vocabulary_->inside_string().size(), 0);
    walk(vocabulary_->all(), state, mask);
  }
  if ((masks_.size() + 1) * mask.size() * sizeof(std::uint64_t) > kMaxMaskBytes) masks_.clear();
  return masks_.emplace(state, std::move(mask)).first->second;
}

void Constraint::walk(const TokenTrie& trie, JsonGrammar::State state, std::vector<std::uint64_t>& mask) {
  const auto nodes = trie.nodes();
  const auto ids = trie.ids();
  path_[0] = state;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const JsonGrammar::State next = grammar_.step(path_[node.depth], node.byte);
    if (next == JsonGrammar::kRefused) {
      i = node.end;
      continue;
    }
    path_[node.depth + 1U] = next;
    for (const TokenId id : ids.subspan(node.first_token, node.n_tokens)) {
      mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (static_cast<std::size_t>(id) % 64);
    }
    ++i;
  }
}

GrammarProcessor::GrammarProcessor(std::vector<Branch> branches, std::vector<TokenId> end_tokens)
    : branches_(std::move(branches)), end_tokens_(std::move(end_tokens)) {
  if (branches_.empty()) throw std::invalid_argument("[grammar] there is no branch");
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    for (std::size_t k = 0; k < branches_.size(); ++k) {
      const auto& [a, b] = std::pair(branches_[i].prefix, branches_[k].prefix);
      if (i == k || a.size() > b.size() || !std::equal(a.begin(), a.end(), b.begin())) continue;
      throw std::invalid_argument("[grammar] the prefix of branch " + std::to_string(k) +
                                  " begins with that of branch " + std::to_string(i));
    }
  }
  settle();
}

// Where a prefix is done only its branch is left.
void GrammarProcessor::settle() {
  if (branches_.front().prefix.size() > n_prefix_done_) return;
  constraint_ = branches_.front().constraint;
  state_ = constraint_->grammar().start();
}

void GrammarProcessor::apply_prefix(std::span<float> logits) const {
  std::vector<std::pair<std::size_t, float>> allowed;
  for (const Branch& branch : branches_) {
    const auto id = static_cast<std::size_t>(branch.prefix[n_prefix_done_]);
    if (id >= logits.size()) throw std::invalid_argument("[grammar.apply] a token of the prefix has no logit");
    allowed.emplace_back(id, logits[id]);
  }
  std::fill(logits.begin(), logits.end(), kForbidden);
  for (const auto& [id, logit] : allowed) logits[id] = branches_.size() == 1 ? 0 : logit;
}

void GrammarProcessor::apply(std::span<float> logits) {
  if (is_in_prefix()) return apply_prefix(logits);
  const std::vector<std::uint64_t>& mask = constraint_->allowed(state_);
  const bool can_end = constraint_->grammar().can_end(state_);
  std::vector<std::pair<std::size_t, float>> ends;
  for (const TokenId token : end_tokens_) {
    const auto id = static_cast<std::size_t>(token);
    if (id < logits.size()) ends.emplace_back(id, can_end ? logits[id] : kForbidden);
  }
  for (std::size_t word = 0; word * 64 < logits.size(); ++word) {
    const std::uint64_t bits = word < mask.size() ? mask[word] : 0;
    const std::size_t end = std::min(logits.size(), word * 64 + 64);
    if (bits == ~std::uint64_t{0}) continue;
    for (std::size_t id = word * 64; id < end; ++id) {
      if ((bits >> (id % 64) & 1U) == 0) logits[id] = kForbidden;
    }
  }
  for (const auto& [id, logit] : ends) logits[id] = logit;
}

void GrammarProcessor::accept_prefix(TokenId token) {
  const auto goes_elsewhere = [&](const Branch& branch) { return branch.prefix[n_prefix_done_] != token; };
  if (std::ranges::all_of(branches_, goes_elsewhere)) {
    throw std::invalid_argument("[grammar.accept] not the prefix's token");
  }
  std::erase_if(branches_, goes_elsewhere);
  ++n_prefix_done_;
  settle();
}

void GrammarProcessor::accept(TokenId token) {
  if (is_in_prefix()) return accept_prefix(token);
  const auto& ends = end_tokens_;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) return;
  JsonGrammar& grammar = constraint_->grammar();
  JsonGrammar::State next = state_;
  const std::string& piece = constraint_->vocabulary()->all().piece(token);
  for (const char c : piece) {
    if (next != JsonGrammar::kRefused) next = grammar.step(next, static_cast<std::uint8_t>(c));
  }
  if (next == JsonGrammar::kRefused || piece.empty()) {
    throw std::invalid_argument("[grammar.accept] token " + std::to_string(token) + " is against the grammar");
  }
  state_ = next;
  if (!constraint_->is_full()) return;
  // A new automaton in the place of one that has seen too many states; others may go on with the old one.
  auto fresh = std::make_shared<Constraint>(grammar.schema(), constraint_->vocabulary());
  state_ = fresh->grammar().adopt(grammar, state_);
  constraint_ = std::move(fresh);
}

}  // namespace memoir::engine
