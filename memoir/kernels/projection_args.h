#pragma once

// How the operations that project heads check what they are given and pass its arrays on. Internal to kernels/.

#include <mlx/array.h>

#include <array>
#include <optional>
#include <vector>

#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/norm_args.h"
#include "memoir/kernels/projection.h"

namespace memoir::kernels {

/// Throws std::invalid_argument, naming the function, if the sizes of the norms, the layers or the turns don't fit.
void check_projection(const char* function, const mlx::core::array& x, const std::optional<Norm>& norm,
                      const HeadProjection& projection, const std::optional<Turns>& turns);

/// Whether its weights are packed.
bool is_packed(const HeadProjection& projection);

/// The norm's arrays, then for each part the layer's and its norm's, then the table of turns; each only where there is
/// one.
void append_arrays(const std::optional<Norm>& norm, const HeadProjection& projection, const std::optional<Turns>& turns,
                   std::vector<mlx::core::array>& arrays);

/// A projection's arguments, and the norms they point to once bind() has been called where they stay.
struct ProjectionWork {
  cpu::ProjectionArgs args;
  std::optional<cpu::NormArgs> norm;
  std::array<std::optional<cpu::NormArgs>, 3> head_norms;

  void bind() {
    const auto pointer = [](const std::optional<cpu::NormArgs>& n) { return n ? &*n : nullptr; };
    args.norm = pointer(norm);
    for (std::size_t i = 0; i < head_norms.size(); ++i) args.parts[i].norm = pointer(head_norms[i]);
  }
};

/// What an operation remembers of a projection, to read its arrays.
class ProjectionReader {
 public:
  ProjectionReader(const std::optional<Norm>& norm, const HeadProjection& p, const std::optional<Turns>& turns)
      : parts_{Part(p.queries, p.n_heads, p.query_norm), Part(p.keys, p.n_kv_heads, p.key_norm),
               Part(p.values, p.n_kv_heads, std::nullopt)},
        rope_{turns ? turns->rope.n_dims : 0, p.head_dim, turns && turns->rope.traditional},
        has_turns_(turns.has_value()) {
    if (norm) norm_.emplace(*norm);
  }

  int n_heads(std::size_t part) const { return parts_[part].n_heads; }
  int head_dim() const { return rope_.head_dim; }

  /// All but scratch and outputs. floats: array -> const float*, its elements in row-major order.
  template <typename Floats>
  ProjectionWork read(const mlx::core::array& x, ArrayReader& next, const Floats& floats) const {
    ProjectionWork work;
    work.args.n_sequences = x.shape(0);
    work.args.n_tokens = x.shape(1);
    work.args.x = floats(x);
    if (norm_) work.norm = norm_->read(next, floats);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      work.args.parts[i].linear = parts_[i].linear.read(next, floats);
      work.args.parts[i].n_heads = parts_[i].n_heads;
      if (parts_[i].norm) work.head_norms[i] = parts_[i].norm->read(next, floats);
    }
    work.args.rope = rope_;
    if (has_turns_) work.args.turns = floats(next());
    return work;
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

}  // namespace memoir::kernels
