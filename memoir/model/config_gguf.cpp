// The configuration of a model in a GGUF file. Source of the keys: ggml, docs/gguf.md, and gguf-py's constants.py.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "memoir/base/error.h"
#include "memoir/model/config.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/gguf_keys.h"

namespace memoir::model {
namespace {

using nlohmann::json;

// Architectures that Hugging Face spells differently.
std::string hugging_face_name(const std::string& architecture) {
  static const std::map<std::string, std::string> kNames = {
      {"qwen3moe", "qwen3_moe"},    {"qwen3next", "qwen3_next"},
      {"qwen35", "qwen3_5_text"},   {"qwen35moe", "qwen3_5_moe_text"},
      {"gemma3", "gemma3_text"},    {"gemma4", "gemma4_text"},
      {"gpt-oss", "gpt_oss"},       {"llama4", "llama4_text"},
      {"deepseek2", "deepseek_v3"}, {"olmo2", "olmo3"},
      {"falcon-h1", "falcon_h1"},   {"granitehybrid", "granitemoehybrid"},
  };
  const auto found = kNames.find(architecture);
  return found == kNames.end() ? architecture : found->second;
}

// The metadata under one architecture's prefix, with checked look-ups.
class Keys {
 public:
  Keys(const GgufFile& file, const std::string& architecture) : file_(file), prefix_(architecture + ".") {}

  std::string name(const std::string& key) const { return prefix_ + key; }

  // A size from 1 to max. Some converters write one for each layer: they must be equal.
  std::optional<int> size(const std::string& key, std::int64_t max) const {
    const auto found = file_.metadata().find(name(key));
    if (found == file_.metadata().end()) return std::nullopt;
    std::int64_t value = 0;
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&found->second)) {
      value = same_value(key, *list);
    } else {
      value = *file_.integer(name(key));
    }
    return checked(key, value, max);
  }

  // The same for a list in which 0 stands for layers without such a thing. nullopt if there is none in any.
  std::optional<int> size_of_some(const std::string& key, std::int64_t max) const {
    const auto found = file_.metadata().find(name(key));
    const auto* list =
        found == file_.metadata().end() ? nullptr : std::get_if<std::vector<std::int64_t>>(&found->second);
    if (!list) return size(key, max);
    std::vector<std::int64_t> some;
    std::ranges::copy_if(*list, std::back_inserter(some), [](std::int64_t value) { return value != 0; });
    return some.empty() ? std::nullopt : std::optional(checked(key, same_value(key, some), max));
  }

  // The first of a list with one for each layer; or the one for all.
  std::optional<int> first_size(const std::string& key, std::int64_t max) const {
    const auto found = file_.metadata().find(name(key));
    const auto* list =
        found == file_.metadata().end() ? nullptr : std::get_if<std::vector<std::int64_t>>(&found->second);
    if (!list) return size(key, max);
    if (list->empty()) fail(key, "is an empty list");
    return checked(key, list->front(), max);
  }

  int required(const std::string& key, std::int64_t max) const {
    const auto value = size(key, max);
    if (!value) fail(key, "is missing");
    return *value;
  }

  std::optional<double> positive(const std::string& key) const {
    const auto value = file_.number(name(key));
    if (value && !is_positive_float(*value)) fail(key, "is not a finite number above 0");
    return value;
  }

  std::optional<std::string> string(const std::string& key) const {
    const std::string* value = file_.string(name(key));
    return value == nullptr ? std::nullopt : std::optional(*value);
  }

  [[noreturn]] void fail(const std::string& key, const std::string& reason) const {
    throw FormatError(file_.path(), name(key), reason);
  }

 private:
  std::int64_t same_value(const std::string& key, const std::vector<std::int64_t>& list) const {
    if (list.empty()) fail(key, "is an empty list");
    if (std::ranges::any_of(list, [&](std::int64_t value) { return value != list.front(); })) {
      throw UnsupportedError(file_.path(), name(key), "differs from layer to layer");
    }
    return list.front();
  }

  int checked(const std::string& key, std::int64_t value, std::int64_t max) const {
    if (value < 1 || value > max) {
      fail(key, "is " + std::to_string(value) + ", expected 1 to " + std::to_string(max));
    }
    return static_cast<int>(value);
  }

  const GgufFile& file_;
  std::string prefix_;
};

