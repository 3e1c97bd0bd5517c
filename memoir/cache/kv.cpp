#include "memoir/cache/kv.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memoir/cache/kv_snapshot.h"
#include "memoir/kernels/kv_write.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::arrays_of;
using kernels::dtype_text;
using kernels::KvBuffer;
using kernels::shape_text;

constexpr int kRowAxis = 2;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

Layout layout_of(const KVOptions& options) {
  if (options.window && options.chunk) refuse("KVCache", "window and chunk are both set, expected one at most");
  if (options.window) return Layout::ring(*options.window, options.keep);
  if (options.keep != 0) refuse("KVCache", "keep is " + std::to_string(options.keep) + " without a window, expected 0");
  return options.chunk ? Layout::chunk(*options.chunk) : Layout::flat();
}

bool same_rule(const Layout& a, const Layout& b) {
  return a.rule() == b.rule() && a.window() == b.window() && a.keep() == b.keep() && a.chunk() == b.chunk();
}

// The runs of a plan's new rows, which cover all of them in order.
std::vector<kernels::RowRun> kernel_runs(const Write& write) {
  std::vector<kernels::RowRun> runs;
  for (const RowRun& run : write.rows) runs.push_back({run.to_row, run.n_rows});
  return runs;
}

std::vector<kernels::KvRange> kernel_ranges(const std::vector<StoredRun>& runs) {
  std::vector<kernels::KvRange> ranges;
  for (const StoredRun& run : runs) ranges.push_back({run.first_position, run.begin_row, run.n_rows});
  return ranges;
}

std::unique_ptr<KVSnapshot> owned(const KVSnapshot& like, int from, const Positions& held, KvBuffer keys,
                                  KvBuffer values) {
  mx::async_eval(arrays_of(keys, values));
  return std::make_unique<KVSnapshot>(like.layout(), from, held, std::move(keys), std::move(values));
}

std::string span_text(const KVSnapshot& snapshot) {
  return "[" + std::to_string(snapshot.from()) + ", " + std::to_string(snapshot.to()) + ") with keys " +
         rows_text(snapshot.like_keys()) + ", values " + rows_text(snapshot.like_values());
}

}  // namespace

std::unique_ptr<KVCache> make_kv_cache(std::optional<int> window, std::optional<int> chunk,
                                       const CacheOptions& options) {
  KVOptions kv{.window = window, .chunk = chunk, .dtype = options.dtype};
  if (options.quantization && options.quantize_from <= 0) {
    kv.quantization = options.quantization;
    if (!kv.dtype) kv.dtype = mx::float16;
  }
  if (options.max_size) {
    const int max_size = *options.max_size;
    if (max_size < 1 || (chunk && max_size < *chunk)) {
      refuse("make_kv_cache", "max_size is " + std::to_string(max_size) + ", expected at least " +
                                  std::to_string(chunk.value_or(1)) + (chunk ? ", the layer's chunk" : ""));
    }
    if (options.keep < 0) refuse("make_kv_cache", "keep is " + std::to_string(options.keep) + ", expected at least 0");
    if (window) {
      kv.window = std::min(*window, max_size);
    } else if (!chunk) {
      kv.keep = options.keep < max_size ? options.keep : 0;
      kv.window = max_size - kv.keep;
    }
  }
  return std::make_unique<KVCache>(kv);
}

KVCache::KVCache(const KVOptions& options) : layout_(layout_of(options)), format_{options.dtype, options.quantization} {
  check_format(format_);
}

KVCache::~KVCache() {
  try {
    copy_out(lazy_);
  } catch (...) {
    // There is no memory for the copies: the snapshots then hold views of the buffers, which outlive this cache.
    for (KVSnapshot* snapshot : lazy_) snapshot->own(snapshot->keys(), snapshot->values());
  }
}

KVOptions KVCache::options() const {
  KVOptions options{.keep = layout_.keep(), .dtype = format_.dtype, .quantization = format_.quantization};
  if (layout_.window() > 0) options.window = layout_.window();
  if (layout_.chunk() > 0) options.chunk = layout_.chunk();
  return options;
}

