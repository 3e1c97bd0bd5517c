#include "memoir/model/fingerprint.h"

#include <algorithm>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/checksum.h"

namespace fs = std::filesystem;

namespace memoir::model {
namespace {

constexpr std::uint64_t kPieces = 64;
constexpr std::uint64_t kPieceBytes = 4096;

void add_weights(Checksum& checksum, const fs::path& path) {
  const auto source = open_file(path);
  const std::uint64_t size = source->size_bytes();
  checksum.add(std::to_string(size));
  std::vector<std::byte> piece(std::min(size, kPieceBytes));
  const std::uint64_t last = size - piece.size();
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    source->read(i + 1 == kPieces ? last : last / (kPieces - 1) * i, piece);
    checksum.add(piece);
  }
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string fingerprint(const fs::path& model) {
  Checksum checksum;
  if (!fs::is_directory(existing_status(model))) {
    add_weights(checksum, model);
    return checksum.hex();
  }
  checksum.add(read_text_file(model / "config.json"));
  for (const fs::path& file : weight_files(model)) {
    checksum.add(file.filename().string());
    add_weights(checksum, file);
  }
  return checksum.hex();
}

}  // namespace memoir::model
