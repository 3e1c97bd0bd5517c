#include "memoir/prefix/block_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/base/replaced_file.h"

namespace fs = std::filesystem;

namespace memoir::prefix {
namespace {

// Blocks that begin at one cut and whose keys have to be read to be compared, in one lookup.
constexpr int kMaxReads = 64;

// What is removed at a time beyond what is needed: a part of the budget.
constexpr std::uint64_t kSlackPart = 16;

// Calls `use` with each entry's name, as far as the directory can be read.
template <class Use>
void for_each_entry(const fs::path& folder, const Use& use) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    use(*entry);
  }
}

// What is in it tells prompts: it is its maker's alone.
void make_directory(const fs::path& folder) {
  std::error_code ignored;
  if (fs::create_directories(folder, ignored)) fs::permissions(folder, fs::perms::owner_all, ignored);
}

int n_equal(std::span<const Key> a, std::span<const Key> b) {
  return static_cast<int>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

BlockFolder::BlockFolder(BlockFolderOptions options)
    : options_(std::move(options)), space_(space_of(options_.identity)) {
  make_directory(options_.path);
  for_each_entry(options_.path, [](const fs::directory_entry& entry) {
    const std::optional<fs::path> target = ReplacedFile::target_of(entry.path());
    if (target && BlockName::parse(target->filename().string())) ReplacedFile::remove_abandoned(entry.path());
  });
  refresh(true);
  make_room(0);
}

// ---- The index

void BlockFolder::refresh(bool is_forced) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!is_forced && now - listed_ < std::chrono::seconds(1)) return;
  std::error_code error;
  const fs::file_time_type changed = fs::last_write_time(options_.path, error);
  if (!is_forced && (error || changed == changed_)) return;
  changed_ = changed;
  list();
  listed_ = now;
}

void BlockFolder::list() {
  std::unordered_map<std::string, bool> seen;
  for_each_entry(options_.path, [&](const fs::directory_entry& entry) {
    std::string name = entry.path().filename().string();
    if (!BlockName::parse(name)) return;
    if (!files_.contains(name)) {
      std::error_code error;
      const std::uint64_t n_bytes = entry.is_regular_file(error) ? entry.file_size(error) : 0;
      if (error || n_bytes == 0) return;
      take_in(name, n_bytes);
    }
    seen.emplace(std::move(name), true);
  });
  std::vector<std::string> gone;
  for (const auto& [name, n_bytes] : files_) {
    if (!seen.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) forget(name);
}

void BlockFolder::take_in(const std::string& file_name, std::uint64_t n_bytes) {
  const auto [place, is_new] = files_.emplace(file_name, n_bytes);
  if (!is_new) {
    size_bytes_ += n_bytes - std::exchange(place->second, n_bytes);
    return;
  }
  size_bytes_ += n_bytes;
  const std::optional<BlockName> name = BlockName::parse(file_name);
  if (name->space != space_) return;
  if (name->kind == BlockKind::kRows) {
    rows_[name->parent].push_back({*name, {}});
  } else {
    ++states_[name->to];
  }
}

void BlockFolder::forget(const std::string& file_name) {
  const auto found = files_.find(file_name);
  if (found == files_.end()) return;
  size_bytes_ -= found->second;
  files_.erase(found);
  const std::optional<BlockName> name = BlockName::parse(file_name);
  if (name->space != space_) return;
  if (name->kind == BlockKind::kRows) {
    const auto entries = rows_.find(name->parent);
    std::erase_if(entries->second, [&](const RowsEntry& entry) { return entry.name == *name; });
    if (entries->second.empty()) rows_.erase(entries);
  } else if (--states_[name->to] == 0) {
    states_.erase(name->to);
  }
}

bool BlockFolder::contains(const BlockName& name) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(name.file_name());
}

std::uint64_t BlockFolder::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

std::size_t BlockFolder::n_files() const {
  const std::lock_guard lock(mutex_);
  return files_.size();
}

BlockFolderCounters BlockFolder::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

// ---- Lookups

