// What can be wrong with a model's files, and forward passes, by the example of Llama. (families_test.cpp has its
// logits and tokens.)

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include "memoir/base/error.h"
#include "memoir/cache/kv.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/kernels/device.h"
#include "memoir/model/load.h"
#include "tests/golden.h"
#include "tests/held_allocations.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::copied_model;
using test::edit_config;
using test::edit_tensors;
using test::expected_of;
using test::kTolerance;
using test::load_error;
using test::logits_in_chunks;
using test::max_difference;
using test::TemporaryFolder;
using test::Tensors;
using test::tokens_of;

// MLX's own quantization of the same model: the expected logits are those of the dequantized weights.
TEST(Llama, QuantizedWeightsGiveTheLogitsOfTheirDequantizedValues) {
  for (const int bits : {4, 8}) {
    const TemporaryFolder quantized_folder;
    const TemporaryFolder dense_folder;
    const test::fs::path quantized = copied_model(quantized_folder, "llama");
    const test::fs::path dense = copied_model(dense_folder, "llama");
    // Groups of 16 would be needed for 48 columns: widths of 48 and 80 stay dense, those of 64 (o_proj) are packed.
    const std::string module = "model.layers.1.self_attn.o_proj";
    edit_tensors(quantized, [&](Tensors& tensors) {
      const std::vector<mx::array> parts = mx::quantize(tensors.at(module + ".weight"), 32, bits);
      tensors.insert_or_assign(module + ".weight", parts[0]);
      tensors.insert_or_assign(module + ".scales", parts[1]);
      tensors.insert_or_assign(module + ".biases", parts[2]);
    });
    edit_tensors(dense, [&](Tensors& tensors) {
      const std::vector<mx::array> parts = mx::quantize(tensors.at(module + ".weight"), 32, bits);
      tensors.insert_or_assign(module + ".weight", mx::dequantize(parts[0], parts[1], parts[2], 32, bits));
    });
    // The module's own format wins over the model's.
    edit_config(quantized, [&](nlohmann::json& config) {
      config["quantization"] = {{"group_size", 64}, {"bits", 2}, {module, {{"group_size", 32}, {"bits", bits}}}};
    });
    const std::vector<TokenId> prompt = tokens_of(expected_of("llama").at("prompt"));
    const mx::array a = logits_in_chunks(*model::load_model(quantized).model, prompt, prompt.size());
    const mx::array b = logits_in_chunks(*model::load_model(dense).model, prompt, prompt.size());
    EXPECT_LT(max_difference(a, b), kTolerance) << bits << " bits";
  }
}

TEST(Llama, HalfPrecisionWeightsWork) {
  for (const mx::Dtype dtype : {mx::float16, mx::bfloat16}) {
    const TemporaryFolder folder;
    const test::fs::path path = copied_model(folder, "llama");
    edit_tensors(path, [&](Tensors& tensors) {
      for (auto& [name, tensor] : tensors) tensor = mx::astype(tensor, dtype);
    });
    const Tensors expected = expected_of("llama");
    const std::vector<TokenId> prompt = tokens_of(expected.at("prompt"));
    const mx::array logits = logits_in_chunks(*model::load_model(path).model, prompt, prompt.size());
    // Rounding weights to 8 bits of mantissa moves logits (deviation 3.1) by some tenths at most.
    EXPECT_LT(max_difference(logits, expected.at("logits")), dtype == mx::float16 ? 0.1F : 0.8F);
  }
}

TEST(Llama, ShardsOfAnIndexAreOneModel) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  nlohmann::json weight_map;
  Tensors shards[2];
  int n_tensors = 0;
  for (auto& [name, tensor] : mx::load_safetensors((path / "model.safetensors").string()).first) {
    mx::eval(tensor);
    const int shard = n_tensors++ % 2;
    shards[shard].insert_or_assign(name, tensor);
    weight_map[name] = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
  }
  for (int shard = 0; shard < 2; ++shard) {
    mx::save_safetensors((path / ("model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors")).string(),
                         shards[shard]);
  }
  test::fs::remove(path / "model.safetensors");
  test::write_file(path / "model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  const Tensors expected = expected_of("llama");
  const std::vector<TokenId> prompt = tokens_of(expected.at("prompt"));
  const mx::array logits = logits_in_chunks(*model::load_model(path).model, prompt, prompt.size());
  EXPECT_LT(max_difference(logits, expected.at("logits")), kTolerance);
}

TEST(LlamaFiles, AMissingTensorIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  edit_tensors(path, [](Tensors& tensors) { tensors.erase("model.layers.2.mlp.up_proj.weight"); });
  EXPECT_MENTIONS(load_error(path), "model.safetensors: model.layers.2.mlp.up_proj.weight: missing");
}

