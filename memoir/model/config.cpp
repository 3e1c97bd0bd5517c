#include "memoir/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/model/config_defaults.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"

namespace memoir::model {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = 16 << 20;

bool starts_with_any(const std::string& text, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return text.starts_with(prefix); });
}

// ---- RoPE ----

std::string rope_type(const ConfigFields& fields) {
  const auto newer = fields.string("rope_type");
  const auto older = fields.string("type");
  const std::string type = newer ? *newer : older.value_or("default");
  if (type == "su") return "longrope";    // the name in the first Phi-3 files
  if (type == "mrope") return "default";  // the same rotation for text: all three position axes are equal
  constexpr std::array<std::string_view, 7> kKnown = {"default", "linear",   "dynamic",     "llama3",
                                                      "yarn",    "longrope", "proportional"};
  if (std::ranges::find(kKnown, type) == kKnown.end()) {
    fields.refuse(newer ? "rope_type" : "type", "the RoPE type \"" + type + "\" is not known");
  }
  return type;
}

double required_positive(const ConfigFields& fields, std::string_view key) {
  const auto value = fields.positive(key);
  if (!value) fields.fail(key, "is missing");
  return *value;
}

void read_llama3(const ConfigFields& fields, RopeConfig& rope) {
  rope.low_freq_factor = required_positive(fields, "low_freq_factor");
  rope.high_freq_factor = required_positive(fields, "high_freq_factor");
  if (rope.low_freq_factor >= rope.high_freq_factor) {
    fields.fail("low_freq_factor", "is not less than high_freq_factor");
  }
}

