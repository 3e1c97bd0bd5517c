#include "memoir/prefix/store.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::prefix {
namespace {

// A restore that failed once may fail for a reason that all would fail for.
constexpr int kMaxRestores = 4;

Key key_of(TokenId token) {
  return static_cast<Key>(static_cast<std::uint32_t>(token));
}

// The nodes whose rows make up [0, offset).
std::vector<const cache::KVSnapshot*> rows_of_part(const std::vector<const RowBlocks*>& rows, std::size_t part) {
  std::vector<const cache::KVSnapshot*> snapshots;
  for (const RowBlocks* const one : rows) {
    for (const auto& block : one->blocks()) snapshots.push_back(block->parts[part].get());
  }
  return snapshots;
}

}  // namespace

Store::Store(std::function<cache::ModelCache()> make_cache, const StateSize& size, const StoreOptions& options,
             std::unique_ptr<Tier> tier)
    : make_cache_(std::move(make_cache)),
      options_(options),
      tier_(std::move(tier)),
      size_(size),
      n_flat_(parts_of(make_cache_()).flat.size()),
      needs_(parts_of(make_cache_()).needs()),
      spacing_(checkpoint_spacing(size, options.policy)),
      eviction_({needs_, options.cost, options.prior}) {}

// ---- A sequence begins

int Store::restorable(std::span<const TokenId> tokens) {
  return is_on() ? trie_.lookup(token_keys(tokens), needs_).restorable.offset : 0;
}

// A lease of these tokens, without a place yet.
void Store::open(Lease& lease, const KnownTokens& known) const {
  if (known.tokens.empty() || known.n_prompt < 1 || static_cast<std::size_t>(known.n_prompt) > known.tokens.size()) {
    throw std::invalid_argument("[prefix.begin] " + std::to_string(known.tokens.size()) + " tokens, of which " +
                                std::to_string(known.n_prompt) + " are the prompt, expected at least one");
  }
  lease = Lease();
  if (!is_on()) return;
  lease.keys_ = token_keys(known.tokens);
  lease.companion_ = known.companion;
  lease.n_prompt_ = known.n_prompt;
}

// It begins at `offset`, the match's restorable one.
void Store::settle(Lease& lease, const Match& match, int offset, const KnownTokens& known) {
  lease.pin_ = trie_.pin(match.restorable);
  lease.restored_ = lease.last_checkpoint_ = offset;
  if (!needs_.checkpoint || offset >= known.n_prompt) return;
  std::vector<int> turn_ends(known.turn_ends.begin(), known.turn_ends.end());
  std::sort(turn_ends.begin(), turn_ends.end());
  const int matched = std::clamp(match.matched, offset, known.n_prompt);
  const std::optional<int> tail = options_.policy.learns_tail ? habit_.tail(options_.policy.close) : std::nullopt;
  lease.plan_ = plan_prompt({known.n_prompt, offset, matched, turn_ends, size_, tail}, options_.policy);
}

cache::ModelCache Store::begin(Lease& lease, const KnownTokens& known) {
  return without_companion(begin_with_companion(lease, known), known);
}

// The layers of the model. Those of the companion are taken over by it, if anything was restored.
cache::ModelCache Store::without_companion(cache::ModelCache all, const KnownTokens& known) {
  if (options_.n_companion_layers == 0) return all;
  std::vector<std::unique_ptr<cache::LayerCache>> layers = std::move(all).release();
  const auto second = layers.end() - options_.n_companion_layers;
  const cache::ModelCache kept(std::vector(std::make_move_iterator(second), std::make_move_iterator(layers.end())));
  layers.erase(second, layers.end());
  cache::ModelCache cache(std::move(layers));
  if (known.companion == nullptr || cache.offset() == 0) return cache;
  try {
    known.companion->restore(known.tokens.first(static_cast<std::size_t>(cache.offset())), kept);
  } catch (...) {
    ++counters_.n_failed_restores;
  }
  return cache;
}

// The parts of the sequence's cache and those of its companion.
CacheParts Store::parts_of_both(const Lease& lease, const cache::ModelCache& cache) const {
  CacheParts parts = parts_of(cache);
  if (options_.n_companion_layers > 0) parts.companion = lease.companion_.get();
  return parts;
}

