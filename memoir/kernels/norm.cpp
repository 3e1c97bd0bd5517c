#include "memoir/kernels/norm.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/device.h"
#include "memoir/kernels/norm_args.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

class NormPrimitive : public CpuPrimitive {
 public:
  NormPrimitive(mx::Stream stream, const Norm& spec) : CpuPrimitive(stream), norm_(spec) {}
  DEFINE_NAME(Norm)

  // inputs: x [..., D] and the norm's arrays.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    const mx::array& a = next();
    const float* x = floats_of(a);
    const cpu::NormArgs args = norm_.read(next, [this](const mx::array& array) { return floats_of(array); });
    const auto n_rows = static_cast<int>(a.size() / static_cast<std::size_t>(args.n));
    float* out = allocate(outputs[0]);
    queue([=] { cpu::norm_rows(args, n_rows, x, out); });
  }

 private:
  NormReader norm_;
};

}  // namespace

void check_norm(const char* function, const Norm& spec, int n) {
  const auto fits = [n](const mx::array& a) { return a.ndim() == 1 && a.shape(0) == n; };
  if (fits(spec.weight) && (!spec.bias || fits(*spec.bias))) return;
  const mx::array& wrong = fits(spec.weight) ? *spec.bias : spec.weight;
  throw std::invalid_argument(std::string("[kernels.") + function + "] the norm's " +
                              (fits(spec.weight) ? "bias" : "weight") + " has shape " + shape_text(wrong) +
                              ", expected (" + std::to_string(n) + ")");
}

void append_arrays(const Norm& spec, std::vector<mx::array>& arrays) {
  arrays.push_back(as_float(spec.weight));
  if (spec.bias) arrays.push_back(as_float(*spec.bias));
}

mx::array norm(const mx::array& x, const Norm& spec) {
  check_norm("norm", spec, x.ndim() > 0 ? x.shape(-1) : 0);
  if (on_cpu() && x.size() > 0) {
    std::vector<mx::array> inputs = {as_float(x)};
    append_arrays(spec, inputs);
    const mx::array y(x.shape(), mx::float32, std::make_shared<NormPrimitive>(cpu_stream(), spec), std::move(inputs));
    return mx::astype(y, x.dtype(), cpu_stream());
  }
  const mx::array weight = mx::astype(spec.weight, x.dtype());
  const std::optional<mx::array> bias =
      spec.bias ? std::optional<mx::array>(mx::astype(*spec.bias, x.dtype())) : std::nullopt;
  if (spec.subtracts_mean) return mx::fast::layer_norm(x, weight, bias, spec.eps);
  const mx::array y = mx::fast::rms_norm(x, weight, spec.eps);
  return bias ? mx::add(y, *bias) : y;
}

}  // namespace memoir::kernels
