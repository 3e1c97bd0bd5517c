#include "memoir/cache/batch_history.h"

#include <mlx/ops.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "memoir/cache/rows.h"
#include "memoir/cache/sequences.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::History;
using kernels::KvBuffer;
using kernels::KvRange;
using kernels::SequenceHistory;

// [B] -> [B, 1, 1, 1].
mx::array per_sequence(const std::vector<int>& numbers) {
  return mx::array(numbers.data(), {static_cast<int>(numbers.size()), 1, 1, 1}, mx::int32);
}

// [S] -> [1, 1, 1, S].
mx::array per_row(const std::vector<int>& numbers) {
  return mx::array(numbers.data(), {1, 1, 1, static_cast<int>(numbers.size())}, mx::int32);
}

KvBuffer sequence_of(const KvBuffer& buffer, int sequence) {
  const auto one = [sequence](const mx::array& a) { return sequences_of(a, {sequence}); };
  if (!buffer.quantization) return {one(buffer.data)};
  const kernels::Quantization& q = *buffer.quantization;
  return {one(buffer.data), kernels::Quantization{one(q.scales), one(q.biases), q.group_size, q.bits}};
}

// The part of the ranges with columns from `begin` on, as positions of a sequence whose first token is in column
// `left`; all in rows shifted by n_shifted.
std::vector<KvRange> ranges_of(const std::vector<KvRange>& columns, int begin, int left, int n_shifted) {
  std::vector<KvRange> result;
  for (const KvRange& range : columns) {
    const int n_cut = std::clamp(begin - range.first_position, 0, range.n_rows);
    if (n_cut == range.n_rows) continue;
    result.push_back({range.first_position + n_cut - left, range.begin_row + n_cut + n_shifted, range.n_rows - n_cut});
  }
  return result;
}

// The queries that are real, sequence by sequence: [1, H, N, D].
mx::array real_queries(const mx::array& queries, const std::vector<Padding::Span>& real) {
  std::vector<mx::array> parts;
  for (std::size_t i = 0; i < real.size(); ++i) {
    if (real[i].begin == real[i].end) continue;
    const int b = static_cast<int>(i);
    parts.push_back(
        mx::slice(queries, {b, 0, real[i].begin, 0}, {b + 1, queries.shape(1), real[i].end, queries.shape(3)}));
  }
  return parts.size() == 1 ? parts[0] : mx::concatenate(parts, 2);
}

// [1, N, W] -> [B, T, W], zeros where nothing is real.
mx::array spread_out(const mx::array& y, const std::vector<Padding::Span>& real, int n_queries) {
  const int width = y.shape(2);
  const auto zeros = [&](int n) { return mx::zeros({1, n, width}, y.dtype()); };
  std::vector<mx::array> sequences;
  int done = 0;
  for (const Padding::Span& span : real) {
    std::vector<mx::array> parts;
    const int n = span.end - span.begin;
    if (span.begin > 0) parts.push_back(zeros(span.begin));
    if (n > 0) parts.push_back(mx::slice(y, {0, done, 0}, {1, done + n, width}));
    if (span.end < n_queries) parts.push_back(zeros(n_queries - span.end));
    sequences.push_back(parts.size() == 1 ? parts[0] : mx::concatenate(parts, 1));
    done += n;
  }
  return sequences.size() == 1 ? sequences[0] : mx::concatenate(sequences, 0);
}

}  // namespace

mx::array BatchColumns::mask(const kernels::PositionRule& wanted) const {
  const int keep = rule.keep;
  std::vector<int> base;   // a kept row's position, else a column
  std::vector<int> turns;  // 1 where it is a column
  std::vector<int> lowest;
  for (int p = 0; p < keep; ++p) base.push_back(p);
  turns.assign(static_cast<std::size_t>(keep), 0);
  lowest.assign(static_cast<std::size_t>(keep), 0);
  for (int c = first; c < end; ++c) base.push_back(c);
  turns.resize(base.size(), 1);
  lowest.resize(base.size(), keep);
  std::vector<int> ends;
  for (std::size_t i = 0; i < left_padding.size(); ++i) ends.push_back(offset(i));
  const mx::array rows = mx::subtract(per_row(base), mx::multiply(per_sequence(left_padding), per_row(turns)));
  const mx::array queries = mx::add(per_sequence(first_query), mx::reshape(mx::arange(0, n_queries), {1, 1, -1, 1}));
  const mx::array is_there =
      mx::logical_and(mx::greater_equal(rows, per_row(lowest)), mx::less(rows, per_sequence(ends)));
  return mx::logical_and(is_there, kernels::position_mask(queries, rows, wanted));
}

