#include "memoir/model/fingerprint.h"

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/checksum.h"
#include "memoir/model/weights.h"

namespace fs = std::filesystem;

namespace memoir::model {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

// Of the pieces first, first + step, ...
std::vector<Digest> digests_of(ByteSource& source, std::uint64_t first, std::uint64_t step) {
  std::vector<Digest> digests;
  std::vector<std::byte> piece;
  for (std::uint64_t at = first * kPieceBytes; at < source.size_bytes(); at += step * kPieceBytes) {
    piece.resize(std::min(source.size_bytes() - at, kPieceBytes));
    source.read(at, piece);
    Checksum checksum;
    checksum.add(piece);
    digests.push_back(checksum.digest());
  }
  return digests;
}

void add_weights(Checksum& checksum, const fs::path& path) {
  const auto source = open_file(path);
  const std::uint64_t n_pieces = (source->size_bytes() + kPieceBytes - 1) / kPieceBytes;
  const auto n_readers = std::min<std::uint64_t>(std::max(1U, std::thread::hardware_concurrency()), n_pieces);
  std::vector<std::future<std::vector<Digest>>> readers;
  for (std::uint64_t i = 0; i < n_readers; ++i) {
    readers.push_back(std::async(std::launch::async, digests_of, std::ref(*source), i, n_readers));
  }
  std::vector<std::vector<Digest>> digests;
  for (auto& reader : readers) digests.push_back(reader.get());
  checksum.add(std::to_string(source->size_bytes()));
  for (std::uint64_t i = 0; i < n_pieces; ++i) checksum.add(digests[i % n_readers][i / n_readers].hex());
}

}  // namespace

std::string fingerprint(const fs::path& model) {
  Checksum checksum;
  if (!fs::is_directory(existing_status(model))) {
    add_weights(checksum, model);
    return checksum.hex();
  }
  checksum.add(read_text_file(model / "config.json"));
  for (const fs::path& file : safetensors_files(model).paths) {
    checksum.add(file.filename().string());
    add_weights(checksum, file);
  }
  return checksum.hex();
}

}  // namespace memoir::model