int read_vocab_size(const GgufFile& file, const Keys& keys) {
  if (const auto size = keys.size("vocab_size", kMaxVocab)) return *size;
  const auto* tokens = file.strings("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->empty()) keys.fail("vocab_size", "is missing, and so is tokenizer.ggml.tokens");
  if (tokens->size() > static_cast<std::size_t>(kMaxVocab)) {
    throw FormatError(file.path(), "tokenizer.ggml.tokens", "has more than " + std::to_string(kMaxVocab) + " tokens");
  }
  return static_cast<int>(tokens->size());
}

// Of attention through latent vectors: in files of 2025 and later the head of key_length is the latent one, which all
// queries share.
void read_latent_heads(const Keys& keys, ModelConfig& config) {
  config.intermediate_size = keys.required("feed_forward_length", kMaxIntermediateSize);
  config.n_heads = config.n_kv_heads = keys.required("attention.head_count", kMaxHeads);
  const auto head_dim = keys.size("attention.key_length_mla", kMaxHeadDim);
  config.head_dim = head_dim ? *head_dim : keys.required("attention.key_length", kMaxHeadDim);
}

// Of layers of two kinds: head_dim is that of those which slide. What else differs is for the family's keys to say.
void read_gemma4_heads(const Keys& keys, ModelConfig& config) {
  const auto width = keys.first_size("feed_forward_length", kMaxIntermediateSize);
  if (!width) keys.fail("feed_forward_length", "is missing");
  config.intermediate_size = *width;
  config.n_heads = keys.required("attention.head_count", kMaxHeads);
  config.n_kv_heads = keys.first_size("attention.head_count_kv", kMaxHeads).value_or(config.n_heads);
  config.head_dim = keys.required("attention.key_length_swa", kMaxHeadDim);
}

void read_heads(const Keys& keys, ModelConfig& config) {
  if (config.model_type == "deepseek_v3") return read_latent_heads(keys, config);
  if (config.model_type == "gemma4_text") return read_gemma4_heads(keys, config);
  if (!has_experts_alone(config.model_type)) {
    config.intermediate_size = keys.required("feed_forward_length", kMaxIntermediateSize);
  }
  if (config.model_type == "llama4_text") {  // of the experts
    config.intermediate_size = keys.required("expert_feed_forward_length", kMaxIntermediateSize);
  }
  config.n_heads = keys.required("attention.head_count", kMaxHeads);
  const bool has_layers_without = config.model_type == "lfm2" || config.model_type == "granitemoehybrid";
  const std::string n_kv_heads = "attention.head_count_kv";
  config.n_kv_heads = (has_layers_without ? keys.size_of_some(n_kv_heads, kMaxHeads) : keys.size(n_kv_heads, kMaxHeads))
                          .value_or(config.n_heads);
  if (const auto head_dim = keys.size("attention.key_length", kMaxHeadDim)) {
    config.head_dim = *head_dim;
  } else if (config.hidden_size % config.n_heads == 0) {
    config.head_dim = config.hidden_size / config.n_heads;
  } else {
    keys.fail("attention.key_length", "is missing, and embedding_length is not a multiple of attention.head_count");
  }
}

// The part of head_dim that is rotated, such that int(head_dim * part) is the number in the file.
double rotated_part(const Keys& keys, const ModelConfig& config) {
  const int rotated = keys.size("rope.dimension_count", kMaxHeadDim).value_or(config.head_dim);
  if (rotated > config.head_dim) {
    keys.fail("rope.dimension_count",
              "is " + std::to_string(rotated) + ", more than the head's " + std::to_string(config.head_dim));
  }
  const double part = static_cast<double>(rotated) / config.head_dim;
  const bool rounds_down = static_cast<int>(part * config.head_dim) < rotated;
  return rounds_down ? std::nextafter(part, 2.0) : part;
}

// The rotation's type and factor, as llama.cpp takes them: a factor without a type is linear.
void read_rope_type(const Keys& keys, const GgufFile& file, RopeConfig& rope) {
  const std::string type = keys.string("rope.scaling.type").value_or("linear");
  if (type != "none" && type != "linear" && type != "yarn" && type != "longrope") {
    throw UnsupportedError(file.path(), keys.name("rope.scaling.type"), "the RoPE type \"" + type + "\" is not known");
  }
  const auto factor = keys.positive("rope.scaling.factor");
  const auto older = keys.positive("rope.scale_linear");
  if (type == "none") return;
  rope.factor = factor ? *factor : older.value_or(1);
  if (type != "linear" || rope.factor != 1) rope.type = type;
}

// llama.cpp multiplies queries and keys by the factor, whatever the type; with yarn by yarn's own as well.
void read_attention_factor(const Keys& keys, const GgufFile& file, RopeConfig& rope) {
  const auto factor = keys.positive("rope.scaling.attn_factor");
  if (!factor) return;
  if (rope.type == "yarn") {
    rope.attention_factor = *factor * (rope.factor > 1 ? 1 + 0.1 * std::log(rope.factor) : 1);
  } else if (rope.type == "longrope") {
    rope.attention_factor = factor;
  } else if (*factor != 1) {
    throw UnsupportedError(file.path(), keys.name("rope.scaling.attn_factor"),
                           "is " + std::to_string(*factor) + ": only yarn and longrope may scale queries and keys");
  }
}

RopeConfig read_rope(const Keys& keys, const GgufFile& file, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = keys.positive("rope.freq_base").value_or(rope.theta);
  rope.partial_rotary_factor = rotated_part(keys, config);
  read_rope_type(keys, file, rope);
  read_attention_factor(keys, file, rope);
  if (rope.type == "default") return rope;
  rope.original_max_position =
      keys.size("rope.scaling.original_context_length", kMaxPosition).value_or(config.max_position);
  rope.beta_fast = keys.positive("rope.scaling.yarn_beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = keys.positive("rope.scaling.yarn_beta_slow").value_or(rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) keys.fail("rope.scaling.yarn_beta_fast", "is less than yarn_beta_slow");
  return rope;
}

// All of what turns does, though it is a part of the head. llama.cpp's converter has a tenth of mscale_all_dim, and
// llama.cpp takes mscale for the same.
void read_latent_rope(const Keys& keys, RopeConfig& rope) {
  rope.partial_rotary_factor = 1;
  constexpr float kTenth = 0.1F;
  const auto tenth = keys.positive("rope.scaling.yarn_log_multiplier");
  if (!tenth || rope.type != "yarn") return;
  rope.mscale = rope.mscale_all_dim = static_cast<float>(*tenth) / kTenth;
}

// How many pairs turn in layers that see everything: the converter writes 1 for each of these, and then numbers so
// large that the angle is none.
std::size_t turning_pairs(const GgufFile& file, int head_dim) {
  constexpr std::string_view kName = "rope_freqs.weight";
  constexpr float kHuge = 1e20F;
  const auto tensor = std::ranges::find(file.tensors(), kName, &GgufTensor::name);
  if (tensor == file.tensors().end()) throw FormatError(file.path(), std::string(kName), "missing");
  std::vector<float> factors(static_cast<std::size_t>(head_dim / 2));
  if (tensor->type != GgufType::kF32 || tensor->size_bytes != factors.size() * sizeof(float)) {
    throw FormatError(file.path(), std::string(kName),
                      "is not of type F32 with " + std::to_string(factors.size()) + " numbers");
  }
  file.read(*tensor, std::as_writable_bytes(std::span(factors)));
  const auto rest = std::ranges::find_if(factors, [](float factor) { return factor != 1; });
  if (!std::all_of(rest, factors.end(), [](float factor) { return factor >= kHuge; })) {
    throw UnsupportedError(file.path(), std::string(kName), "holds other numbers than 1 and, behind these, huge ones");
  }
  return static_cast<std::size_t>(rest - factors.begin());
}

// `rope` is of layers that see everything.
void read_gemma4_ropes(const Keys& keys, const GgufFile& file, ModelConfig& config) {
  RopeConfig scaling;
  read_rope_type(keys, file, scaling);
  if (scaling.type != "default") {
    throw UnsupportedError(file.path(), keys.name("rope.scaling.type"),
                           "is \"" + scaling.type + "\": Gemma 4 has none");
  }
  const int head_dim = keys.required("attention.key_length", kMaxHeadDim);
  config.rope.theta = keys.positive("rope.freq_base").value_or(1e6);
  config.rope.type = "proportional";
  const auto turned = static_cast<double>(2 * turning_pairs(file, head_dim));
  config.rope.partial_rotary_factor = turned == 0 ? 0 : std::nextafter(turned / head_dim, 2.0);
  RopeConfig sliding;
  sliding.theta = keys.positive("rope.freq_base_swa").value_or(sliding.theta);
  if (keys.size("rope.dimension_count_swa", kMaxHeadDim).value_or(config.head_dim) != config.head_dim) {
    throw UnsupportedError(file.path(), keys.name("rope.dimension_count_swa"), "is not all of a head");
  }
  config.layer_ropes = {{"full_attention", config.rope}, {"sliding_attention", sliding}};
}

// What llama.cpp does not do for its architecture "llama", although there are keys for it.
void check_llama(const Keys& keys, const GgufFile& file, const ModelConfig& config) {
  const int rotated = rotated_dims(config.head_dim, config.rope);
  if (rotated == config.head_dim) return;
  throw UnsupportedError(file.path(), keys.name("rope.dimension_count"),
                         "is " + std::to_string(rotated) + " of a head's " + std::to_string(config.head_dim) +
                             " dimensions; in the architecture llama all of them turn");
}

// The id under a tokenizer key. 0xFFFFFFFF is how some converters write "none".
std::optional<TokenId> token_id(const GgufFile& file, std::string_view key) {
  const auto value = file.integer(key);
  if (!value || *value == std::numeric_limits<std::uint32_t>::max() || *value == -1) return std::nullopt;
  if (*value < 0 || *value > kMaxVocab) {
    throw FormatError(file.path(), std::string(key), "is " + std::to_string(*value) + ", not a token");
  }
  return static_cast<TokenId>(*value);
}

void read_token_ids(const GgufFile& file, ModelConfig& config) {
  config.bos_id = token_id(file, "tokenizer.ggml.bos_token_id");
  for (const char* kind : {"eos", "eot", "eom"}) {
    const auto id = token_id(file, "tokenizer.ggml." + std::string(kind) + "_token_id");
    if (id && std::ranges::find(config.eos_ids, *id) == config.eos_ids.end()) config.eos_ids.push_back(*id);
  }
}

json read_raw(const GgufFile& file, const std::string& prefix, int n_blocks) {
  json raw = json::object();
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(prefix)) continue;
    const std::string name = key.substr(prefix.size());
    std::visit(
        [&](const auto& held) {
          json element = held;
          const bool is_long = element.is_array() && element.size() > static_cast<std::size_t>(n_blocks);
          if (!is_long) raw[name] = std::move(element);
        },
        value);
  }
  return raw;
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file, const ModelTypeCheck& check) {
  const std::string* architecture = file.string("general.architecture");
  if (architecture == nullptr) throw FormatError(file.path(), "general.architecture", "is missing");
  const Keys keys(file, *architecture);
  ModelConfig config;
  config.path = file.path();
  config.model_type = hugging_face_name(*architecture);
  if (check) check(config.model_type, config.path);
  const int n_blocks = keys.required("block_count", kMaxLayers);
  config.n_layers = n_blocks;
  if (config.model_type.starts_with("qwen3_") ||
      config.model_type == "deepseek_v3") {  // blocks that predict further tokens are among them
    config.n_layers -= keys.size("nextn_predict_layers", n_blocks - 1).value_or(0);
  }
  config.hidden_size = keys.required("embedding_length", kMaxHiddenSize);
  config.vocab_size = read_vocab_size(file, keys);
  for (const char* key : {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"}) {
    if (const auto eps = keys.positive(key)) {
      config.rms_norm_eps = *eps;
      break;
    }
  }
  config.max_position = static_cast<int>(kMaxPosition);
  if (!is_attention_free(config.model_type)) {
    config.max_position = keys.required("context_length", kMaxPosition);
    read_heads(keys, config);
    if (config.model_type == "gemma4_text") {
      read_gemma4_ropes(keys, file, config);
    } else {
      config.rope = read_rope(keys, file, config);
    }
    if (config.model_type == "deepseek_v3") read_latent_rope(keys, config.rope);
    if (*architecture == "llama") check_llama(keys, file, config);
    check_heads(config, {keys.name("attention.head_count"), keys.name("attention.head_count_kv"),
                         keys.name("attention.key_length"), keys.name("rope.dimension_count")});
  }
  if (!file.boolean(keys.name("attention.causal")).value_or(true)) {
    throw UnsupportedError(file.path(), keys.name("attention.causal"), "is false: the model is none that writes text");
  }
  // llama.cpp reads no window for these architectures; Mistral's files name the first too.
  if (!architecture->starts_with("llama") && !architecture->starts_with("qwen"))
    config.sliding_window = keys.size("attention.sliding_window", kMaxPosition);
  config.tie_embeddings = !has_tensor(file, "output.weight");
  config.attention_bias = has_tensor_like(file, ".attn_q.bias");
  config.mlp_bias = has_tensor_like(file, ".ffn_down.bias");
  if (architecture->starts_with("gemma")) config.hidden_act = "gelu_pytorch_tanh";
  if (*architecture == "gpt-oss") config.rope.truncate = false;  // as the model is; there is no key for it
  read_token_ids(file, config);
  config.raw = read_raw(file, *architecture + ".", n_blocks);
  config.family_keys = family_keys_of_gguf(config, file);
  return config;
}

}  // namespace memoir::model
