#include "memoir/kernels/kv_write.h"

#include <mlx/ops.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/attention_args.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.write_rows] " + what);
}

void check_rows(const char* name, const KvBuffer& buffer, const mx::array& rows) {
  if (rows.ndim() != 4 || rows.shape(0) != buffer.data.shape(0) || rows.shape(1) != buffer.data.shape(1) ||
      rows.shape(3) != buffer.dim() || !mx::issubdtype(rows.dtype(), mx::floating)) {
    refuse(std::string(name) + " has shape " + shape_text(rows) + " " + dtype_text(rows.dtype()) + ", expected (" +
           std::to_string(buffer.data.shape(0)) + "," + std::to_string(buffer.data.shape(1)) + ",T," +
           std::to_string(buffer.dim()) + ") of a floating type");
  }
}

class KvWritePrimitive : public CpuPrimitive {
 public:
  KvWritePrimitive(mx::Stream stream, const KvBuffers& buffers, std::vector<RowRun> runs)
      : CpuPrimitive(stream), keys_(buffers.keys), values_(buffers.values), runs_(std::move(runs)) {}
  DEFINE_NAME(KvWrite)

  // inputs: the arrays of the keys' buffer, of the values', keys, values. outputs: the buffers' arrays.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    take_over(inputs, outputs);
    write(keys_, &outputs[0], inputs[outputs.size()]);
    write(values_, &outputs[keys_.n_arrays()], inputs[outputs.size() + 1]);
  }

 private:
  void write(const KvForm& form, mx::array* buffer, const mx::array& rows) {
    cpu::KvWriteArgs args = write_args(form, buffer);
    args.n_sequences = rows.shape(0);
    args.n_tokens = rows.shape(2);
    const Strided x = rows_of(rows);
    args.x = static_cast<const float*>(x.data);
    args.x_sequence_stride = x.strides[0];
    args.x_head_stride = x.strides[1];
    args.x_row_stride = x.strides[2];
    queue([args, runs = runs_]() mutable {
      args.runs = runs;
      cpu::write_rows(args);
    });
  }

  KvForm keys_;
  KvForm values_;
  std::vector<RowRun> runs_;
};

mx::array with_rows(const mx::array& buffer, const mx::array& rows, const std::vector<RowRun>& runs) {
  mx::array result = buffer;
  int from = 0;
  for (const RowRun& run : runs) {
    const mx::Shape begin{0, 0, from, 0};
    const mx::Shape end{rows.shape(0), rows.shape(1), from + run.n_rows, rows.shape(3)};
    const mx::Shape start{0, 0, run.begin_row, 0};
    const mx::Shape stop{buffer.shape(0), buffer.shape(1), run.begin_row + run.n_rows, buffer.shape(3)};
    result = mx::slice_update(result, mx::slice(rows, begin, end), start, stop);
    from += run.n_rows;
  }
  return result;
}

KvBuffer composed_write(const KvBuffer& buffer, const mx::array& rows, const std::vector<RowRun>& runs) {
  const mx::array cast = rows_as(rows, buffer.dtype());
  if (!buffer.quantization) return {with_rows(buffer.data, cast, runs)};
  const Quantization& q = *buffer.quantization;
  const std::vector<mx::array> parts = mx::quantize(cast, q.group_size, q.bits);
  return {with_rows(buffer.data, parts[0], runs),
          Quantization{with_rows(q.scales, parts[1], runs), with_rows(q.biases, parts[2], runs), q.group_size, q.bits}};
}

}  // namespace

mx::array rows_as(const mx::array& rows, mx::Dtype dtype) {
  if (dtype != mx::float16 || rows.dtype() == mx::float16) return mx::astype(rows, dtype);
  const mx::array largest = mx::astype(mx::array(65504.0F), rows.dtype());
  const mx::array within = mx::clip(rows, mx::negative(largest), largest);
  return mx::astype(mx::where(mx::isfinite(rows), within, rows), dtype);
}

