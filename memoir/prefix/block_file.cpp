#include "memoir/prefix/block_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "memoir/base/checksum.h"
#include "memoir/base/error.h"

namespace memoir::prefix {
namespace {

constexpr std::string_view kMagic = "memoirB1";
constexpr std::size_t kFixedBytes = 40;
constexpr std::size_t kEndBytes = 8;
constexpr std::uint64_t kMaxKeys = std::uint64_t{1} << 30;
constexpr std::size_t kCheckPieceBytes = std::size_t{1} << 20;

void append(std::vector<std::byte>& bytes, std::uint64_t value, std::size_t n_bytes) {
  for (std::size_t i = 0; i < n_bytes; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void append(std::vector<std::byte>& bytes, std::string_view text) {
  const auto from = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), from.begin(), from.end());
}

std::uint64_t number(std::span<const std::byte> bytes, std::size_t at, std::size_t n_bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = n_bytes; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[at + i]);
  return value;
}

std::string text(std::span<const std::byte> bytes, std::size_t at, std::size_t n_bytes) {
  const auto part = bytes.subspan(at, n_bytes);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

// The numbers before the texts.
struct Sizes {
  std::uint64_t identity, note, kind, from, to, key, payload;

  explicit Sizes(std::span<const std::byte> fixed)
      : identity(number(fixed, 8, 4)),
        note(number(fixed, 12, 4)),
        kind(number(fixed, 16, 4)),
        from(number(fixed, 20, 4)),
        to(number(fixed, 24, 4)),
        key(number(fixed, 28, 4)),
        payload(number(fixed, 32, 8)) {}

  bool are_possible() const {
    return identity <= BlockHead::kMaxText && note <= BlockHead::kMaxText && kind <= 1 && to >= 1 && to <= kMaxKeys &&
           from == static_cast<std::uint64_t>(block_from(static_cast<int>(to))) && (key == 4 || key == 8);
  }

  /// Below 2^35 if they are possible.
  std::uint64_t beginning() const { return kFixedBytes + identity + note + to * key; }
};

}  // namespace

std::vector<std::byte> block_beginning(const BlockHead& head, std::uint64_t payload_bytes) {
  const std::size_t to = head.keys.size();
  if (head.identity.size() > BlockHead::kMaxText || head.note.size() > BlockHead::kMaxText || to < 1 || to > kMaxKeys) {
    throw std::invalid_argument("[prefix.block_beginning] " + std::to_string(to) + " keys, texts of " +
                                std::to_string(head.identity.size()) + " and " + std::to_string(head.note.size()) +
                                " bytes");
  }
  const auto from = static_cast<std::size_t>(block_from(static_cast<int>(to)));
  const bool are_short = std::all_of(head.keys.begin(), head.keys.end(),
                                     [](Key key) { return key <= std::numeric_limits<std::uint32_t>::max(); });
  const std::size_t key_bytes = are_short ? 4 : 8;
  std::vector<std::byte> bytes;
  bytes.reserve(kFixedBytes + head.identity.size() + head.note.size() + to * key_bytes);
  append(bytes, kMagic);
  for (const std::size_t value :
       {head.identity.size(), head.note.size(), static_cast<std::size_t>(head.kind), from, to, key_bytes}) {
    append(bytes, value, 4);
  }
  append(bytes, payload_bytes, 8);
  append(bytes, head.identity);
  append(bytes, head.note);
  for (std::size_t i = from; i < to; ++i) append(bytes, head.keys[i], key_bytes);
  for (std::size_t i = 0; i < from; ++i) append(bytes, head.keys[i], key_bytes);
  return bytes;
}

std::vector<std::byte> block_end(std::uint64_t checksum) {
  std::vector<std::byte> bytes;
  append(bytes, checksum, kEndBytes);
  return bytes;
}

BlockFile::BlockFile(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {
  const auto refuse = [this](const char* key, const std::string& why) { throw FormatError(path(), key, why); };
  beginning_.resize(kFixedBytes);
  source_->read(0, beginning_);
  if (text(beginning_, 0, kMagic.size()) != kMagic) refuse("magic", "is not that of a block");
  const Sizes sizes(beginning_);
  if (!sizes.are_possible()) refuse("head", "has sizes that no block has");
  const std::uint64_t n_before = sizes.beginning();
  const std::uint64_t n_file = source_->size_bytes();
  if (n_file < n_before + kEndBytes || sizes.payload != n_file - n_before - kEndBytes) {
    refuse("payload", "has " + std::to_string(sizes.payload) + " bytes, which is not what the file has room for");
  }
  payload_bytes_ = sizes.payload;
  beginning_.resize(n_before);
  source_->read(kFixedBytes, std::span(beginning_).subspan(kFixedBytes));
  head_.identity = text(beginning_, kFixedBytes, sizes.identity);
  head_.note = text(beginning_, kFixedBytes + sizes.identity, sizes.note);
  head_.kind = sizes.kind == 0 ? BlockKind::kRows : BlockKind::kState;
  head_.keys.resize(sizes.to);
  std::size_t at = kFixedBytes + sizes.identity + sizes.note;
  for (std::size_t i = 0; i < sizes.to; ++i, at += sizes.key) {
    head_.keys[(sizes.from + i) % sizes.to] = number(beginning_, at, sizes.key);
  }
}

void BlockFile::read_payload(std::span<const std::span<std::byte>> pieces) const {
  std::uint64_t n_bytes = 0;
  for (const std::span<std::byte> piece : pieces) n_bytes += piece.size();
  if (n_bytes != payload_bytes_) {
    throw std::invalid_argument("[prefix.read_payload] " + std::to_string(n_bytes) + " bytes for a payload of " +
                                std::to_string(payload_bytes_));
  }
  Checksum checksum;
  checksum.add(beginning_);
  std::uint64_t at = beginning_.size();
  for (const std::span<std::byte> piece : pieces) {
    source_->read(at, piece);
    checksum.add(piece);
    at += piece.size();
  }
  check_end(checksum);
}

void BlockFile::check() const {
  Checksum checksum;
  checksum.add(beginning_);
  std::vector<std::byte> piece(std::min<std::uint64_t>(payload_bytes_, kCheckPieceBytes));
  for (std::uint64_t done = 0; done < payload_bytes_;) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), payload_bytes_ - done));
    source_->read(beginning_.size() + done, part);
    checksum.add(part);
    done += part.size();
  }
  check_end(checksum);
}

void BlockFile::check_end(const Checksum& checksum) const {
  std::array<std::byte, kEndBytes> end;
  source_->read(beginning_.size() + payload_bytes_, end);
  if (number(end, 0, kEndBytes) != checksum.value()) {
    throw FormatError(path(), "checksum", "does not match: the file is damaged");
  }
}

}  // namespace memoir::prefix
