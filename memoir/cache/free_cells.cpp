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

// n bits that are set, in words.
std::vector<std::uint64_t> set_bits(std::size_t n) {
  std::vector<std::uint64_t> words((n + 63) / 64, ~std::uint64_t{0});
  if (n % 64 != 0) words.back() = bits(0, static_cast<int>(n % 64));
  return words;
}

}  // namespace

FreeCells::FreeCells(int n_cells)
    : n_cells_(n_cells), n_free_(n_cells), levels_{set_bits(static_cast<std::size_t>(n_cells))} {
  while (levels_.back().size() > 1) levels_.push_back(set_bits(levels_.back().size()));
  const std::size_t n_words = levels_[0].size();
  n_leaves_ = std::bit_ceil(n_words);
  tree_.assign(2 * n_leaves_, Runs{0, 0, 0});
  is_stale_.assign(n_words, true);
  for (std::size_t word = 0; word < n_words; ++word) stale_.push_back(n_leaves_ + word);
}

FreeCells::Runs FreeCells::runs_of(std::uint64_t word) {
  int longest = 0;
  for (std::uint64_t rest = word; rest != 0; rest &= rest << 1) ++longest;
  return {std::countr_one(word), std::countl_one(word), longest};
}

// Of a node whose halves have half_cells each.
FreeCells::Runs FreeCells::joined(std::size_t node, int half_cells) const {
  const Runs& left = tree_[2 * node];
  const Runs& right = tree_[2 * node + 1];
  return {left.first == half_cells ? half_cells + right.first : left.first,
          right.last == half_cells ? half_cells + left.last : right.last,
          std::max({left.longest, right.longest, left.last + right.first})};
}

// The tree, level by level from the changed words up: a parent of several is looked at once, and one that stays as it
// was passes nothing on.
void FreeCells::refresh() {
  for (const std::size_t leaf : stale_) {
    tree_[leaf] = runs_of(levels_[0][leaf - n_leaves_]);
    is_stale_[leaf - n_leaves_] = false;
  }
  n_steps_ += static_cast<std::int64_t>(stale_.size());
  std::sort(stale_.begin(), stale_.end());
  for (int half_cells = kWordCells; !stale_.empty() && stale_.front() > 1; half_cells *= 2) {
    std::size_t n_changed = 0;
    std::size_t last = 0;
    for (const std::size_t child : stale_) {
      const std::size_t node = child / 2;
      if (node == last) continue;
      last = node;
      ++n_steps_;
      const Runs runs = joined(node, half_cells);
      if (runs == tree_[node]) continue;
      tree_[node] = runs;
      stale_[n_changed++] = node;
    }
    stale_.resize(n_changed);
  }
  stale_.clear();
}

// That word `word` of the cells has a free one, or none.
void FreeCells::mark(std::size_t word, bool has_free) {
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    std::uint64_t& summary = levels_[level][word / 64];
    const std::uint64_t before = summary;
    const std::uint64_t bit = std::uint64_t{1} << (word % 64);
    summary = has_free ? before | bit : before & ~bit;
    ++n_steps_;
    if ((summary != 0) == (before != 0)) return;
    word /= 64;
  }
}

void FreeCells::change(int begin, int n, bool is_free) {
  const int end = begin + n;
  for (int base = begin / kWordCells * kWordCells; base < end; base += kWordCells) {
    const auto word = static_cast<std::size_t>(base / kWordCells);
    const std::uint64_t changed = bits(std::max(begin - base, 0), std::min(end - base, kWordCells));
    std::uint64_t& cells = levels_[0][word];
    const bool had_free = cells != 0;
    cells = is_free ? cells | changed : cells & ~changed;
    ++n_steps_;
    if (had_free != (cells != 0)) mark(word, cells != 0);
    if (is_stale_[word]) continue;
    is_stale_[word] = true;
    stale_.push_back(n_leaves_ + word);
  }
  n_free_ += is_free ? n : -n;
}

std::optional<int> FreeCells::find(int n) {
  if (n > n_free_) return std::nullopt;
  refresh();
  ++n_steps_;
  if (tree_[1].longest < n) return std::nullopt;
  std::size_t node = 1;
  int begin = 0;
  for (int half = static_cast<int>(n_leaves_) * kWordCells / 2; node < n_leaves_; half /= 2) {
    ++n_steps_;
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
  return begin + first_run(levels_[0][node - n_leaves_], n);
}

int FreeCells::next_free(int from) const {
  auto index = static_cast<std::size_t>(from);
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    const std::size_t word = index / 64;
    if (word >= levels_[level].size()) return n_cells_;
    ++n_steps_;
    const std::uint64_t found = levels_[level][word] & bits(static_cast<int>(index % 64), 64);
    index = word + 1;
    if (found == 0) continue;
    index = 64 * word + static_cast<std::size_t>(std::countr_zero(found));
    for (; level > 0; --level) {
      ++n_steps_;
      index = 64 * index + static_cast<std::size_t>(std::countr_zero(levels_[level - 1][index]));
    }
    return static_cast<int>(index);
  }
  return n_cells_;
}

int FreeCells::next_taken(int from, int limit) const {
  for (int begin = from; begin < limit; begin = (begin / kWordCells + 1) * kWordCells) {
    ++n_steps_;
    const std::uint64_t found = ~word_of(begin) & bits(begin % kWordCells, kWordCells);
    if (found != 0) return std::min(limit, begin / kWordCells * kWordCells + std::countr_zero(found));
  }
  return limit;
}

int FreeCells::end_below(int end, bool is_free) const {
  const std::uint64_t flip = is_free ? 0 : ~std::uint64_t{0};
  while (end > 0) {
    ++n_steps_;
    const int base = (end - 1) / kWordCells * kWordCells;
    const std::uint64_t found = (word_of(base) ^ flip) & bits(0, end - base);
    if (found != 0) return base + kWordCells - std::countl_zero(found);
    end = base;
  }
  return 0;
}

}  // namespace memoir::cache
