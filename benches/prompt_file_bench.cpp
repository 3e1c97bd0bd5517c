// What a prompt-cache file costs against the disk's sequential speed, in the same run.
//
//   build/release/bin/prompt_file_bench [FOLDER [MB]]
//
// Writes and reads a file of that size (256 MB) in FOLDER (the system's for temporary files), as plain bytes in pieces
// of 1 MB, synced, and as a cache of 32 layers of float16 rows. Reads come from the system's memory of the file; with
// `cold` as a third word it is asked to forget the file before each (where the system has such a call).

#include <fcntl.h>
#include <mlx/mlx.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/checksum.h"
#include "memoir/base/replaced_file.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/prompt_file.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLayers = 32;
constexpr int kHeads = 8;
constexpr int kWidth = 128;
constexpr int kRounds = 5;
constexpr std::size_t kPiece = 1U << 20;

bool is_cold = false;

void forget(const std::string& path) {
#ifdef POSIX_FADV_DONTNEED
  if (!is_cold) return;
  const int file = ::open(path.c_str(), O_RDONLY);
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
#else
  static_cast<void>(path);
#endif
}

// The median of the rounds, in seconds.
double timed(const std::function<void()>& before, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    before();
    const auto begin = Clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[kRounds / 2];
}

cache::ModelCache cache_of(std::size_t size_bytes) {
  const auto n_tokens = static_cast<int>(size_bytes / (2 * kLayers * kHeads * kWidth * 2));
  std::vector<std::unique_ptr<cache::LayerCache>> layers;
  for (int i = 0; i < kLayers; ++i) {
    auto layer = cache::make_kv_cache(cache::KVOptions{});
    const mx::array rows = mx::random::normal({1, kHeads, n_tokens, kWidth}, mx::float16);
    layer->update(rows, rows);
    layers.push_back(std::move(layer));
  }
  cache::ModelCache model(std::move(layers));
  model.materialize();
  return model;
}

void write_plain(const std::string& path, std::size_t size_bytes) {
  static const std::vector<std::byte> piece(kPiece, std::byte{17});
  ReplacedFile file(path);
  for (std::size_t done = 0; done < size_bytes; done += kPiece) {
    file.write(std::span(piece).first(std::min(kPiece, size_bytes - done)));
  }
  file.commit();
}

// Nothing is kept: the disk's own speed, or that of the system's memory of the file.
void read_plain(const std::string& path) {
  static std::vector<std::byte> piece(kPiece);
  const std::unique_ptr<ByteSource> source = open_file(path);
  for (std::uint64_t done = 0; done < source->size_bytes(); done += kPiece) {
    source->read(done, std::span(piece).first(std::min<std::uint64_t>(kPiece, source->size_bytes() - done)));
  }
}

// The same into memory of its own, as a loader needs it.
void read_whole(const std::string& path) {
  const std::unique_ptr<ByteSource> source = open_file(path);
  const auto bytes = std::make_unique_for_overwrite<std::byte[]>(source->size_bytes());
  source->read(0, std::span(bytes.get(), source->size_bytes()));
}

// The least that a loader over mapped memory has to do to find damage: every byte goes into the checksum.
void check_mapped(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  struct stat status {};
  ::fstat(file, &status);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  ::close(file);
  Checksum checksum;
  checksum.add(std::span(static_cast<const std::byte*>(data), size));
  if (checksum.hex().empty()) std::puts("");
  ::munmap(data, size);
}

void print(const char* what, std::size_t size_bytes, double seconds, double plain_seconds) {
  std::printf("%-34s %7.0f MB/s   %.2f of the plain speed\n", what, static_cast<double>(size_bytes) / seconds / 1e6,
              plain_seconds / seconds);
}

void run(const fs::path& folder, std::size_t size_bytes) {
  const std::string plain = (folder / "memoir_bench.plain").string();
  const std::string saved = (folder / "memoir_bench.safetensors").string();
  const cache::ModelCache model = cache_of(size_bytes);
  const double plain_write = timed([] {}, [&] { write_plain(plain, size_bytes); });
  const double save = timed([] {}, [&] { cache::save_prompt_file(saved, model, {}); });
  const std::size_t saved_bytes = fs::file_size(saved);
  const double plain_read = timed([&] { forget(plain); }, [&] { read_plain(plain); });
  const double whole = timed([&] { forget(plain); }, [&] { read_whole(plain); });
  const double load = timed([&] { forget(saved); }, [&] { cache::load_prompt_file(saved); });
  const double mapped = timed([&] { forget(saved); }, [&] { check_mapped(saved); });
  std::printf("%zu MB, reads are %s\n", saved_bytes >> 20U, is_cold ? "cold" : "from memory");
  print("plain write, synced", size_bytes, plain_write, plain_write);
  print("save_prompt_file", saved_bytes, save, plain_write);
  print("plain read", size_bytes, plain_read, plain_read);
  print("the same into new memory", size_bytes, whole, plain_read);
  print("load_prompt_file", saved_bytes, load, plain_read);
  print("checksum over mapped memory alone", saved_bytes, mapped, plain_read);
  fs::remove(plain);
  fs::remove(saved);
}

}  // namespace
}  // namespace memoir

int main(int argc, char** argv) {
  const fs::path folder = argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path();
  const std::size_t n_megabytes = argc > 2 ? std::stoul(argv[2]) : 256;
  memoir::is_cold = argc > 3 && std::string(argv[3]) == "cold";
  memoir::run(folder, n_megabytes << 20U);
  return 0;
}