void read_yarn(const ConfigFields& fields, RopeConfig& rope) {
  rope.attention_factor = fields.positive("attention_factor");
  rope.beta_fast = fields.positive("beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = fields.positive("beta_slow").value_or(rope.beta_slow);
  rope.mscale = fields.number("mscale");
  rope.mscale_all_dim = fields.number("mscale_all_dim");
  rope.truncate = fields.boolean("truncate").value_or(rope.truncate);
  if (rope.beta_fast < rope.beta_slow) fields.fail("beta_fast", "is less than beta_slow");
}

// Where factor is missing it is max_position / original_max_position, as in Phi-3's files.
void read_longrope(const ConfigFields& fields, const ModelConfig& config, RopeConfig& rope) {
  rope.attention_factor = fields.positive("attention_factor");
  auto short_factors = fields.positives("short_factor");
  auto long_factors = fields.positives("long_factor");
  if (!short_factors) fields.fail("short_factor", "is missing");
  if (!long_factors) fields.fail("long_factor", "is missing");
  rope.short_factors = std::move(*short_factors);
  rope.long_factors = std::move(*long_factors);
  rope.factor = fields.positive("factor").value_or(static_cast<double>(config.max_position) /
                                                   static_cast<double>(rope.original_max_position));
}

// Of the other types transformers' classes have no partial_rotary_factor, and turn whole heads whatever the key says.
bool may_turn_in_part(const std::string& model_type) {
  return model_type.starts_with("qwen3_next") || model_type.starts_with("qwen3_5") || model_type.starts_with("gemma4");
}

// One set of parameters, `fields`; `outer` is the whole configuration, which has the period under `outer_theta`.
RopeConfig read_rope(const ConfigFields& fields, const ConfigFields& outer, const ModelConfig& config,
                     std::string_view outer_theta = "rope_theta") {
  RopeConfig rope;
  rope.type = rope_type(fields);
  const auto theta = fields.positive("rope_theta");
  rope.theta = theta ? *theta : outer.positive(outer_theta).value_or(rope.theta);
  // Newer files have these numbers among the RoPE parameters, older ones beside them.
  const auto part = fields.positive("partial_rotary_factor");
  rope.partial_rotary_factor = part ? *part : outer.positive("partial_rotary_factor").value_or(1);
  if (rope.partial_rotary_factor > 1) fields.fail("partial_rotary_factor", "is above 1");
  if (rope.type == "default" && !may_turn_in_part(config.model_type)) rope.partial_rotary_factor = 1;
  if (rope.type == "proportional") rope.factor = fields.positive("factor").value_or(1);
  if (rope.type == "default" || rope.type == "proportional") return rope;

  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  const auto original = fields.integer(kOriginal, 1, kMaxPosition);
  rope.original_max_position =
      original ? *original : outer.integer(kOriginal, 1, kMaxPosition).value_or(config.max_position);
  if (rope.type == "longrope") {
    read_longrope(fields, config, rope);
    return rope;
  }
  rope.factor = required_positive(fields, "factor");
  if (rope.type == "llama3") read_llama3(fields, rope);
  if (rope.type == "yarn") read_yarn(fields, rope);
  return rope;
}

bool is_layer_type(const std::string& key) {
  return key.ends_with("_attention");
}

bool is_keyed_by_layer_type(const json& parameters) {
  if (!parameters.is_object()) return false;
  const auto keys = parameters.items();
  return std::any_of(keys.begin(), keys.end(), [](const auto& item) { return is_layer_type(item.key()); });
}

void read_ropes(const ConfigFields& fields, ModelConfig& config) {
  static const json kNone = json::object();
  const json* parameters = fields.find("rope_parameters");
  const char* key = "rope_parameters";
  if (parameters == nullptr) {
    parameters = fields.find("rope_scaling");
    key = "rope_scaling";
  }
  if (parameters == nullptr) {
    config.rope = read_rope(ConfigFields(kNone, config.path), fields, config);
    return;
  }
  const std::string prefix = std::string(key) + ".";
  if (!is_keyed_by_layer_type(*parameters)) {
    config.rope = read_rope(ConfigFields(*parameters, config.path, prefix), fields, config);
    return;
  }
  for (const auto& [layer_type, values] : parameters->items()) {
    if (!is_layer_type(layer_type) || values.is_null()) continue;
    const ConfigFields layer(values, config.path, prefix + layer_type + ".");
    const bool is_local = layer_type == "sliding_attention" && fields.find("rope_local_base_freq") != nullptr;
    config.layer_ropes[layer_type] = read_rope(layer, fields, config, is_local ? "rope_local_base_freq" : "rope_theta");
  }
  if (config.layer_ropes.empty()) {
    config.rope = read_rope(ConfigFields(kNone, config.path), fields, config);
    return;
  }
  const auto full = config.layer_ropes.find("full_attention");
  config.rope = full == config.layer_ropes.end() ? config.layer_ropes.begin()->second : full->second;
}

// ---- quantization ----

QuantizationMode read_mode(const ConfigFields& fields) {
  const std::string mode = fields.string("mode").value_or("affine");
  if (mode == "mxfp4") return QuantizationMode::kMxfp4;
  if (mode != "affine") fields.refuse("mode", "quantization mode \"" + mode + "\"; affine and mxfp4 can be read");
  return QuantizationMode::kAffine;
}

ModuleQuantization read_module(const ConfigFields& fields) {
  const QuantizationMode mode = read_mode(fields);
  const ModuleQuantization module{fields.size("group_size", 128), fields.size("bits", 8), mode};
  if (mode == QuantizationMode::kMxfp4) {
    if (module.group_size != 32)
      fields.fail("group_size", "is " + std::to_string(module.group_size) + ", not mxfp4's 32");
    if (module.bits != 4) fields.fail("bits", "is " + std::to_string(module.bits) + ", not mxfp4's 4");
    return module;
  }
  if (module.group_size != 32 && module.group_size != 64 && module.group_size != 128) {
    fields.refuse("group_size", "is " + std::to_string(module.group_size) + "; 32, 64 and 128 can be read");
  }
  if (module.bits == 1 || module.bits == 7) {
    fields.refuse("bits", "is " + std::to_string(module.bits) + "; 2, 3, 4, 5, 6 and 8 can be read");
  }
  return module;
}

// The MLX form: group_size and bits for all, then under the path of a module an object, true (as all) or false (not
// quantized).
QuantizationConfig read_quantization(const json& object, const std::string& key, const std::string& path) {
  const ConfigFields fields(object, path, key + ".");
  if (const auto method = fields.string("quant_method"); method && *method != "mlx") {
    fields.refuse("quant_method", "weights quantized with \"" + *method + "\" can't be read");
  }
  const ModuleQuantization all = read_module(fields);
  QuantizationConfig quantization{all.group_size, all.bits, {}, all.mode};
  constexpr std::array<std::string_view, 4> kOfAll = {"group_size", "bits", "mode", "quant_method"};
  for (const auto& [module, value] : object.items()) {
    if (std::ranges::find(kOfAll, module) != kOfAll.end()) continue;
    if (value.is_object()) {
      quantization.overrides[module] = read_module(ConfigFields(value, path, key + "." + module + "."));
    } else if (!value.is_boolean()) {
      fields.fail(module,
                  std::string("is a value of type ") + value.type_name() + ", expected an object, true or false");
    } else if (!value.get<bool>()) {
      quantization.overrides[module] = std::nullopt;
    }
  }
  return quantization;
}

// gpt-oss as published: its experts lie in tensors of their own form, which need no description.
bool is_mxfp4_of_gpt_oss(const json& object, const ModelConfig& config) {
  return config.model_type == "gpt_oss" && object.is_object() && object.value("quant_method", json()) == "mxfp4";
}

std::optional<QuantizationConfig> find_quantization(const ConfigFields& fields, const ModelConfig& config) {
  for (const char* key : {"quantization", "quantization_config"}) {
    const json* object = fields.find(key);
    if (object == nullptr || is_mxfp4_of_gpt_oss(*object, config)) continue;
    return read_quantization(*object, key, fields.path());
  }
  return std::nullopt;
}

// ---- the rest ----

void add_eos_ids(const ConfigFields& fields, std::vector<TokenId>& ids) {
  constexpr std::string_view kKey = "eos_token_id";
  const json* value = fields.find(kKey);
  if (value == nullptr) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& element : list) {
    const json one = {{kKey, element}};
    const auto id = ConfigFields(one, fields.path()).integer(kKey, 0, kMaxVocab);
    if (!id) fields.fail(kKey, "holds null");
    if (std::ranges::find(ids, *id) == ids.end()) ids.push_back(static_cast<TokenId>(*id));
  }
}