void KVCache::keep_dtype() {
  if (keys_) format_.dtype = keys_->dtype();
}

CacheKind KVCache::kind_of() const {
  const bool is_quantized = format_.quantization.has_value();
  if (layout_.window() > 0) return is_quantized ? CacheKind::kQuantizedRotating : CacheKind::kRotating;
  if (layout_.chunk() > 0) return is_quantized ? CacheKind::kQuantizedChunked : CacheKind::kChunked;
  return is_quantized ? CacheKind::kQuantized : CacheKind::kKV;
}

std::size_t KVCache::size_bytes() const {
  return keys_ ? keys_->size_bytes() + values_->size_bytes() : 0;
}

void KVCache::materialize() const {
  if (keys_) mx::eval(arrays_of(*keys_, *values_));
}

void KVCache::free() {
  copy_out(lazy_);
  transaction_.reset();
  layout_.clear();
  keys_.reset();
  values_.reset();
}

std::unique_ptr<LayerCache> KVCache::copy() const {
  auto other = std::make_unique<KVCache>(options());
  other->layout_ = layout_;
  other->keys_ = keys_;
  other->values_ = values_;
  return other;
}

void KVCache::check_rows(const mx::array& keys, const mx::array& values) const {
  if (keys.ndim() != 4 || values.ndim() != 4 ||
      !std::equal(keys.shape().begin(), keys.shape().begin() + 3, values.shape().begin()) || keys.shape(0) < 1 ||
      keys.shape(1) < 1) {
    refuse("update", "keys has shape " + shape_text(keys) + ", values " + shape_text(values) +
                         ", expected (B,H,T,Dk) and (B,H,T,Dv), B and H at least 1");
  }
  const auto check = [this](const char* name, const mx::array& rows, const std::optional<KvBuffer>& buffer) {
    const std::string what = std::string(name) + " has shape " + shape_text(rows) + " " + dtype_text(rows.dtype());
    if (!kernels::is_float(rows.dtype())) refuse("update", what + ", expected float32, float16 or bfloat16");
    if (format_.quantization && rows.shape(3) % format_.quantization->group_size != 0) {
      refuse("update", what + ", expected rows of a multiple of " + std::to_string(format_.quantization->group_size) +
                           ", the group size");
    }
    if (buffer && (rows.shape(0) != buffer->data.shape(0) || rows.shape(1) != buffer->data.shape(1) ||
                   rows.shape(3) != buffer->dim() || (!format_.dtype && rows.dtype() != buffer->dtype()))) {
      refuse("update", what + ", expected " + rows_text(*buffer));
    }
  };
  check("keys", keys, keys_);
  check("values", values, values_);
}

bool KVCache::is_in_format(const KvBuffer& rows) const {
  if (rows.quantization.has_value() != format_.quantization.has_value()) return false;
  if (format_.dtype && rows.dtype() != *format_.dtype) return false;
  return !rows.quantization || (rows.quantization->bits == format_.quantization->bits &&
                                rows.quantization->group_size == format_.quantization->group_size);
}

void KVCache::check_encoded(const KvBuffer& keys, const KvBuffer& values) const {
  if (!format_.quantization) refuse("update_quantized", "a " + std::string(kind()) + " keeps dense rows");
  kernels::check_history("cache.update_quantized", {keys, values, {}});
  const auto check = [this](const char* name, const KvBuffer& rows, const std::optional<KvBuffer>& buffer) {
    const bool is_some = rows.data.shape(0) > 0 && rows.data.shape(1) > 0;
    const bool is_ours = is_some && is_in_format(rows) && kernels::is_float(rows.dtype());
    if (!is_ours || (buffer && !fits(rows, *buffer))) {
      refuse("update_quantized", std::string(name) + " are " + rows_text(rows) + ", expected " +
                                     (buffer ? rows_text(*buffer)
                                             : std::to_string(format_.quantization->bits) + " bits, groups of " +
                                                   std::to_string(format_.quantization->group_size)));
    }
  };
  check("keys", keys, keys_);
  check("values", values, values_);
}

