#include "memoir/kernels/experts.h"

#include <mlx/ops.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/kernels/cpu/experts.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.mix_experts] " + what);
}

void check_layer(const char* name, const WeightStack& layer, const WeightStack& wanted,
                 const std::optional<mx::array>& biases) {
  if (layer.n != wanted.n || layer.rows != wanted.rows || layer.columns != wanted.columns) {
    refuse(std::string(name) + " are " + std::to_string(layer.n) + " of (" + std::to_string(layer.rows) + "," +
           std::to_string(layer.columns) + "), expected " + std::to_string(wanted.n) + " of (" +
           std::to_string(wanted.rows) + "," + std::to_string(wanted.columns) + ")");
  }
  if (biases && biases->shape() != mx::Shape{layer.n, layer.rows}) {
    refuse(std::string(name) + " have biases of shape " + shape_text(*biases) + ", expected (" +
           std::to_string(layer.n) + "," + std::to_string(layer.rows) + ")");
  }
}

void check_experts(const mx::array& x, const Routes& routes, const Experts& experts,
                   const std::optional<mx::array>& residual) {
  const WeightStack& gates = experts.gates;
  if (x.ndim() < 1 || x.size() == 0 || x.shape(-1) != gates.columns) {
    refuse("x has shape " + shape_text(x) + ", expected (...," + std::to_string(gates.columns) + ")");
  }
  WeightStack wanted = gates;
  check_layer("gates", gates, wanted, experts.gate_biases);
  check_layer("ups", experts.ups, wanted, experts.up_biases);
  std::swap(wanted.rows, wanted.columns);
  check_layer("down", experts.down, wanted, experts.down_biases);
  mx::Shape shape = x.shape();
  shape.back() = routes.experts.ndim() > 0 ? routes.experts.shape(-1) : 0;
  if (routes.experts.shape() != shape || routes.weights.shape() != shape || shape.back() == 0 ||
      routes.experts.dtype() != mx::int32) {
    refuse("routes have shapes " + shape_text(routes.experts) + " and " + shape_text(routes.weights) +
           ", expected (...,k) of int32 and float32 for x " + shape_text(x));
  }
  if (residual && residual->shape() != x.shape()) {
    refuse("residual has shape " + shape_text(*residual) + ", expected that of x " + shape_text(x));
  }
}

class ExpertsPrimitive : public CpuPrimitive {
 public:
  ExpertsPrimitive(mx::Stream stream, const Experts& experts, bool has_residual)
      : CpuPrimitive(stream),
        layers_{Layer(experts.gates, experts.gate_biases.has_value()),
                Layer(experts.ups, experts.up_biases.has_value()),
                Layer(experts.down, experts.down_biases.has_value())},
        n_experts_(experts.gates.n),
        gate_(experts.gate),
        clamped_gate_(experts.clamped_gate),
        weighs_inputs_(experts.weighs_inputs),
        has_residual_(has_residual) {}
  DEFINE_NAME(MixExperts)

  // inputs: x, experts, weights, each layer's matrices and biases, residual; the last two only where there are any.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    const mx::array& x = next();
    const mx::array& chosen = next();
    cpu::ExpertsArgs args;
    args.n_rows = static_cast<int>(x.size() / static_cast<std::size_t>(x.shape(-1)));
    args.n_experts = n_experts_;
    args.n_chosen = chosen.shape(-1);
    args.x = floats_of(x);
    args.experts = static_cast<const std::int32_t*>(rows_of(chosen, true).data);
    args.weights = floats_of(next());
    args.gates = read(layers_[0], next);
    args.ups = read(layers_[1], next);
    args.down = read(layers_[2], next);
    args.gate = gate_;
    args.weighs_inputs = weighs_inputs_;
    const std::size_t n_routes = chosen.size();
    const std::size_t n_inner = n_routes * static_cast<std::size_t>(args.gates.format.n_rows);
    args.gathered = temporary(n_routes * static_cast<std::size_t>(x.shape(-1)));
    args.inner = temporary(n_inner);
    args.inner_ups = temporary(n_inner);
    if (has_residual_) args.residual = floats_of(next());
    args.y = allocate(outputs[0]);
    queue([args, clamped = clamped_gate_]() mutable {
      args.clamped = clamped ? &*clamped : nullptr;
      cpu::mix_experts(args);
    });
  }

 private:
  struct Layer {
    Layer(const WeightStack& stack, bool biases)
        : format(*stack.packed), stride_bytes(stack.stride_bytes()), has_biases(biases) {}

    cpu::PackedFormat format;
    std::size_t stride_bytes;
    bool has_biases;
  };

  cpu::ExpertLayer read(const Layer& layer, ArrayReader& next) {
    cpu::ExpertLayer args{layer.format, packed_bytes(next()), layer.stride_bytes, nullptr};
    if (layer.has_biases) args.biases = floats_of(next());
    return args;
  }

  std::array<Layer, 3> layers_;
  int n_experts_;
  Gate gate_;
  std::optional<ClampedGate> clamped_gate_;
  bool weighs_inputs_;
  bool has_residual_;
};

