// Reads any bytes as calls on a trie: insert, look up, pin, unpin, drop, trim, remove, evict. After each the validator
// must find nothing, and what a lookup restores must be state of the keys that were asked for.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "memoir/prefix/eviction.h"
#include "memoir/prefix/trie.h"

namespace {

using namespace memoir::prefix;

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

class KeyRows final : public Rows {
 public:
  KeyRows(int from, std::vector<Key> keys) : from_(from), keys_(std::move(keys)) {}
  int from() const override { return from_; }
  int to() const override { return from_ + static_cast<int>(keys_.size()); }
  std::size_t size_bytes() const override { return keys_.size() * 100; }
  const std::vector<Key>& keys() const { return keys_; }

  std::unique_ptr<Rows> split_off(int at) override {
    const auto cut = keys_.begin() + (at - from_);
    auto rest = std::make_unique<KeyRows>(at, std::vector<Key>(cut, keys_.end()));
    keys_.erase(cut, keys_.end());
    return rest;
  }
  bool append(Rows& next) noexcept override {
    const auto& other = static_cast<KeyRows&>(next).keys_;
    keys_.insert(keys_.end(), other.begin(), other.end());
    return true;
  }
  void trim(int at) override { keys_.resize(static_cast<std::size_t>(at - from_)); }

 private:
  int from_;
  std::vector<Key> keys_;
};

class KeyCheckpoint final : public Checkpoint {
 public:
  KeyCheckpoint(std::vector<Key> prefix, int n_rewind) : prefix_(std::move(prefix)), n_rewind_(n_rewind) {}
  int offset() const override { return static_cast<int>(prefix_.size()); }
  int n_rewind() const override { return n_rewind_; }
  std::size_t size_bytes() const override { return 1000; }
  const std::vector<Key>& prefix() const { return prefix_; }
  std::unique_ptr<Checkpoint> earlier(int at) const override {
    std::vector<Key> prefix(prefix_.begin(), prefix_.begin() + at);
    return std::make_unique<KeyCheckpoint>(std::move(prefix), n_rewind_ - (offset() - at));
  }

 private:
  std::vector<Key> prefix_;
  int n_rewind_;
};

class Calls {
 public:
  explicit Calls(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  void run() {
    while (next_ < bytes_.size()) {
      call(byte());
      const std::string problem = trie_.check();
      require(problem.empty(), problem);
    }
  }

 private:
  std::uint8_t byte() { return next_ < bytes_.size() ? bytes_[next_++] : std::uint8_t{0}; }

  // Up to 15 keys of 4 kinds, after some of the keys of the last time.
  std::vector<Key> read_keys() {
    const std::uint8_t sizes = byte();
    last_.resize(std::min<std::size_t>(last_.size(), sizes >> 4));
    for (int n = sizes & 15; n > 0; --n) last_.push_back(byte() & 3);
    return last_;
  }

  Node* read_node() {
    std::vector<Node*> nodes;
    trie_.visit([&nodes](Node& node) { nodes.push_back(&node); });
    const std::size_t index = byte();
    return nodes.empty() ? nullptr : nodes[index % nodes.size()];
  }

  void call(std::uint8_t code) {
    switch (code & 7) {
      case 0:
      case 1:
        return insert(code);
      case 2:
        return lookup(code);
      case 3:
        if (code & 8) {
          if (!pins_.empty()) pins_.erase(pins_.begin() + byte() % static_cast<int>(pins_.size()));
        } else {
          const auto keys = read_keys();
          pins_.push_back(trie_.pin(trie_.lookup(keys, Needs{false, false}, {.n_left = 0}).restorable));
        }
        return;
      default:
        return drop(code);
    }
  }

  void insert(std::uint8_t code) {
    const auto keys = read_keys();
    Insertion insertion{.keys = keys};
    if (!keys.empty() && (code & 8)) {
      const int from = byte() % static_cast<int>(keys.size());
      insertion.rows = std::make_unique<KeyRows>(from, std::vector<Key>(keys.begin() + from, keys.end()));
    }
    if (!keys.empty() && (code & 16)) insertion.checkpoint = std::make_unique<KeyCheckpoint>(keys, (code >> 5) & 3);
    trie_.insert(std::move(insertion));
  }

  void lookup(std::uint8_t code) {
    const auto keys = read_keys();
    const Needs needs = {(code & 8) != 0, (code & 16) != 0};
    const Match match = trie_.lookup(keys, needs, {.n_left = code >> 7});
    trie_.use(match, static_cast<int>(keys.size()));
    const int offset = match.restorable.offset;
    require(offset <= match.matched && match.matched <= static_cast<int>(keys.size()), "a match beyond the keys");
    if (offset == 0) return;
    for (const Node* node = match.restorable.node; needs.rows && !node->is_root(); node = node->parent()) {
      const auto& rows = static_cast<const KeyRows&>(*node->rows()).keys();
      const int n = std::min(offset, node->to()) - node->from();
      require(std::equal(rows.begin(), rows.begin() + n, keys.begin() + node->from()), "rows of other keys");
    }
    if (!needs.checkpoint) return;
    const auto& prefix = static_cast<const KeyCheckpoint&>(*match.restorable.node->checkpoint()).prefix();
    require(std::equal(keys.begin(), keys.begin() + offset, prefix.begin()), "a checkpoint of other keys");
  }

  void drop(std::uint8_t code) {
    if ((code & 7) == 7) {
      Eviction eviction({.needs = {(code & 8) != 0, (code & 16) != 0}});
      eviction.make_room(trie_, trie_.size_bytes() * byte() / 255);
      return;
    }
    Node* const node = read_node();
    if (node == nullptr) return;
    if ((code & 7) == 4) trie_.drop_checkpoint(*node);
    if ((code & 7) == 5) trie_.trim(*node, node->from() + byte() % 16);
    if ((code & 7) == 6) trie_.remove(*node);
  }

  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
  std::vector<Key> last_;
  Trie trie_{{.max_joined_keys = 8}};
  std::vector<Pin> pins_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n_bytes) {
  Calls({data, n_bytes}).run();
  return 0;
}
