#include "memoir/cache/cell_cache.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "memoir/kernels/kv_write.h"
#include "memoir/kernels/row_move.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::dtype_text;
using kernels::KvBuffer;
using kernels::shape_text;

constexpr int kRowAxis = 2;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cell_cache.") + function + "] " + what);
}

// The runs of a pass's rows, which are in their order.
std::vector<kernels::RowRun> kernel_runs(const std::vector<RowRun>& rows) {
  std::vector<kernels::RowRun> runs;
  for (const RowRun& run : rows) runs.push_back({run.to_row, run.n_rows});
  return runs;
}

std::vector<kernels::KvRange> ranges_of(const std::vector<StoredRun>& runs) {
  std::vector<kernels::KvRange> ranges;
  for (const StoredRun& run : runs) ranges.push_back({run.first_position, run.begin_row, run.n_rows});
  return ranges;
}

// Where rows that come one after the other go.
std::vector<RowRun> rows_to(const std::vector<StoredRun>& runs) {
  std::vector<RowRun> rows;
  int from = 0;
  for (const StoredRun& run : runs) {
    rows.push_back({from, run.begin_row, run.n_rows});
    from += run.n_rows;
  }
  return rows;
}

KvBuffer transposed(const KvBuffer& buffer) {
  return {mx::swapaxes(buffer.data, 2, 3)};
}

// The runs of positions from `begin` on.
std::vector<StoredRun> runs_from(const Cells& cells, int sequence, int begin) {
  std::vector<StoredRun> runs;
  for (const StoredRun& run : cells.runs(sequence)) {
    const int n_before = std::max(0, begin - run.first_position);
    if (n_before < run.n_rows) {
      runs.push_back({run.first_position + n_before, run.begin_row + n_before, run.n_rows - n_before});
    }
  }
  return runs;
}

}  // namespace

CellCache::CellCache(const CellCacheOptions& options) : options_(options), cells_(options.cells) {
  check_format(format());
  layout();  // may be out of its range
  if (options.transposes_values && options.quantization) {
    refuse("CellCache", "values are to be transposed and quantized, expected one of both at most");
  }
}

std::size_t CellCache::size_bytes() const {
  std::size_t n_bytes = 0;
  for (const auto& [layer, one] : layers_) n_bytes += one.keys.size_bytes() + one.values.size_bytes();
  return n_bytes;
}

void CellCache::materialize() const {
  std::vector<mx::array> arrays;
  for (const auto& [layer, one] : layers_) {
    for (mx::array& a : kernels::arrays_of(one.keys, one.values)) arrays.push_back(std::move(a));
  }
  mx::eval(std::move(arrays));
}

Layout CellCache::layout() const {
  const CellsOptions& options = options_.cells;
  if (options.window) return Layout::ring(*options.window, options.keep);
  return options.chunk ? Layout::chunk(*options.chunk) : Layout::flat();
}

// ---- A pass

bool CellCache::begin(const CellBatch& batch) {
  std::optional<CellPlace> place = cells_.place(batch);
  if (!place) return false;
  move(place->moves);
  pass_ = Pass{batch, std::move(*place), false, {}};
  return true;
}

void CellCache::begin_reserving(int n_rows) {
  if (n_rows < 1 || n_rows > options_.cells.max_batch) {
    refuse("begin_reserving",
           std::to_string(n_rows) + " rows, expected 1 to " + std::to_string(options_.cells.max_batch));
  }
  const auto n = static_cast<std::size_t>(n_rows);
  pass_ = Pass{{std::vector<int>(n, 0), std::vector<int>(n, 0)}, {}, true, {}};
}

const CellCache::Pass& CellCache::pass(const char* function) const {
  if (!pass_) refuse(function, "no pass has begun");
  return *pass_;
}

const CellCache::Buffers& CellCache::buffers(const char* function, std::size_t layer) const {
  const auto found = layers_.find(layer);
  if (found == layers_.end()) refuse(function, "layer " + std::to_string(layer) + " has no rows");
  return found->second;
}