std::vector<BlockFolder::RowsEntry> BlockFolder::rows_at(const Digest& cut) const {
  const std::lock_guard lock(mutex_);
  const auto found = rows_.find(cut);
  return found != rows_.end() ? found->second : std::vector<RowsEntry>{};
}

void BlockFolder::learn_keys(const BlockName& name, const std::vector<Key>& keys) {
  const std::lock_guard lock(mutex_);
  const auto found = rows_.find(name.parent);
  if (found == rows_.end()) return;
  for (RowsEntry& entry : found->second) {
    if (entry.name == name) entry.keys = keys;
  }
}

// Its own keys; none if it can't be read.
std::vector<Key> BlockFolder::read_keys(const BlockName& name) {
  try {
    const BlockFile file(open_file(path_of(name)));
    if (file.keys().size() != static_cast<std::size_t>(name.to)) throw FormatError(file.path(), "to", "is another");
    std::vector<Key> keys(file.keys().begin() + name.from, file.keys().end());
    learn_keys(name, keys);
    return keys;
  } catch (const FormatError&) {
    discard(name);
  } catch (const FileError&) {
    const std::lock_guard lock(mutex_);
    forget(name.file_name());
  }
  return {};
}

// The block at the cut that has the most of the chain's keys. Names tell those that are wholly among them; of the
// others the keys are compared, the latest first.
std::optional<BlockFolder::RowsPart> BlockFolder::longest_at(const KeyChain& chain, int cut) {
  std::vector<RowsEntry> entries = rows_at(chain.at(cut));
  const std::span<const Key> wanted = chain.keys().subspan(static_cast<std::size_t>(cut));
  std::optional<RowsPart> best;
  for (const RowsEntry& entry : entries) {
    const int to = entry.name.to;
    const bool is_longer = to <= chain.n_keys() && (!best || to > best->to);
    if (is_longer && chain.at(to) == entry.name.own) best = RowsPart{entry.name, to};
  }
  int n_reads = 0;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (best && best->to == std::min(cut + kBlockKeys, chain.n_keys())) break;
    if (best && entry->name.to <= best->to) continue;
    if (entry->keys.empty() && ++n_reads <= kMaxReads) entry->keys = read_keys(entry->name);
    const int to = cut + n_equal(entry->keys, wanted);
    if (to > (best ? best->to : cut)) best = RowsPart{entry->name, to};
  }
  return best;
}

std::vector<BlockFolder::RowsPart> BlockFolder::find_rows(const KeyChain& chain, int from) {
  std::vector<RowsPart> parts;
  for (int cut = cut_before(from); cut < chain.n_keys(); cut += kBlockKeys) {
    const std::optional<RowsPart> part = longest_at(chain, cut);
    if (!part) break;
    parts.push_back(*part);
    if (part->to < cut + kBlockKeys) break;
  }
  return parts;
}

std::vector<BlockName> BlockFolder::find_states(const KeyChain& chain, int above) const {
  const std::lock_guard lock(mutex_);
  std::vector<BlockName> names;
  for (auto place = states_.upper_bound(chain.n_keys()); place != states_.begin();) {
    --place;
    if (place->first <= above) break;
    BlockName name = chain.name(BlockKind::kState, place->first);
    if (files_.contains(name.file_name())) names.push_back(std::move(name));
  }
  return names;
}

std::unique_ptr<BlockFile> BlockFolder::open(const BlockName& name, std::span<const Key> keys, int to) {
  try {
    auto file = std::make_unique<BlockFile>(open_file(path_of(name)));
    if (file->kind() != name.kind || file->keys().size() != static_cast<std::size_t>(name.to)) {
      throw FormatError(file->path(), "head", "is not what the name says");
    }
    const auto n_wanted = static_cast<std::size_t>(to);
    const bool is_ours = file->identity() == options_.identity && n_wanted <= keys.size() &&
                         n_wanted <= file->keys().size() &&
                         n_equal(std::span(file->keys()).first(n_wanted), keys.first(n_wanted)) == to;
    if (!is_ours) {
      file->check();
      return nullptr;  // of another model or other keys, by a chance of digests
    }
    const std::lock_guard lock(mutex_);
    ++counters_.n_loaded;
    return file;
  } catch (const FormatError&) {
    discard(name);
  } catch (const FileError&) {
    const std::lock_guard lock(mutex_);
    forget(name.file_name());
  }
  return nullptr;
}

