#include "memoir/kernels/row_move.h"

#include <mlx/ops.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/device.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

void check_moves(const mx::array& a, int axis, const std::vector<RowMove>& moves) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("[kernels.move_rows] " + what); };
  if (axis < 0 || axis >= static_cast<int>(a.ndim())) {
    refuse("axis is " + std::to_string(axis) + " of " + shape_text(a) + ", expected one of its axes");
  }
  const int n_rows = a.shape(axis);
  std::vector<std::pair<int, int>> touched;  // [begin, end)
  for (const RowMove& move : moves) {
    for (const int begin : {move.from_row, move.to_row}) {
      if (move.n_rows < 1 || begin < 0 || begin > n_rows - move.n_rows) {
        refuse("a run has " + std::to_string(move.n_rows) + " rows at row " + std::to_string(begin) +
               ", expected it inside the " + std::to_string(n_rows) + " rows");
      }
      touched.emplace_back(begin, begin + move.n_rows);
    }
  }
  std::sort(touched.begin(), touched.end());
  for (std::size_t i = 1; i < touched.size(); ++i) {
    if (touched[i].first < touched[i - 1].second) {
      refuse("row " + std::to_string(touched[i].first) + " is in two runs, expected each in one at most");
    }
  }
}

class RowMovePrimitive : public CpuPrimitive {
 public:
  RowMovePrimitive(mx::Stream stream, int axis, std::vector<RowMove> moves)
      : CpuPrimitive(stream), axis_(axis), moves_(std::move(moves)) {}
  DEFINE_NAME(RowMove)

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    take_over(inputs, outputs);
    mx::array& a = outputs[0];
    if (a.size() == 0) return;
    cpu::RowMoveArgs args{};
    args.data = reinterpret_cast<std::byte*>(a.data<std::uint8_t>());
    args.n_blocks = 1;
    for (int i = 0; i < axis_; ++i) args.n_blocks *= a.shape(i);
    args.row_bytes = static_cast<std::ptrdiff_t>(a.itemsize());
    for (int i = axis_ + 1; i < static_cast<int>(a.ndim()); ++i) args.row_bytes *= a.shape(i);
    args.block_bytes = args.row_bytes * a.shape(axis_);
    queue([args, moves = moves_]() mutable {
      args.moves = moves;
      cpu::move_rows(args);
    });
  }

 private:
  int axis_;
  std::vector<RowMove> moves_;
};

}  // namespace

mx::array move_rows(mx::array a, int axis, const std::vector<RowMove>& moves) {
  check_moves(a, axis, moves);
  if (moves.empty()) return a;
  if (on_cpu()) {
    const mx::Shape shape = a.shape();
    const mx::Dtype dtype = a.dtype();
    std::vector<mx::array> inputs;
    inputs.push_back(std::move(a));
    return mx::array(shape, dtype, std::make_shared<RowMovePrimitive>(cpu_stream(), axis, moves), std::move(inputs));
  }
  std::vector<int> sources(static_cast<std::size_t>(a.shape(axis)));
  std::iota(sources.begin(), sources.end(), 0);
  for (const RowMove& move : moves) {
    std::iota(sources.begin() + move.to_row, sources.begin() + move.to_row + move.n_rows, move.from_row);
  }
  return mx::take(a, mx::array(sources.data(), {a.shape(axis)}, mx::int32), axis);
}

}  // namespace memoir::kernels
