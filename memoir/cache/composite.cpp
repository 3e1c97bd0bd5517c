#include "memoir/cache/composite.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

class CompositeSnapshot final : public Snapshot {
 public:
  CompositeSnapshot(int from, int to, std::vector<std::unique_ptr<Snapshot>> of_children)
      : parts(std::move(of_children)), from_(from), to_(to) {}

  std::vector<std::unique_ptr<Snapshot>> parts;  // one for each child, some null

  int from() const override { return from_; }
  int to() const override { return to_; }

  std::size_t size_bytes() const override {
    std::size_t n_bytes = 0;
    for (const auto& part : parts) n_bytes += part ? part->size_bytes() : 0;
    return n_bytes;
  }
  bool is_lazy() const override {
    return std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part && part->is_lazy(); });
  }
  void materialize() override {
    for (const auto& part : parts) {
      if (part) part->materialize();
    }
  }

 private:
  int from_;
  int to_;
};

// Null if every part is.
std::unique_ptr<Snapshot> composed(int from, int to, std::vector<std::unique_ptr<Snapshot>> parts) {
  const bool has_some = std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part != nullptr; });
  return has_some ? std::make_unique<CompositeSnapshot>(from, to, std::move(parts)) : nullptr;
}

template <typename Any>
auto& checked(Any& snapshot, std::size_t n_children, const char* function) {
  using Composite = std::conditional_t<std::is_const_v<Any>, const CompositeSnapshot, CompositeSnapshot>;
  auto* composite = dynamic_cast<Composite*>(&snapshot);
  if (!composite || composite->parts.size() != n_children) {
    refuse(function, "the snapshot is of another kind, expected one of a CacheList of " + std::to_string(n_children));
  }
  return *composite;
}

// Reads a list's numbers one after the other.
class MetaReader {
 public:
  explicit MetaReader(const std::vector<std::string>& meta) : meta_(meta) {}

  const std::string& text() {
    if (at_ >= meta_.size()) refuse("set_state", "a CacheList's numbers end early");
    return meta_[at_++];
  }
  std::size_t count() {
    const std::string& word = text();
    std::size_t value = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || stop != word.data() + word.size()) {
      refuse("set_state", "\"" + word + "\" among a CacheList's numbers, expected a count");
    }
    return value;
  }
  bool is_done() const { return at_ == meta_.size(); }

 private:
  const std::vector<std::string>& meta_;
  std::size_t at_ = 0;
};

struct ChildState {
  std::vector<mx::array> arrays;
  std::vector<std::string> meta;
};

std::vector<ChildState> divided(const std::vector<mx::array>& state, const std::vector<std::string>& meta,
                                const std::vector<std::unique_ptr<LayerCache>>& children) {
  MetaReader reader(meta);
  std::vector<ChildState> result(children.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::string& kind = reader.text();
    const std::size_t n_arrays = reader.count();
    const std::size_t n_numbers = reader.count();
    if (kind != (children[i] ? children[i]->kind() : "")) {
      refuse("set_state", "child " + std::to_string(i) + " is a \"" + kind + "\", expected \"" +
                              std::string(children[i] ? children[i]->kind() : "") + "\"");
    }
    if (n_arrays > state.size() - at) refuse("set_state", "a CacheList's arrays end early");
    const auto begin = state.begin() + static_cast<std::ptrdiff_t>(at);
    result[i].arrays.assign(begin, begin + static_cast<std::ptrdiff_t>(n_arrays));
    at += n_arrays;
    for (std::size_t n = 0; n < n_numbers; ++n) result[i].meta.push_back(reader.text());
  }
  if (at != state.size() || !reader.is_done()) refuse("set_state", "more than the children of a CacheList take");
  return result;
}

}  // namespace

CacheList::CacheList(std::vector<std::unique_ptr<LayerCache>> children) : children_(std::move(children)) {
  bool has_some = false;
  for (const auto& child : children_) {
    if (!child) continue;
    has_some = true;
    forward_hook(*child);
  }
  if (!has_some) refuse("CacheList", "no child has a cache, expected at least one");
}

void CacheList::forward_hook(LayerCache& child) {
  child.on_snapshot_copied([this](const Snapshot& snapshot) {
    if (snapshot_copied_) snapshot_copied_(snapshot);
  });
}