mx::array packed_experts(const mx::array& x, const Routes& routes, const Experts& experts,
                         const std::optional<mx::array>& residual) {
  std::vector<mx::array> inputs = {as_float(x), routes.experts, as_float(routes.weights)};
  const auto append = [&](const WeightStack& stack, const std::optional<mx::array>& biases) {
    inputs.push_back(stack.data);
    if (biases) inputs.push_back(as_float(*biases));
  };
  append(experts.gates, experts.gate_biases);
  append(experts.ups, experts.up_biases);
  append(experts.down, experts.down_biases);
  if (residual) inputs.push_back(as_float(*residual));
  const mx::array y(x.shape(), mx::float32,
                    std::make_shared<ExpertsPrimitive>(cpu_stream(), experts, residual.has_value()), std::move(inputs));
  return mx::astype(y, x.dtype(), cpu_stream());
}

// x: [R, k or 1, 1, columns]. Returns [R, k, 1, rows].
mx::array gathered_linear(const mx::array& x, const WeightStack& layer, const std::optional<mx::array>& biases,
                          const mx::array& experts) {
  mx::array y = [&] {
    if (!layer.quantization) {
      const mx::array w = mx::swapaxes(mx::astype(layer.data, x.dtype()), 1, 2);
      return mx::gather_mm(x, w, std::nullopt, experts);
    }
    const Quantization& q = *layer.quantization;
    return mx::gather_qmm(x, layer.data, mx::astype(q.scales, x.dtype()), mx::astype(q.biases, x.dtype()), std::nullopt,
                          experts, /* transpose = */ true, q.group_size, q.bits);
  }();
  if (!biases) return y;
  return mx::add(y, mx::expand_dims(mx::astype(mx::take(*biases, experts, 0), x.dtype()), 2));
}

mx::array clamped_product(const mx::array& gates, const mx::array& ups, const ClampedGate& gate) {
  const auto scalar = [&](float value) { return mx::astype(mx::array(value), gates.dtype()); };
  const mx::array g = mx::minimum(gates, scalar(gate.limit));
  const mx::array u = mx::clip(ups, scalar(-gate.limit), scalar(gate.limit));
  return mx::multiply(mx::multiply(g, mx::sigmoid(mx::multiply(scalar(gate.alpha), g))), mx::add(u, scalar(1)));
}

mx::array composed_experts(const mx::array& x, const Routes& routes, const Experts& experts) {
  const int k = routes.experts.shape(-1);
  const int n_rows = static_cast<int>(routes.experts.size()) / k;
  const mx::array chosen = mx::reshape(routes.experts, {n_rows, k});
  const mx::array weights = mx::astype(mx::reshape(routes.weights, {n_rows, k, 1, 1}), x.dtype());
  mx::array in = mx::reshape(x, {n_rows, 1, 1, x.shape(-1)});
  if (experts.weighs_inputs) in = mx::multiply(in, weights);
  const mx::array gates = gathered_linear(in, experts.gates, experts.gate_biases, chosen);
  const mx::array ups = gathered_linear(in, experts.ups, experts.up_biases, chosen);
  const mx::array inner = experts.clamped_gate ? clamped_product(gates, ups, *experts.clamped_gate)
                                               : gate_product(gates, ups, experts.gate);
  mx::array y = gathered_linear(inner, experts.down, experts.down_biases, chosen);
  if (!experts.weighs_inputs) y = mx::multiply(y, weights);
  return mx::reshape(mx::sum(y, 1), x.shape());
}

}  // namespace

std::size_t Experts::size_bytes() const {
  std::size_t n_bytes = gates.size_bytes() + ups.size_bytes() + down.size_bytes();
  for (const auto* biases : {&gate_biases, &up_biases, &down_biases}) {
    if (*biases) n_bytes += (*biases)->nbytes();
  }
  return n_bytes;
}

mx::array mix_experts(const mx::array& x, const Routes& routes, const Experts& experts,
                      const std::optional<mx::array>& residual) {
  check_experts(x, routes, experts, residual);
  if (experts.gates.packed && experts.ups.packed && experts.down.packed) {
    return packed_experts(x, routes, experts, residual);
  }
  const mx::array y = composed_experts(x, routes, experts);
  return residual ? mx::add(y, *residual) : y;
}

}  // namespace memoir::kernels