void KVCache::write(const Write& write, const KvBuffer& keys, const KvBuffer& values, RowsLie lie) {
  copy_out_lost(write);
  const auto put = [&](std::optional<KvBuffer>& buffer, const KvBuffer& rows) {
    if (write.relocates && write.carried.empty()) {
      buffer = spread(rows, write.capacity, write.rows, lie);
      return;
    }
    if (write.relocates) buffer = spread(*buffer, write.capacity, write.carried, RowsLie::kSideBySide);
    buffer = written(*buffer, rows, write.rows, lie);
  };
  put(keys_, keys);
  put(values_, values);
  layout_.apply(write);
}

History KVCache::append(const KvBuffer& keys, const KvBuffer& values) {
  const int n_tokens = n_rows(keys);
  check_room("update", n_tokens);
  write(layout_.plan(n_tokens), keys, values, RowsLie::kAnyhow);
  return history_of(layout_.seen_by_last(n_tokens));
}

History KVCache::update(const mx::array& keys, const mx::array& values) {
  check_rows(keys, values);
  const int n_tokens = keys.shape(kRowAxis);
  const RowShape shape{keys.shape(0), keys.shape(1), keys.shape(3), values.shape(3), keys.dtype()};
  const std::optional<kernels::SequenceRows> plan = keys_ ? plan_update(n_tokens, shape) : std::nullopt;
  if (!plan) return append(encoded(keys, format_), encoded(values, format_));
  take_update(*plan, kernels::write_rows(plan->buffers, keys, values, plan->runs));
  return {*keys_, *values_, plan->ranges, plan->window, plan->keep};
}

bool KVCache::would_take(const RowShape& shape) const {
  const auto takes = [&](int dim, const std::optional<KvBuffer>& buffer) {
    if (format_.quantization && dim % format_.quantization->group_size != 0) return false;
    return !buffer || (buffer->data.shape(0) == shape.n_sequences && buffer->data.shape(1) == shape.n_heads &&
                       buffer->dim() == dim && (format_.dtype || buffer->dtype() == shape.dtype));
  };
  const bool is_some = shape.n_sequences > 0 && shape.n_heads > 0 && shape.key_dim >= 0 && shape.value_dim >= 0;
  return is_some && kernels::is_float(shape.dtype) && takes(shape.key_dim, keys_) && takes(shape.value_dim, values_);
}

std::optional<kernels::SequenceRows> KVCache::plan_update(int n_tokens, const RowShape& shape) {
  if (!would_take(shape)) return std::nullopt;
  check_room("update", n_tokens);
  const Write write = layout_.plan(n_tokens);
  copy_out_lost(write);
  const auto room = [&](const std::optional<KvBuffer>& buffer, int dim) {
    if (!write.relocates) return *buffer;
    if (write.carried.empty()) return zero_rows(shape, dim, write.capacity, format_);
    return spread(*buffer, write.capacity, write.carried, RowsLie::kSideBySide);
  };
  Layout after = layout_;
  after.apply(write);
  return kernels::SequenceRows{n_tokens,           {room(keys_, shape.key_dim), room(values_, shape.value_dim)},
                               kernel_runs(write), kernel_ranges(after.runs(after.seen_by_last(n_tokens))),
                               options().window,   layout_.keep()};
}

void KVCache::take_update(const kernels::SequenceRows& plan, const kernels::KvBuffers& written) {
  keys_ = written.keys;
  values_ = written.values;
  layout_.apply(layout_.plan(plan.n_tokens));
}

History KVCache::update_quantized(const KvBuffer& keys, const KvBuffer& values) {
  check_encoded(keys, values);
  return append(keys, values);
}

History KVCache::history_of(const Positions& positions) const {
  History history{*keys_, *values_, {}, options().window, layout_.keep()};
  history.ranges = kernel_ranges(layout_.runs(positions));
  return history;
}