BatchHistory::BatchHistory(BatchColumns columns, History history, std::optional<KvBuffer> kept_keys,
                           std::optional<KvBuffer> kept_values)
    : columns_(std::move(columns)),
      history_(std::move(history)),
      kept_keys_(std::move(kept_keys)),
      kept_values_(std::move(kept_values)) {}

KvBuffer BatchHistory::with_kept(const KvBuffer& buffer, const std::optional<KvBuffer>& kept) const {
  return kept ? joined(*kept, buffer) : buffer;
}

std::vector<SequenceHistory> BatchHistory::rows() const {
  const int keep = kept_keys_ ? columns_.rule.keep : 0;
  const KvBuffer keys = with_kept(history_.keys, kept_keys_);
  const KvBuffer values = with_kept(history_.values, kept_values_);
  std::vector<SequenceHistory> result;
  for (std::size_t i = 0; i < columns_.left_padding.size(); ++i) {
    const int b = static_cast<int>(i);
    const int left = columns_.left_padding[i];
    const Padding::Span span = columns_.real[i];
    int first_seen = 0;  // position
    if (columns_.rule.chunk) {
      const int query = std::max(0, columns_.first_query[i] + span.begin);
      first_seen = query / *columns_.rule.chunk * *columns_.rule.chunk;
    }
    History one{sequence_of(keys, b), sequence_of(values, b), {}, columns_.rule.window, keep};
    const int n_kept = std::min(keep, columns_.offset(i));
    if (n_kept > 0) one.ranges.push_back({0, 0, n_kept});
    for (const KvRange& range : ranges_of(history_.ranges, left + std::max(keep, first_seen), left, keep)) {
      one.ranges.push_back(range);
    }
    result.push_back({span.end - span.begin, std::move(one)});
  }
  return result;
}

mx::array BatchHistory::keys() const {
  const mx::array rows = history_.key_rows();
  return kept_keys_ ? mx::concatenate({kept_keys_->rows({{0, 0, columns_.rule.keep}}), rows}, 2) : rows;
}

mx::array BatchHistory::values() const {
  const mx::array rows = history_.value_rows();
  return kept_values_ ? mx::concatenate({kept_values_->rows({{0, 0, columns_.rule.keep}}), rows}, 2) : rows;
}

mx::array attention(const mx::array& queries, const BatchHistory& history, const kernels::AttentionOptions& options) {
  const BatchColumns& columns = history.columns();
  if (options.mask) throw std::invalid_argument("[cache.attention] there is a mask, expected none for a batch");
  if (queries.ndim() != 4 || queries.shape(0) != static_cast<int>(columns.left_padding.size()) ||
      queries.shape(2) != columns.n_queries) {
    throw std::invalid_argument("[cache.attention] queries have shape " + kernels::shape_text(queries) +
                                ", expected (" + std::to_string(columns.left_padding.size()) + ",H," +
                                std::to_string(columns.n_queries) + ",Dk)");
  }
  if (!kernels::on_cpu()) {
    History padded{{history.keys()}, {history.values()}, {}};
    padded.ranges = {{0, 0, padded.keys.data.shape(2)}};
    const History rule_of{padded.keys, padded.values, {}, columns.rule.window, columns.rule.keep};
    const kernels::AttentionOptions seen = kernels::narrowed(options, rule_of);
    kernels::AttentionOptions by_mask = options;
    by_mask.window = std::nullopt;
    by_mask.keep = 0;
    by_mask.chunk = std::nullopt;
    by_mask.is_causal = false;
    by_mask.mask = columns.mask({seen.window, seen.keep, seen.chunk, seen.is_causal});
    return kernels::attention(queries, padded, by_mask);
  }
  std::vector<SequenceHistory> rows = history.rows();
  std::erase_if(rows, [](const SequenceHistory& row) { return row.n_queries == 0; });
  if (rows.empty()) {
    const int width = queries.shape(1) * history.values().shape(3);
    return mx::zeros({queries.shape(0), queries.shape(2), width}, queries.dtype());
  }
  const mx::array y = kernels::attention(real_queries(queries, columns.real), rows, options);
  return spread_out(y, columns.real, columns.n_queries);
}

}  // namespace memoir::cache
