#pragma once

// Which of the cells 0, 1, ... n_cells - 1 are free, and where so many of them lie side by side. No MLX.
//
// A bit for each cell. Over the words of 64 lie two indexes:
//   levels  a bit for each word that has a free cell, a bit for each word of such bits, and so on: the next free cell
//           is at most 2 * log64(n_cells) words away (8 for a million cells, 10 for the most there can be).
//   runs    a binary tree of the longest free run of every part: finding one takes log2(n_cells / 64) steps (14 for a
//           million). It is brought up to date by find() alone, and only where cells have changed since the last one.
// So taking and giving cells cost a step or two for each 64 of them, and what a find() costs is shared by all cells
// that were taken since the last. Threads: none of its own; the owner serializes.

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

  /// n >= 1 cells from `begin` on, inside; they must be free (take) or taken (give).
  void take(int begin, int n) { change(begin, n, false); }
  void give(int begin, int n) { change(begin, n, true); }

  /// The first cell of the first run of at least n >= 1 free cells; nullopt if there is none.
  std::optional<int> find(int n);

  /// The first free cell at or after `from`; n_cells() if there is none.
  int next_free(int from) const;

  /// The first taken cell in [from, limit); `limit` if there is none. A step for each 64 cells passed.
  int next_taken(int from, int limit) const;

  /// One past the last free or taken cell below `end`; 0 if there is none. A step for each 64 cells passed.
  int end_of_free(int end) const { return end_below(end, true); }
  int end_of_taken(int end) const { return end_below(end, false); }

  /// Words and nodes that all calls so far have looked at: what they cost, for tests and benches.
  std::int64_t n_steps() const { return n_steps_; }

 private:
  static constexpr int kWordCells = 64;
  using Words = std::vector<std::uint64_t>;

  // Of a part: how many free cells it begins with, ends with, and has side by side.
  struct Runs {
    int first;
    int last;
    int longest;
    bool operator==(const Runs&) const = default;
  };

  const std::uint64_t& word_of(int cell) const { return levels_[0][static_cast<std::size_t>(cell / kWordCells)]; }
  void change(int begin, int n, bool is_free);
  void mark(std::size_t word, bool has_free);
  void refresh();
  Runs joined(std::size_t node, int half_cells) const;
  static Runs runs_of(std::uint64_t word);
  int end_below(int end, bool is_free) const;

  int n_cells_;
  int n_free_;
  std::vector<Words> levels_;       // [0]: bit i of word w is cell 64 * w + i, set if free, 0 beyond the last cell;
                                    // [k + 1]: bit i is set if word i of [k] is not 0; the last one is a single word
  std::size_t n_leaves_;            // a power of two, not less than the words of the cells
  std::vector<Runs> tree_;          // tree_[1] is the root, tree_[n_leaves_ + w] word w
  std::vector<std::size_t> stale_;  // nodes of the tree whose words have changed, each once
  std::vector<bool> is_stale_;      // by word
  mutable std::int64_t n_steps_ = 0;
};

}  // namespace memoir::cache
