#include "memoir/kernels/projection.h"

#include <mlx/ops.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/kernels/primitive.h"
#include "memoir/kernels/projection_args.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

class ProjectionPrimitive : public CpuPrimitive {
 public:
  ProjectionPrimitive(mx::Stream stream, ProjectionReader reader) : CpuPrimitive(stream), reader_(std::move(reader)) {}
  DEFINE_NAME(ProjectHeads)

  // inputs: x, then those of append_arrays(). outputs: queries, keys, values.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    ArrayReader next(inputs);
    const mx::array& x = next();
    ProjectionWork work = reader_.read(x, next, [this](const mx::array& a) { return floats_of(a); });
    if (work.norm) work.args.normed = temporary(x.size());
    std::size_t n_joined = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      work.args.parts[i].out = allocate(outputs[i]);
      n_joined += outputs[i].size();
    }
    work.args.joined = temporary(n_joined);
    queue([work]() mutable {
      work.bind();
      cpu::project_heads(work.args);
    });
  }

 private:
  ProjectionReader reader_;
};

void check_part(const std::string& function, const char* name, const Linear& layer, int n_heads, int head_dim) {
  if (layer.rows() == n_heads * head_dim) return;
  throw std::invalid_argument("[kernels." + function + "] " + name + " has " + std::to_string(layer.rows()) +
                              " rows, expected " + std::to_string(n_heads) + " heads of " + std::to_string(head_dim));
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

void check_projection(const char* function, const mx::array& x, const std::optional<Norm>& norm,
                      const HeadProjection& p, const std::optional<Turns>& turns) {
  if (x.ndim() != 3 || x.size() == 0) {
    throw std::invalid_argument("[kernels." + std::string(function) + "] x has shape " + shape_text(x) +
                                ", expected (B,T,hidden)");
  }
  for (const Linear* layer : {&p.queries, &p.keys, &p.values}) check_columns(function, x, *layer);
  check_part(function, "queries", p.queries, p.n_heads, p.head_dim);
  check_part(function, "keys", p.keys, p.n_kv_heads, p.head_dim);
  check_part(function, "values", p.values, p.n_kv_heads, p.head_dim);
  if (norm) check_norm(function, *norm, x.shape(2));
  for (const auto* head_norm : {&p.query_norm, &p.key_norm}) {
    if (*head_norm) check_norm(function, **head_norm, p.head_dim);
  }
  if (turns && (turns->n_tokens != x.shape(1) || turns->rope.n_dims > p.head_dim)) {
    throw std::invalid_argument("[kernels." + std::string(function) + "] the turns are of " +
                                std::to_string(turns->n_tokens) + " tokens and " + std::to_string(turns->rope.n_dims) +
                                " dimensions, expected " + std::to_string(x.shape(1)) + " and at most " +
                                std::to_string(p.head_dim));
  }
}

bool is_packed(const HeadProjection& p) {
  return p.queries.weight.packed && p.keys.weight.packed && p.values.weight.packed;
}

void append_arrays(const std::optional<Norm>& norm, const HeadProjection& p, const std::optional<Turns>& turns,
                   std::vector<mx::array>& arrays) {
  if (norm) append_arrays(*norm, arrays);
  append_arrays(p.queries, arrays);
  if (p.query_norm) append_arrays(*p.query_norm, arrays);
  append_arrays(p.keys, arrays);
  if (p.key_norm) append_arrays(*p.key_norm, arrays);
  append_arrays(p.values, arrays);
  if (turns) arrays.push_back(turns->table);
}

Heads project_heads(const mx::array& x, const std::optional<Norm>& norm, const HeadProjection& p,
                    const std::optional<Turns>& turns) {
  check_projection("project_heads", x, norm, p, turns);
  if (!is_packed(p)) {
    const mx::array in = norm ? kernels::norm(x, *norm) : x;
    return {composed_heads(linear(in, p.queries), p.n_heads, p.query_norm, turns),
            composed_heads(linear(in, p.keys), p.n_kv_heads, p.key_norm, turns),
            cut_heads(linear(in, p.values), p.n_kv_heads)};
  }
  std::vector<mx::array> inputs = {as_float(x)};
  append_arrays(norm, p, turns, inputs);
  const auto shape = [&](int n_heads) { return mx::Shape{x.shape(0), n_heads, x.shape(1), p.head_dim}; };
  const std::vector<mx::array> heads = mx::array::make_arrays(
      {shape(p.n_heads), shape(p.n_kv_heads), shape(p.n_kv_heads)}, {mx::float32, mx::float32, mx::float32},
      std::make_shared<ProjectionPrimitive>(cpu_stream(), ProjectionReader(norm, p, turns)), inputs);
  const auto typed = [&](const mx::array& y) { return mx::astype(y, x.dtype(), cpu_stream()); };
  return {typed(heads[0]), typed(heads[1]), typed(heads[2])};
}

}  // namespace memoir::kernels
