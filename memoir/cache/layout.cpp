#include "memoir/cache/layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace memoir::cache {
namespace {

int rounded_up(int n_rows) {
  return (n_rows + Layout::kStep - 1) / Layout::kStep * Layout::kStep;
}

bool overlap(int a_begin, int a_rows, int b_begin, int b_rows) {
  return a_begin < b_begin + b_rows && b_begin < a_begin + a_rows;
}

}  // namespace

bool Positions::has_all_of(const Positions& other) const {
  const auto has = [this](int begin, int from_end) {
    return begin >= from_end || from_end <= n_kept || (begin >= first && from_end <= end);
  };
  return has(0, other.n_kept) && has(other.first, other.end);
}

Layout Layout::ring(int window, int keep) {
  if (window < 1 || keep < 0 || window > kMaxRows - kSlack || keep > kMaxRows - kSlack - window) {
    throw std::invalid_argument("[cache.ring] window is " + std::to_string(window) + ", keep " + std::to_string(keep) +
                                ", expected a window of at least 1, keep of at least 0, and 2^30 rows at most");
  }
  return Layout(Rule::kRing, window, keep);
}

Layout Layout::chunk(int chunk) {
  if (chunk < 1 || chunk > kMaxRows - kSlack) {
    throw std::invalid_argument("[cache.chunk] chunk is " + std::to_string(chunk) +
                                ", expected at least 1 and 2^30 rows at most");
  }
  return Layout(Rule::kChunk, chunk, 0);
}

int Layout::first_needed(int position) const {
  if (rule_ == Rule::kRing) return std::max(0, position - size_ + 1);
  if (rule_ == Rule::kChunk) return position / size_ * size_;
  return 0;
}

// Everything below keep, and from `first` on.
Positions Layout::normal(int first, int end) const {
  if (first <= keep_ || end <= keep_) return {0, 0, end};
  return {keep_, std::min(first, end), end};
}

Positions Layout::needed(int position) const {
  return normal(first_needed(position), position);
}

Positions Layout::seen_by_last(int n_queries) const {
  const int first_query = std::max(0, offset() - n_queries);
  return normal(std::max(first_needed(first_query), stored_.first), offset());
}

int Layout::row_of(int position, int capacity) const {
  if (rule_ == Rule::kFlat || position < keep_) return position;
  return keep_ + (position - keep_) % (capacity - keep_);
}

std::vector<StoredRun> Layout::runs(const Positions& positions) const {
  return runs(positions, capacity_);
}

std::vector<StoredRun> Layout::runs(const Positions& positions, int capacity) const {
  std::vector<StoredRun> result;
  const auto add = [&](int begin, int end) {
    for (int position = begin; position < end;) {
      const int row = row_of(position, capacity);
      const int n_rows = std::min(end - position, capacity - row);
      result.push_back({position, row, n_rows});
      position += n_rows;
    }
  };
  add(0, positions.n_kept);
  add(positions.first, positions.end);
  return result;
}

// The lowest position whose row a write must leave: what its first query needs, and what is needed after kSlack of the
// rows then written are taken back.
int Layout::first_to_keep(int n_tokens) const {
  const int lowest_target = std::clamp(offset() + n_tokens - kSlack, 0, offset());
  return std::max(stored_.first, first_needed(lowest_target));
}

int Layout::capacity_for(int n_rows) const {
  const int steady = steady_capacity();
  return n_rows <= steady ? std::min(rounded_up(n_rows), steady) : rounded_up(n_rows);
}

void Layout::plan_carry(const Positions& kept, Write& write) const {
  write.relocates = true;
  write.kept = kept;
  for (const StoredRun& run : runs(kept)) {
    for (int done = 0; done < run.n_rows;) {
      const int row = row_of(run.first_position + done, write.capacity);
      const int n_rows = std::min(run.n_rows - done, write.capacity - row);
      write.carried.push_back({run.begin_row + done, row, n_rows});
      done += n_rows;
    }
  }
}

void Layout::plan_rows(const Positions& positions, Write& write) const {
  int from_row = 0;
  for (const StoredRun& run : runs(positions, write.capacity)) {
    write.rows.push_back({from_row, run.begin_row, run.n_rows});
    from_row += run.n_rows;
  }
}