TEST(LlamaFiles, AnExtraTensorIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  edit_tensors(path, [](Tensors& tensors) {
    tensors.insert_or_assign("model.layers.0.self_attn.q_proj.bias", mx::zeros({64}));
  });
  EXPECT_MENTIONS(load_error(path),
                  "model.safetensors: 1 tensors that this model does not have: model.layers.0.self_attn.q_proj.bias");
}

TEST(LlamaFiles, AMisshapenTensorIsNamedWithBothShapes) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  edit_tensors(path, [](Tensors& tensors) { tensors.insert_or_assign("model.norm.weight", mx::zeros({47})); });
  EXPECT_MENTIONS(load_error(path), "model.norm.weight: has shape (47), expected (48)");
}

TEST(LlamaFiles, AMistypedTensorIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  edit_tensors(path,
               [](Tensors& tensors) { tensors.insert_or_assign("model.norm.weight", mx::zeros({48}, mx::int32)); });
  EXPECT_MENTIONS(load_error(path), "model.norm.weight: has dtype I32");
  edit_tensors(path,
               [](Tensors& tensors) { tensors.insert_or_assign("model.norm.weight", mx::zeros({48}, mx::uint32)); });
  EXPECT_MENTIONS(load_error(path), "model.norm.weight: has dtype uint32, expected a float");
}

TEST(LlamaFiles, ATruncatedFileIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  for (const std::uintmax_t size : {0, 4, 8, 100, 5000, 398927}) {
    test::fs::resize_file(path / "model.safetensors", size);
    EXPECT_MENTIONS(load_error(path), "model.safetensors: ");
    test::fs::copy_file(test::data("llama") / "model.safetensors", path / "model.safetensors",
                        test::fs::copy_options::overwrite_existing);
  }
}

TEST(LlamaFiles, AnUnknownArchitectureIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  edit_config(path, [](nlohmann::json& config) { config["model_type"] = "perceptron"; });
  EXPECT_MENTIONS(load_error(path), "unknown architecture 'perceptron'");
}

TEST(LlamaFiles, AnUnknownArchitectureIsNamedWhateverKeysItHas) {
  const TemporaryFolder folder;
  test::write_file(folder.path() / "config.json", R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768})");
  EXPECT_MENTIONS(load_error(folder.path()), "unknown architecture 'gpt2'");
}

TEST(LlamaFiles, HeadsTooWideForAnIntAreRefused) {
  for (const int head_dim : {65536, 65534}) {
    const TemporaryFolder folder;
    const test::fs::path path = copied_model(folder, "llama");
    edit_config(path, [&](nlohmann::json& config) {
      config["num_attention_heads"] = 65536;
      config["num_key_value_heads"] = 65536;
      config["head_dim"] = head_dim;
    });
    EXPECT_MENTIONS(load_error(path), "too large for 65536 heads");
  }
}

TEST(LlamaFiles, AConfigThatLiesAboutSizesGivesAnErrorNotACrash) {
  const std::vector<std::pair<std::string, nlohmann::json>> lies = {
      {"hidden_size", 64},        {"intermediate_size", 81},  {"num_attention_heads", 2},
      {"num_key_value_heads", 4}, {"num_hidden_layers", 5},   {"num_hidden_layers", 3},
      {"vocab_size", 161},        {"vocab_size", 1 << 23},    {"head_dim", 24},
      {"hidden_size", 0},         {"hidden_size", -48},       {"num_hidden_layers", 0},
      {"num_attention_heads", 0}, {"num_attention_heads", 3}, {"vocab_size", "many"},
      {"hidden_size", 4.5},       {"tie_word_embeddings", 3}, {"attention_bias", true},
      {"mlp_bias", true},         {"hidden_size", 1e30},      {"rms_norm_eps", "small"},
      {"head_dim", 15},           {"rope_theta", -1},         {"max_position_embeddings", 0},
      {"rms_norm_eps", 1e300},    {"rope_theta", 1e300},
  };
  for (const auto& [key, value] : lies) {
    SCOPED_TRACE(key + " = " + value.dump());
    const TemporaryFolder folder;
    const test::fs::path path = copied_model(folder, "llama", "config.json");
    edit_config(path, [&](nlohmann::json& config) { config[key] = value; });
    EXPECT_NE(load_error(path), "no error");
  }
}

TEST(LlamaFiles, AnIndexCannotPointOutsideItsDirectory) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  test::write_file(path / "model.safetensors.index.json", R"({"weight_map": {"a": "../secret.safetensors"}})");
  EXPECT_MENTIONS(load_error(path), "expected the name of a file in the same directory");
  test::write_file(path / "model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_MENTIONS(load_error(path), "gone.safetensors: no such file");
  test::write_file(path / "model.safetensors.index.json", "[");
  EXPECT_MENTIONS(load_error(path), "model.safetensors.index.json");
  test::write_file(path / "model.safetensors.index.json", "{}");
  EXPECT_MENTIONS(load_error(path), "weight_map");
}

