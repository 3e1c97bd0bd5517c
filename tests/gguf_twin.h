#pragma once

// Twins: a model of tests/data in Hugging Face's layout, and a GGUF file with the same values as llama.cpp's converter
// would write it. For gguf_families_test and gguf_hybrids_test.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "memoir/base/half.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "memoir/model/model.h"
#include "tests/gguf_builder.h"
#include "tests/model_files.h"

namespace memoir::test {

namespace mx = mlx::core;
using nlohmann::json;

inline constexpr std::uint32_t kTypeF32 = 0;
inline constexpr std::uint32_t kTypeQ4_0 = 2;
inline constexpr std::uint32_t kTypeQ8_0 = 8;
inline constexpr std::uint32_t kTypeMxfp4 = 39;
inline constexpr int kCodedGroup = 32;

/// A block type with one scale for all blocks, a power of two, so that a tensor's values stay what they are however its
/// rows and columns are cut, joined or turned.
struct Codes {
  std::uint32_t type = kTypeQ8_0;

  float scale() const { return type == kTypeQ8_0 ? 0x1p-7F : 0x1p-4F; }
  int largest() const { return type == kTypeQ8_0 ? 127 : 7; }

  /// The nearest values that have codes.
  mx::array rounded(const mx::array& a) const {
    const mx::array codes = mx::round(mx::divide(a, mx::array(scale())));
    return mx::multiply(mx::clip(codes, mx::array(-largest()), mx::array(largest())), mx::array(scale()));
  }

  /// Blocks as in ggml-common.h: a float16 scale; Q8_0's codes one by one, Q4_0's plus 8 with value j + 16 above value
  /// j.
  std::vector<std::byte> blocks(const mx::array& a) const {
    mx::array codes = mx::contiguous(mx::astype(mx::divide(a, mx::array(scale())), mx::int32));
    mx::eval(codes);
    const std::uint16_t half = float_to_float16(scale());
    std::vector<std::byte> bytes;
    for (std::size_t begin = 0; begin < codes.size(); begin += kCodedGroup) {
      const int* group = codes.data<int>() + begin;
      bytes.push_back(static_cast<std::byte>(half & 0xFFU));
      bytes.push_back(static_cast<std::byte>(half >> 8U));
      for (int j = 0; j < kCodedGroup / (type == kTypeQ8_0 ? 1 : 2); ++j) {
        bytes.push_back(static_cast<std::byte>(type == kTypeQ8_0 ? group[j] : group[j] + 8 + 16 * (group[j + 16] + 8)));
      }
    }
    return bytes;
  }
};

/// A GGUF file that is written tensor by tensor.
class GgufWriter {
 public:
  GgufBuilder keys;
  std::optional<Codes> codes;           // for matrices whose rows are whole blocks, but for routers
  std::set<std::string> coded;          // that were written so
  std::set<std::string> left_out = {};  // tensors that are not written

  void floats(const std::string& name, mx::array a) {
    a = mx::contiguous(mx::astype(a, mx::float32));
    mx::eval(a);
    const bool is_matrix = name.ends_with(".weight") && a.ndim() > 1 && a.shape(-1) % kCodedGroup == 0;
    if (codes && is_matrix && !name.ends_with("ffn_gate_inp.weight")) {
      coded.insert(name);
      return blocks(name, a.shape(), codes->blocks(a), codes->type);
    }
    add(name, a.shape(), kTypeF32, a.data<std::byte>(), a.nbytes());
  }

  void blocks(const std::string& name, const mx::Shape& shape, const std::vector<std::byte>& bytes,
              std::uint32_t type = kTypeMxfp4) {
    add(name, shape, type, bytes.data(), bytes.size());
  }

