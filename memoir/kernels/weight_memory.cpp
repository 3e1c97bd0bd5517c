#include "memoir/kernels/weight_memory.h"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "memoir/kernels/allocated.h"
#include "memoir/kernels/memory_pages.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 24;

thread_local WeightChunks* current = nullptr;

std::size_t rounded_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// n bytes as lines: two axes, since one holds no more than an int can count.
mx::Shape lines_of(std::size_t n_bytes) {
  const std::size_t n_lines = rounded_up(n_bytes, kLineBytes) / kLineBytes;
  if (n_lines > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw std::invalid_argument("[kernels.weight_memory] " + std::to_string(n_bytes) + " bytes are too many");
  }
  return {static_cast<int>(n_lines), static_cast<int>(kLineBytes)};
}

// Bytes `begin` to begin + n_bytes, rounded up to lines, of memory that stays as long as the part.
mx::array part_of(const mx::array& memory, std::size_t begin, std::size_t n_bytes) {
  mx::array part(lines_of(n_bytes), mx::uint8, nullptr, {});
  mx::array::Flags flags{};
  flags.contiguous = flags.row_contiguous = true;
  part.copy_shared_buffer(memory, {static_cast<std::int64_t>(kLineBytes), 1}, flags, part.size(),
                          static_cast<std::int64_t>(begin));
  part.set_status(mx::array::Status::available);
  return part;
}

mx::array allocated_at(std::size_t n_bytes, std::size_t alignment) {
  const mx::Shape shape = lines_of(n_bytes + alignment);
  const mx::array memory(allocated(static_cast<std::size_t>(shape[0]) * kLineBytes), shape, mx::uint8);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data<std::uint8_t>());
  return part_of(memory, rounded_up(address, alignment) - address, n_bytes);
}

mx::array allocated_huge(std::size_t n_bytes) {
  const std::size_t n_whole = rounded_up(n_bytes, kHugePageBytes);
  mx::array memory = allocated_at(n_whole, kHugePageBytes);
  prefer_huge_pages(memory.data<std::uint8_t>(), n_whole);
  return memory;
}

}  // namespace

WeightChunks::WeightChunks() : outer_(current) {
  current = this;
}

WeightChunks::~WeightChunks() {
  current = outer_;
}

mx::array WeightChunks::piece(std::size_t n_bytes) {
  if (n_bytes > kChunkBytes / 2) return part_of(allocated_huge(n_bytes), 0, n_bytes);
  if (!chunk_ || n_used_ + n_bytes > kChunkBytes) {
    chunk_ = allocated_huge(kChunkBytes);
    n_used_ = 0;
  }
  mx::array part = part_of(*chunk_, n_used_, n_bytes);
  n_used_ += part.nbytes();
  return part;
}

mx::array weight_memory(std::size_t n_bytes) {
  return current ? current->piece(n_bytes) : allocated_at(n_bytes, kLineBytes);
}

}  // namespace memoir::kernels
