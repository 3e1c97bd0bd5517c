#include "memoir/cache/batch_kv.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memoir/cache/batch_rows.h"
#include "memoir/cache/sequences.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::History;
using kernels::KvBuffer;
using kernels::KvRange;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

// What is left of a batch at one moment. Its buffers are shared until the cache writes.
class BatchSnapshot final : public Snapshot {
 public:
  BatchSnapshot(int from, std::unique_ptr<LayerCache> batch) : from_(from), batch_(std::move(batch)) {}

  int from() const override { return from_; }
  int to() const override { return batch_->offset(); }
  std::size_t size_bytes() const override { return batch_->size_bytes(); }
  void materialize() override { batch_->materialize(); }

  const BatchKVCache& batch() const { return dynamic_cast<const BatchKVCache&>(*batch_); }
  void begin_at(int from) { from_ = from; }

 private:
  int from_;
  std::unique_ptr<LayerCache> batch_;
};

void check_numbers(const char* function, const std::vector<int>& numbers, int n_sequences) {
  const bool are_in_range =
      std::all_of(numbers.begin(), numbers.end(), [](int n) { return n >= 0 && n <= Layout::kMaxRows; });
  if (static_cast<int>(numbers.size()) != n_sequences || !are_in_range) {
    refuse(function, std::to_string(numbers.size()) + " numbers for " + std::to_string(n_sequences) +
                         " sequences, expected one from 0 to 2^30 for each");
  }
}

// The paddings with `more` columns each in front.
std::vector<int> padded_more(const char* function, std::vector<int> left_padding, const std::vector<int>& more) {
  for (std::size_t i = 0; i < left_padding.size(); ++i) {
    if (more[i] > Layout::kMaxRows - left_padding[i]) {
      refuse(function, "a left padding of " + std::to_string(left_padding[i]) + " and " + std::to_string(more[i]) +
                           " more, expected at most 2^30");
    }
    left_padding[i] += more[i];
  }
  return left_padding;
}

int n_rows_of(const std::vector<mx::array>& rows) {
  return rows.empty() ? 0 : rows[0].shape(kRowsAxis);
}

kernels::PositionRule rule_of(const KVOptions& options) {
  return {.window = options.window, .keep = options.keep, .chunk = options.chunk};
}

}  // namespace

BatchKVCache::BatchKVCache(const KVOptions& options, std::vector<int> left_padding)
    : options_(options), left_padding_(std::move(left_padding)) {
  KVCache(options).options();  // refuses what a single cache does
  if (left_padding_.empty()) refuse("BatchKVCache", "there are no sequences, expected at least one");
  check_numbers("BatchKVCache", left_padding_, batch_size());
  columns_ = std::make_unique<KVCache>(column_options());
}

KVOptions BatchKVCache::column_options() const {
  KVOptions options{.dtype = options_.dtype, .quantization = options_.quantization};
  options.window = options_.window ? options_.window : options_.chunk;
  return options;
}

std::string_view BatchKVCache::kind() const {
  const bool is_quantized = options_.quantization.has_value();
  if (options_.window && is_quantized) return "BatchQuantizedRotatingKVCache";
  if (options_.window) return options_.keep > 0 ? "BatchKeptRotatingKVCache" : "BatchRotatingKVCache";
  if (options_.chunk) return is_quantized ? "BatchQuantizedChunkedKVCache" : "BatchChunkedKVCache";
  return is_quantized ? "BatchQuantizedKVCache" : "BatchKVCache";
}

std::size_t BatchKVCache::size_bytes() const {
  std::size_t n_bytes = columns_->size_bytes();
  for (const mx::array& a : kept_) n_bytes += a.nbytes();
  return n_bytes;
}

std::vector<int> BatchKVCache::offsets() const {
  std::vector<int> result;
  for (const int left : left_padding_) result.push_back(offset() - left);
  return result;
}

// ---- Padding

