#include "memoir/cache/padding.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::cache {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[cache.padding] " + what);
}

void check_numbers(const std::vector<int>& numbers, const char* name) {
  for (const int n : numbers) {
    if (n < 0) refuse(std::string(name) + " is " + std::to_string(n) + ", expected at least 0");
  }
}

std::vector<int> taken(const std::vector<int>& numbers, const std::vector<int>& sequences) {
  std::vector<int> result;
  if (numbers.empty()) return result;
  for (const int i : sequences) result.push_back(numbers[static_cast<std::size_t>(i)]);
  return result;
}

// The numbers of a batch of n, then those of one of m; what isn't there is `missing`.
std::vector<int> joined(std::vector<int> a, int n, int missing_a, const std::vector<int>& b, int m, int missing_b) {
  if (a.empty() && b.empty() && missing_a == missing_b) return {};
  if (a.empty()) a.assign(static_cast<std::size_t>(n), missing_a);
  a.insert(a.end(), b.begin(), b.end());
  if (b.empty()) a.insert(a.end(), static_cast<std::size_t>(m), missing_b);
  return a;
}

}  // namespace

Padding::Padding(std::vector<int> left) : left_(std::move(left)) {
  check_numbers(left_, "a left padding");
}

int Padding::n_sequences() const {
  const std::size_t n = std::max({left_.size(), lengths_.size(), offsets_.size()});
  return static_cast<int>(n);
}

int Padding::offset_of(int sequence, int columns) const {
  return offsets_.empty() ? columns : offsets_[static_cast<std::size_t>(sequence)];
}

void Padding::prepare(std::vector<int> lengths, int n_sequences) {
  check_numbers(lengths, "a length");
  if (lengths.empty() || (n_sequences > 0 && static_cast<int>(lengths.size()) != n_sequences)) {
    refuse(std::to_string(lengths.size()) + " lengths for " + std::to_string(n_sequences) + " sequences");
  }
  lengths_ = std::move(lengths);
}

void Padding::finalize() {
  left_.clear();
  lengths_.clear();
}

std::vector<Padding::Span> Padding::spans(int n_columns) const {
  std::vector<Span> result;
  const std::size_t n = std::max(left_.size(), lengths_.size());
  for (std::size_t i = 0; i < n; ++i) {
    const int begin = left_.empty() ? 0 : std::min(left_[i], n_columns);
    const int end = lengths_.empty() ? n_columns : std::min(lengths_[i], n_columns);
    result.push_back({begin, std::max(begin, end)});
  }
  return result;
}

void Padding::advance(int n_columns, int columns) {
  const std::vector<Span> real = spans(n_columns);
  if (!real.empty() && offsets_.empty()) offsets_.assign(real.size(), columns);
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    offsets_[i] += real.empty() ? n_columns : real[i].end - real[i].begin;
  }
  for (int& n : left_) n = std::max(0, n - n_columns);
  for (int& n : lengths_) n = n == kAllReal ? n : std::max(0, n - n_columns);
}

int Padding::filter(const std::vector<int>& sequences, int columns) {
  left_ = taken(left_, sequences);
  lengths_ = taken(lengths_, sequences);
  offsets_ = taken(offsets_, sequences);
  if (offsets_.empty()) return columns;
  return *std::max_element(offsets_.begin(), offsets_.end());
}

void Padding::extend(const Padding& more, int n, int columns, int n_other, int other_columns) {
  const Padding other = more;  // which may be this one
  left_ = joined(std::move(left_), n, 0, other.left_, n_other, 0);
  lengths_ = joined(std::move(lengths_), n, kAllReal, other.lengths_, n_other, kAllReal);
  offsets_ = joined(std::move(offsets_), n, columns, other.offsets_, n_other, other_columns);
}

void Padding::set(std::vector<int> left, std::vector<int> lengths, std::vector<int> offsets) {
  check_numbers(left, "a left padding");
  check_numbers(lengths, "a length");
  check_numbers(offsets, "an offset");
  const std::size_t n = std::max({left.size(), lengths.size(), offsets.size()});
  for (const auto* numbers : {&left, &lengths, &offsets}) {
    if (!numbers->empty() && numbers->size() != n) refuse("left padding, lengths and offsets are not of one batch");
  }
  left_ = std::move(left);
  lengths_ = std::move(lengths);
  offsets_ = std::move(offsets);
}

}  // namespace memoir::cache
