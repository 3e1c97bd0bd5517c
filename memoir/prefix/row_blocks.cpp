#include "memoir/prefix/row_blocks.h"

#include <mlx/transforms.h>

#include <algorithm>
#include <utility>

namespace mx = mlx::core;

namespace memoir::prefix {
namespace {

using Block = std::shared_ptr<const RowBlock>;
using Parts = std::vector<std::unique_ptr<cache::KVSnapshot>>;

// Blocks in the making: their arrays are evaluated together.
class Maker {
 public:
  void add(int from, int to, Parts parts) {
    auto block = std::make_shared<RowBlock>(RowBlock{from, to, 0, std::move(parts)});
    for (const auto& part : block->parts) {
      block->n_bytes += part->size_bytes();
      for (mx::array& a : part->arrays()) arrays_.push_back(std::move(a));
    }
    blocks_.push_back(std::move(block));
  }

  RowBlocks::Blocks finish() {
    mx::eval(std::move(arrays_));
    return std::move(blocks_);
  }

 private:
  RowBlocks::Blocks blocks_;
  std::vector<mx::array> arrays_;
};

Parts cut(const RowBlock& block, int from, int to) {
  Parts parts;
  for (const auto& part : block.parts) parts.push_back(part->part(from, to));
  return parts;
}

Block joined(const RowBlock& first, const RowBlock& second) {
  Parts parts;
  for (std::size_t i = 0; i < first.parts.size(); ++i) {
    parts.push_back(cache::KVSnapshot::of_both(*first.parts[i], *second.parts[i]));
  }
  Maker maker;
  maker.add(first.from, second.to, std::move(parts));
  return maker.finish().front();
}

}  // namespace

std::unique_ptr<RowBlocks> RowBlocks::copied(const CacheParts& cache, int from, int to,
                                             const std::optional<NarrowRows>& narrow) {
  std::vector<std::unique_ptr<cache::Snapshot>> all;
  for (const cache::KVCache* const flat : cache.flat) all.push_back(flat->snapshot_at(to));
  Maker maker;
  for (int begin = from; begin < to;) {
    const int end = std::min(to, (begin / kRowBlock + 1) * kRowBlock);
    Parts parts;
    for (const auto& snapshot : all) {
      auto part = dynamic_cast<cache::KVSnapshot&>(*snapshot).part(begin, end);
      parts.push_back(narrow ? narrow->narrowed(*part) : std::move(part));
    }
    if (cache.companion != nullptr) {
      auto part = cache.companion->rows(begin, end);
      parts.push_back(narrow ? narrow->narrowed(*part) : std::move(part));
    }
    maker.add(begin, end, std::move(parts));
    begin = end;
  }
  return std::make_unique<RowBlocks>(maker.finish());
}

std::size_t RowBlocks::size_bytes() const {
  std::size_t n_bytes = 0;
  for (const Block& block : blocks_) n_bytes += block->n_bytes;
  return n_bytes;
}

std::unique_ptr<Rows> RowBlocks::split_off(int at) {
  const auto second = std::find_if(blocks_.begin(), blocks_.end(), [at](const Block& block) { return block->to > at; });
  Blocks head(blocks_.begin(), second);
  Blocks tail(second, blocks_.end());
  if ((*second)->from < at) {
    Maker maker;
    maker.add((*second)->from, at, cut(**second, (*second)->from, at));
    maker.add(at, (*second)->to, cut(**second, at, (*second)->to));
    Blocks halves = maker.finish();
    head.push_back(std::move(halves[0]));
    tail[0] = std::move(halves[1]);
  }
  auto rest = std::make_unique<RowBlocks>(std::move(tail));
  blocks_ = std::move(head);
  return rest;
}

bool RowBlocks::append(Rows& next) noexcept {
  try {
    const Blocks& more = dynamic_cast<RowBlocks&>(next).blocks_;
    Blocks all = blocks_;
    all.insert(all.end(), more.begin(), more.end());
    if (to() % kRowBlock != 0) {
      const auto at = all.begin() + static_cast<std::ptrdiff_t>(blocks_.size()) - 1;
      *at = joined(**at, **std::next(at));
      all.erase(std::next(at));
    }
    blocks_ = std::move(all);
    return true;
  } catch (...) {
    return false;  // no memory for the copy
  }
}

void RowBlocks::trim(int at) {
  split_off(at);
}

}  // namespace memoir::prefix