void BatchKVCache::pad_left(const std::vector<int>& left_padding) {
  if (!is_empty()) refuse("pad_left", "the cache has columns, expected an empty one");
  check_numbers("pad_left", left_padding, batch_size());
  left_padding_ = padded_more("pad_left", left_padding_, left_padding);
}

void BatchKVCache::prepare(std::vector<int> lengths) {
  check_numbers("prepare", lengths, batch_size());
  lengths_ = std::move(lengths);
}

std::vector<Padding::Span> BatchKVCache::spans(int n_tokens) const {
  std::vector<Padding::Span> result;
  for (std::size_t i = 0; i < left_padding_.size(); ++i) {
    const int begin = std::clamp(left_padding_[i] - offset(), 0, n_tokens);
    const int end = lengths_.empty() ? n_tokens : std::min(lengths_[i], n_tokens);
    result.push_back({begin, std::max(begin, end)});
  }
  return result;
}

// ---- Updates

BatchColumns BatchKVCache::columns_after(int n_tokens) const {
  Layout layout = columns_->layout();
  layout.apply(layout.plan(n_tokens));
  const Positions seen = layout.seen_by_last(n_tokens);
  BatchColumns after{.first = seen.first,
                     .end = seen.end,
                     .left_padding = left_padding_,
                     .first_query = offsets(),
                     .real = spans(n_tokens),
                     .n_queries = n_tokens,
                     .rule = rule_of(options_)};
  for (std::size_t i = 0; i < left_padding_.size(); ++i) after.left_padding[i] += n_tokens - after.real[i].end;
  return after;
}

// As a cache in this one's format has them.
BatchKVCache::Arrays BatchKVCache::encoded_rows(const mx::array& keys, const mx::array& values) const {
  KVCache rows(KVOptions{.dtype = options_.dtype, .quantization = options_.quantization});
  rows.update(keys, values);
  return rows.state();
}

std::unique_ptr<KVCache> BatchKVCache::made_of(const Arrays& rows, int n_columns) const {
  auto made = std::make_unique<KVCache>(column_options());
  if (!rows.empty()) made->set_state(rows, numbers_of(column_options(), n_columns, rows[0].shape(kRowsAxis)));
  return made;
}

BatchKVCache::Arrays BatchKVCache::stored_rows() const {
  const Arrays rows = columns_->state();
  if (!options_.window || rows.empty()) return rows;
  return last_rows(rows, std::min(n_rows_of(rows), offset() - complete_from_));
}

BatchHistory BatchKVCache::update(const mx::array& keys, const mx::array& values) {
  if (keys.ndim() != 4 || keys.shape(0) != batch_size() || keys.shape(kRowsAxis) < 1) {
    refuse("update", "keys has shape " + kernels::shape_text(keys) + ", expected (" + std::to_string(batch_size()) +
                         ",H,T,Dk) with T of at least 1");
  }
  const int n_tokens = keys.shape(kRowsAxis);
  const BatchColumns after = columns_after(n_tokens);
  if (after.left_padding == left_padding_) {
    columns_->update(keys, values);
  } else {
    dynamic_cast<KVCache&>(*columns_->copy()).update(keys, values);  // refuses what doesn't fit
    std::vector<int> gaps;
    for (std::size_t i = 0; i < left_padding_.size(); ++i) gaps.push_back(after.left_padding[i] - left_padding_[i]);
    const Arrays rows = rolled(rows_after("update", stored_rows(), encoded_rows(keys, values)), gaps);
    // A sequence without real tokens now has no more rows than before, and in front of them what was rolled round.
    const int n_before = n_rows_of(rows) - n_tokens;
    if (options_.window) complete_from_ = n_before == offset() ? 0 : offset() + n_tokens - n_before;
    if (options_.chunk) complete_from_ = offset() + n_tokens;
    columns_ = made_of(rows, offset() + n_tokens);
    left_padding_ = after.left_padding;
  }
  for (int& length : lengths_) length = std::max(0, length - n_tokens);
  History history = columns_->view().value();
  history.ranges.clear();
  const Layout& layout = columns_->layout();
  for (const StoredRun& run : layout.runs(layout.seen_by_last(n_tokens))) {
    history.ranges.push_back({run.first_position, run.begin_row, run.n_rows});
  }
  if (options_.keep == 0) return {after, std::move(history), std::nullopt, std::nullopt};
  keep_rows(history, after);
  return {after, std::move(history), buffer_of(kept_, false, options_), buffer_of(kept_, true, options_)};
}