cpu::KvWriteArgs write_args(const KvForm& form, mx::array* arrays) {
  cpu::KvWriteArgs args{};
  args.n_heads = arrays[0].shape(1);
  args.rows.dim = form.dim;
  args.rows.data = arrays[0].data<std::uint8_t>();
  args.rows.row_stride = arrays[0].shape(3);
  args.rows.head_stride = args.rows.row_stride * arrays[0].shape(2);
  args.sequence_stride = args.rows.head_stride * args.n_heads;
  args.rows.element = element_of(arrays[form.bits == 0 ? 0 : 1].dtype());
  if (form.bits == 0) return args;
  args.rows.bits = form.bits;
  args.rows.group_size = form.group_size;
  args.rows.scales = arrays[1].data<std::uint8_t>();
  args.rows.biases = arrays[2].data<std::uint8_t>();
  args.rows.scale_row_stride = arrays[1].shape(3);
  args.rows.scale_head_stride = args.rows.scale_row_stride * arrays[1].shape(2);
  args.scale_sequence_stride = args.rows.scale_head_stride * args.n_heads;
  return args;
}

void check_runs(const char* function, const KvBuffers& buffers, int n_tokens, const std::vector<RowRun>& runs) {
  const auto refuse = [function](const std::string& what) {
    throw std::invalid_argument("[kernels." + std::string(function) + "] " + what);
  };
  const int capacity = buffers.keys.data.shape(2);
  int n_rows = 0;
  for (const RowRun& run : runs) {
    if (run.n_rows < 1 || run.n_rows > n_tokens - n_rows || run.begin_row < 0 ||
        run.begin_row > capacity - run.n_rows) {
      refuse("a run has " + std::to_string(run.n_rows) + " rows from row " + std::to_string(run.begin_row) +
             ", expected at most " + std::to_string(n_tokens - n_rows) + " inside the capacity of " +
             std::to_string(capacity));
    }
    n_rows += run.n_rows;
  }
  if (n_rows != n_tokens) {
    refuse("the runs have " + std::to_string(n_rows) + " rows, expected T = " + std::to_string(n_tokens));
  }
}

KvBuffer with_arrays(const KvBuffer& like, const mx::array* arrays) {
  KvBuffer buffer{arrays[0]};
  if (like.quantization) {
    buffer.quantization = {arrays[1], arrays[2], like.quantization->group_size, like.quantization->bits};
  }
  return buffer;
}

KvBuffers write_rows(KvBuffers buffers, const mx::array& keys, const mx::array& values,
                     const std::vector<RowRun>& runs) {
  check_history("kernels.write_rows", {buffers.keys, buffers.values, {}});
  check_rows("keys", buffers.keys, keys);
  check_rows("values", buffers.values, values);
  if (keys.shape(2) != values.shape(2)) {
    refuse("keys has shape " + shape_text(keys) + ", values " + shape_text(values) + ": expected the same T");
  }
  check_runs("write_rows", buffers, keys.shape(2), runs);
  if (!on_cpu() || !is_float(buffers.keys.dtype()) || !is_float(buffers.values.dtype())) {
    return {composed_write(buffers.keys, keys, runs), composed_write(buffers.values, values, runs)};
  }
  const auto primitive = std::make_shared<KvWritePrimitive>(cpu_stream(), buffers, runs);
  std::vector<mx::array> inputs = arrays_of(buffers.keys, buffers.values);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const mx::array& a : inputs) {
    shapes.push_back(a.shape());
    dtypes.push_back(a.dtype());
  }
  inputs.push_back(as_float(keys));
  inputs.push_back(as_float(values));
  const std::vector<mx::array> written = mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
  return {with_arrays(buffers.keys, &written[0]),
          with_arrays(buffers.values, &written[KvForm(buffers.keys).n_arrays()])};
}

}  // namespace memoir::kernels
