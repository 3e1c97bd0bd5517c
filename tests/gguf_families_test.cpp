// GGUF files of families other than Llama against the Hugging Face directory with the same values: the same bits.
// Names, keys and what is done to values are those of llama.cpp's converter (gguf-py's constants.py and
// tensor_mapping.py, convert_hf_to_gguf.py). llama.cpp itself, run on such float32 files, agreed to 3e-5, but for Gemma
// 3 (1.2e-2: its GELU is a table of float16) and gpt-oss (0.09: it rounds yarn's range, which the published model
// doesn't; rounded, 8e-6).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "memoir/model/model.h"
#include "tests/gguf_builder.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::Tensors;

constexpr std::uint32_t kTypeF32 = 0;
constexpr std::uint32_t kTypeMxfp4 = 39;

/// A GGUF file that is written tensor by tensor.
class GgufWriter {
 public:
  test::GgufBuilder keys;

  void floats(const std::string& name, mx::array a) {
    a = mx::contiguous(mx::astype(a, mx::float32));
    mx::eval(a);
    add(name, a.shape(), kTypeF32, a.data<std::byte>(), a.nbytes());
  }

  void blocks(const std::string& name, const mx::Shape& shape, const std::vector<std::byte>& bytes) {
    add(name, shape, kTypeMxfp4, bytes.data(), bytes.size());
  }

  void write(const test::fs::path& path) {
    keys.data_bytes = data_.size();
    std::vector<std::byte> bytes = keys.bytes();
    std::memcpy(bytes.data() + bytes.size() - data_.size(), data_.data(), data_.size());
    test::write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  void add(const std::string& name, const mx::Shape& shape, std::uint32_t type, const std::byte* bytes, std::size_t n) {
    keys.tensor(name, {shape.rbegin(), shape.rend()}, type, data_.size());
    data_.insert(data_.end(), bytes, bytes + n);
    data_.resize((data_.size() + 31) / 32 * 32);
  }

  std::vector<std::byte> data_;
};

// Modules whose names are the same in all of these families.
const std::map<std::string, std::string> kCommon = {
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
  std::function<void(const json&, test::GgufBuilder&)> add_keys = {};
  std::function<void(const json&, Tensors&, GgufWriter&)> take = {};  // writes tensors of its own and drops them
};

void add_keys_of_all(const json& config, const std::string& architecture, test::GgufBuilder& keys) {
  const auto name = [&](const char* key) { return architecture + "." + key; };
  keys.string("general.architecture", architecture)
      .integer(name("block_count"), config["num_hidden_layers"])
      .integer(name("embedding_length"), config["hidden_size"])
      .integer(name("feed_forward_length"), config["intermediate_size"])
      .integer(name("attention.head_count"), config["num_attention_heads"])
      .integer(name("attention.head_count_kv"), config["num_key_value_heads"])
      .integer(name("attention.key_length"), config.value("head_dim", 16))
      .integer(name("context_length"), config["max_position_embeddings"])
      .integer(name("vocab_size"), config["vocab_size"]);
  const json& rope = config.contains("rope_theta") ? config : config["rope_parameters"];
  keys.number(name("rope.freq_base"), rope["rope_theta"]);
  if (config.contains("rms_norm_eps")) keys.number(name("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"]);
}

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight".
std::string gguf_name(const std::string& name, const Twin& twin) {
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

mx::array logits_of(const model::Model& model) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back((i * 37 + 11) % model.config().vocab_size);
  engine::Session session(model);
  const mx::array logits = session.forward(tokens, model::LogitRows::kAll);
  mx::eval(logits);
  return logits;
}

std::unique_ptr<model::Model> load_gguf(const test::fs::path& path) {
  GgufFile file = GgufFile::open(path);
  const model::ModelConfig config = model::config_from_gguf(file, model::check_supported);
  return model::make_model(config, *model::open_gguf_weights(std::move(file), config));
}

// ---- the families ----

void gemma_as_in_llama_cpp(json& config, Tensors&) {
  config["sliding_window_pattern"] = 6;
  config["query_pre_attn_scalar"] = config["head_dim"];
  config["rope_local_base_freq"] = 1e4;
}

void gemma_keys(const json& config, test::GgufBuilder& keys) {
  keys.integer("gemma3.attention.sliding_window", config["sliding_window"])
      .string("gemma3.rope.scaling.type", "linear")
      .number("gemma3.rope.scaling.factor", config["rope_scaling"]["factor"]);
}

// The converter adds the 1 that Gemma's norms have besides their weights.
void gemma_norms(const json&, Tensors& tensors, GgufWriter&) {
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("norm.weight")) tensor = mx::add(tensor, mx::array(1.0F));
  }
}