std::vector<std::unique_ptr<LayerCache>> CacheList::release() && {
  for (const auto& child : children_) {
    if (child) child->on_snapshot_copied({});  // it would call this list's
  }
  return std::move(children_);
}

std::unique_ptr<CacheList> CacheList::to_quantized(const KVQuantization& quantization) const {
  std::vector<std::unique_ptr<LayerCache>> changed(children_.size());
  bool has_changed = false;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (const auto* attention = dynamic_cast<const AttentionCache*>(children_[i].get())) {
      changed[i] = attention->to_quantized(quantization);
    } else if (const auto* list = dynamic_cast<const CacheList*>(children_[i].get())) {
      changed[i] = list->to_quantized(quantization);
    }
    has_changed = has_changed || changed[i];
  }
  if (!has_changed) return nullptr;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (!changed[i] && children_[i]) changed[i] = children_[i]->copy();
  }
  auto list = std::make_unique<CacheList>(std::move(changed));
  list->on_snapshot_copied(snapshot_copied_);
  return list;
}

int CacheList::offset() const {
  int offset = std::numeric_limits<int>::max();
  for (const auto& child : children_) {
    if (child) offset = std::min(offset, child->offset());
  }
  return offset;
}

std::size_t CacheList::size_bytes() const {
  std::size_t n_bytes = 0;
  for (const auto& child : children_) n_bytes += child ? child->size_bytes() : 0;
  return n_bytes;
}

std::vector<mx::array> CacheList::state() const {
  std::vector<mx::array> arrays;
  for (const auto& child : children_) {
    if (!child) continue;
    for (mx::array& a : child->state()) arrays.push_back(std::move(a));
  }
  return arrays;
}

std::vector<std::string> CacheList::meta_state() const {
  std::vector<std::string> result;
  for (const auto& child : children_) {
    const std::vector<std::string> numbers = child ? child->meta_state() : std::vector<std::string>{};
    result.emplace_back(child ? child->kind() : "");
    result.push_back(std::to_string(child ? child->state().size() : 0));
    result.push_back(std::to_string(numbers.size()));
    result.insert(result.end(), numbers.begin(), numbers.end());
  }
  return result;
}

bool CacheList::has_all_parts(const std::vector<std::unique_ptr<Snapshot>>& parts) const {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (children_[i] && !parts[i]) return false;
  }
  return true;
}

// Calls change(i) for every child. If one returns false or throws, those before it are put back as they were.
bool CacheList::for_all_or_none(const std::function<bool(std::size_t)>& change) {
  std::vector<std::unique_ptr<LayerCache>> before(children_.size());
  const auto put_back = [&] {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!before[i]) continue;
      children_[i] = std::move(before[i]);
      forward_hook(*children_[i]);
    }
  };
  try {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i]) continue;
      std::unique_ptr<LayerCache> present = children_[i]->copy();
      if (!change(i)) {
        put_back();
        return false;
      }
      before[i] = std::move(present);
    }
  } catch (...) {
    put_back();
    throw;
  }
  return true;
}

void CacheList::set_state(const std::vector<mx::array>& state, const std::vector<std::string>& meta) {
  check_no_transaction("set_state");
  const std::vector<ChildState> states = divided(state, meta, children_);
  for_all_or_none([&](std::size_t i) {
    children_[i]->set_state(states[i].arrays, states[i].meta);
    return true;
  });
}

void CacheList::materialize() const {
  for (const auto& child : children_) {
    if (child) child->materialize();
  }
}

void CacheList::reserve(int n_tokens) {
  for (const auto& child : children_) {
    if (child) child->reserve(n_tokens);
  }
}

void CacheList::free() {
  transaction_.reset();
  for (const auto& child : children_) {
    if (child) child->free();
  }
}

std::unique_ptr<LayerCache> CacheList::copy() const {
  std::vector<std::unique_ptr<LayerCache>> children;
  for (const auto& child : children_) children.push_back(child ? child->copy() : nullptr);
  return std::make_unique<CacheList>(std::move(children));
}