// ---- Changes

void BlockFolder::touch(const BlockName& name) {
  std::error_code ignored;
  fs::last_write_time(path_of(name), fs::file_time_type::clock::now(), ignored);
}

void BlockFolder::remove(const BlockName& name) {
  std::error_code ignored;
  fs::remove(path_of(name), ignored);
  forget(name.file_name());
}

void BlockFolder::discard(const BlockName& name) {
  const std::lock_guard lock(mutex_);
  remove(name);
  ++counters_.n_damaged;
}

// All blocks, the first to go first: the least recently used, where what others go on from counts as used when they
// were. Of those used at one time, the deepest in a prompt.
std::vector<BlockName> BlockFolder::in_order_of_use() const {
  struct Used {
    fs::file_time_type when;
    BlockName name;
  };
  std::vector<Used> all;
  for (const auto& [file_name, size] : files_) {
    std::error_code error;
    const fs::file_time_type when = fs::last_write_time(options_.path / file_name, error);
    if (!error) all.push_back({when, *BlockName::parse(file_name)});
  }
  std::sort(all.begin(), all.end(), [](const Used& a, const Used& b) { return a.name.to > b.name.to; });
  std::unordered_map<Digest, fs::file_time_type, DigestHash> used_at;  // a cut, by what goes on from it
  for (Used& used : all) {
    const auto behind = used_at.find(used.name.own);
    if (behind != used_at.end()) used.when = std::max(used.when, behind->second);
    const auto [place, is_new] = used_at.emplace(used.name.parent, used.when);
    if (!is_new) place->second = std::max(place->second, used.when);
  }
  std::stable_sort(all.begin(), all.end(), [](const Used& a, const Used& b) { return a.when < b.when; });
  std::vector<BlockName> names;
  for (Used& used : all) names.push_back(std::move(used.name));
  return names;
}

bool BlockFolder::make_room(std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  if (n_bytes > options_.max_bytes) return false;
  const std::uint64_t most = options_.max_bytes - n_bytes;
  if (size_bytes_ <= most) return true;
  list();
  if (size_bytes_ <= most) return true;
  const std::uint64_t wanted = most - std::min(most, options_.max_bytes / kSlackPart);
  for (const BlockName& name : in_order_of_use()) {
    if (size_bytes_ <= wanted) break;
    remove(name);
    ++counters_.n_removed;
  }
  return true;
}

void BlockFolder::check_writable() const {
  std::error_code error;
  fs::create_directories(options_.path, error);
  if (!error && access(options_.path.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (error) throw FileError(options_.path, "", "can't be written: " + error.message());
}

void BlockFolder::write(const BlockName& name, std::span<const std::span<const std::byte>> pieces) {
  make_directory(options_.path);
  ReplacedFile file(path_of(name));
  for (const std::span<const std::byte> piece : pieces) file.write(piece);
  // After a failure of power the checksum tells what did not get there.
  file.commit(Durability::kLater);
}

void BlockFolder::add(const BlockName& name, std::vector<Key> own_keys, std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  take_in(name.file_name(), n_bytes);
  if (name.kind != BlockKind::kRows) return;
  std::vector<BlockName> shorter;
  for (RowsEntry& entry : rows_.at(name.parent)) {
    if (entry.name == name) {
      entry.keys = own_keys;
    } else if (entry.name.to < name.to) {
      const auto n_keys = static_cast<std::size_t>(entry.name.to - name.from);
      const Digest there = digest_after(name.parent, std::span(own_keys).first(n_keys));
      if (there == entry.name.own) shorter.push_back(entry.name);
    }
  }
  for (const BlockName& one : shorter) remove(one);
}

}  // namespace memoir::prefix