cache::ModelCache Store::begin_with_companion(Lease& lease, const KnownTokens& known) {
  open(lease, known);
  if (!is_on()) return make_cache_();
  page_in(lease.keys_);
  Match match;
  std::optional<cache::ModelCache> cache;
  LookupOptions lookup;
  for (int n_tries = 0;; ++n_tries) {
    if (n_tries == kMaxRestores) lookup.max_offset = 0;
    match = trie_.lookup(lease.keys_, needs_, lookup);
    if (match.restorable.offset == 0) break;
    cache = restore(match, known.tokens.size());
    const bool is_too_large = cache && cache->size_bytes() > known.max_cache_bytes;
    if (cache && !is_too_large) break;
    cache.reset();
    ++counters_.n_failed_restores;
    lookup.max_offset = is_too_large ? 0 : match.restorable.node->from();
  }
  habit_.saw(match, static_cast<int>(known.tokens.size()), options_.policy.close);
  trie_.use(match, static_cast<int>(known.tokens.size()));
  settle(lease, match, match.restorable.offset, known);
  return cache ? std::move(*cache) : make_cache_();
}

void Store::follow(Lease& lease, const cache::ModelCache& cache, const KnownTokens& known) {
  open(lease, known);
  const int offset = cache.offset();
  if (static_cast<std::size_t>(offset) > known.tokens.size()) {
    throw std::invalid_argument("[prefix.follow] the cache holds " + std::to_string(offset) + " tokens, of " +
                                std::to_string(known.tokens.size()));
  }
  if (!is_on()) return;
  const auto any = [](const Node&, int limit) { return Reach{limit, true}; };
  settle(lease, trie_.lookup(lease.keys_, any, {.n_left = 0, .max_offset = offset}), offset, known);
}

bool Store::catch_up(Lease& lease, cache::ModelCache& cache, const KnownTokens& known, int min_gain) {
  const int wanted = cache.offset() + std::max(1, min_gain);
  if (restorable(known.tokens) < wanted) return false;
  Lease ahead;
  cache::ModelCache restored = begin_with_companion(ahead, known);
  if (restored.offset() < wanted) return false;
  cache = without_companion(std::move(restored), known);
  lease = std::move(ahead);
  return true;
}

// Nullopt if it fails, for whatever reason.
std::optional<cache::ModelCache> Store::restore(const Match& match, std::size_t n_tokens) const {
  try {
    const int offset = match.restorable.offset;
    cache::ModelCache cache = make_cache_();
    const CacheParts parts = parts_of(cache);
    std::vector<const RowBlocks*> rows;
    std::vector<std::unique_ptr<cache::KVSnapshot>> widened;
    for (const Node* const node : match.path) {
      if (!needs_.rows || node->from() >= offset) break;
      rows.push_back(dynamic_cast<const RowBlocks*>(node->rows()));
      if (rows.back() == nullptr) return std::nullopt;
    }
    for (std::size_t i = 0; i < parts.flat.size(); ++i) {
      std::vector<const cache::KVSnapshot*> chain = rows_of_part(rows, i);
      if (options_.narrow_rows) {
        for (const cache::KVSnapshot*& one : chain) {
          widened.push_back(options_.narrow_rows->widened(*one));
          one = widened.back().get();
        }
      }
      if (!parts.flat[i]->restore_chain(chain, offset, static_cast<int>(n_tokens))) return std::nullopt;
    }
    if (needs_.checkpoint) {
      const auto* const checkpoint = dynamic_cast<const StateCheckpoint*>(match.restorable.node->checkpoint());
      if (checkpoint == nullptr || checkpoint->states().size() != parts.others.size()) return std::nullopt;
      for (std::size_t i = 0; i < parts.others.size(); ++i) {
        if (!parts.others[i]->restore(checkpoint->states()[i].get(), offset)) return std::nullopt;
      }
    }
    cache.materialize();
    return cache;
  } catch (...) {
    return std::nullopt;
  }
}

// ---- A forward pass

