#include "memoir/cache/free_cells.h"

#include <algorithm>
#include <bit>

namespace memoir::cache {
namespace {

// Bits [begin, end) of a word.
std::uint64_t bits(int begin, int end) {
  const std::uint64_t below_end = end == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << end) - 1;
  return below_end & ~((std::uint64_t{1} << begin) - 1);
}

// The first bit of the first run of at least n set bits, of a word that has one.
int first_run(std::uint64_t word, int n) {
  for (int i = 1; i < n; ++i) word &= word >> 1;
  return std::countr_zero(word);
}

}  // namespace

FreeCells::FreeCells(int n_cells)
    : n_cells_(n_cells),
      n_free_(n_cells),
      words_(static_cast<std::size_t>((n_cells + kWordCells - 1) / kWordCells), ~std::uint64_t{0}),
      n_leaves_(std::bit_ceil(words_.size())),
      tree_(2 * n_leaves_, Runs{0, 0, 0}) {
  if (n_cells % kWordCells != 0) words_.back() = bits(0, n_cells % kWordCells);
  refresh(0, static_cast<int>(words_.size()) - 1);
}

FreeCells::Runs FreeCells::runs_of(std::uint64_t word) {
  int longest = 0;
  for (std::uint64_t rest = word; rest != 0; rest &= rest << 1) ++longest;
  return {std::countr_one(word), std::countl_one(word), longest};
}

// Of a node whose halves have node_cells / 2 cells each.
FreeCells::Runs FreeCells::joined(std::size_t node, int node_cells) const {
  const Runs& left = tree_[2 * node];
  const Runs& right = tree_[2 * node + 1];
  const int half = node_cells / 2;
  return {left.first == half ? half + right.first : left.first, right.last == half ? half + left.last : right.last,
          std::max({left.longest, right.longest, left.last + right.first})};
}

void FreeCells::refresh(int first_word, int last_word) {
  std::size_t low = n_leaves_ + static_cast<std::size_t>(first_word);
  std::size_t high = n_leaves_ + static_cast<std::size_t>(last_word);
  for (std::size_t leaf = low; leaf <= high; ++leaf) tree_[leaf] = runs_of(words_[leaf - n_leaves_]);
  int node_cells = kWordCells;
  while (low > 1) {
    low /= 2;
    high /= 2;
    node_cells *= 2;
    bool has_changed = false;
    for (std::size_t node = low; node <= high; ++node) {
      const Runs runs = joined(node, node_cells);
      has_changed = has_changed || runs != tree_[node];
      tree_[node] = runs;
    }
    if (!has_changed) return;
  }
}

void FreeCells::change(int begin, int n, bool is_free) {
  const int end = begin + n;
  for (int word = begin / kWordCells; word * kWordCells < end; ++word) {
    const int base = word * kWordCells;
    const std::uint64_t mask = bits(std::max(begin - base, 0), std::min(end - base, kWordCells));
    std::uint64_t& cells = words_[static_cast<std::size_t>(word)];
    cells = is_free ? cells | mask : cells & ~mask;
  }
  n_free_ += is_free ? n : -n;
  refresh(begin / kWordCells, (end - 1) / kWordCells);
}

std::optional<int> FreeCells::find(int n) const {
  if (tree_[1].longest < n) return std::nullopt;
  std::size_t node = 1;
  int begin = 0;
  for (int half = static_cast<int>(n_leaves_) * kWordCells / 2; node < n_leaves_; half /= 2) {
    const Runs& left = tree_[2 * node];
    if (left.longest >= n) {
      node = 2 * node;
    } else if (left.last + tree_[2 * node + 1].first >= n) {
      return begin + half - left.last;
    } else {
      node = 2 * node + 1;
      begin += half;
    }
  }
  return begin + first_run(words_[node - n_leaves_], n);
}

int FreeCells::next(int from, bool is_free) const {
  const std::uint64_t flip = is_free ? 0 : ~std::uint64_t{0};
  for (int begin = from; begin < n_cells_; begin = (begin / kWordCells + 1) * kWordCells) {
    const std::uint64_t found = (word_of(begin) ^ flip) & bits(begin % kWordCells, kWordCells);
    if (found != 0) return std::min(n_cells_, begin / kWordCells * kWordCells + std::countr_zero(found));
  }
  return n_cells_;
}

int FreeCells::end_below(int end, bool is_free) const {
  const std::uint64_t flip = is_free ? 0 : ~std::uint64_t{0};
  while (end > 0) {
    const int base = (end - 1) / kWordCells * kWordCells;
    const std::uint64_t found = (word_of(base) ^ flip) & bits(0, end - base);
    if (found != 0) return base + kWordCells - std::countl_zero(found);
    end = base;
  }
  return 0;
}

}  // namespace memoir::cache