// In llama.cpp all layers have experts.
void experts_everywhere(json& config, Tensors& tensors) {
  config["mlp_only_layers"] = json::array();
  for (const int i : {0, 2}) {
    const auto name = [](int layer, const std::string& rest) {
      return "model.layers." + std::to_string(layer) + ".mlp." + rest + ".weight";
    };
    tensors.insert_or_assign(name(i, "gate"), tensors.at(name(i + 1, "gate")));
    for (const std::string layer : {"gate_proj", "up_proj", "down_proj"}) {
      tensors.erase(name(i, layer));
      for (int e = 0; e < 8; ++e) {
        const std::string from = "experts." + std::to_string((e + i + 1) % 8) + "." + layer;
        tensors.insert_or_assign(name(i, "experts." + std::to_string(e) + "." + layer), tensors.at(name(i + 1, from)));
      }
    }
  }
}

void qwen_expert_keys(const json& config, test::GgufBuilder& keys) {
  keys.integer("qwen3moe.expert_count", config["num_experts"])
      .integer("qwen3moe.expert_used_count", config["num_experts_per_tok"])
      .integer("qwen3moe.expert_feed_forward_length", config["moe_intermediate_size"]);
}

void stack_qwen_experts(const json& config, Tensors& tensors, GgufWriter& file) {
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

void gpt_oss_keys(const json& config, test::GgufBuilder& keys) {
  const json& rope = config["rope_scaling"];
  keys.integer("gpt-oss.attention.sliding_window", config["sliding_window"])
      .string("gpt-oss.rope.scaling.type", "yarn")
      .number("gpt-oss.rope.scaling.factor", rope["factor"])
      .integer("gpt-oss.rope.scaling.original_context_length", rope["original_max_position_embeddings"])
      .integer("gpt-oss.expert_count", config["num_local_experts"])
      .integer("gpt-oss.expert_used_count", config["num_experts_per_tok"]);
}

// Published blocks have values 2j and 2j + 1 in byte j, GGUF's j and j + 16, behind the exponent.
std::vector<std::byte> gguf_blocks(mx::array blocks, mx::array scales) {
  blocks = mx::contiguous(blocks);
  scales = mx::contiguous(scales);
  mx::eval(blocks, scales);
  std::vector<std::byte> bytes;
  for (std::size_t g = 0; g < scales.size(); ++g) {
    bytes.push_back(scales.data<std::byte>()[g]);
    const auto* codes = blocks.data<std::uint8_t>() + g * 16;
    const auto code = [&](unsigned i) { return static_cast<unsigned>(codes[i / 2] >> (i % 2 * 4)) & 15U; };
    for (unsigned j = 0; j < 16; ++j) bytes.push_back(static_cast<std::byte>(code(j) | code(j + 16) << 4));
  }
  return bytes;
}

// Gates and ups, which are rows by turns, apart.
void split_gpt_oss_experts(const json& config, Tensors& tensors, GgufWriter& file) {
  const int n = config["num_local_experts"];
  const int hidden = config["hidden_size"];
  const int inner = config["intermediate_size"];
  for (int i = 0; i < config["num_hidden_layers"]; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string to = "blk." + std::to_string(i) + ".ffn_";
    const auto taken = [&](const std::string& name) {
      const mx::array tensor = tensors.at(layer + name);
      tensors.erase(layer + name);
      return tensor;
    };
    const auto every_other = [](const mx::array& a, int begin) {
      mx::Shape start(a.ndim(), 0);
      mx::Shape step(a.ndim(), 1);
      start[1] = begin;
      step[1] = 2;
      return mx::slice(a, start, a.shape(), step);
    };
    const mx::array both = taken("mlp.experts.gate_up_proj_blocks");
    const mx::array scales = taken("mlp.experts.gate_up_proj_scales");
    const mx::array biases = taken("mlp.experts.gate_up_proj_bias");
    for (const int part : {0, 1}) {
      const std::string name = to + (part == 0 ? "gate" : "up") + "_exps";
      file.blocks(name + ".weight", {n, inner, hidden},
                  gguf_blocks(every_other(both, part), every_other(scales, part)));
      file.floats(name + ".bias", every_other(biases, part));
    }
    const mx::array down = taken("mlp.experts.down_proj_blocks");
    file.blocks(to + "down_exps.weight", {n, hidden, inner}, gguf_blocks(down, taken("mlp.experts.down_proj_scales")));
    file.floats(to + "down_exps.bias", taken("mlp.experts.down_proj_bias"));
    file.floats("blk." + std::to_string(i) + ".attn_sinks.weight", taken("self_attn.sinks"));
  }
}

void cohere_keys(const json& config, test::GgufBuilder& keys) {
  keys.number("cohere2.attention.layer_norm_epsilon", config["layer_norm_eps"])
      .number("cohere2.logit_scale", config["logit_scale"])
      .integer("cohere2.attention.sliding_window", config["sliding_window"])
      .string("cohere2.rope.scaling.type", "none");
}

const std::map<std::string, std::string> kPreNorm = {{"post_attention_layernorm", "ffn_norm"}};

std::vector<Twin> twins() {
  return {
      {"qwen2", "qwen2", kPreNorm},
      {"qwen3", "qwen3", kPreNorm},
      {"qwen3_moe", "qwen3moe", kPreNorm, experts_everywhere, qwen_expert_keys, stack_qwen_experts},
      {"gemma3",
       "gemma3",
       {{"post_attention_layernorm", "post_attention_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"}},
       gemma_as_in_llama_cpp,
       gemma_keys,
       gemma_norms},
      {"gpt_oss_mxfp4",
       "gpt-oss",
       {{"post_attention_layernorm", "post_attention_norm"}},
       {},
       gpt_oss_keys,
       split_gpt_oss_experts},
      {"cohere2", "cohere2", {}, [](json& config, Tensors&) { config["sliding_window_pattern"] = 4; }, cohere_keys},
  };
}

class GgufFamily : public testing::TestWithParam<Twin> {
 protected:
  // The twin directory, and beside it the file.
  test::fs::path make(const test::TemporaryFolder& folder) const {
    const Twin& twin = GetParam();
    const test::fs::path directory = test::copied_model(folder, twin.golden);
    GgufWriter file;
    test::edit_tensors(directory, [&](Tensors& tensors) {
      test::edit_config(directory, [&](json& config) {
        if (twin.change) twin.change(config, tensors);
        add_keys_of_all(config, twin.architecture, file.keys);
        if (twin.add_keys) twin.add_keys(config, file.keys);
        Tensors rest = tensors;
        if (twin.take) twin.take(config, rest, file);
        for (const auto& [name, tensor] : rest) file.floats(gguf_name(name, twin), tensor);
      });
    });
    file.write(directory / "model.gguf");
    return directory;
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, GgufFamily, testing::ValuesIn(twins()),
                         [](const auto& twin) { return twin.param.golden; });

TEST_P(GgufFamily, GivesTheBitsOfTheDirectoryWithTheSameValues) {
  const test::TemporaryFolder folder;
  const test::fs::path directory = make(folder);
  const mx::array expected = logits_of(*model::load_model(directory).model);
  const mx::array logits = logits_of(*load_gguf(directory / "model.gguf"));
  EXPECT_TRUE(mx::array_equal(logits, expected).item<bool>());
}

TEST(GgufFamilies, AnArchitectureWhoseNamesAreNotKnownIsSaidSo) {
  const test::TemporaryFolder folder;
  GgufWriter file;
  file.keys.string("general.architecture", "deepseek2")
      .integer("deepseek2.block_count", 1)
      .integer("deepseek2.embedding_length", 32)
      .integer("deepseek2.feed_forward_length", 32)
      .integer("deepseek2.attention.head_count", 2)
      .integer("deepseek2.context_length", 64)
      .integer("deepseek2.vocab_size", 16);
  file.write(folder.path() / "model.gguf");
  try {
    model::load_model(folder.path() / "model.gguf");
    FAIL() << "no error";
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(error.key(), "general.architecture");
  }
}

}  // namespace
}  // namespace memoir