void Store::prepare(Lease& lease, const cache::ModelCache& cache, std::span<const TokenId> tokens) {
  if (!is_on()) return;
  const int from = cache.offset();
  const int to = from + static_cast<int>(tokens.size());
  lease.pass_from_ = from;
  if (from < lease.pin_.position().offset) go_back(lease, from);
  lease.keys_.resize(static_cast<std::size_t>(from));
  std::transform(tokens.begin(), tokens.end(), std::back_inserter(lease.keys_), key_of);
  if (!needs_.checkpoint) return;
  const auto planned = within(lease.plan_, from, to);
  lease.due_.assign(planned.begin(), planned.end());
  if (to > lease.n_prompt_) {
    const int last = lease.due_.empty() ? lease.last_checkpoint_ : lease.due_.back().offset;
    for (const PlannedCheckpoint& one : plan_answer(last, std::max(from, lease.n_prompt_), to, spacing_)) {
      lease.due_.push_back(one);
    }
  }
  if (lease.due_.empty()) return;
  std::vector<int> offsets;
  for (const PlannedCheckpoint& one : lease.due_) offsets.push_back(one.offset);
  lease.capture_.begin(parts_of_both(lease, cache), std::move(offsets));
}

// The sequence goes on from before what it has stored.
void Store::go_back(Lease& lease, int offset) {
  const auto any = [](const Node&, int limit) { return Reach{limit, true}; };
  const std::span<const Key> keys = std::span(lease.keys_).first(static_cast<std::size_t>(offset));
  lease.pin_ = trie_.pin(trie_.lookup(keys, any, {.n_left = 0}).restorable);
  lease.last_checkpoint_ = std::min(lease.last_checkpoint_, offset);
}

void Store::record(Lease& lease, const cache::ModelCache& cache) noexcept {
  if (!is_on()) return;
  try {
    const CacheParts parts = parts_of_both(lease, cache);
    const std::vector<PlannedCheckpoint> due = std::exchange(lease.due_, {});
    auto checkpoints = lease.capture_.take(parts);
    for (std::size_t i = 0; i < checkpoints.size(); ++i) {
      // Drafts that were taken back since may lie behind it.
      if (checkpoints[i] && due[i].offset <= cache.offset())
        insert(lease, parts, due[i].offset, std::move(checkpoints[i]), due[i].rule);
    }
    if (lease.pass_from_ < lease.n_prompt_) insert(lease, parts, cache.offset(), nullptr, {});
  } catch (...) {
    ++counters_.n_failed_inserts;
  }
}

void Store::cancel_pass(Lease& lease, const cache::ModelCache& cache) noexcept {
  if (!is_on()) return;
  try {
    lease.due_.clear();
    lease.capture_.cancel(parts_of(cache));
  } catch (...) {
    ++counters_.n_failed_inserts;
  }
}

void Store::end(Lease& lease, const cache::ModelCache& cache) noexcept {
  if (is_on()) {
    try {
      const int offset = std::min(cache.offset(), static_cast<int>(lease.keys_.size()));
      const CacheParts parts = parts_of_both(lease, cache);
      if (!needs_.checkpoint) {
        insert(lease, parts, offset, nullptr, {});
        if (tier_) tell_end(std::span(lease.keys_).first(static_cast<std::size_t>(offset)), parts);
      } else if (offset == cache.offset() && keeps_answer_end(lease.last_checkpoint_, offset, options_.policy)) {
        insert(lease, parts, offset, present_checkpoint(parts, offset), CheckpointRule::kAnswerEnd);
      }
    } catch (...) {
      ++counters_.n_failed_inserts;
    }
  }
  lease = Lease();
}

// ---- Keeping

// newcomer: the checkpoint that it is for, if there is one.
bool Store::make_room(std::size_t n_bytes, const Newcomer* newcomer) {
  if (n_bytes <= options_.max_bytes && trie_.size_bytes() <= options_.max_bytes - n_bytes) return true;
  // What is not pinned is not thrown away for something that would not fit even so.
  const std::size_t n_pinned = trie_.pinned_bytes();
  if (n_pinned > options_.max_bytes || n_bytes > options_.max_bytes - n_pinned) {
    ++counters_.n_without_room;
    return false;
  }
  if (newcomer == nullptr) return eviction_.make_room(trie_, options_.max_bytes, n_bytes);
  const bool has_room = eviction_.make_room(trie_, options_.max_bytes, n_bytes, *newcomer);
  if (!has_room) ++counters_.n_not_worth_it;
  return has_room;
}