// Those of the new rows that are among a sequence's first `keep`.
void BatchKVCache::keep_rows(const History& history, const BatchColumns& after) {
  const Arrays buffers = kernels::arrays_of(history.keys, history.values);
  if (kept_.empty()) kept_ = padded_right(Arrays(), buffers, options_.keep);
  for (std::size_t i = 0; i < left_padding_.size(); ++i) {
    const int begin = std::max(0, after.first_query[i] + after.real[i].begin);
    const int end = std::min(options_.keep, after.offset(i));
    for (const KvRange& range : history.ranges) {
      const int first = std::max(begin, range.first_position - after.left_padding[i]);
      const int last = std::min(end, range.first_position + range.n_rows - after.left_padding[i]);
      if (first >= last) continue;
      const int row = range.begin_row + first + after.left_padding[i] - range.first_position;
      for (std::size_t k = 0; k < kept_.size(); ++k) {
        const int b = static_cast<int>(i);
        const mx::array rows = mx::slice(buffers[k], {b, 0, row, 0},
                                         {b + 1, buffers[k].shape(1), row + last - first, buffers[k].shape(3)});
        const mx::Shape start{b, 0, first, 0};
        const mx::Shape stop{b + 1, kept_[k].shape(1), last, kept_[k].shape(3)};
        kept_[k] = mx::slice_update(kept_[k], rows, start, stop);
      }
    }
  }
}

mx::array BatchKVCache::make_mask(int n_tokens, std::optional<int> window) const {
  if (n_tokens < 1 || (window && *window < 1)) {
    refuse("make_mask", std::to_string(n_tokens) + " queries with window " + std::to_string(window.value_or(1)) +
                            ", expected at least 1");
  }
  const BatchColumns after = columns_after(n_tokens);
  kernels::PositionRule rule = after.rule;
  if (window) rule.window = std::min(*window, rule.window.value_or(*window));
  return after.mask(rule);
}

// ---- The batch's sequences

void BatchKVCache::take_over(BatchKVCache&& other) {
  columns_ = std::move(other.columns_);
  complete_from_ = other.complete_from_;
  left_padding_ = std::move(other.left_padding_);
  lengths_ = std::move(other.lengths_);
  kept_ = std::move(other.kept_);
}

std::unique_ptr<BatchKVCache> BatchKVCache::merged(const std::vector<const KVCache*>& caches) {
  if (caches.empty() || std::find(caches.begin(), caches.end(), nullptr) != caches.end()) {
    refuse("merged", "expected at least one cache, and no null");
  }
  std::vector<std::unique_ptr<BatchKVCache>> batches;
  for (const KVCache* cache : caches) batches.push_back(of_one(*cache));
  // By pairs: each row is copied once for each doubling.
  while (batches.size() > 1) {
    std::vector<std::unique_ptr<BatchKVCache>> pairs;
    for (std::size_t i = 0; i < batches.size(); i += 2) {
      if (i + 1 < batches.size()) batches[i]->extend(*batches[i + 1]);
      pairs.push_back(std::move(batches[i]));
    }
    batches = std::move(pairs);
  }
  return std::move(batches.front());
}

