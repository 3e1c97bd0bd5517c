#pragma once

// Which of the cells 0, 1, ... n_cells - 1 are free, and where so many of them lie side by side. No MLX.
//
// A bit for each cell, and over the words of 64 a tree that knows the longest free run of every part: finding a run and
// taking or giving one cost log2(n_cells / 64) steps at most (14 for a million cells) and a step for each 64 cells
// taken. Threads: none of its own; the owner serializes.

#include <cstdint>
#include <optional>
#include <vector>

namespace memoir::cache {

class FreeCells {
 public:
  /// All are free. n_cells >= 1.
  explicit FreeCells(int n_cells);

  int n_cells() const { return n_cells_; }
  int n_free() const { return n_free_; }
  bool is_free(int cell) const { return (word_of(cell) >> (cell % kWordCells) & 1) != 0; }

  /// n cells from `begin` on, inside; they must be free (take) or taken (give).
  void take(int begin, int n) { change(begin, n, false); }
  void give(int begin, int n) { change(begin, n, true); }

  /// The first cell of the first run of at least n >= 1 free cells; nullopt if there is none.
  std::optional<int> find(int n) const;

  /// The first free or taken cell at or after `from`; n_cells() if there is none.
  int next_free(int from) const { return next(from, true); }
  int next_taken(int from) const { return next(from, false); }

  /// One past the last free or taken cell below `end`; 0 if there is none.
  int end_of_free(int end) const { return end_below(end, true); }
  int end_of_taken(int end) const { return end_below(end, false); }

 private:
  static constexpr int kWordCells = 64;

  // Of a part: how many free cells it begins with, ends with, and has side by side.
  struct Runs {
    int first;
    int last;
    int longest;
    bool operator==(const Runs&) const = default;
  };

  const std::uint64_t& word_of(int cell) const { return words_[static_cast<std::size_t>(cell / kWordCells)]; }
  void change(int begin, int n, bool is_free);
  void refresh(int first_word, int last_word);
  Runs joined(std::size_t node, int node_cells) const;
  static Runs runs_of(std::uint64_t word);
  int next(int from, bool is_free) const;
  int end_below(int end, bool is_free) const;

  int n_cells_;
  int n_free_;
  std::vector<std::uint64_t> words_;  // bit i: cell i of the word is free; bits beyond the last cell are 0
  std::size_t n_leaves_;              // a power of two, not less than the words
  std::vector<Runs> tree_;            // tree_[1] is the root, tree_[n_leaves_ + w] word w
};

}  // namespace memoir::cache