// What a download leaves that broke off.
TEST(LlamaFiles, AnIndexedTensorThatNoShardHasIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, "llama");
  const auto write_index = [&](const std::string& tensor) {
    test::write_file(path / "model.safetensors.index.json",
                     nlohmann::json{{"weight_map", {{tensor, "model.safetensors"}}}}.dump());
  };
  write_index("model.layers.9.mlp.up_proj.weight");
  EXPECT_MENTIONS(load_error(path), "index.json: model.layers.9.mlp.up_proj.weight: is in none of the files");
  write_index("model.layers.0.self_attn.rotary_emb.inv_freq");  // not needed, and often left out of the shards
  EXPECT_EQ(load_error(path), "no error");
}

TEST(LlamaFiles, AFileThatIsThereButCannotBeOpenedIsNotAbsent) {
  for (const std::string name :
       {"generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "chat_template.jinja", "chat_template.json"}) {
    const TemporaryFolder folder;
    const test::fs::path path = copied_model(folder, "llama");
    test::fs::copy_file(test::data("tokenizer/llama3.json"), path / "tokenizer.json");
    EXPECT_EQ(load_error(path), "no error");
    for (const std::string target : {"nothing", name.c_str()}) {
      test::fs::remove(path / name);
      test::fs::create_symlink(target, path / name);
      EXPECT_MENTIONS(load_error(path), (path / name).string() + ": ");
    }
  }
}

TEST(LlamaFiles, NotAModelIsSaidSo) {
  const TemporaryFolder folder;
  EXPECT_MENTIONS(load_error(folder.path()), "config.json: no such file");
  EXPECT_MENTIONS(load_error(folder.path() / "nothing"), "no such file or directory");
  test::write_file(folder.path() / "text.gguf", "hello");
  EXPECT_MENTIONS(load_error(folder.path() / "text.gguf"), "text.gguf");
  test::write_file(folder.path() / "empty.gguf", "");
  EXPECT_MENTIONS(load_error(folder.path() / "empty.gguf"), "empty.gguf");
}

// No step may copy what it has cached: the peak above the standing memory is the same after many tokens as after few.
TEST(Forward, ADecodeStepAllocatesNothingThatGrowsWithTheContext) {
  const model::LoadedModel loaded = model::load_model(test::data("llama"));
  std::map<int, std::size_t> peak;
  for (const int n_tokens : {20, 470}) {
    engine::Session session(*loaded.model);
    mx::eval(session.forward(std::vector<TokenId>(static_cast<std::size_t>(n_tokens), 5), model::LogitRows::kLast));
    for (int step = 0; step < 4; ++step) {
      peak[n_tokens] = std::max(peak[n_tokens], test::held_allocation_bytes([&] {
                                  return std::vector{session.forward(std::vector<TokenId>{7}, model::LogitRows::kLast)};
                                }));
    }
  }
  EXPECT_EQ(peak[20], peak[470]);
}

TEST(Forward, RefusesACacheOfAnotherNumberOfLayersAndLeavesItAsItWas) {
  const model::LoadedModel loaded = model::load_model(test::data("llama"));
  for (const int n_layers : {1, 3, 5}) {
    std::vector<std::unique_ptr<cache::LayerCache>> layers;
    for (int i = 0; i < n_layers; ++i) layers.push_back(std::make_unique<cache::KVCache>());
    cache::ModelCache other(std::move(layers));
    const std::vector<TokenId> tokens = {1, 2};
    EXPECT_THROW(loaded.model->forward(tokens, other, model::LogitRows::kAll), std::invalid_argument) << n_layers;
    for (int i = 0; i < n_layers; ++i) EXPECT_EQ(other.layer(static_cast<std::size_t>(i)).offset(), 0);
  }
}

TEST(Forward, RefusesTokensAndLeavesTheCacheAsItWas) {
  const model::LoadedModel loaded = model::load_model(test::data("llama"));
  engine::Session session(*loaded.model);
  const std::vector<TokenId> prompt = {1, 2, 3};
  session.forward(prompt, model::LogitRows::kLast);
  const auto refuses = [&](const std::vector<TokenId>& tokens) {
    EXPECT_THROW(session.forward(tokens, model::LogitRows::kLast), std::invalid_argument);
    EXPECT_EQ(session.cache().offset(), 3);
    EXPECT_EQ(session.tokens(), prompt);
  };
  refuses({});
  refuses({4, 160});
  refuses({-1});
  refuses(std::vector<TokenId>(510, 5));  // a context of 512
  session.forward(std::vector<TokenId>(509, 5), model::LogitRows::kLast);
  EXPECT_EQ(session.cache().offset(), 512);
}

}  // namespace
}  // namespace memoir
