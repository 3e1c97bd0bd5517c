#pragma once

// A head that predicts further tokens (multi-token prediction), as the published weights of Qwen3-Next and Qwen3.5 have
// it beside the model's own layers (mtp.*): one layer with keys and values of its own. Slot s of its cache joins the
// embedding of token s + 1 with a hidden state of position s, behind the final norm of the model or, where that has not
// come so far, behind the head's own; what comes out predicts token s + 2 through the model's own head.
//
// The order of the parts follows vLLM's qwen3_next_mtp; that the hidden state is the one behind the norm, llama.cpp's
// measurements (github.com/ggml-org/llama.cpp/pull/24025).
//
// Threads: the thread that owns MLX's work. Ownership: owns its weights; not changed by use.

#include <mlx/array.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#include "memoir/cache/cache.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/rope.h"
#include "memoir/model/decoder.h"
#include "memoir/model/model.h"

namespace memoir::model {

/// What a head is made of.
struct MtpParts {
  kernels::Norm embedding_norm;
  kernels::Norm hidden_norm;
  kernels::Linear join;  // [hidden, 2 * hidden]: of an embedding and a hidden state behind it, both normed
  std::unique_ptr<DecoderLayer> layer;
  kernels::Norm norm;
  kernels::Rope rope;
};

class MtpHead {
 public:
  explicit MtpHead(MtpParts parts) : parts_(std::move(parts)) {}

  /// An empty cache of one layer, which takes any number of slots back.
  cache::ModelCache make_cache() const;

  /// Appends T slots. embeddings: the model's, of the tokens behind the slots' positions; hidden: see above; both
  /// [1, T, hidden]. Returns hidden states behind the head's norm, [1, T, hidden]. Lazy.
  mlx::core::array forward(const mlx::core::array& embeddings, const mlx::core::array& hidden,
                           cache::ModelCache& cache) const;

  std::size_t size_bytes() const;

 private:
  MtpParts parts_;
};

/// The key of the error where a model carries no head.
inline constexpr const char* kNoMtpHead = "mtp";

/// Loads the head that a model's directory carries, or its GGUF file (where llama.cpp's converter puts it in a block
/// behind the model's). Throws UnsupportedError where there is none, or none of a form that memoir has; else as
/// load_model.
std::unique_ptr<MtpHead> load_mtp_head(const std::filesystem::path& path);

}  // namespace memoir::model
