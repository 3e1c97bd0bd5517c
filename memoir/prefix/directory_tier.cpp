#include "memoir/prefix/directory_tier.h"

#include <algorithm>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/kernels/device.h"

namespace memoir::prefix {
namespace {

using Json = nlohmann::ordered_json;

static_assert(kBlockKeys == kRowBlock);

// The format of the payloads.
constexpr int kPayloadVersion = 1;

// Bits may differ from one version of the kernels to the next, and between devices.
std::string identity_of(const DirectoryTierOptions& options, const CacheForm& form) {
  const Json identity = {{"payload", kPayloadVersion},
                         {"memoir", MEMOIR_VERSION},
                         {"device", kernels::on_cpu() ? "cpu" : "gpu"},
                         {"model", options.model},
                         {"arithmetic", kernels::arithmetic()},
                         {"caches", form.json()}};
  return identity.dump();
}

std::optional<CheckpointRule> rule_in(const Json& note) {
  if (!note.is_object() || !note.contains("rule") || !note["rule"].is_string() || !note.contains("parts")) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < kCheckpointRules; ++i) {
    const auto rule = static_cast<CheckpointRule>(i);
    if (note["rule"].get<std::string>() == checkpoint_rule_name(rule)) return rule;
  }
  return std::nullopt;
}

}  // namespace

DirectoryTier::DirectoryTier(const DirectoryTierOptions& options, CacheForm form)
    : form_(std::move(form)),
      options_(options),
      folder_({options.path, identity_of(options, form_), options.max_bytes}),
      writer_(folder_, options.max_queued_bytes, options.on_warning) {}

// ---- Keeping

void DirectoryTier::add(const BlockName& name, std::span<const Key> keys, Json note, PayloadBytes payload) {
  if (!options_.model_name.empty()) note["model"] = options_.model_name;
  std::uint64_t n_bytes = 0;
  for (const auto& piece : payload.pieces) n_bytes += piece.size();
  BlockHead head{folder_.identity(), note.dump(-1, ' ', false, Json::error_handler_t::replace), name.kind, {}};
  head.keys.assign(keys.begin(), keys.end());
  std::vector<Key> own(keys.begin() + name.from, keys.end());
  writer_.add(
      {name, block_beginning(head, n_bytes), std::move(own), std::move(payload.pieces), std::move(payload.owner)});
}

bool DirectoryTier::wants_rows(std::span<const Key> keys) {
  if (!writer_.is_on()) return false;
  const KeyChain chain(folder_.space(), keys);
  const BlockName name = chain.name(BlockKind::kRows, chain.n_keys());
  if (!writer_.is_missing(name)) return false;
  if (name.to == name.from + kBlockKeys) return true;
  // There may be a block that has these rows and others behind them.
  const auto parts = folder_.find_rows(chain, name.from);
  return parts.empty() || parts.front().to < name.to;
}

void DirectoryTier::keep(std::span<const Key> keys, std::shared_ptr<const RowBlock> block) {
  if (!wants_rows(keys)) return;
  const BlockName name = KeyChain(folder_.space(), keys).name(BlockKind::kRows, static_cast<int>(keys.size()));
  if (block->from != name.from || block->to != name.to) return;
  add(name, keys, Json::object(), form_.bytes_of(std::move(block)));
}

void DirectoryTier::keep(std::span<const Key> keys, std::shared_ptr<const StateCheckpoint::States> states,
                         CheckpointRule rule) {
  if (!writer_.is_on()) return;
  const KeyChain chain(folder_.space(), keys);
  const BlockName name = chain.name(BlockKind::kState, chain.n_keys());
  if (!writer_.is_missing(name)) return;
  Json note = {{"rule", checkpoint_rule_name(rule)}, {"parts", form_.note_of(*states)}};
  add(name, keys, std::move(note), form_.bytes_of(std::move(states)));
}

// ---- Finding

bool DirectoryTier::read(const BlockName& name, const BlockFile& file, const PayloadArrays& arrays) {
  try {
    file.read_payload(arrays.pieces());
    folder_.touch(name);
    return true;
  } catch (const FormatError&) {
    folder_.discard(name);
  } catch (const FileError&) {
    // It may be readable the next time.
  }
  return false;
}