// Whether there is a companion where there must be one, and it holds the same tokens.
bool Store::has_all(const Lease& lease, const CacheParts& parts, int to) const {
  if (options_.n_companion_layers == 0) return true;
  return parts.companion != nullptr &&
         parts.companion->settle(std::span(lease.keys_).first(static_cast<std::size_t>(to)));
}

// Keeps the sequence's state of [0, to), as far as it is not kept yet and there is room.
void Store::insert(Lease& lease, const CacheParts& parts, int to, std::unique_ptr<StateCheckpoint> checkpoint,
                   CheckpointRule rule) {
  const int from = lease.stored();
  if (to < from || (to == from && !checkpoint) || !has_all(lease, parts, to)) return;
  Insertion insertion;
  insertion.keys = std::span(lease.keys_).first(static_cast<std::size_t>(to));
  insertion.rule = rule;
  insertion.is_answer = from >= lease.n_prompt_;
  // What others have stored of it stays while room is made for the rest.
  Pin there;
  if (needs_.rows) there = trie_.pin(trie_.rows_end(lease.pin_.position(), insertion.keys));
  const int rows_from = needs_.rows ? there.position().offset : to;
  const auto n_new_rows = static_cast<std::size_t>(to - rows_from);
  // Keys may need a node for each of up to three places: the end, and where an edge is split.
  const std::size_t n_bytes = n_new_rows * size_.row_bytes + static_cast<std::size_t>(to - from) * sizeof(Key) +
                              3 * Node::kBytes + (checkpoint ? checkpoint->size_bytes() : 0);
  std::optional<Newcomer> newcomer;
  if (checkpoint) {
    const int above = std::min(lease.last_checkpoint_, to);
    newcomer = {rule, above, to, checkpoint->size_bytes() + static_cast<std::size_t>(to - above) * size_.row_bytes};
  }
  if (checkpoint) {
    const auto n_rest = static_cast<std::size_t>(std::max(0, lease.n_prompt_ - to));
    const CheckpointRoom room = {trie_.size_bytes() + n_bytes, trie_.pinned_bytes() + n_bytes, checkpoint->size_bytes(),
                                 n_rest * size_.row_bytes, options_.max_bytes};
    if (!has_room_for(rule, room)) return;
  }
  if (!make_room(n_bytes, newcomer ? &*newcomer : nullptr)) return;
  if (n_new_rows > 0) insertion.rows = RowBlocks::copied(parts, rows_from, to, options_.narrow_rows);
  insertion.known = lease.pin_.position();  // not before: making room joins edges
  const std::shared_ptr<const StateCheckpoint::States> states = checkpoint ? checkpoint->shared_states() : nullptr;
  insertion.checkpoint = std::move(checkpoint);
  const std::optional<Position> position = trie_.insert(std::move(insertion));
  if (!position) return;
  eviction_.grew(trie_, *position->node, n_bytes, options_.max_bytes);
  lease.pin_ = trie_.pin(*position);
  if (states && rule != CheckpointRule::kTaper) lease.last_checkpoint_ = to;
  if (tier_) tell_tier(std::span(lease.keys_).first(static_cast<std::size_t>(to)), parts, rows_from, states, rule);
}

// ---- The tier

// The rows [from, to) of one block, copied once more.
void Store::tell_rows(std::span<const Key> keys, const CacheParts& parts, int from, int to) {
  const auto until = keys.first(static_cast<std::size_t>(to));
  if (tier_->wants_rows(until))
    tier_->keep(until, RowBlocks::copied(parts, from, to, options_.narrow_rows)->blocks().front());
}

// Of the blocks that are whole now, and of what lies before a checkpoint.
void Store::tell_tier(std::span<const Key> keys, const CacheParts& parts, int rows_from,
                      const std::shared_ptr<const StateCheckpoint::States>& states, CheckpointRule rule) noexcept {
  try {
    const int to = static_cast<int>(keys.size());
    for (int end = (rows_from / kRowBlock + 1) * kRowBlock; end <= to; end += kRowBlock) {
      tell_rows(keys, parts, end - kRowBlock, end);
    }
    // Those at parts of a prompt's length are for free room, which a disk's writes are not.
    if (!states || rule == CheckpointRule::kTaper) return;
    if (needs_.rows) tell_end(keys, parts);
    tier_->keep(keys, states, rule);
  } catch (...) {
    ++counters_.n_failed_tier_calls;
  }
}

