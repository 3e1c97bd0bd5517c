#include "memoir/prefix/stored_tree.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/prefix/block_file.h"

namespace fs = std::filesystem;

namespace memoir::prefix {
namespace {

// What is known of the positions behind a cut. Blocks that end at one place have one Place.
struct Place {
  int from;
  int to;
  std::vector<Key> keys;
  std::uint64_t row_bytes = 0;
  std::uint64_t checkpoint_bytes = 0;
  std::string rule;
  std::optional<std::chrono::seconds> age;
};

class TreeBuilder {
 public:
  void add(const BlockName& name, const BlockFile& file, std::uint64_t n_bytes, std::chrono::seconds age) {
    tree_.identity = file.identity();
    ++tree_.n_files;
    tree_.n_bytes += n_bytes;
    const KeyChain chain(name.space, file.keys());
    for (int cut = kBlockKeys; cut < name.to; cut += kBlockKeys) place(chain, cut);
    Place& own = place(chain, name.to);
    own.age = std::min(own.age.value_or(age), age);
    const nlohmann::json note = nlohmann::json::parse(file.note(), nullptr, false);
    const auto text = [&](const char* key) { return note.is_object() ? note.value(key, std::string()) : ""; };
    if (tree_.model_name.empty()) tree_.model_name = text("model");
    if (name.kind == BlockKind::kRows) {
      own.row_bytes += n_bytes;
    } else {
      own.checkpoint_bytes += n_bytes;
      own.rule = text("rule");
    }
  }

  StoredTree finish() {
    for (auto& [digest, below] : children_) {
      std::sort(below.begin(), below.end(),
                [this](const Digest& a, const Digest& b) { return places_.at(a).keys < places_.at(b).keys; });
    }
    add_children(root_, std::nullopt);
    while (!pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      add_node(next);
    }
    return std::move(tree_);
  }

 private:
  struct Pending {
    Digest place;
    std::optional<std::size_t> parent;
  };

  Place& place(const KeyChain& chain, int to) {
    const int from = block_from(to);
    const auto keys = chain.keys().subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
    const auto [found, is_new] =
        places_.emplace(chain.at(to), Place{from, to, {keys.begin(), keys.end()}, 0, 0, {}, {}});
    if (is_new) children_[chain.at(from)].push_back(found->first);
    if (from == 0) root_ = chain.at(0);
    return found->second;
  }

  // Those that begin at a cut, the last first, so that the first is taken next.
  void add_children(const Digest& cut, std::optional<std::size_t> parent) {
    const auto found = children_.find(cut);
    if (found == children_.end()) return;
    for (auto child = found->second.rbegin(); child != found->second.rend(); ++child)
      pending_.push_back({*child, parent});
  }

  // Of those behind one cut, one whose keys begin with another's is below that.
  void add_node(const Pending& next) {
    const Place& place = places_.at(next.place);
    std::optional<std::size_t> parent = next.parent;
    int from = place.from;
    for (std::optional<std::size_t> above = last_at_cut(place.from, next.parent); above;) {
      const StoredNode& node = tree_.nodes[*above];
      const auto& keys = whole_keys_[*above];
      if (keys.size() < place.keys.size() && std::equal(keys.begin(), keys.end(), place.keys.begin())) {
        parent = above;
        from = node.to;
        break;
      }
      if (node.parent == next.parent) break;
      above = node.parent;
    }
    StoredNode node{parent, from, place.to, {}, place.row_bytes, place.checkpoint_bytes, place.rule, place.age};
    node.keys.assign(place.keys.begin() + (from - place.from), place.keys.end());
    last_[{place.from, next.parent}] = tree_.nodes.size();
    tree_.nodes.push_back(std::move(node));
    whole_keys_.push_back(place.keys);
    add_children(next.place, tree_.nodes.size() - 1);
  }

  std::optional<std::size_t> last_at_cut(int from, std::optional<std::size_t> parent) const {
    const auto found = last_.find({from, parent});
    return found != last_.end() ? std::optional(found->second) : std::nullopt;
  }

  StoredTree tree_;
  Digest root_;
  std::map<Digest, Place> places_;
  std::map<Digest, std::vector<Digest>> children_;  // by the cut that they begin at
  std::vector<Pending> pending_;
  std::map<std::pair<int, std::optional<std::size_t>>, std::size_t> last_;
  std::vector<std::vector<Key>> whole_keys_;  // of each node, from its cut on
};

}  // namespace

std::vector<StoredTree> stored_trees(const fs::path& folder) {
  if (!fs::is_directory(existing_status(folder))) throw FileError(folder.string(), "", "is no directory");
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error) throw FileError(folder.string(), "", "can't list it: " + error.message());
  std::map<std::string, TreeBuilder> builders;
  const auto now = fs::file_time_type::clock::now();
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::optional<BlockName> name = BlockName::parse(entry->path().filename().string());
    if (!name) continue;
    try {
      const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - entry->last_write_time());
      const std::uint64_t n_bytes = entry->file_size();
      const BlockFile file(open_file(entry->path()));
      if (file.kind() != name->kind || file.keys().size() != static_cast<std::size_t>(name->to)) continue;
      builders[file.identity()].add(*name, file, n_bytes, std::max(age, std::chrono::seconds(0)));
    } catch (const InputError&) {
    } catch (const fs::filesystem_error&) {
      // It went, or is none of ours.
    }
  }
  std::vector<StoredTree> trees;
  for (auto& [identity, builder] : builders) trees.push_back(builder.finish());
  return trees;
}

}  // namespace memoir::prefix