std::optional<History> KVCache::view() const {
  const Positions seen = layout_.seen_by_last(1);
  if (seen.is_empty()) return std::nullopt;
  return history_of(seen);
}

Mask KVCache::make_mask(int n_tokens, std::optional<int> window, bool return_array) const {
  if (layout_.rule() == Layout::Rule::kFlat) return create_attention_mask(n_tokens, offset(), window, return_array);
  if (n_tokens < 1 || (window && *window < 1)) {
    refuse("make_mask", std::to_string(n_tokens) + " queries with window " + std::to_string(window.value_or(1)) +
                            ", expected at least 1");
  }
  Layout after = layout_;
  after.apply(layout_.plan(n_tokens));
  const Positions seen = after.seen_by_last(n_tokens);
  const int n_seen = seen.n_rows();
  if (n_tokens == 1 && (!window || n_seen <= *window)) return Mask::none();
  PositionRule rule{window, layout_.keep(), std::nullopt};
  if (layout_.window() > 0) rule.window = std::min(window.value_or(layout_.window()), layout_.window());
  if (layout_.chunk() > 0) rule.chunk = layout_.chunk();
  const bool crosses = rule.chunk && offset() / *rule.chunk != (after.offset() - 1) / *rule.chunk;
  const bool hides = crosses || (rule.window && n_seen > *rule.window);
  if (!hides && !return_array) return Mask::causal();
  std::vector<int> positions;
  for (int p = 0; p < seen.n_kept; ++p) positions.push_back(p);
  for (int p = seen.first; p < seen.end; ++p) positions.push_back(p);
  return Mask::of(position_mask(positions, n_tokens, rule));
}

// ---- Snapshots

void KVCache::copy_out(const std::vector<KVSnapshot*>& snapshots) const {
  if (snapshots.empty()) return;
  std::vector<std::pair<KvBuffer, KvBuffer>> rows;
  std::vector<mx::array> arrays;
  for (const KVSnapshot* snapshot : snapshots) {
    const std::vector<StoredRun> runs = layout_.runs(snapshot->held());
    rows.emplace_back(taken_out(*keys_, runs), taken_out(*values_, runs));
    for (mx::array& a : arrays_of(rows.back().first, rows.back().second)) arrays.push_back(std::move(a));
  }
  // Waits: a copy under way would hold the buffers, and the next write would copy the whole of them.
  mx::eval(std::move(arrays));
  const std::vector<KVSnapshot*> copied = snapshots;  // may be lazy_ itself
  std::erase_if(lazy_, [&](KVSnapshot* one) { return std::find(copied.begin(), copied.end(), one) != copied.end(); });
  for (std::size_t i = 0; i < copied.size(); ++i) copied[i]->own(std::move(rows[i].first), std::move(rows[i].second));
  if (!snapshot_copied_) return;
  for (const KVSnapshot* snapshot : copied) snapshot_copied_(*snapshot);
}

void KVCache::copy_out_lost(const Write& write) const {
  std::vector<KVSnapshot*> lost;
  for (KVSnapshot* snapshot : lazy_) {
    if (!layout_.survives(snapshot->held(), write)) lost.push_back(snapshot);
  }
  copy_out(lost);
}

const KVSnapshot& KVCache::checked(const Snapshot& snapshot, const char* function) const {
  const auto* kv = dynamic_cast<const KVSnapshot*>(&snapshot);
  const bool is_ours = kv && same_rule(kv->layout(), layout_) && is_in_format(kv->like_keys());
  if (!is_ours) {
    refuse(function, "the snapshot is of another kind, expected one of a " + std::string(kind()) +
                         (layout_.window() > 0 ? " with window " + std::to_string(layout_.window()) + ", keep " +
                                                     std::to_string(layout_.keep())
                                               : "") +
                         (layout_.chunk() > 0 ? " with chunk " + std::to_string(layout_.chunk()) : ""));
  }
  return *kv;
}