std::unique_ptr<BatchKVCache> BatchKVCache::of_one(const KVCache& cache) {
  auto one = std::make_unique<BatchKVCache>(cache.options(), std::vector<int>{0});
  const Arrays rows = cache.state();
  if (rows.empty()) return one;
  if (rows[0].shape(0) != 1) refuse("merged", "a cache is of several sequences, expected one");
  const Positions seen = cache.layout().seen_by_last(1);
  const int n_last = std::min(seen.end - seen.first, cache.options().window.value_or(cache.offset()));
  const int n_stored = cache.options().chunk ? std::min(cache.offset(), *cache.options().chunk) : n_last;
  one->columns_ = one->made_of(padded_left(last_rows(rows, n_last), n_stored), cache.offset());
  if (cache.options().chunk) one->complete_from_ = cache.offset();  // the rows of chunks before are not there
  const int keep = one->options_.keep;
  if (keep > 0) one->kept_ = padded_right(first_rows(rows, std::min(keep, cache.offset())), rows, keep);
  return one;
}

void BatchKVCache::extend(const BatchKVCache& other) {
  if (!(other.options_ == options_)) refuse("extend", "the other is of another kind, window, keep, chunk or format");
  if (!lengths_.empty() || !other.lengths_.empty()) refuse("extend", "a batch is prepared for right padding");
  const int n_columns = std::max(offset(), other.offset());
  const Arrays own = stored_rows();
  const Arrays others = other.stored_rows();
  // After a trim a ring may lack its oldest row, which is hidden from the next query on: then both do without it.
  int n_stored = std::min(n_columns, column_options().window.value_or(n_columns));
  for (const auto& [rows, batch] :
       {std::pair(&own, std::as_const(*this).columns_.get()), std::pair(&others, other.columns_.get())}) {
    const int n_rows = n_rows_of(*rows);
    const bool lacks_one = n_rows > 0 && n_rows < std::min(n_stored, batch->offset());
    if (lacks_one) n_stored = n_rows;
  }
  const auto side = [n_stored](const Arrays& rows) {
    return padded_left(last_rows(rows, std::min(n_stored, n_rows_of(rows))), n_stored);
  };
  const Arrays rows = joined_sequences("extend", side(own), batch_size(), side(others), other.batch_size());
  Arrays kept = joined_sequences("extend", kept_, batch_size(), other.kept_, other.batch_size());
  const auto justified = [n_columns](const BatchKVCache& batch) {
    const std::vector<int> more(batch.left_padding_.size(), n_columns - batch.offset());
    return padded_more("extend", batch.left_padding_, more);
  };
  std::vector<int> left_padding = justified(*this);
  for (const int left : justified(other)) left_padding.push_back(left);
  complete_from_ = options_.chunk ? n_columns : 0;
  columns_ = made_of(rows, n_columns);
  kept_ = std::move(kept);
  left_padding_ = std::move(left_padding);
}

void BatchKVCache::filter(const std::vector<int>& sequences) {
  check_sequences("filter", sequences, batch_size());
  std::vector<int> left;
  std::vector<int> lengths;
  for (const int i : sequences) {
    left.push_back(left_padding_[static_cast<std::size_t>(i)]);
    if (!lengths_.empty()) lengths.push_back(lengths_[static_cast<std::size_t>(i)]);
  }
  const int n_cut = std::min(offset(), *std::min_element(left.begin(), left.end()));
  const int n_columns = offset() - n_cut;
  for (int& n : left) n -= n_cut;
  Arrays rows;
  if (n_columns > 0) {
    rows = stored_rows();
    rows = last_rows(rows, std::min(n_columns, n_rows_of(rows)));
  }
  for (mx::array& a : rows) a = sequences_of(a, sequences);
  for (mx::array& a : kept_) a = mx::contiguous(sequences_of(a, sequences));
  columns_ = made_of(rows, n_columns);
  complete_from_ = options_.chunk ? std::max(0, complete_from_ - n_cut) : 0;
  left_padding_ = std::move(left);
  lengths_ = std::move(lengths);
}

