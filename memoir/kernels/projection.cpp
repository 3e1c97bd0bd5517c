#include "memoir/kernels/projection.h"

#include <mlx/ops.h>

#include <array>
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

class ProjectionPrimitive : public CpuPrimitive {
 public:
  ProjectionPrimitive(mx::Stream stream, const std::optional<Norm>& norm, const HeadProjection& p,
                      const std::optional<Turns>& turns)
      : CpuPrimitive(stream),
        parts_{Part(p.queries, p.n_heads, p.query_norm), Part(p.keys, p.n_kv_heads, p.key_norm),
               Part(p.values, p.n_kv_heads, std::nullopt)},
        rope_{turns ? turns->rope.n_dims : 0, p.head_dim, turns && turns->rope.traditional},
        has_turns_(turns.has_value()) {
    if (norm) norm_.emplace(*norm);
  }
  DEFINE_NAME(ProjectHeads)

  // inputs: x, norm's arrays, then for each part the layer's and its norm's, then the table of turns; each only where
  // there is one. outputs: queries, keys, values.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const auto floats = [this](const mx::array& a) { return floats_of(a); };
    ArrayReader next(inputs);
    const mx::array& x = next();
    cpu::ProjectionArgs args;
    args.n_sequences = x.shape(0);
    args.n_tokens = x.shape(1);
    args.x = floats_of(x);
    std::array<std::optional<cpu::NormArgs>, 4> norms;
    if (norm_) {
      norms[3] = norm_->read(next, floats);
      args.normed = temporary(x.size());
    }
    std::size_t n_joined = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      args.parts[i].linear = parts_[i].linear.read(next, floats);
      args.parts[i].n_heads = parts_[i].n_heads;
      if (parts_[i].norm) norms[i] = parts_[i].norm->read(next, floats);
      args.parts[i].out = allocate(outputs[i]);
      n_joined += outputs[i].size();
    }
    args.joined = temporary(n_joined);
    args.rope = rope_;
    if (has_turns_) args.turns = floats_of(next());
    queue([args, norms]() mutable {
      const auto pointer = [](const std::optional<cpu::NormArgs>& norm) { return norm ? &*norm : nullptr; };
      args.norm = pointer(norms[3]);
      for (std::size_t i = 0; i < args.parts.size(); ++i) args.parts[i].norm = pointer(norms[i]);
      cpu::project_heads(args);
    });
  }

 private:
  struct Part {
    Part(const Linear& layer, int heads, const std::optional<Norm>& spec) : linear(layer), n_heads(heads) {
      if (spec) norm.emplace(*spec);
    }

    LinearReader linear;
    int n_heads;
    std::optional<NormReader> norm;
  };

  std::optional<NormReader> norm_;
  std::array<Part, 3> parts_;
  cpu::RopeArgs rope_;
  bool has_turns_;
};

void check_part(const char* name, const Linear& layer, int n_heads, int head_dim) {
  if (layer.rows() == n_heads * head_dim) return;
  throw std::invalid_argument(std::string("[kernels.project_heads] ") + name + " has " + std::to_string(layer.rows()) +
                              " rows, expected " + std::to_string(n_heads) + " heads of " + std::to_string(head_dim));
}

void check_projection(const mx::array& x, const std::optional<Norm>& norm, const HeadProjection& p,
                      const std::optional<Turns>& turns) {
  constexpr const char* kName = "project_heads";
  if (x.ndim() != 3 || x.size() == 0) {
    throw std::invalid_argument("[kernels.project_heads] x has shape " + shape_text(x) + ", expected (B,T,hidden)");
  }
  for (const Linear* layer : {&p.queries, &p.keys, &p.values}) check_columns(kName, x, *layer);
  check_part("queries", p.queries, p.n_heads, p.head_dim);
  check_part("keys", p.keys, p.n_kv_heads, p.head_dim);
  check_part("values", p.values, p.n_kv_heads, p.head_dim);
  if (norm) check_norm(kName, *norm, x.shape(2));
  for (const auto* head_norm : {&p.query_norm, &p.key_norm}) {
    if (*head_norm) check_norm(kName, **head_norm, p.head_dim);
  }
  if (turns && (turns->n_tokens != x.shape(1) || turns->rope.n_dims > p.head_dim)) {
    throw std::invalid_argument("[kernels.project_heads] the turns are of " + std::to_string(turns->n_tokens) +
                                " tokens and " + std::to_string(turns->rope.n_dims) + " dimensions, expected " +
                                std::to_string(x.shape(1)) + " and at most " + std::to_string(p.head_dim));
  }
}

mx::array cut_heads(const mx::array& x, int n_heads) {
  return mx::transpose(mx::reshape(x, {x.shape(0), x.shape(1), n_heads, x.shape(2) / n_heads}), {0, 2, 1, 3});
}

mx::array composed_heads(const mx::array& x, int n_heads, const std::optional<Norm>& norm,
                         const std::optional<Turns>& turns) {
  mx::array heads = cut_heads(x, n_heads);
  if (norm) heads = kernels::norm(heads, *norm);
  return turns ? rope(heads, *turns) : heads;
}

}  // namespace

Heads project_heads(const mx::array& x, const std::optional<Norm>& norm, const HeadProjection& p,
                    const std::optional<Turns>& turns) {
  check_projection(x, norm, p, turns);
  if (!p.queries.weight.packed || !p.keys.weight.packed || !p.values.weight.packed) {
    const mx::array in = norm ? kernels::norm(x, *norm) : x;
    return {composed_heads(linear(in, p.queries), p.n_heads, p.query_norm, turns),
            composed_heads(linear(in, p.keys), p.n_kv_heads, p.key_norm, turns),
            cut_heads(linear(in, p.values), p.n_kv_heads)};
  }
  std::vector<mx::array> inputs = {as_float(x)};
  if (norm) append_arrays(*norm, inputs);
  append_arrays(p.queries, inputs);
  if (p.query_norm) append_arrays(*p.query_norm, inputs);
  append_arrays(p.keys, inputs);
  if (p.key_norm) append_arrays(*p.key_norm, inputs);
  append_arrays(p.values, inputs);
  if (turns) inputs.push_back(turns->table);
  const auto shape = [&](int n_heads) { return mx::Shape{x.shape(0), n_heads, x.shape(1), p.head_dim}; };
  const std::vector<mx::array> heads = mx::array::make_arrays(
      {shape(p.n_heads), shape(p.n_kv_heads), shape(p.n_kv_heads)}, {mx::float32, mx::float32, mx::float32},
      std::make_shared<ProjectionPrimitive>(cpu_stream(), norm, p, turns), inputs);
  const auto typed = [&](const mx::array& y) { return mx::astype(y, x.dtype(), cpu_stream()); };
  return {typed(heads[0]), typed(heads[1]), typed(heads[2])};
}

}  // namespace memoir::kernels
