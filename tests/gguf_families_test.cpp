// GGUF files of families other than Llama against the Hugging Face directory with the same values: the same bits.
// Names, keys and what is done to values are those of llama.cpp's converter (gguf-py's constants.py and
// tensor_mapping.py, convert_hf_to_gguf.py). llama.cpp itself, run on such float32 files, agreed to 3e-5, but for Gemma
// 3 (1.2e-2: its GELU is a table of float16) and gpt-oss (0.09: it rounds yarn's range, which the published model
// doesn't; rounded, 8e-6).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <map>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "tests/gguf_twin.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using nlohmann::json;
using test::GgufWriter;
using test::kPreNorm;
using test::stack_qwen_experts;
using test::Tensors;
using test::Twin;

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

void olmo_keys(const json& config, test::GgufBuilder& keys) {
  const json& rope = config["rope_scaling"];
  std::vector<std::uint32_t> slides;
  for (const std::string type : config["layer_types"]) slides.push_back(type == "sliding_attention" ? 1 : 0);
  keys.integer("olmo2.attention.sliding_window", config["sliding_window"])
      .integers("olmo2.attention.sliding_window_pattern", slides)
      .string("olmo2.rope.scaling.type", "yarn")
      .number("olmo2.rope.scaling.factor", rope["factor"])
      .integer("olmo2.rope.scaling.original_context_length", rope["original_max_position_embeddings"]);
}

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
      {"olmo3",
       "olmo2",
       {{"post_attention_layernorm", "post_attention_norm"}, {"post_feedforward_layernorm", "post_ffw_norm"}},
       {},
       olmo_keys},
  };
}

class GgufFamily : public testing::TestWithParam<Twin> {};
INSTANTIATE_TEST_SUITE_P(Architectures, GgufFamily, testing::ValuesIn(twins()),
                         [](const auto& twin) { return twin.param.golden; });

TEST_P(GgufFamily, GivesTheBitsOfTheDirectoryWithTheSameValues) {
  test::expect_same_logits(GetParam());
}

TEST(GgufFamilies, AnArchitectureWhoseNamesAreNotKnownIsSaidSo) {
  const test::TemporaryFolder folder;
  GgufWriter file;
  file.keys.string("general.architecture", "mistral")
      .integer("mistral.block_count", 1)
      .integer("mistral.embedding_length", 32)
      .integer("mistral.feed_forward_length", 32)
      .integer("mistral.attention.head_count", 2)
      .integer("mistral.context_length", 64)
      .integer("mistral.vocab_size", 16);
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