Write Layout::plan_flat(int n_tokens) const {
  Write write;
  write.capacity = capacity_;
  write.stored = {0, 0, offset() + n_tokens};
  if (write.stored.end > capacity_) {
    write.capacity = std::max(offset() + rounded_up(n_tokens), reserved_);
    plan_carry(stored_, write);
  }
  return write;
}

Write Layout::plan(int n_tokens) const {
  if (n_tokens < 1 || n_tokens > kMaxRows - offset()) {
    throw std::invalid_argument("[cache.update] " + std::to_string(n_tokens) + " rows at offset " +
                                std::to_string(offset()) + ", expected at least 1 and at most 2^30 in all");
  }
  const int end = offset() + n_tokens;
  Write write;
  if (rule_ == Rule::kFlat) {
    write = plan_flat(n_tokens);
  } else {
    const int first = first_to_keep(n_tokens);
    const int n_needed = normal(first, end).n_rows();
    const bool is_oversize = capacity_ > steady_capacity() && n_tokens <= kSlack;
    if (n_needed > capacity_ || is_oversize) {
      write.capacity = is_oversize ? steady_capacity() : capacity_for(n_needed);
      plan_carry(normal(first, offset()), write);
      write.stored = normal(first, end);
    } else {
      write.capacity = capacity_;
      write.stored = normal(std::max(stored_.first, end - (capacity_ - keep_)), end);
    }
  }
  plan_rows({0, offset(), end}, write);
  return write;
}

Write Layout::plan_restore(const Positions& positions) const {
  const auto refuse = [&](const std::string& expected) {
    throw std::invalid_argument("[cache.restore] positions [" + std::to_string(positions.first) + ", " +
                                std::to_string(positions.end) + "), expected " + expected);
  };
  if (rule_ == Rule::kFlat) {
    if (positions.n_kept != 0 || positions.first < 0 || positions.first > offset()) {
      refuse("them to begin at or below offset " + std::to_string(offset()));
    }
    Layout base = *this;
    base.rewind(positions.first);
    return base.plan(positions.n_rows());
  }
  if (positions.end > kMaxRows || !reaches(positions, positions.end)) {
    refuse("all that a query behind them needs");
  }
  Write write;
  const int n_rows = positions.n_rows();
  const bool fits =
      capacity_ > 0 && n_rows <= capacity_ && capacity_ <= std::max(steady_capacity(), capacity_for(n_rows));
  write.relocates = !fits;
  write.capacity = fits ? capacity_ : capacity_for(std::max(1, n_rows));
  write.stored = positions;
  plan_rows(positions, write);
  return write;
}

bool Layout::survives(const Positions& held, const Write& write) const {
  if (write.relocates && !write.kept.has_all_of(held)) return false;
  for (const StoredRun& run : runs(held, write.capacity)) {
    for (const RowRun& written : write.rows) {
      if (overlap(run.begin_row, run.n_rows, written.to_row, written.n_rows)) return false;
    }
  }
  return true;
}

void Layout::apply(const Write& write) {
  stored_ = write.stored;
  capacity_ = write.capacity;
}

bool Layout::reaches(const Positions& held, int target) const {
  if (target < 0 || target > held.end) return false;
  return held.has_all_of(needed(target));
}

Positions Layout::cut(const Positions& held, int target) {
  if (target >= held.end) return held;
  if (target <= held.n_kept) return {0, 0, target};
  return {held.n_kept, std::min(held.first, target), target};
}

bool Layout::rewind(int target) {
  if (!can_rewind(target)) return false;
  stored_ = cut(stored_, target);
  return true;
}

Positions Layout::held_by_snapshot(int from) const {
  if (rule_ == Rule::kFlat) return {0, std::clamp(from, 0, offset()), offset()};
  return held_at(offset());
}

Positions Layout::held_at(int at) const {
  if (rule_ == Rule::kFlat) return {0, 0, at};
  const int lowest_target = std::max(0, at - kSlack);
  return normal(std::max(stored_.first, first_needed(lowest_target)), at);
}

void Layout::clear() {
  stored_ = {};
  capacity_ = 0;
  reserved_ = 0;
}

}  // namespace memoir::cache