std::unique_ptr<KVCache> BatchKVCache::extract(int sequence) const {
  check_sequences("extract", {sequence}, batch_size());
  auto one = std::make_unique<KVCache>(options_);
  const int n_tokens = std::max(0, offset() - left_padding_[static_cast<std::size_t>(sequence)]);
  if (n_tokens == 0) return one;
  const Arrays columns = stored_rows();
  const int n_kept = std::min(options_.keep, n_tokens);
  int n_last = std::min(n_tokens - n_kept, columns[0].shape(kRowsAxis));
  // At the border of a chunk the next query sees none of it, so that a trim may have left less than all.
  if (options_.chunk) n_last = std::min(n_last, (n_tokens - 1) % *options_.chunk + 1);
  const bool is_at_border = options_.chunk && n_tokens % *options_.chunk == 0;
  if (is_at_border && n_last < *options_.chunk) n_last = 0;
  Arrays rows = n_kept + n_last > 0 ? last_rows(columns, n_last) : Arrays();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    rows[k] = sequences_of(rows[k], {sequence});
    if (n_kept == 0) continue;
    rows[k] = mx::concatenate({sequences_of(first_rows(kept_, n_kept)[k], {sequence}), rows[k]}, kRowsAxis);
  }
  one->set_state(rows, numbers_of(options_, n_tokens, n_kept + n_last));
  return one;
}

// ---- LayerCache

std::vector<mx::array> BatchKVCache::state() const {
  const bool is_padded = std::any_of(left_padding_.begin(), left_padding_.end(), [](int n) { return n > 0; });
  if (is_empty() && !is_padded) return {};
  Arrays result = stored_rows();
  if (!is_empty()) result.insert(result.end(), kept_.begin(), kept_.end());
  const std::vector<int> positions = offsets();
  result.push_back(mx::array(positions.data(), {batch_size()}, mx::int32));
  result.push_back(mx::array(left_padding_.data(), {batch_size()}, mx::int32));
  return result;
}

std::vector<std::string> BatchKVCache::meta_state() const {
  std::vector<std::string> meta = {std::to_string(offset())};
  for (const int n : lengths_) meta.push_back(std::to_string(n));
  return meta;
}

void BatchKVCache::set_state(const std::vector<mx::array>& state, const std::vector<std::string>& meta) {
  const std::vector<int> numbers = parsed_numbers("set_state", meta);
  const std::size_t n_arrays = options_.quantization ? 6 : 2;
  const std::size_t n_rows = numbers[0] == 0 ? 0 : n_arrays;
  const std::size_t n_kept = numbers[0] > 0 && options_.keep > 0 ? n_arrays : 0;
  if (!(state.empty() && numbers[0] == 0) && state.size() != n_rows + n_kept + 2) {
    refuse("set_state", std::to_string(state.size()) + " arrays at " + std::to_string(numbers[0]) +
                            " columns, expected " + std::to_string(n_rows + n_kept + 2));
  }
  BatchKVCache fresh(options_, std::vector<int>(left_padding_.size(), 0));
  if (!state.empty()) {
    fresh.left_padding_ = integers_of("set_state", state.back());
    const std::vector<int> positions = integers_of("set_state", state[state.size() - 2]);
    check_numbers("set_state", fresh.left_padding_, static_cast<int>(positions.size()));
    if (positions.empty()) refuse("set_state", "there are no sequences, expected at least one");
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] != numbers[0] - fresh.left_padding_[i]) {
        refuse("set_state", "offsets, left padding and columns of sequence " + std::to_string(i) + " don't agree");
      }
    }
    const Arrays rows(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(n_rows));
    for (const mx::array& a : rows) {
      if (a.ndim() != 4 || a.shape(0) != fresh.batch_size()) {
        refuse("set_state", "an array has shape " + kernels::shape_text(a) + ", expected (" +
                                std::to_string(fresh.batch_size()) + ",H,S,D)");
      }
    }
    fresh.columns_ = fresh.made_of(rows, numbers[0]);
    if (fresh.offset() != numbers[0]) {
      refuse("set_state", std::to_string(fresh.offset()) + " rows for " + std::to_string(numbers[0]) + " columns");
    }
    if (options_.chunk) fresh.complete_from_ = numbers[0];
    fresh.kept_.assign(state.begin() + static_cast<std::ptrdiff_t>(n_rows), state.end() - 2);
    check_kept("set_state", fresh.kept_, rows, options_.keep);
  }
  if (numbers.size() > 1) fresh.prepare({numbers.begin() + 1, numbers.end()});
  take_over(std::move(fresh));
}