std::optional<TokenId> read_bos_id(const ConfigFields& fields) {
  const auto id = fields.integer("bos_token_id", 0, kMaxVocab);
  return id ? std::optional(static_cast<TokenId>(*id)) : std::nullopt;
}

// Qwen's files carry a window that is off unless use_sliding_window says otherwise.
std::optional<int> read_window(const ConfigFields& fields, const std::string& model_type) {
  const bool used = fields.boolean("use_sliding_window").value_or(!model_type.starts_with("qwen"));
  if (!used) return std::nullopt;
  const auto window = fields.integer("sliding_window", 1, kMaxPosition);
  return window ? std::optional(static_cast<int>(*window)) : std::nullopt;
}

double read_norm_eps(const ConfigFields& fields) {
  for (const char* key : {"rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon"}) {
    if (const auto eps = fields.positive(key)) return *eps;
  }
  return ModelConfig().rms_norm_eps;
}

void read_sizes(const ConfigFields& fields, ModelConfig& config) {
  config.n_layers = fields.size("num_hidden_layers", kMaxLayers);
  config.hidden_size = fields.size("hidden_size", kMaxHiddenSize);
  config.vocab_size = fields.size("vocab_size", kMaxVocab);
  if (is_attention_free(config.model_type)) {
    config.max_position = kMaxPosition;
    return;
  }
  config.max_position = fields.size("max_position_embeddings", kMaxPosition);
  if (!has_experts_alone(config.model_type)) {
    config.intermediate_size = fields.size("intermediate_size", kMaxIntermediateSize);
  }
  config.n_heads = fields.size("num_attention_heads", kMaxHeads);
  config.n_kv_heads = static_cast<int>(fields.integer("num_key_value_heads", 1, kMaxHeads).value_or(config.n_heads));
  if (config.model_type == "deepseek_v3") {  // of the queries: its head_dim is the part that turns
    config.head_dim = fields.size("qk_nope_head_dim", kMaxHeadDim) + fields.size("qk_rope_head_dim", kMaxHeadDim);
  } else if (const auto head_dim = fields.integer("head_dim", 1, kMaxHeadDim)) {
    config.head_dim = static_cast<int>(*head_dim);
  } else if (config.hidden_size % config.n_heads == 0) {
    config.head_dim = config.hidden_size / config.n_heads;
  } else {
    fields.fail("head_dim", "is missing, and hidden_size " + std::to_string(config.hidden_size) +
                                " is not a multiple of num_attention_heads " + std::to_string(config.n_heads));
  }
}

void read_flags(const ConfigFields& fields, ModelConfig& config) {
  // Families whose configuration class ties embeddings where the file does not say.
  const bool ties = starts_with_any(config.model_type, {"gemma", "cohere", "lfm2"});  // also those with no defaults
  config.tie_embeddings = fields.boolean("tie_word_embeddings").value_or(ties);
  config.attention_bias = fields.boolean("attention_bias").value_or(false);
  config.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  config.rms_norm_eps = read_norm_eps(fields);
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    if (auto name = fields.string(key)) config.hidden_act = std::move(*name);
  }
}

// A text part without a type of its own has that of the whole.
std::string read_model_type(const ConfigFields& fields) {
  const auto model_type = fields.string("model_type");
  if (!model_type) fields.fail("model_type", "is missing");
  return text_part_type(*model_type);
}

// The same decoder, without experts or inputs of each layer's own, and with other defaults.
std::string family_type(const std::string& model_type) {
  return model_type == "gemma4_unified_text" ? "gemma4_text" : model_type;
}