std::unique_ptr<Snapshot> KVCache::snapshot(int from) const {
  const int begin = std::max(0, from);
  if (begin >= offset() || !keys_) return nullptr;
  return std::make_unique<KVSnapshot>(*this, begin, layout_.held_by_snapshot(begin));
}

std::unique_ptr<Snapshot> KVCache::snapshot_at(int at) const {
  if (at < 1 || at > offset() || !keys_) return nullptr;
  const Positions held = layout_.held_at(at);
  if (!layout_.reaches(held, at)) return nullptr;
  return std::make_unique<KVSnapshot>(*this, 0, held);
}

// The rows are in the buffers, the offset goes there.
bool KVCache::restore_lazy(const KVSnapshot& snapshot, int target) {
  const bool is_flat = layout_.rule() == Layout::Rule::kFlat;
  layout_.reclaim(is_flat ? Positions{0, 0, target} : Layout::cut(snapshot.held(), target));
  return true;
}

bool KVCache::restore(const Snapshot* snapshot, int target) {
  if (!snapshot) return can_rewind(target) && layout_.rewind(target);
  check_no_transaction("restore");
  const KVSnapshot& kv = checked(*snapshot, "restore");
  const bool is_flat = layout_.rule() == Layout::Rule::kFlat;
  if (keys_ && !(fits(kv.like_keys(), *keys_) && fits(kv.like_values(), *values_))) {
    refuse("restore", "the snapshot is " + span_text(kv) + ", expected keys " + rows_text(*keys_) + ", values " +
                          rows_text(*values_));
  }
  if (target < 0 || target > kv.to()) return false;
  if (is_flat ? offset() < kv.from() : !layout_.reaches(kv.held(), target)) return false;
  if (is_flat && target <= kv.from()) return layout_.rewind(target);
  if (kv.owner() == this) return restore_lazy(kv, target);
  const Positions wanted = Layout::cut(kv.held(), target);
  if (target == 0) return layout_.rewind(0);
  write(layout_.plan_restore(wanted), kv.keys(), kv.values(), kv.is_lazy() ? RowsLie::kAnyhow : RowsLie::kSideBySide);
  if (kv.owner()) materialize();  // else the owner's next write would have to copy its buffers
  return true;
}

bool KVCache::restore_chain(const std::vector<const KVSnapshot*>& snapshots, int target, int n_rows) {
  check_no_transaction("restore");
  if (n_rows > Layout::kMaxRows) refuse("restore", std::to_string(n_rows) + " rows, expected at most 2^30");
  if (layout_.rule() != Layout::Rule::kFlat || offset() > 0 || target < 1) return false;
  int end = 0;
  std::vector<KvBuffer> keys;
  std::vector<KvBuffer> values;
  for (const KVSnapshot* const snapshot : snapshots) {
    if (!snapshot) refuse("restore", "a snapshot is null");
    const KVSnapshot& kv = checked(*snapshot, "restore");
    if (kv.from() != end) return false;
    if (!keys.empty() && !(fits(kv.like_keys(), keys.front()) && fits(kv.like_values(), values.front()))) {
      refuse("restore", "the snapshot is " + span_text(kv) + ", expected keys " + rows_text(keys.front()) +
                            ", values " + rows_text(values.front()));
    }
    keys.push_back(kv.keys());
    values.push_back(kv.values());
    end = kv.to();
    if (end >= target) break;
  }
  if (end < target) return false;
  free();
  Write write = layout_.plan_restore({0, 0, target});
  const int n_steps = (std::max(n_rows, target) + Layout::kStep - 1) / Layout::kStep;
  write.capacity = std::max(write.capacity, n_steps * Layout::kStep);
  keys_ = stacked(keys, target, write.capacity);
  values_ = stacked(values, target, write.capacity);
  layout_.apply(write);
  return true;
}

