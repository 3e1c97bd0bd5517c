#pragma once

// State for the trie's tests that says what it is of, so that a wrong restore shows: rows keep their keys, a checkpoint
// the whole prefix. And a request as an engine would run it, over them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "memoir/prefix/policy.h"
#include "memoir/prefix/trie.h"

namespace memoir::prefix {

using Keys = std::vector<Key>;

inline Keys range_keys(int begin, int end) {
  Keys keys(static_cast<std::size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), static_cast<Key>(begin));
  return keys;
}

inline Keys joined(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Keys first_of(const Keys& keys, int n) {
  return Keys(keys.begin(), keys.begin() + n);
}

// What all fakes of a test have in common.
struct FakeWorld {
  std::size_t row_bytes = 10;
  std::size_t checkpoint_bytes = 100;
  int n_live = 0;          // payloads
  long long n_copied = 0;  // rows, by append and trim
  int throws_in = -1;      // the throws_in-th split or trim from now on throws; -1: none does
  bool can_append = true;
  bool splits_share = true;  // the halves of split rows share their buffer, as slices of an array do

  void may_throw() {
    if (throws_in >= 0 && throws_in-- == 0) throw std::bad_alloc();
  }
};

class FakeRows final : public Rows {
 public:
  // The rows of a prefix behind its first `from` keys; of these keys, which begin at `from`.
  FakeRows(FakeWorld& world, const Keys& prefix, int from)
      : FakeRows(world, from, Keys(prefix.begin() + from, prefix.end())) {}
  FakeRows(FakeWorld& world, int from, Keys keys)
      : world_(world), from_(from), keys_(std::move(keys)), buffer_(std::make_shared<std::size_t>(keys_.size())) {
    ++world_.n_live;
  }
  ~FakeRows() override { --world_.n_live; }
  FakeRows(const FakeRows&) = delete;
  FakeRows& operator=(const FakeRows&) = delete;

  int from() const override { return from_; }
  int to() const override { return from_ + static_cast<int>(keys_.size()); }
  std::size_t size_bytes() const override { return *buffer_ * world_.row_bytes; }
  const void* storage() const override { return buffer_.get(); }
  const Keys& keys() const { return keys_; }

  std::unique_ptr<Rows> split_off(int at) override {
    EXPECT_TRUE(from() < at && at < to());
    world_.may_throw();
    const auto cut = keys_.begin() + (at - from_);
    auto rest = std::make_unique<FakeRows>(world_, at, Keys(cut, keys_.end()));
    keys_.erase(cut, keys_.end());
    if (world_.splits_share) {
      rest->buffer_ = buffer_;
    } else {
      copy();
    }
    return rest;
  }

  bool append(Rows& next) noexcept override {
    if (!world_.can_append) return false;
    auto& other = static_cast<FakeRows&>(next);
    EXPECT_EQ(other.from(), to());
    keys_.insert(keys_.end(), other.keys_.begin(), other.keys_.end());
    if (buffer_ != other.buffer_) copy();
    return true;
  }

  void trim(int at) override {
    EXPECT_TRUE(from() < at && at < to());
    world_.may_throw();
    keys_.resize(static_cast<std::size_t>(at - from_));
    copy();
  }

 private:
  void copy() {
    world_.n_copied += static_cast<long long>(keys_.size());
    buffer_ = std::make_shared<std::size_t>(keys_.size());
  }

  FakeWorld& world_;
  int from_;
  Keys keys_;
  std::shared_ptr<std::size_t> buffer_;  // its number of rows
};

class FakeCheckpoint final : public Checkpoint {
 public:
  FakeCheckpoint(FakeWorld& world, Keys prefix, int n_rewind = 0)
      : world_(world), prefix_(std::move(prefix)), n_rewind_(n_rewind), storage_(std::make_shared<char>()) {
    ++world_.n_live;
  }
  ~FakeCheckpoint() override { --world_.n_live; }
  FakeCheckpoint(const FakeCheckpoint&) = delete;
  FakeCheckpoint& operator=(const FakeCheckpoint&) = delete;

  int offset() const override { return static_cast<int>(prefix_.size()); }
  int n_rewind() const override { return n_rewind_; }
  std::size_t size_bytes() const override { return world_.checkpoint_bytes; }
  const void* storage() const override { return storage_.get(); }
  const Keys& prefix() const { return prefix_; }

  std::unique_ptr<Checkpoint> earlier(int at) const override {
    const int n_back = offset() - at;
    EXPECT_TRUE(n_back > 0 && n_back <= n_rewind_);
    auto view = std::make_unique<FakeCheckpoint>(world_, first_of(prefix_, at), n_rewind_ - n_back);
    view->storage_ = storage_;
    return view;
  }

 private:
  FakeWorld& world_;
  Keys prefix_;
  int n_rewind_;
  std::shared_ptr<char> storage_;
};

// A model whose layers need this, run request by request over one trie.
struct FakeEngine {
  Needs needs;
  PolicyOptions policy;
  int n_rewind = 0;
  FakeWorld world;
  Trie trie;

  explicit FakeEngine(Needs what = {}) : needs(what) {
    policy.close = 1;
    policy.prompt_tail = 1;
  }

  // The payloads of what a match restores belong to the keys.
  void expect_restores(const Match& match, const Keys& keys) const {
    const int offset = match.restorable.offset;
    if (offset == 0) return;
    for (const Node* node : match.path) {
      if (node->from() >= offset) break;
      if (!needs.rows) continue;
      const auto* rows = dynamic_cast<const FakeRows*>(node->rows());
      ASSERT_NE(rows, nullptr);
      const int n = std::min(node->to(), offset) - node->from();
      EXPECT_EQ(first_of(rows->keys(), n), Keys(keys.begin() + node->from(), keys.begin() + node->from() + n));
    }
    if (!needs.checkpoint) return;
    const auto* checkpoint = dynamic_cast<const FakeCheckpoint*>(match.restorable.node->checkpoint());
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(first_of(checkpoint->prefix(), offset), first_of(keys, offset));
  }

  void store(Pin& pin, const Keys& keys, CheckpointRule rule, bool with_checkpoint) {
    const int from = pin.is_open() ? pin.position().offset : 0;
    const int to = static_cast<int>(keys.size());
    Insertion insertion;
    insertion.keys = keys;
    if (pin.is_open()) insertion.known = pin.position();
    if (needs.rows && to > from) insertion.rows = std::make_unique<FakeRows>(world, keys, from);
    if (with_checkpoint) insertion.checkpoint = std::make_unique<FakeCheckpoint>(world, keys, n_rewind);
    insertion.rule = rule;
    const auto position = trie.insert(std::move(insertion));
    ASSERT_TRUE(position.has_value());
    pin = trie.pin(*position);
    EXPECT_EQ(trie.check(), "");
  }

  // Runs a prompt, cancelled behind its stop-th token if that is given, and an answer whose last token is not fed.
  // Returns how many tokens of the prompt were restored.
  int run(const Keys& prompt, const Keys& answer = {}, const std::vector<int>& turn_ends = {}, int stop = -1) {
    const int n_prompt = static_cast<int>(prompt.size());
    const Match match = trie.lookup(prompt, needs);
    expect_restores(match, prompt);
    trie.use(match, n_prompt);
    const int restored = match.restorable.offset;
    const PromptPlan plan = {n_prompt,
                             restored,
                             match.matched,
                             turn_ends,
                             {needs.checkpoint ? world.checkpoint_bytes : 0, needs.rows ? world.row_bytes : 0}};
    Pin pin = trie.pin(match.restorable);
    const int fed = stop < 0 ? n_prompt : stop;
    for (const PlannedCheckpoint& checkpoint : plan_prompt(plan, policy)) {
      if (checkpoint.offset <= fed) store(pin, first_of(prompt, checkpoint.offset), checkpoint.rule, true);
    }
    Keys all = first_of(prompt, fed);
    if (stop < 0 && !answer.empty()) all = joined(all, first_of(answer, static_cast<int>(answer.size()) - 1));
    if (static_cast<int>(all.size()) > pin.position().offset) {
      store(pin, all, CheckpointRule::kAnswerEnd, needs.checkpoint);
    }
    pin.release();
    EXPECT_EQ(trie.check(), "");
    return restored;
  }

  int matched(const Keys& keys) { return trie.lookup(keys, needs).matched; }
};

}  // namespace memoir::prefix
