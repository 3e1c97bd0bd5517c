#include "memoir/kernels/routing.h"

#include <mlx/ops.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/kernels/allocated.h"
#include "memoir/kernels/cpu/routing.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[kernels.route] " + what);
}

void check_routing(const mx::array& logits, const Routing& routing) {
  const int n_experts = logits.ndim() > 0 ? logits.shape(-1) : 0;
  const int n_groups = routing.n_groups;
  if (n_groups < 1 || routing.n_chosen_groups < 1 || routing.n_chosen_groups > n_groups || n_experts % n_groups != 0 ||
      (n_groups > 1 && n_experts / n_groups < 2)) {
    refuse(std::to_string(routing.n_chosen_groups) + " of " + std::to_string(n_groups) + " groups don't fit " +
           std::to_string(n_experts) + " experts");
  }
  const int n_open = n_experts / n_groups * routing.n_chosen_groups;
  if (routing.n_chosen < 1 || routing.n_chosen > n_open) {
    refuse("n_chosen is " + std::to_string(routing.n_chosen) + ", expected 1 to " + std::to_string(n_open));
  }
  for (const auto* array : {&routing.choice_biases, &routing.expert_scales}) {
    if (*array && ((*array)->ndim() != 1 || (*array)->shape(0) != n_experts)) {
      refuse("an array has shape " + shape_text(**array) + ", expected (" + std::to_string(n_experts) + ")");
    }
  }
}

class RoutePrimitive : public CpuPrimitive {
 public:
  RoutePrimitive(mx::Stream stream, const Routing& routing)
      : CpuPrimitive(stream),
        has_choice_biases_(routing.choice_biases.has_value()),
        has_expert_scales_(routing.expert_scales.has_value()) {
    args_.n_chosen = routing.n_chosen;
    args_.is_sigmoid = routing.score == Routing::Score::kSigmoid;
    args_.is_normalized = routing.is_normalized;
    args_.added_to_sum = routing.added_to_sum;
    args_.scale = routing.scale;
    args_.n_groups = routing.n_groups;
    args_.n_chosen_groups = routing.n_chosen_groups;
  }
  DEFINE_NAME(Route)

  // inputs: logits [..., E], and where there are any choice_biases [E], expert_scales [E].
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    cpu::RoutingArgs args = args_;
    args.n_experts = inputs[0].shape(-1);
    args.n_rows = static_cast<int>(inputs[0].size() / static_cast<std::size_t>(args.n_experts));
    args.logits = floats_of(inputs[0]);
    if (has_choice_biases_) args.choice_biases = floats_of(inputs[1]);
    if (has_expert_scales_) args.expert_scales = floats_of(inputs.back());
    outputs[0].set_data(allocated(outputs[0].nbytes()));
    args.experts = outputs[0].data<std::int32_t>();
    args.weights = allocate(outputs[1]);
    queue([args] { cpu::route(args); });
  }

 private:
  cpu::RoutingArgs args_;
  bool has_choice_biases_;
  bool has_expert_scales_;
};

Routes cpu_route(const mx::array& logits, const Routing& routing) {
  std::vector<mx::array> inputs = {as_float(logits)};
  if (routing.choice_biases) inputs.push_back(as_float(*routing.choice_biases));
  if (routing.expert_scales) inputs.push_back(as_float(*routing.expert_scales));
  mx::Shape shape = logits.shape();
  shape.back() = routing.n_chosen;
  const std::vector<mx::array> outputs = mx::array::make_arrays(
      {shape, shape}, {mx::int32, mx::float32}, std::make_shared<RoutePrimitive>(cpu_stream(), routing), inputs);
  return {outputs[0], outputs[1]};
}

// The last n of the ascending order along the last axis, largest first.
mx::array largest(const mx::array& values, int n) {
  const mx::array order = mx::argsort(mx::negative(values), -1);
  mx::Shape end = values.shape();
  end.back() = n;
  return mx::slice(order, mx::Shape(values.ndim(), 0), end);
}

// -infinity for the experts of all but the best groups.
mx::array without_other_groups(const mx::array& choice, const Routing& routing) {
  mx::Shape grouped = choice.shape();
  grouped.back() = routing.n_groups;
  grouped.push_back(choice.shape(-1) / routing.n_groups);
  const mx::array groups = mx::reshape(choice, grouped);
  const mx::array scores = mx::sum(mx::topk(groups, 2, -1), -1);
  const mx::array best = largest(scores, routing.n_chosen_groups);
  const mx::array lowest = mx::array(-std::numeric_limits<float>::infinity());
  const mx::array penalty =
      mx::put_along_axis(mx::full(scores.shape(), lowest), best, mx::zeros(best.shape(), mx::float32), -1);
  return mx::reshape(mx::add(groups, mx::expand_dims(penalty, -1)), choice.shape());
}

Routes composed_route(const mx::array& logits, const Routing& routing) {
  const mx::array z = mx::astype(logits, mx::float32);
  const mx::array scores = routing.score == Routing::Score::kSigmoid ? mx::sigmoid(z) : mx::softmax(z, -1, true);
  mx::array choice = routing.choice_biases ? mx::add(scores, mx::astype(*routing.choice_biases, mx::float32)) : z;
  if (routing.n_groups > 1) choice = without_other_groups(choice, routing);
  const mx::array experts = largest(choice, routing.n_chosen);
  mx::array weights = mx::take_along_axis(scores, experts, -1);
  if (routing.is_normalized) {
    weights = mx::divide(weights, mx::add(mx::sum(weights, -1, true), mx::array(routing.added_to_sum)));
  }
  if (routing.scale != 1) weights = mx::multiply(weights, mx::array(routing.scale));
  if (routing.expert_scales) {
    weights = mx::multiply(weights, mx::take(mx::astype(*routing.expert_scales, mx::float32), experts));
  }
  return {mx::astype(experts, mx::int32), weights};
}

}  // namespace

Routes route(const mx::array& logits, const Routing& routing) {
  check_routing(logits, routing);
  return on_cpu() && logits.size() > 0 ? cpu_route(logits, routing) : composed_route(logits, routing);
}

}  // namespace memoir::kernels
