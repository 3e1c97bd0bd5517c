#pragma once

// Tiny models with what transformers makes of them (tests/README.md), for the tests of model families.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/model_files.h"

namespace memoir::test {

// Float32 implementations agree to 3e-4; a wrong configuration value moves the logits by 0.3 or more.
inline constexpr float kTolerance = 2e-3F;

inline std::vector<TokenId> tokens_of(mlx::core::array a) {
  a = mlx::core::contiguous(mlx::core::astype(a, mlx::core::int32));
  mlx::core::eval(a);
  return {a.data<std::int32_t>(), a.data<std::int32_t>() + a.size()};
}

inline Tensors expected_of(const std::string& name) {
  return mlx::core::load_safetensors((data(name) / "expected.safetensors").string()).first;
}

inline float max_difference(const mlx::core::array& a, const mlx::core::array& b) {
  return mlx::core::max(mlx::core::abs(mlx::core::subtract(a, b))).item<float>();
}

// Logits [T, V] of the tokens, given in chunks.
inline mlx::core::array logits_in_chunks(const model::Model& model, std::span<const TokenId> tokens,
                                         std::size_t n_chunk, const cache::CacheOptions& options = {}) {
  engine::Session session(model, options);
  std::vector<mlx::core::array> parts;
  for (std::size_t begin = 0; begin < tokens.size(); begin += n_chunk) {
    const auto chunk = tokens.subspan(begin, std::min(n_chunk, tokens.size() - begin));
    parts.push_back(mlx::core::squeeze(session.forward(chunk, model::LogitRows::kAll), 0));
    mlx::core::eval(parts.back());
  }
  return mlx::core::concatenate(parts, 0);
}

// The message of the error that loading the model gives.
inline std::string load_error(const fs::path& path) {
  try {
    model::load_model(path);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace memoir::test
