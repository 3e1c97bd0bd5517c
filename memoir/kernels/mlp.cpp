#include "memoir/kernels/mlp.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/norm_args.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

class GatedMlpPrimitive : public CpuPrimitive {
 public:
  GatedMlpPrimitive(mx::Stream stream, const std::optional<Norm>& norm, const GatedMlp& mlp, bool has_residual)
      : CpuPrimitive(stream),
        gate_(mlp.gate),
        gates_(mlp.gates),
        ups_(mlp.ups),
        down_(mlp.down),
        has_residual_(has_residual) {
    if (norm) norm_.emplace(*norm);
  }
  DEFINE_NAME(GatedMlp)

  // inputs: x, norm's arrays, each layer's arrays, residual; each only where there is one.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const auto floats = [this](const mx::array& a) { return floats_of(a); };
    ArrayReader next(inputs);
    const mx::array& x = next();
    cpu::GatedMlpArgs args;
    args.n_rows = static_cast<int>(x.size() / static_cast<std::size_t>(gates_.format.n_columns));
    args.x = floats_of(x);
    std::optional<cpu::NormArgs> norm;
    if (norm_) {
      norm = norm_->read(next, floats);
      args.normed = temporary(x.size());
    }
    args.gate = gate_;
    args.gates = gates_.read(next, floats);
    args.ups = ups_.read(next, floats);
    args.down = down_.read(next, floats);
    const std::size_t n_inner = static_cast<std::size_t>(args.n_rows) * static_cast<std::size_t>(gates_.format.n_rows);
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
  Gate gate_;
  LinearReader gates_;
  LinearReader ups_;
  LinearReader down_;
  bool has_residual_;
};

void check_mlp(const mx::array& x, const std::optional<Norm>& norm, const GatedMlp& mlp,
               const std::optional<mx::array>& residual) {
  check_columns("gated_mlp", x, mlp.gates);
  check_columns("gated_mlp", x, mlp.ups);
  if (norm) check_norm("gated_mlp", *norm, x.shape(-1));
  const int inner = mlp.gates.rows();
  if (mlp.ups.rows() != inner || mlp.down.columns() != inner || mlp.down.rows() != x.shape(-1)) {
    throw std::invalid_argument("[kernels.gated_mlp] gates has " + std::to_string(inner) + " rows, ups " +
                                std::to_string(mlp.ups.rows()) + ", down (" + std::to_string(mlp.down.rows()) + "," +
                                std::to_string(mlp.down.columns()) + "): expected them to fit x " + shape_text(x));
  }
  if (residual && residual->shape() != x.shape()) {
    throw std::invalid_argument("[kernels.gated_mlp] residual has shape " + shape_text(*residual) +
                                ", expected that of x " + shape_text(x));
  }
}

mx::array gated(Gate gate, const mx::array& z) {
  if (gate == Gate::kSilu) return mx::multiply(z, mx::sigmoid(z));
  const auto scalar = [&](float value) { return mx::astype(mx::array(value), z.dtype()); };
  const mx::array cube = mx::multiply(mx::multiply(z, z), z);
  const mx::array inner = mx::multiply(scalar(0.7978845608F), mx::add(z, mx::multiply(scalar(0.044715F), cube)));
  return mx::multiply(mx::multiply(scalar(0.5F), z), mx::add(scalar(1), mx::tanh(inner)));
}

bool is_packed(const GatedMlp& mlp) {
  return mlp.gates.weight.packed && mlp.ups.weight.packed && mlp.down.weight.packed;
}

}  // namespace

mx::array gated_mlp(const mx::array& x, const std::optional<Norm>& norm, const GatedMlp& mlp,
                    const std::optional<mx::array>& residual) {
  check_mlp(x, norm, mlp, residual);
  if (!is_packed(mlp)) {
    const mx::array in = norm ? kernels::norm(x, *norm) : x;
    return linear(mx::multiply(gated(mlp.gate, linear(in, mlp.gates)), linear(in, mlp.ups)), mlp.down, residual);
  }
  std::vector<mx::array> inputs = {as_float(x)};
  if (norm) append_arrays(*norm, inputs);
  for (const Linear* layer : {&mlp.gates, &mlp.ups, &mlp.down}) append_arrays(*layer, inputs);
  if (residual) inputs.push_back(as_float(*residual));
  const mx::array y(x.shape(), mx::float32,
                    std::make_shared<GatedMlpPrimitive>(cpu_stream(), norm, mlp, residual.has_value()),
                    std::move(inputs));
  return mx::astype(y, x.dtype(), cpu_stream());
}

}  // namespace memoir::kernels