std::unique_ptr<Snapshot> KVCache::merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const {
  if (!parent || !child) return nullptr;
  const KVSnapshot& first = checked(*parent, "merge");
  const KVSnapshot& second = checked(*child, "merge");
  if (first.to() != second.from() || !fits(second.like_keys(), first.like_keys()) ||
      !fits(second.like_values(), first.like_values())) {
    refuse("merge", "the parent is " + span_text(first) + ", the child " + span_text(second) +
                        ": expected them to meet and to fit");
  }
  const bool is_flat = layout_.rule() == Layout::Rule::kFlat;
  const Positions held = is_flat ? Positions{0, first.from(), second.to()} : second.held();
  if (is_flat ? first.owner() && first.owner() == second.owner() : second.is_lazy()) {
    return std::make_unique<KVSnapshot>(*second.owner(), first.from(), held);
  }
  if (!is_flat) return owned(second, first.from(), held, second.keys(), second.values());
  auto whole =
      owned(second, first.from(), held, joined(first.keys(), second.keys()), joined(first.values(), second.values()));
  if (first.owner() || second.owner()) mx::eval(arrays_of(whole->keys(), whole->values()));  // as in restore
  return whole;
}

SnapshotPair KVCache::split(std::unique_ptr<Snapshot> snapshot, int at) const {
  if (!snapshot) return {};
  const KVSnapshot& kv = checked(*snapshot, "split");
  if (at <= kv.from()) return {nullptr, std::move(snapshot)};
  if (at >= kv.to()) return {std::move(snapshot), nullptr};
  const bool is_flat = layout_.rule() == Layout::Rule::kFlat;
  if (!is_flat && !layout_.reaches(kv.held(), at)) return {nullptr, std::move(snapshot)};
  const Positions before = Layout::cut(kv.held(), at);
  const Positions after = is_flat ? Positions{0, at, kv.to()} : kv.held();
  if (kv.is_lazy()) {
    return {std::make_unique<KVSnapshot>(*kv.owner(), kv.from(), before),
            std::make_unique<KVSnapshot>(*kv.owner(), at, after)};
  }
  const auto part = [&](int from, const Positions& held, int begin_row) {
    const std::vector<StoredRun> runs = {{0, begin_row, held.n_rows()}};
    return owned(kv, from, held, taken_out(kv.keys(), runs), taken_out(kv.values(), runs));
  };
  if (is_flat) return {part(kv.from(), before, 0), part(at, after, before.n_rows())};
  return {part(kv.from(), before, 0), owned(kv, at, after, kv.keys(), kv.values())};
}

int KVCache::trim(int n_tokens) {
  if (n_tokens < 0) refuse("trim", "n_tokens is " + std::to_string(n_tokens) + ", expected at least 0");
  const int n_dropped = std::min(n_tokens, offset());
  return restore(nullptr, offset() - n_dropped) ? n_dropped : 0;
}

std::unique_ptr<AttentionCache> KVCache::to_quantized(const KVQuantization& quantization) const {
  if (format_.quantization) return nullptr;
  KVOptions options = this->options();
  options.quantization = quantization;
  auto other = std::make_unique<KVCache>(options);
  other->snapshot_copied_ = snapshot_copied_;
  if (keys_) other->check_rows(keys_->data, values_->data);
  other->layout_ = layout_;
  if (!keys_) return other;
  other->keys_ = encoded(keys_->data, other->format_);
  other->values_ = encoded(values_->data, other->format_);
  return other;
}

std::string_view KVCache::unfit_for_transaction(int n_max) const {
  return layout_.rule() == Layout::Rule::kFlat || n_max <= Layout::kSlack ? std::string_view() : kind();
}

// An index move. A cache that had no rows lets go of its buffers, so that any shape may come next; not if a snapshot
// still has its rows there, whose copy could fail.
LayerCache::Held KVCache::keep_first(int n) {
  const int target = transaction_->begin + n;
  if (n == 0 && began_without_rows_ && lazy_.empty()) {
    layout_.clear();
    keys_.reset();
    values_.reset();
    layout_.reclaim({0, target, target});
    return nullptr;
  }
  layout_.rewind(target);
  return nullptr;
}

std::unique_ptr<KVCache> make_kv_cache(const KVOptions& options) {
  return std::make_unique<KVCache>(options);
}

}  // namespace memoir::cache