void CellCache::set_uncausal(std::vector<int> rows) {
  const int n_rows = pass("set_uncausal").batch.n_rows();
  for (const int row : rows) {
    if (row >= 0 && row < n_rows) continue;
    refuse("set_uncausal", "row " + std::to_string(row) + " of a batch of " + std::to_string(n_rows));
  }
  pass_->uncausal = std::move(rows);
}

void CellCache::check_rows(std::size_t layer, const mx::array& keys, const mx::array& values, int n_rows) const {
  const auto found = layers_.find(layer);
  const auto check = [&](const char* name, const mx::array& rows, const KvBuffer* buffer) {
    const std::string what = std::string(name) + " of layer " + std::to_string(layer) + " have shape " +
                             shape_text(rows) + " " + dtype_text(rows.dtype());
    if (rows.ndim() != 4 || rows.shape(0) != 1 || rows.shape(1) < 1 || rows.shape(kRowAxis) != n_rows ||
        !kernels::is_float(rows.dtype())) {
      refuse("put", what + ", expected (1,H," + std::to_string(n_rows) + ",D) float32, float16 or bfloat16");
    }
    if (options_.quantization && rows.shape(3) % options_.quantization->group_size != 0) {
      refuse("put", what + ", expected rows of a multiple of " + std::to_string(options_.quantization->group_size) +
                        ", the group size");
    }
    if (buffer && (rows.shape(1) != buffer->data.shape(1) || rows.shape(3) != buffer->dim() ||
                   (!options_.dtype && rows.dtype() != buffer->dtype()))) {
      refuse("put", what + ", expected " + rows_text(*buffer));
    }
  };
  const bool is_known = found != layers_.end();
  const std::optional<KvBuffer> value_buffer = is_known ? std::optional(value_rows(found->second)) : std::nullopt;
  check("keys", keys, is_known ? &found->second.keys : nullptr);
  check("values", values, value_buffer ? &*value_buffer : nullptr);
  if (keys.shape(1) != values.shape(1)) {
    refuse("put",
           "keys have shape " + shape_text(keys) + ", values " + shape_text(values) + ": expected as many heads");
  }
}

// The layer's buffers; for rows like these, if it has none yet.
CellCache::Buffers& CellCache::buffers_like(std::size_t layer, const KvBuffer& keys, const KvBuffer& values) {
  const auto found = layers_.find(layer);
  if (found != layers_.end()) return found->second;
  const auto empty = [this](const KvBuffer& rows) { return spread(rows, cells_.n_cells(), {}, RowsLie::kAnyhow); };
  KvBuffer value_buffer = empty(values);
  if (options_.transposes_values) value_buffer = {mx::contiguous(transposed(value_buffer).data)};
  return layers_.emplace(layer, Buffers{empty(keys), std::move(value_buffer)}).first->second;
}

KvBuffer CellCache::value_rows(const Buffers& buffers) const {
  return options_.transposes_values ? transposed(buffers.values) : buffers.values;
}

// The buffer of values with runs of rows written into it.
KvBuffer CellCache::with_values(const KvBuffer& buffer, const KvBuffer& rows, const std::vector<RowRun>& runs) const {
  if (!options_.transposes_values) return written(buffer, rows, runs, RowsLie::kAnyhow);
  const mx::array columns = transposed(rows).data;
  mx::array result = buffer.data;
  for (const RowRun& run : runs) {
    const auto part = [&](int begin) {
      return std::pair(mx::Shape{0, 0, 0, begin}, mx::Shape{1, result.shape(1), result.shape(2), begin + run.n_rows});
    };
    const auto [from, from_end] = part(run.from_row);
    const auto [to, to_end] = part(run.to_row);
    result = mx::slice_update(result, mx::slice(columns, from, from_end), to, to_end);
  }
  return {result};
}