ModelConfig read_fields(const json& whole, const std::string& path, const ModelTypeCheck& check) {
  const ConfigFields outer(whole, path);
  const json* text = outer.find("text_config");
  if (text != nullptr && !text->is_object()) outer.fail("text_config", "is not an object");
  ModelConfig config;
  config.path = path;
  config.is_text_part = text != nullptr;
  config.raw = config.is_text_part ? *text : whole;
  if (config.is_text_part) {
    config.outer = whole;
    config.outer.erase("text_config");
  }
  const std::string prefix = config.is_text_part ? "text_config." : "";
  const ConfigFields* around = config.is_text_part ? &outer : nullptr;
  const ConfigFields stated(config.raw, path, prefix, around);
  const std::string model_type = read_model_type(stated);
  config.model_type = family_type(model_type);
  if (check) check(config.model_type, path);
  config.family_keys = with_defaults(model_type, config.raw, config.is_text_part ? &whole : nullptr);
  const ConfigFields fields(config.family_keys, path, prefix, around);
  read_sizes(fields, config);
  read_flags(fields, config);
  config.sliding_window = read_window(fields, config.model_type);
  read_ropes(fields, config);
  config.quantization = find_quantization(fields, config);
  add_eos_ids(stated, config.eos_ids);
  config.bos_id = read_bos_id(stated);
  if (config.n_heads > 0) {
    check_heads(config, {"num_attention_heads", "num_key_value_heads", "head_dim", "partial_rotary_factor"});
  }
  return config;
}

// Defaults, which count where no file names tokens.
void fill_in_tokens(ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  if (config.eos_ids.empty()) add_eos_ids(fields, config.eos_ids);
  if (!config.bos_id) config.bos_id = read_bos_id(fields);
}

void check_rotated(const ModelConfig& config, const RopeConfig& rope, const ConfigKeys& keys) {
  const int rotated = rotated_dims(config.head_dim, rope);
  if (rope.type == "proportional") return;  // of whole pairs, none of them too
  if (rotated < 2 || rotated % 2 != 0) {
    throw FormatError(config.path, keys.rope,
                      "rotates " + std::to_string(rotated) + " of " + std::to_string(config.head_dim) +
                          " dimensions, expected an even number");
  }
  for (const auto* factors : {&rope.short_factors, &rope.long_factors}) {
    if (factors->empty() || factors->size() == static_cast<std::size_t>(rotated / 2)) continue;
    throw FormatError(config.path, "rope_scaling",
                      "has " + std::to_string(factors->size()) + " factors for " + std::to_string(rotated / 2) +
                          " pairs of dimensions");
  }
}

}  // namespace

bool is_attention_free(std::string_view model_type) {
  return model_type == "mamba" || model_type == "mamba2";
}

bool has_experts_alone(std::string_view model_type) {
  return model_type == "qwen3_5_moe_text";
}

int rotated_dims(int head_dim, const RopeConfig& rope) {
  if (rope.type == "proportional") return 2 * static_cast<int>(head_dim * rope.partial_rotary_factor / 2);
  return static_cast<int>(head_dim * rope.partial_rotary_factor);
}

void check_heads(const ModelConfig& config, const ConfigKeys& keys) {
  if (config.n_heads % config.n_kv_heads != 0) {
    throw FormatError(config.path, keys.heads,
                      std::to_string(config.n_heads) + " is not a multiple of " + keys.kv_heads + " " +
                          std::to_string(config.n_kv_heads));
  }
  constexpr std::int64_t kMaxWidth = 1 << 24;  // of all heads together, so that sizes made of it stay in an int
  if (std::int64_t{config.n_heads} * config.head_dim > kMaxWidth) {
    throw FormatError(
        config.path, keys.head_dim,
        "is " + std::to_string(config.head_dim) + ", too large for " + std::to_string(config.n_heads) + " heads");
  }
  if (config.head_dim % 2 != 0) {
    throw FormatError(config.path, keys.head_dim,
                      "is " + std::to_string(config.head_dim) + ", an odd number: RoPE turns pairs");
  }
  check_rotated(config, config.rope, keys);
  for (const auto& [layer_type, rope] : config.layer_ropes) check_rotated(config, rope, keys);
}

ModelConfig parse_config(std::string_view json_text, const std::string& path, const ModelTypeCheck& check) {
  ModelConfig config = read_fields(parse_json(json_text, path), path, check);
  fill_in_tokens(config);
  return config;
}

ModelConfig read_config(const std::filesystem::path& directory, const ModelTypeCheck& check) {
  const auto path = directory / "config.json";
  const json whole = parse_json(read_text_file(path, kMaxConfigBytes), path.string());
  ModelConfig config = read_fields(whole, path.string(), check);

  const auto generation_path = directory / "generation_config.json";
  if (entry_exists(generation_path)) {
    const std::string name = generation_path.string();
    const json generation = parse_json(read_text_file(generation_path, kMaxConfigBytes), name);
    const ConfigFields fields(generation, name);
    add_eos_ids(fields, config.eos_ids);
    if (!config.bos_id) config.bos_id = read_bos_id(fields);
  }
  fill_in_tokens(config);
  return config;
}

}  // namespace memoir::model
