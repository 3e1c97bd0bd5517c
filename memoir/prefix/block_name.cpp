#include "memoir/prefix/block_name.h"

#include <array>
#include <charconv>

namespace memoir::prefix {
namespace {

constexpr std::string_view kEnding = ".block";
constexpr int kMaxOffset = 1 << 30;

// The part up to the next '-', which is taken off; nullopt if there is none.
std::optional<std::string_view> take_part(std::string_view& text) {
  const std::size_t end = text.find('-');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end + 1);
  return part;
}

std::optional<int> take_number(std::string_view& text) {
  const std::optional<std::string_view> part = take_part(text);
  int value = 0;
  if (!part) return std::nullopt;
  const auto [end, error] = std::from_chars(part->data(), part->data() + part->size(), value);
  if (error != std::errc() || end != part->data() + part->size() || value < 0 || value > kMaxOffset) {
    return std::nullopt;
  }
  return value;
}

std::optional<BlockKind> take_kind(std::string_view& text) {
  const std::optional<std::string_view> part = take_part(text);
  for (const BlockKind kind : {BlockKind::kRows, BlockKind::kState}) {
    if (part == block_kind_name(kind)) return kind;
  }
  return std::nullopt;
}

std::optional<Digest> take_digest(std::string_view& text) {
  const std::optional<std::string_view> part = take_part(text);
  return part ? Digest::parse(*part) : std::nullopt;
}

}  // namespace

std::string_view block_kind_name(BlockKind kind) {
  return kind == BlockKind::kRows ? "rows" : "state";
}

std::string BlockName::file_name() const {
  return space + "-" + std::string(block_kind_name(kind)) + "-" + std::to_string(from) + "-" + std::to_string(to) +
         "-" + parent.hex() + "-" + own.hex() + std::string(kEnding);
}

std::optional<BlockName> BlockName::parse(std::string_view file_name) {
  if (!file_name.ends_with(kEnding)) return std::nullopt;
  std::string_view rest = file_name.substr(0, file_name.size() - kEnding.size());
  const std::optional<std::string_view> space = take_part(rest);
  if (!space || space->size() != 16 || space->find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  const std::optional<BlockKind> kind = take_kind(rest);
  const std::optional<int> from = take_number(rest);
  const std::optional<int> to = take_number(rest);
  const std::optional<Digest> parent = take_digest(rest);
  const std::optional<Digest> own = Digest::parse(rest);
  if (!kind || !from || !to || !parent || !own || *to < 1 || *from != block_from(*to)) return std::nullopt;
  BlockName name{std::string(*space), *kind, *from, *to, *parent, *own};
  if (name.file_name() != file_name) return std::nullopt;  // leading zeros
  return name;
}

std::string space_of(std::string_view identity) {
  Checksum checksum;
  checksum.add(identity);
  return checksum.hex();
}

Digest digest_after(const Digest& cut, std::span<const Key> keys) {
  if (keys.empty()) return cut;
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(&cut, 1)));
  checksum.add(std::as_bytes(keys));
  return checksum.digest();
}

KeyChain::KeyChain(std::string_view space, std::span<const Key> keys) : space_(space), keys_(keys) {
  Checksum checksum;
  checksum.add(space);
  cuts_.push_back(checksum.digest());
  for (std::size_t i = kBlockKeys; i <= keys.size(); i += kBlockKeys) {
    cuts_.push_back(digest_after(cuts_.back(), keys.subspan(i - kBlockKeys, kBlockKeys)));
  }
}

Digest KeyChain::at(int offset) const {
  const auto cut = static_cast<std::size_t>(cut_before(offset));
  return digest_after(cuts_.at(cut / kBlockKeys), keys_.subspan(cut, static_cast<std::size_t>(offset) - cut));
}

BlockName KeyChain::name(BlockKind kind, int to) const {
  const int from = block_from(to);
  return {space_, kind, from, to, at(from), at(to)};
}

}  // namespace memoir::prefix