void CellCache::put(std::size_t layer, const mx::array& keys, const mx::array& values) {
  const Pass& pass = this->pass("put");
  check_rows(layer, keys, values, pass.batch.n_rows());
  Buffers& buffers = buffers_like(layer, encoded(keys, format()), encoded(values, format()));
  if (pass.is_reserving) return;
  if (options_.transposes_values) {
    buffers.keys = written(buffers.keys, encoded(keys, format()), pass.place.rows, RowsLie::kAnyhow);
    buffers.values = with_values(buffers.values, encoded(values, format()), pass.place.rows);
    return;
  }
  kernels::KvBuffers written =
      kernels::write_rows({buffers.keys, buffers.values}, keys, values, kernel_runs(pass.place.rows));
  buffers.keys = std::move(written.keys);
  buffers.values = std::move(written.values);
}

CellSpan CellCache::seen() const {
  return pass_->is_reserving ? CellSpan{0, cells_.n_cells()} : cells_.seen(pass_->batch);
}

CellRows CellCache::get(std::size_t layer) const {
  pass("get");
  const Buffers& buffers = this->buffers("get", layer);
  const CellSpan span = seen();
  const std::vector<kernels::KvRange> ranges = {{0, span.begin, span.end - span.begin}};
  return {buffers.keys.rows(ranges), value_rows(buffers).rows(ranges)};
}

mx::array CellCache::mask() const {
  const Pass& pass = this->pass("mask");
  const CellSpan span = seen();
  const int n_columns = span.end - span.begin;
  std::vector<std::uint8_t> bits = cells_.mask(pass.batch, span, pass.uncausal);
  if (pass.is_reserving) std::fill(bits.begin(), bits.end(), std::uint8_t{0});
  const int n_rows = static_cast<int>(bits.size()) / n_columns;
  return mx::astype(mx::array(bits.data(), {1, 1, n_rows, n_columns}, mx::uint8), mx::bool_);
}

mx::array CellCache::mask(mx::Dtype dtype) const {
  const mx::array hidden = mx::astype(mx::array(-std::numeric_limits<float>::infinity()), dtype);
  return mx::where(mask(), mx::zeros_like(hidden), hidden);
}

std::vector<kernels::SequenceHistory> CellCache::histories(std::size_t layer) const {
  const CellBatch& batch = pass("histories").batch;
  const Buffers& buffers = this->buffers("histories", layer);
  std::vector<kernels::SequenceHistory> result;
  const auto n_rows = static_cast<std::size_t>(batch.n_rows());
  for (std::size_t begin = 0, end = 0; begin < n_rows; begin = end) {
    const int number = batch.sequences[begin];
    for (++end; end < n_rows && batch.sequences[end] == number; ++end) {
      if (batch.positions[end] == batch.positions[end - 1] + 1) continue;
      refuse("histories", "sequence " + std::to_string(number) + " has rows at positions " +
                              std::to_string(batch.positions[end - 1]) + " and " +
                              std::to_string(batch.positions[end]) + ", expected them to follow each other");
    }
    kernels::History history{buffers.keys, value_rows(buffers), {}, options_.cells.window, options_.cells.keep};
    const int first = cells_.first_seen(batch.positions[begin]);
    history.ranges = ranges_of(cells_.runs(number, first, batch.positions[end - 1] + 1));
    result.push_back({static_cast<int>(end - begin), std::move(history)});
  }
  return result;
}

// ---- Sequences

void CellCache::move(const std::vector<RowRun>& moves) {
  if (moves.empty()) return;
  std::vector<kernels::RowMove> kernel_moves;
  for (const RowRun& move : moves) kernel_moves.push_back({move.from_row, move.to_row, move.n_rows});
  const auto move_rows = [&](mx::array& a, int axis) {
    mx::array taken = std::move(a);
    a = kernels::move_rows(std::move(taken), axis, kernel_moves);
  };
  for (auto& [layer, one] : layers_) {
    for (KvBuffer* buffer : {&one.keys, &one.values}) {
      const bool is_transposed = buffer == &one.values && options_.transposes_values;
      move_rows(buffer->data, is_transposed ? 3 : kRowAxis);
      if (!buffer->quantization) continue;
      move_rows(buffer->quantization->scales, kRowAxis);
      move_rows(buffer->quantization->biases, kRowAxis);
    }
  }
}