std::shared_ptr<const RowBlock> DirectoryTier::load(const BlockFolder::RowsPart& part, std::span<const Key> keys) {
  const auto file = folder_.open(part.name, keys, part.to);
  if (!file) return nullptr;
  const int from = part.name.from;
  const auto arrays = form_.arrays_for_rows(from, part.name.to, file->payload_bytes());
  if (!arrays) folder_.discard(part.name);
  if (!arrays || !read(part.name, *file, *arrays)) return nullptr;
  auto block = form_.row_block(from, part.name.to, *arrays);
  if (part.to == part.name.to) return block;
  RowBlocks rows({std::move(block)});
  rows.trim(part.to);
  return rows.blocks().front();
}

std::optional<Tier::FoundCheckpoint> DirectoryTier::load(const BlockName& name, std::span<const Key> keys) {
  const auto file = folder_.open(name, keys, name.to);
  if (!file) return std::nullopt;
  const Json note = Json::parse(file->note(), nullptr, false);
  const std::optional<CheckpointRule> rule = rule_in(note);
  const auto arrays = rule ? form_.arrays_for_states(note["parts"], name.to, file->payload_bytes()) : std::nullopt;
  if (!arrays) folder_.discard(name);
  if (!arrays || !read(name, *file, *arrays)) return std::nullopt;
  return FoundCheckpoint{form_.checkpoint(note["parts"], name.to, *arrays), *rule};
}

// Loads the rows of [n_rows, to), as far as they go on from what was loaded before. Returns how far that is.
int DirectoryTier::add_rows(const std::vector<BlockFolder::RowsPart>& parts, std::span<const Key> keys, int n_rows,
                            int to, RowBlocks::Blocks& blocks) {
  int end = blocks.empty() ? n_rows : blocks.back()->to;
  for (const BlockFolder::RowsPart& part : parts) {
    if (end >= to) break;
    if (part.to <= end) continue;
    if (part.name.from > end) break;
    if (!blocks.empty() && part.name.from < end) break;  // the last was cut
    const BlockFolder::RowsPart wanted{part.name, std::min(part.to, to)};
    std::shared_ptr<const RowBlock> block = load(wanted, keys);
    if (!block) break;
    end = block->to;
    blocks.push_back(std::move(block));
  }
  return end;
}

Tier::Found DirectoryTier::find_rows_only(const KeyChain& chain, const std::vector<BlockFolder::RowsPart>& parts,
                                          int n_rows, int restorable) {
  Found found;
  const int to = parts.empty() ? 0 : parts.back().to;
  if (std::min(to, chain.n_keys() - 1) > restorable) add_rows(parts, chain.keys(), n_rows, to, found.blocks);
  return found;
}

// The deepest checkpoint that can be used. One that is damaged is no reason to load rows in vain.
Tier::Found DirectoryTier::find_states(const KeyChain& chain, const std::vector<BlockFolder::RowsPart>& parts,
                                       int n_rows, int restorable) {
  Found found;
  int reach = form_.has_rows() ? std::max(n_rows, parts.empty() ? 0 : parts.back().to) : chain.n_keys();
  for (const BlockName& name : folder_.find_states(chain, restorable)) {
    if (name.to > std::min(reach, chain.n_keys() - 1)) continue;
    std::optional<FoundCheckpoint> checkpoint = load(name, chain.keys());
    if (!checkpoint) continue;
    if (form_.has_rows()) reach = add_rows(parts, chain.keys(), n_rows, name.to, found.blocks);
    if (reach < name.to) continue;
    found.checkpoints.push_back(std::move(*checkpoint));
    return found;
  }
  return {};
}

Tier::Found DirectoryTier::find(std::span<const Key> keys, int n_rows, int restorable) {
  folder_.refresh();
  const KeyChain chain(folder_.space(), keys);
  std::vector<BlockFolder::RowsPart> parts;
  if (form_.has_rows()) {
    parts = folder_.find_rows(chain, n_rows);
    // What memory has of the prompt is in use too, and with the last block all before it.
    if (cut_before(n_rows) > 0) folder_.touch(chain.name(BlockKind::kRows, cut_before(n_rows)));
  }
  return form_.has_states() ? find_states(chain, parts, n_rows, restorable)
                            : find_rows_only(chain, parts, n_rows, restorable);
}

nlohmann::json DirectoryTier::report() const {
  const BlockFolderCounters folder = folder_.counters();
  const BlockWriterCounters writer = writer_.counters();
  return {{"path", options_.path.string()}, {"bytes", folder_.size_bytes()}, {"max_bytes", options_.max_bytes},
          {"files", folder_.n_files()},     {"loaded", folder.n_loaded},     {"damaged", folder.n_damaged},
          {"removed", folder.n_removed},    {"written", writer.n_written},   {"dropped", writer.n_dropped},
          {"is_writing", writer_.is_on()}};
}

}  // namespace memoir::prefix
