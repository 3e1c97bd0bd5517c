#pragma once

// What a model is, as far as its configuration says: sizes, positions, quantization. No MLX.
//
// Read from config.json, in both spellings Hugging Face has used (rope_theta + rope_scaling, "type" or "rope_type";
// rope_parameters), from the MLX form of it (quantization), or from the metadata of a GGUF file.
// Invariants of a ModelConfig that one of the functions below returned: sizes are positive and bounded, n_heads is a
// multiple of n_kv_heads, head_dim and the rotated part of it are even, and every number of `rope` is finite.
// Values, no ownership, any thread.
//
// Scope: keys that only one family has are read by that family from `family_keys`. A multimodal configuration
// (text_config) is read through its text part.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/gguf.h"
#include "memoir/base/types.h"

namespace memoir::model {

/// Rotary position embedding. Names and defaults as in transformers, modeling_rope_utils.py. Whether a family can do a
/// type is for the family to say.
struct RopeConfig {
  double theta = 10000;
  std::string type = "default";            // default, linear, dynamic, llama3, yarn, longrope, proportional
  double partial_rotary_factor = 1;        // the part of head_dim that is rotated, 0 < x <= 1
  double factor = 1;                       // linear, dynamic, llama3, yarn, longrope
  std::int64_t original_max_position = 0;  // llama3, yarn, longrope; max_position where not given
  double low_freq_factor = 1;              // llama3, less than high_freq_factor
  double high_freq_factor = 4;
  std::optional<double> attention_factor;  // yarn, longrope: computed from factor where not given
  double beta_fast = 32;                   // yarn
  double beta_slow = 1;
  std::optional<double> mscale;  // yarn, DeepSeek: both or none
  std::optional<double> mscale_all_dim;
  bool truncate = true;               // yarn: round the correction range to whole dimensions
  std::vector<double> short_factors;  // longrope, one for each pair of rotated dimensions; empty from GGUF
  std::vector<double> long_factors;
};

/// How many of a head's dimensions `rope` turns: int(head_dim * factor), as transformers takes it; of the type
/// proportional all that belong to whole pairs of these.
int rotated_dims(int head_dim, const RopeConfig& rope);

/// How a group of codes stands for values: scale * code + bias, or for MXFP4 (OCP Microscaling 1.0) a power of two
/// times a 4-bit float, in groups of 32.
enum class QuantizationMode : std::uint8_t { kAffine, kMxfp4 };

struct ModuleQuantization {
  int group_size = 64;
  int bits = 4;
  QuantizationMode mode = QuantizationMode::kAffine;

  bool operator==(const ModuleQuantization&) const = default;
};

/// MLX's quantization: every linear and embedding module, with exceptions by module path
/// ("model.layers.0.mlp.down_proj"); nullopt = that module is not quantized.
struct QuantizationConfig {
  int group_size = 64;
  int bits = 4;
  std::map<std::string, std::optional<ModuleQuantization>> overrides = {};
  QuantizationMode mode = QuantizationMode::kAffine;
};

struct ModelConfig {
  std::string path;           // of the file it was read from, for messages
  std::string model_type;     // Hugging Face's name: "llama", "mistral", "qwen3_moe", ...; of the text part
  bool is_text_part = false;  // it stands under text_config
  int n_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;  // 0 in models without attention (mamba2), or with experts alone
  int n_heads = 0;            // query heads; 0 likewise
  int n_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position = 0;        // tokens of context; 2^30 in models without attention
  double rms_norm_eps = 1e-6;  // also from layer_norm_eps, norm_eps, layer_norm_epsilon
  bool tie_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string hidden_act = "silu";
  std::optional<int> sliding_window;  // token i sees j with 0 <= i - j < W; nullopt: all
  RopeConfig rope;
  /// Where rope_parameters is keyed by layer type ("full_attention", "sliding_attention"): all of them, and `rope` is
  /// the one of full attention. Else empty.
  std::map<std::string, RopeConfig> layer_ropes;
  std::optional<QuantizationConfig> quantization;
  std::vector<TokenId> eos_ids;  // any of them ends a text; without duplicates
  std::optional<TokenId> bos_id;
  /// What a family reads keys of its own from: raw with the defaults of transformers' configuration class for what it
  /// lacks (config_defaults.h); of a GGUF file what it says in other names, in those of Hugging Face.
  nlohmann::json family_keys;
  /// What stands around the text part, without it; null where there is none.
  nlohmann::json outer;
  /// The text part of config.json, or "<architecture>.*" of a GGUF file's metadata without that prefix and without
  /// lists longer than its blocks.
  nlohmann::json raw;
};

/// Called with the model type and the file as soon as the type is known, before any key that not every architecture
/// has; refuses by throwing. May be empty.
using ModelTypeCheck = std::function<void(const std::string& model_type, const std::string& path)>;

/// Reads `directory`/config.json, and the ids of `directory`/generation_config.json where that exists.
/// Throws FileError, FormatError (path, key) or UnsupportedError (RoPE type, quantization method).
ModelConfig read_config(const std::filesystem::path& directory, const ModelTypeCheck& check = {});

/// The same from a text, without generation_config.json. `path` is only named in messages.
ModelConfig parse_config(std::string_view json_text, const std::string& path, const ModelTypeCheck& check = {});

/// From the metadata of a GGUF file. model_type is general.architecture in Hugging Face's spelling ("qwen3moe" ->
/// "qwen3_moe"); "llama" stands for Llama and Mistral alike.
/// Keys mean what llama.cpp makes of them: a RoPE factor without a type is linear; "llama" has no sliding window
/// whatever the file says. UnsupportedError (path, key) for attention that is not causal, for "llama" with heads of
/// which only a part turns, and for rope.scaling.attn_factor without yarn or longrope.
/// Left to the loader: quantization (each tensor has its own type); rope_freqs.weight, by which Llama 3 files divide
/// the frequencies, and rope_factors_long.weight / _short.weight (longrope); the order of rows in attn_q and attn_k,
/// which converters permute for "llama".
/// tie_embeddings: there is no tensor output.weight. attention_bias, mlp_bias: some layer has such tensors.
ModelConfig config_from_gguf(const GgufFile& file, const ModelTypeCheck& check = {});

}  // namespace memoir::model