void CellCache::copy_prefix(int from, int to, int end) {
  cells_.copy_prefix(from, to, end);
  const auto is_in = [to](const Pass& pass) {
    return std::find(pass.batch.sequences.begin(), pass.batch.sequences.end(), to) != pass.batch.sequences.end();
  };
  if (pass_ && is_in(*pass_)) pass_.reset();
}

int CellCache::defragment(int max_moves) {
  const std::vector<RowRun> moves = cells_.defragment(max_moves);
  move(moves);
  pass_.reset();
  return static_cast<int>(moves.size());
}

Removal CellCache::check_removal(int sequence, int begin, std::optional<int> end) const {
  const Removal result = cells_.check_removal(sequence, begin, end);
  const bool shifts = end && *end > begin && *end < cells_.end(sequence);
  return result == Removal::kDone && shifts && !options_.turn ? Removal::kNoTurn : result;
}

CellCache::TurnedKeys CellCache::turned_keys(int sequence, int begin, std::optional<int> end) const {
  TurnedKeys result;
  if (begin < 0 || !end || *end <= begin || *end >= cells_.end(sequence) || !options_.turn) return result;
  const std::vector<kernels::KvRange> ranges = ranges_of(runs_from(cells_, sequence, *end));
  std::vector<mx::array> arrays;
  for (const auto& [layer, one] : layers_) {
    const mx::array keys = one.keys.rows(ranges);
    const mx::array turned = options_.turn(layer, keys, begin - *end);
    if (turned.shape() != keys.shape()) {
      refuse("remove", "the turned keys of layer " + std::to_string(layer) + " have shape " + shape_text(turned) +
                           ", expected " + shape_text(keys));
    }
    KvBuffer rows = encoded(kernels::rows_as(turned, one.keys.dtype()), format());
    for (mx::array& a : rows.arrays()) arrays.push_back(std::move(a));
    result.emplace(layer, std::move(rows));
  }
  // Now: else they would hold the buffers that they are to be written to.
  mx::eval(std::move(arrays));
  return result;
}

void CellCache::check_turned(int sequence, int begin, std::optional<int> end, const TurnedKeys& turned) const {
  int n_shifted = 0;
  if (end && *end > begin) {
    for (const StoredRun& run : runs_from(cells_, sequence, *end)) n_shifted += run.n_rows;
  }
  const std::size_t n_layers = n_shifted > 0 ? layers_.size() : 0;
  bool are_its = turned.size() == n_layers;
  for (const auto& [layer, keys] : turned) {
    const auto found = layers_.find(layer);
    are_its = are_its && found != layers_.end() && fits(keys, found->second.keys) && n_rows(keys) == n_shifted;
  }
  if (!are_its) {
    refuse("remove", "the turned keys are not the " + std::to_string(n_shifted) + " rows that shift of each of " +
                         std::to_string(n_layers) + " layers");
  }
}

Removal CellCache::remove(int sequence, int begin, std::optional<int> end) {
  const Removal result = check_removal(sequence, begin, end);
  if (result != Removal::kDone) return result;
  return remove(sequence, begin, end, turned_keys(sequence, begin, end));
}

Removal CellCache::remove(int sequence, int begin, std::optional<int> end, const TurnedKeys& turned) {
  const Removal result = check_removal(sequence, begin, end);
  if (result != Removal::kDone) return result;
  check_turned(sequence, begin, end, turned);
  const RemovedCells removed = cells_.remove(sequence, begin, end);
  const std::vector<RowRun> rows = rows_to(removed.shifted);
  for (const auto& [layer, keys] : turned) {
    Buffers& buffers = layers_.at(layer);
    buffers.keys = written(buffers.keys, keys, rows, RowsLie::kAnyhow);
  }
  pass_.reset();
  return result;
}

// ---- Snapshots are in cell_snapshot.cpp

}  // namespace memoir::cache
