#include "memoir/kernels/mlp.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/mlp_args.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

class GatedMlpPrimitive : public CpuPrimitive {
 public:
  GatedMlpPrimitive(mx::Stream stream, const std::optional<Norm>& norm, const GatedMlp& mlp, bool has_residual)
      : CpuPrimitive(stream), mlp_(mlp), has_residual_(has_residual) {
    if (norm) norm_.emplace(*norm);
  }
  DEFINE_NAME(GatedMlp)

  // inputs: x, norm's arrays, each layer's arrays, residual; each only where there is one.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const auto floats = [this](const mx::array& a) { return floats_of(a); };
    ArrayReader next(inputs);
    const mx::array& x = next();
    std::optional<cpu::NormArgs> norm;
    if (norm_) norm = norm_->read(next, floats);
    cpu::GatedMlpArgs args = mlp_.read(next, floats);
    args.n_rows = static_cast<int>(x.size() / static_cast<std::size_t>(args.gates.format.n_columns));
    args.x = floats_of(x);
    if (norm) args.normed = temporary(x.size());
    const std::size_t n_inner =
        static_cast<std::size_t>(args.n_rows) * static_cast<std::size_t>(args.gates.format.n_rows);
    args.inner = temporary(n_inner);
    args.inner_ups = temporary(n_inner);
    if (has_residual_) args.residual = floats_of(next());
    args.y = allocate(outputs[0]);
    queue([args, norm]() mutable {
      args.norm = norm ? &*norm : nullptr;
      cpu::gated_mlp(args);
    });
  }

 private:
  std::optional<NormReader> norm_;
  GatedMlpReader mlp_;
  bool has_residual_;
};

class GatePrimitive : public CpuPrimitive {
 public:
  GatePrimitive(mx::Stream stream, Gate gate) : CpuPrimitive(stream), gate_(gate) {}
  DEFINE_NAME(Gate)

  // inputs: gates and ups [..., n].
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    cpu::GateArgs args{gate_};
    args.n = inputs[0].shape(-1);
    args.n_rows = static_cast<int>(inputs[0].size() / static_cast<std::size_t>(args.n));
    args.gates = floats_of(inputs[0]);
    args.ups = floats_of(inputs[1]);
    args.out = allocate(outputs[0]);
    queue([args] { cpu::gate_rows(args); });
  }

 private:
  Gate gate_;
};

class CapPrimitive : public CpuPrimitive {
 public:
  CapPrimitive(mx::Stream stream, float cap) : CpuPrimitive(stream), cap_(cap) {}
  DEFINE_NAME(SoftCap)

  // inputs: x [..., n].
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const int n = inputs[0].shape(-1);
    const auto n_rows = static_cast<int>(inputs[0].size() / static_cast<std::size_t>(n));
    const float* x = floats_of(inputs[0]);
    float* out = allocate(outputs[0]);
    queue([cap = cap_, n_rows, n, x, out] { cpu::cap_rows(cap, n_rows, n, x, out); });
  }

 private:
  float cap_;
};

mx::array gated(Gate gate, const mx::array& z) {
  if (gate == Gate::kSilu) return mx::multiply(z, mx::sigmoid(z));
  if (gate == Gate::kSigmoid) return mx::sigmoid(z);
  const auto scalar = [&](float value) { return mx::astype(mx::array(value), z.dtype()); };
  const mx::array cube = mx::multiply(mx::multiply(z, z), z);
  const mx::array inner = mx::multiply(scalar(0.7978845608F), mx::add(z, mx::multiply(scalar(0.044715F), cube)));
  return mx::multiply(mx::multiply(scalar(0.5F), z), mx::add(scalar(1), mx::tanh(inner)));
}

}  // namespace

void check_mlp(const char* function, const mx::array& x, const std::optional<Norm>& norm, const GatedMlp& mlp) {
  check_columns(function, x, mlp.gates);
  check_columns(function, x, mlp.ups);
  if (norm) check_norm(function, *norm, x.shape(-1));
  const int inner = mlp.gates.rows();
  if (mlp.ups.rows() == inner && mlp.down.columns() == inner && mlp.down.rows() == x.shape(-1)) return;
  throw std::invalid_argument("[kernels." + std::string(function) + "] gates has " + std::to_string(inner) +
                              " rows, ups " + std::to_string(mlp.ups.rows()) + ", down (" +
                              std::to_string(mlp.down.rows()) + "," + std::to_string(mlp.down.columns()) +
                              "): expected them to fit x " + shape_text(x));
}

bool is_packed(const GatedMlp& mlp) {
  return mlp.gates.weight.packed && mlp.ups.weight.packed && mlp.down.weight.packed;
}

void append_arrays(const GatedMlp& mlp, std::vector<mx::array>& arrays) {
  for (const Linear* layer : {&mlp.gates, &mlp.ups, &mlp.down}) append_arrays(*layer, arrays);
}

mx::array gate_product(const mx::array& gates, const mx::array& ups, Gate gate) {
  if (gates.ndim() < 1 || gates.shape() != ups.shape() || gates.dtype() != ups.dtype()) {
    throw std::invalid_argument("[kernels.gate_product] gates has shape " + shape_text(gates) + " " +
                                dtype_text(gates.dtype()) + ", ups " + shape_text(ups) + " " + dtype_text(ups.dtype()) +
                                ", expected the same");
  }
  if (!on_cpu() || gates.size() == 0) return mx::multiply(gated(gate, gates), ups);
  const mx::array y(gates.shape(), mx::float32, std::make_shared<GatePrimitive>(cpu_stream(), gate),
                    {as_float(gates), as_float(ups)});
  return mx::astype(y, gates.dtype(), cpu_stream());
}

mx::array soft_cap(const mx::array& x, float cap) {
  if (!on_cpu() || x.size() == 0 || x.ndim() == 0) {
    const mx::array scalar = mx::astype(mx::array(cap), x.dtype());
    return mx::multiply(scalar, mx::tanh(mx::divide(x, scalar)));
  }
  const mx::array y(x.shape(), mx::float32, std::make_shared<CapPrimitive>(cpu_stream(), cap), {as_float(x)});
  return mx::astype(y, x.dtype(), cpu_stream());
}

mx::array gated_mlp(const mx::array& x, const std::optional<Norm>& norm, const GatedMlp& mlp,
                    const std::optional<mx::array>& residual) {
  check_mlp("gated_mlp", x, norm, mlp);
  if (residual && residual->shape() != x.shape()) {
    throw std::invalid_argument("[kernels.gated_mlp] residual has shape " + shape_text(*residual) +
                                ", expected that of x " + shape_text(x));
  }
  if (!is_packed(mlp)) {
    const mx::array in = norm ? kernels::norm(x, *norm) : x;
    return linear(mx::multiply(gated(mlp.gate, linear(in, mlp.gates)), linear(in, mlp.ups)), mlp.down, residual);
  }
  std::vector<mx::array> inputs = {as_float(x)};
  if (norm) append_arrays(*norm, inputs);
  append_arrays(mlp, inputs);
  if (residual) inputs.push_back(as_float(*residual));
  const mx::array y(x.shape(), mx::float32,
                    std::make_shared<GatedMlpPrimitive>(cpu_stream(), norm, mlp, residual.has_value()),
                    std::move(inputs));
  return mx::astype(y, x.dtype(), cpu_stream());
}

}  // namespace memoir::kernels