std::unique_ptr<Snapshot> CacheList::snapshot(int from) const {
  const int begin = std::max(0, from);
  if (begin >= offset()) return nullptr;
  std::vector<std::unique_ptr<Snapshot>> parts;
  for (const auto& child : children_) parts.push_back(child ? child->snapshot(begin) : nullptr);
  return composed(begin, offset(), std::move(parts));
}

bool CacheList::can_rewind(int target) const {
  return std::all_of(children_.begin(), children_.end(),
                     [target](const auto& child) { return !child || child->can_rewind(target); });
}

bool CacheList::restore(const Snapshot* snapshot, int target) {
  if (!snapshot) {
    if (!can_rewind(target)) return false;
    for (const auto& child : children_) {
      if (child) child->restore(nullptr, target);
    }
    return true;
  }
  check_no_transaction("restore");
  const CompositeSnapshot& composite = checked(*snapshot, children_.size(), "restore");
  if (target < 0 || target > composite.to()) return false;
  if (!has_all_parts(composite.parts)) {
    return target <= composite.from() && composite.from() <= offset() && restore(nullptr, target);
  }
  return for_all_or_none([&](std::size_t i) { return children_[i]->restore(composite.parts[i].get(), target); });
}

std::string_view CacheList::unfit_for_transaction(int n_max) const {
  for (const auto& child : children_) {
    const std::string_view unfit = child ? child->unfit_for_transaction(n_max) : std::string_view();
    if (!unfit.empty()) return unfit;
  }
  return {};
}

void CacheList::begun(const OpenTransaction& transaction) {
  std::size_t n_begun = 0;
  try {
    for (; n_begun < children_.size(); ++n_begun) {
      if (children_[n_begun]) children_[n_begun]->begin(transaction.n_max, transaction.inside);
    }
  } catch (...) {
    for (std::size_t i = 0; i < n_begun; ++i) {
      if (children_[i]) children_[i]->roll_back();
    }
    throw;
  }
}

LayerCache::Held CacheList::keep_first(int n) {
  auto all = std::make_shared<std::vector<Held>>();
  all->reserve(children_.size());
  for (const auto& child : children_) {
    if (!child) continue;
    if (n == 0) {
      child->roll_back();
    } else if (Held held = child->commit(n)) {
      all->push_back(std::move(held));
    }
  }
  return all;
}

std::unique_ptr<Snapshot> CacheList::merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const {
  if (!parent || !child) return nullptr;
  CompositeSnapshot& first = checked(*parent, children_.size(), "merge");
  CompositeSnapshot& second = checked(*child, children_.size(), "merge");
  if (first.to() != second.from()) {
    refuse("merge", "the parent ends at " + std::to_string(first.to()) + ", the child begins at " +
                        std::to_string(second.from()) + ", expected them to meet");
  }
  std::vector<std::unique_ptr<Snapshot>> parts;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    parts.push_back(children_[i] ? children_[i]->merge(std::move(first.parts[i]), std::move(second.parts[i]))
                                 : nullptr);
  }
  return composed(first.from(), second.to(), std::move(parts));
}

SnapshotPair CacheList::split(std::unique_ptr<Snapshot> snapshot, int at) const {
  if (!snapshot) return {};
  CompositeSnapshot& whole = checked(*snapshot, children_.size(), "split");
  if (at <= whole.from()) return {nullptr, std::move(snapshot)};
  if (at >= whole.to()) return {std::move(snapshot), nullptr};
  std::vector<std::unique_ptr<Snapshot>> parents;
  std::vector<std::unique_ptr<Snapshot>> children;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    SnapshotPair pair = children_[i] ? children_[i]->split(std::move(whole.parts[i]), at) : SnapshotPair{};
    parents.push_back(std::move(pair.parent));
    children.push_back(std::move(pair.child));
  }
  return {composed(whole.from(), at, std::move(parents)), composed(at, whole.to(), std::move(children))};
}

int CacheList::trim(int n_tokens) {
  if (n_tokens < 0) refuse("trim", "n_tokens is " + std::to_string(n_tokens) + ", expected at least 0");
  const int target = offset() - std::min(n_tokens, offset());
  const int n_dropped = offset() - target;
  return is_trimmable() && restore(nullptr, target) ? n_dropped : 0;
}

bool CacheList::is_trimmable() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const auto& child) { return !child || child->is_trimmable(); });
}

}  // namespace memoir::cache
