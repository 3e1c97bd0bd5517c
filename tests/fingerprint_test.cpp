// What tells models from each other: every byte of their weights.

#include "memoir/model/fingerprint.h"

#include <gtest/gtest.h>

#include <fstream>

#include "memoir/base/error.h"
#include "tests/model_files.h"

namespace memoir::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSize = 9'437'187;  // two pieces of 4 MiB and a part

std::string some_bytes() {
  std::string bytes(kSize, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24U);
  }
  return bytes;
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

fs::path model_of(const fs::path& folder, const std::string& weights, const std::string& file = "model.safetensors") {
  fs::create_directories(folder);
  write(folder / "config.json", "{}");
  write(folder / file, weights);
  return folder;
}

TEST(Fingerprint, IsOfTheBytesAndNotOfThePlace) {
  const test::TemporaryFolder folder;
  const std::string bytes = some_bytes();
  const std::string one = fingerprint(model_of(folder.path() / "a", bytes));
  EXPECT_EQ(one.size(), 16U);
  EXPECT_EQ(fingerprint(model_of(folder.path() / "b", bytes)), one);
  write(folder.path() / "b" / "tokenizer.json", "{}");
  write(folder.path() / "b" / "other.safetensors", "not loaded");
  EXPECT_EQ(fingerprint(folder.path() / "b"), one);
  const fs::path shards = model_of(folder.path() / "c", bytes, "shard.safetensors");
  write(shards / "model.safetensors.index.json", R"({"weight_map": {"w": "shard.safetensors"}})");
  EXPECT_NE(fingerprint(shards), one);
  write(shards / "model.safetensors.index.json", R"({"weight_map": {"w": "none.safetensors"}})");
  EXPECT_THROW(fingerprint(shards), FileError);
  write(folder.path() / "b" / "config.json", "{ }");
  EXPECT_NE(fingerprint(folder.path() / "b"), one);
}

TEST(Fingerprint, EveryByteCounts) {
  const test::TemporaryFolder folder;
  const fs::path file = folder.path() / "model.gguf";
  const std::string bytes = some_bytes();
  write(file, bytes);
  const std::string before = fingerprint(file);
  const std::size_t piece = std::size_t{4} << 20;
  for (const std::size_t at : {std::size_t{0}, std::size_t{5'000}, piece - 1, piece, 2 * piece + 77, kSize - 1}) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    write(file, changed);
    EXPECT_NE(fingerprint(file), before) << at;
  }
  write(file, bytes.substr(piece, piece) + bytes.substr(0, piece) + bytes.substr(2 * piece));
  EXPECT_NE(fingerprint(file), before);
  write(file, bytes + '\0');
  EXPECT_NE(fingerprint(file), before);
  write(file, "");
  EXPECT_NE(fingerprint(file), before);
  EXPECT_THROW(fingerprint(folder.path() / "none"), FileError);
}

}  // namespace
}  // namespace memoir::model