  void write(const fs::path& path) {
    keys.data_bytes = data_.size();
    std::vector<std::byte> bytes = keys.bytes();
    std::memcpy(bytes.data() + bytes.size() - data_.size(), data_.data(), data_.size());
    write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  void add(const std::string& name, const mx::Shape& shape, std::uint32_t type, const std::byte* bytes, std::size_t n) {
    if (left_out.contains(name)) return;
    keys.tensor(name, {shape.rbegin(), shape.rend()}, type, data_.size());
    data_.insert(data_.end(), bytes, bytes + n);
    data_.resize((data_.size() + 31) / 32 * 32);
  }

  std::vector<std::byte> data_;
};

// Modules whose names are the same in all of these families.
inline const std::map<std::string, std::string> kCommon = {
    {"input_layernorm", "attn_norm"},     {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},       {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},  {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},        {"mlp.gate", "ffn_gate_inp"},        {"mlp.router", "ffn_gate_inp"},
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},       {"lm_head", "output"},
};

struct Twin {
  std::string golden;                                // in tests/data
  std::string architecture;                          // of the GGUF
  std::map<std::string, std::string> names;          // besides kCommon
  std::function<void(json&, Tensors&)> change = {};  // so that llama.cpp could have the model
  std::function<void(const json&, GgufBuilder&)> add_keys = {};
  std::function<void(const json&, Tensors&, GgufWriter&)> take = {};  // writes tensors of its own and drops them
  bool sums_in_other_order = false;                                   // columns of a matrix come in another order
  bool writes_own_sizes = false;                                      // add_keys writes all of a layer's sizes
  std::string label = {};                                             // where a golden has several
  int n_more_blocks = 0;                                              // behind the model's layers
  std::optional<Codes> codes = {};                                    // of the file's matrices
  std::set<std::string> coded = {};                                   // tensors that must be of these
};

// Their number of key heads is written layer by layer.
inline bool has_layers_without_heads(const json& config) {
  return config["model_type"] == "lfm2" || config["model_type"] == "granitemoehybrid";
}

inline void add_keys_of_all(const json& config, const Twin& twin, GgufBuilder& keys) {
  const std::string& architecture = twin.architecture;
  const auto name = [&](const char* key) { return architecture + "." + key; };
  keys.string("general.architecture", architecture)
      .integer(name("block_count"), config["num_hidden_layers"].get<int>() + twin.n_more_blocks)
      .integer(name("embedding_length"), config["hidden_size"])
      .integer(name("vocab_size"), config["vocab_size"]);
  if (!config.contains("num_attention_heads") || twin.writes_own_sizes) return;
  keys.integer(name("feed_forward_length"),
               config.value("block_auto_adjust_ff_dim", false) ? 48 : config["intermediate_size"].get<int>())
      .integer(name("attention.head_count"), config["num_attention_heads"])
      .integer(name("attention.key_length"), config.value("head_dim", 16))
      .integer(name("context_length"), config["max_position_embeddings"]);
  if (!has_layers_without_heads(config)) {
    keys.integer(name("attention.head_count_kv"), config["num_key_value_heads"]);
  } else {
    std::vector<std::uint32_t> n_heads;
    for (const std::string type : config["layer_types"]) {
      n_heads.push_back(type == "attention" || type == "full_attention" ? config["num_key_value_heads"].get<unsigned>()
                                                                        : 0U);
    }
    keys.integers(name("attention.head_count_kv"), n_heads);
  }
  const json& rope = config.contains("rope_theta") ? config : config["rope_parameters"];
  keys.number(name("rope.freq_base"), rope["rope_theta"]);
  if (config.contains("rms_norm_eps")) keys.number(name("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"]);
}

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight".
inline std::string gguf_name(const std::string& name, const Twin& twin) {
  const std::string suffix = name.substr(name.rfind('.'));
  std::string module = name.substr(0, name.rfind('.'));
  std::string layer;
  const std::string kLayers = "model.layers.";
  if (module.starts_with(kLayers)) {
    const std::size_t dot = module.find('.', kLayers.size());
    layer = "blk." + module.substr(kLayers.size(), dot - kLayers.size()) + ".";
    module = module.substr(dot + 1);
  }
  const auto own = twin.names.find(module);
  return layer + (own == twin.names.end() ? kCommon.at(module) : own->second) + suffix;
}

// With float32 rows, so that it is the weights that are compared.
inline mx::array logits_of(const model::Model& model) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back((i * 37 + 11) % model.config().vocab_size);
  engine::Session session(model, {.dtype = mx::float32});
  const mx::array logits = session.forward(tokens, model::LogitRows::kAll);
  mx::eval(logits);
  return logits;
}

inline std::unique_ptr<model::Model> load_gguf(const fs::path& path) {
  auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
  const model::ModelConfig config = model::config_from_gguf(*file, model::check_supported);
  return model::make_model(config, *model::open_gguf_weights(std::move(file), config));
}

inline bool is_router(const std::string& name) {
  return name.ends_with("router.weight") || name.ends_with("router.proj.weight") || name.ends_with("mlp.gate.weight");
}

// The twin directory, and beside it the file.
inline fs::path make_twin(const TemporaryFolder& folder, const Twin& twin, GgufWriter file = {}) {
  const fs::path directory =
      copied_model(folder, twin.golden, twin.golden == "mamba2" ? "config.alt.json" : "config.json");
  file.codes = twin.codes;
  edit_tensors(directory, [&](Tensors& tensors) {
    edit_config(directory, [&](json& config) {
      if (twin.change) twin.change(config, tensors);
      for (auto& [name, tensor] : tensors) {
        if (twin.codes && tensor.ndim() > 1 && !is_router(name)) tensor = twin.codes->rounded(tensor);
      }
      add_keys_of_all(config, twin, file.keys);
      if (twin.add_keys) twin.add_keys(config, file.keys);
      Tensors rest = tensors;
      if (twin.take) twin.take(config, rest, file);
      for (const auto& [name, tensor] : rest) file.floats(gguf_name(name, twin), tensor);
    });
  });
  for (const std::string& name : twin.coded) EXPECT_TRUE(file.coded.contains(name)) << name;
  file.write(directory / "model.gguf");
  return directory;
}

/// The logits of the file are those of the directory, to the bit where sums run in the same order.
inline void expect_same_logits(const Twin& twin) {
  const TemporaryFolder folder;
  const fs::path directory = make_twin(folder, twin);
  const mx::array expected = logits_of(*model::load_model(directory).model);
  const mx::array logits = logits_of(*load_gguf(directory / "model.gguf"));
  if (twin.sums_in_other_order) {
    EXPECT_TRUE(mx::allclose(logits, expected, 0, 1e-3).item<bool>());
  } else {
    EXPECT_TRUE(mx::array_equal(logits, expected).item<bool>());
  }
}

inline const std::map<std::string, std::string> kPreNorm = {{"post_attention_layernorm", "ffn_norm"}};

/// Writes the experts of each layer in one tensor for each matrix, as the converter does, and drops them.
inline void stack_qwen_experts(const json& config, Tensors& tensors, GgufWriter& file) {
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    for (const std::string part : {"gate", "up", "down"}) {
      std::vector<mx::array> experts;
      for (int e = 0; e < config["num_experts"]; ++e) {
        const std::string name =
            "model.layers." + std::to_string(i) + ".mlp.experts." + std::to_string(e) + "." + part + "_proj.weight";
        experts.push_back(tensors.at(name));
        tensors.erase(name);
      }
      file.floats("blk." + std::to_string(i) + ".ffn_" + part + "_exps.weight", mx::stack(experts));
    }
  }
}

}  // namespace memoir::test