void BatchKVCache::materialize() const {
  columns_->materialize();
  mx::eval(kept_);
}

void BatchKVCache::free() {
  columns_->free();
  complete_from_ = 0;
  left_padding_.assign(left_padding_.size(), 0);
  lengths_.clear();
  kept_.clear();
}

std::unique_ptr<LayerCache> BatchKVCache::copy() const {
  auto other = std::make_unique<BatchKVCache>(options_, left_padding_);
  std::unique_ptr<LayerCache> columns = columns_->copy();
  other->columns_.reset(dynamic_cast<KVCache*>(columns.release()));
  other->complete_from_ = complete_from_;
  other->lengths_ = lengths_;
  other->kept_ = kept_;
  return other;
}

std::unique_ptr<Snapshot> BatchKVCache::snapshot(int from) const {
  const int begin = std::max(0, from);
  if (begin >= offset()) return nullptr;
  return std::make_unique<BatchSnapshot>(begin, copy());
}

namespace {

template <class Any>
auto& checked(Any& snapshot, const KVOptions& options, const char* function) {
  using Batch = std::conditional_t<std::is_const_v<Any>, const BatchSnapshot, BatchSnapshot>;
  auto* batch = dynamic_cast<Batch*>(&snapshot);
  if (!batch || !(batch->batch().options() == options)) refuse(function, "the snapshot is of another kind");
  return *batch;
}

}  // namespace

bool BatchKVCache::restore(const Snapshot* snapshot, int target) {
  if (!snapshot) {
    if (!can_rewind(target)) return false;
    trim(offset() - target);
    return true;
  }
  const BatchSnapshot& batch = checked(*snapshot, options_, "restore");
  if (target < 0 || target > batch.to() || !batch.batch().can_rewind(target)) return false;
  const std::unique_ptr<LayerCache> fresh = batch.batch().copy();
  fresh->restore(nullptr, target);
  take_over(std::move(dynamic_cast<BatchKVCache&>(*fresh)));
  return true;
}

std::unique_ptr<Snapshot> BatchKVCache::merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const {
  if (!parent || !child) return nullptr;
  const BatchSnapshot& first = checked(*parent, options_, "merge");
  BatchSnapshot& second = checked(*child, options_, "merge");
  if (first.to() != second.from()) {
    refuse("merge", "the parent ends at " + std::to_string(first.to()) + ", the child begins at " +
                        std::to_string(second.from()) + ", expected them to meet");
  }
  second.begin_at(first.from());
  return child;
}

SnapshotPair BatchKVCache::split(std::unique_ptr<Snapshot> snapshot, int at) const {
  if (!snapshot) return {};
  BatchSnapshot& batch = checked(*snapshot, options_, "split");
  if (at >= batch.to()) return {std::move(snapshot), nullptr};
  if (at > batch.from()) batch.begin_at(at);
  return {nullptr, std::move(snapshot)};
}

bool BatchKVCache::can_rewind(int target) const {
  if (target == offset()) return true;
  const int lowest = complete_from_ == 0 ? 0 : complete_from_ + options_.window.value_or(1) - 1;
  if (!lengths_.empty() || target < lowest) return false;
  Layout columns = columns_->layout();
  if (!columns.rewind(target)) return false;
  return target == 0 || !columns.seen_by_last(1).is_empty();  // a batch without rows is at column 0 (a window of 1)
}

int BatchKVCache::trim(int n_columns) {
  if (n_columns < 0) refuse("trim", "n_columns is " + std::to_string(n_columns) + ", expected at least 0");
  if (!can_rewind(std::max(0, offset() - n_columns))) return 0;
  const int before = offset();
  const int n_dropped = columns_->trim(n_columns);
  for (int& left : left_padding_) {
    if (left <= before) left = std::min(left, offset());  // else its padding is still being fed
  }
  return n_dropped;
}

}  // namespace memoir::cache