// Rows behind the last whole block.
void Store::tell_end(std::span<const Key> keys, const CacheParts& parts) noexcept {
  const int to = static_cast<int>(keys.size());
  const int from = to / kRowBlock * kRowBlock;
  if (from == to) return;
  try {
    tell_rows(keys, parts, from, to);
  } catch (...) {
    ++counters_.n_failed_tier_calls;
  }
}

void Store::fetch(std::span<const TokenId> tokens) {
  if (is_on() && tier_) page_in(token_keys(tokens));
}

// Brings what the tier has of the keys, beyond what memory has, into memory.
void Store::page_in(std::span<const Key> keys) {
  if (!tier_) return;
  try {
    const int restorable = trie_.lookup(keys, needs_).restorable.offset;
    Pin place = trie_.pin(needs_.rows ? trie_.rows_end({}, keys) : trie_.lookup({}, needs_).restorable);
    Tier::Found found = tier_->find(keys, place.position().offset, restorable);
    auto checkpoint = found.checkpoints.begin();
    const auto insert_checkpoints = [&](int end) {
      for (; checkpoint != found.checkpoints.end() && checkpoint->state->offset() <= end; ++checkpoint) {
        insert_found(place, keys, nullptr, std::move(*checkpoint));
      }
    };
    for (const auto& block : found.blocks) {
      if (block->parts.size() != n_flat_) throw std::invalid_argument("[prefix.Tier] a block is of another model");
      insert_found(place, keys, std::make_unique<RowBlocks>(RowBlocks::Blocks{block}), {});
      insert_checkpoints(block->to);
    }
    insert_checkpoints(static_cast<int>(keys.size()));
  } catch (...) {
    ++counters_.n_failed_tier_calls;
  }
}

// Rows, or a checkpoint. `place` goes on to the deepest that is in.
void Store::insert_found(Pin& place, std::span<const Key> keys, std::unique_ptr<Rows> rows,
                         Tier::FoundCheckpoint checkpoint) {
  const int to = rows ? rows->to() : checkpoint.state->offset();
  const std::size_t n_bytes = rows ? rows->size_bytes() : checkpoint.state->size_bytes();
  const std::size_t n_new_keys = static_cast<std::size_t>(std::max(0, to - place.position().offset));
  if (!make_room(n_bytes + n_new_keys * sizeof(Key) + 3 * Node::kBytes)) return;
  Insertion insertion;
  insertion.keys = keys.first(static_cast<std::size_t>(to));
  if (place.position().offset <= to) insertion.known = place.position();
  insertion.rows = std::move(rows);
  insertion.checkpoint = std::move(checkpoint.state);
  insertion.rule = checkpoint.rule;
  const std::optional<Position> position = trie_.insert(std::move(insertion));
  if (position) eviction_.grew(trie_, *position->node, n_bytes, options_.max_bytes);
  if (position && to >= place.position().offset) place = trie_.pin(*position);
}

// ---- The whole

void Store::clear() {
  std::vector<Node*> unpinned;
  trie_.visit([&](Node& node) {
    if (node.n_pins() == 0 && (node.parent()->is_root() || node.parent()->n_pins() > 0)) unpinned.push_back(&node);
  });
  for (Node* const node : unpinned) trie_.remove(*node, Join::kLater);
  trie_.join_chains();
}

nlohmann::json Store::report(const ReportOptions& options) {
  nlohmann::json result = report_totals(trie_, eviction_);
  result["max_bytes"] = options_.max_bytes;
  result["failed"] = {{"restores", counters_.n_failed_restores},
                      {"inserts", counters_.n_failed_inserts},
                      {"without_room", counters_.n_without_room},
                      {"not_worth_it", counters_.n_not_worth_it},
                      {"tier", counters_.n_failed_tier_calls}};
  if (tier_) result["tier"] = tier_->report();
  result["tree"] = report_nodes(trie_, eviction_, options);
  return result;
}

}  // namespace memoir::prefix
