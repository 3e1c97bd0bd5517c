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

Digest digest_of(ByteSource& source, std::uint64_t piece) {
  const std::uint64_t at = piece * kPieceBytes;
  std::vector<std::byte> bytes(std::min(source.size_bytes() - at, kPieceBytes));
  source.read(at, bytes);
  Checksum checksum;
  checksum.add(bytes);
  return checksum.digest();
}

void add_weights(Checksum& checksum, const fs::path& path) {
  const auto source = open_file(path);
  std::vector<Digest> digests((source->size_bytes() + kPieceBytes - 1) / kPieceBytes);
  const std::size_t n_readers = std::max(1U, std::thread::hardware_concurrency());
  const auto read = [&](std::size_t first) {
    for (std::size_t i = first; i < digests.size(); i += n_readers) digests[i] = digest_of(*source, i);
  };
  std::vector<std::future<void>> readers;
  for (std::size_t i = 0; i < std::min(n_readers, digests.size()); ++i) {
    readers.push_back(std::async(std::launch::async, read, i));
  }
  for (auto& reader : readers) reader.get();
  checksum.add(std::to_string(source->size_bytes()));
  for (const Digest& digest : digests) checksum.add(digest.hex());
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
