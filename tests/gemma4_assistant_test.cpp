// Gemma 4's assistant against transformers: the tokens that it proposes, their logits and hidden states, plain and with
// ordered embeddings (tests/data/gemma4_assistant*/expected.json has the protocol in words; tests/README.md).

#include "memoir/model/gemma4_assistant.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/golden.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using model::Gemma4Assistant;
using test::expected_of;
using test::kTolerance;
using test::max_difference;
using test::TemporaryFolder;
using test::Tensors;
using test::tokens_of;

constexpr int kWindow = 8;
constexpr int kDrafts = 4;

struct Case {
  std::string index;  // in the names of tensors
  int next_token;     // the one chosen behind the context
};

std::vector<Case> cases_of(const std::string& name) {
  const auto json = nlohmann::json::parse(test::read_file(test::data(name) / "expected.json"));
  std::vector<Case> cases;
  for (const auto& one : json.at("cases")) {
    cases.push_back({std::to_string(one.at("case").get<int>()), one.at("x_T").get<int>()});
  }
  return cases;
}

struct Proposals {
  std::vector<TokenId> tokens;
  mx::array logits;  // [n, V]
  mx::array hidden;  // [n, hidden]
};

Proposals propose(const Gemma4Assistant& assistant, const model::Model& target, TokenId token, mx::array hidden,
                  const model::SharedHistories& shared, int position) {
  std::vector<TokenId> tokens;
  std::vector<mx::array> logits;
  std::vector<mx::array> hiddens;
  for (int i = 0; i < kDrafts; ++i) {
    const mx::array embedding = target.embed(mx::array(&token, {1, 1}, mx::int32));
    const Gemma4Assistant::Guess guess = assistant.guess(embedding, hidden, shared, position);
    token = static_cast<TokenId>(mx::argmax(guess.logits).item<std::uint32_t>());
    tokens.push_back(token);
    logits.push_back(guess.logits);
    hiddens.push_back(mx::flatten(guess.hidden));
    hidden = guess.hidden;
  }
  return {tokens, mx::stack(logits), mx::stack(hiddens)};
}

// Every row, whatever the window: what W + 1 visible positions take.
cache::History flat_history(const mx::array& keys, const mx::array& values) {
  const auto cache = cache::make_kv_cache(std::nullopt, std::nullopt, {});
  return cache->update(mx::expand_dims(keys, 0), mx::expand_dims(values, 0));
}

class Assistant : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }

  std::string name() const { return GetParam(); }
  test::fs::path path(const char* part) const { return test::data(name()) / part; }

  void expect_golden(const Proposals& mine, const Tensors& expected, const std::string& index, int row) const {
    const auto at = [&](const char* what) { return mx::take(expected.at(index + "." + what), row, 0); };
    EXPECT_EQ(mine.tokens, tokens_of(at("tokens")));
    EXPECT_LT(max_difference(mine.logits, at("logits")), kTolerance);
    EXPECT_LT(max_difference(mine.hidden, at("hidden")), kTolerance);
  }
};
INSTANTIATE_TEST_SUITE_P(Goldens, Assistant, testing::Values("gemma4_assistant", "gemma4_assistant_ordered"),
                         [](const auto& param) { return std::string(param.param); });

// From the target's own passes: its caches are rings, so that W positions are there at most.
TEST_P(Assistant, ProposesWhatTransformersProposesFromTheTargetsOwnCaches) {
  const model::LoadedModel target = model::load_model(path("target"));
  const model::SharedLayers layers = model::shared_layers(*target.model);
  const Tensors expected = expected_of(name());
  for (const int n_visible : {kWindow - 1, kWindow}) {
    const auto assistant = model::load_gemma4_assistant(path("assistant"), n_visible);
    for (const Case& one : cases_of(name())) {
      SCOPED_TRACE(one.index + ", visible " + std::to_string(n_visible));
      const std::vector<TokenId> context = tokens_of(expected.at(one.index + ".context"));
      cache::ModelCache cache = target.model->make_cache();
      // Two passes, so that a window has turned by one of them.
      const auto head = std::span(context).first(context.size() / 2);
      target.model->forward(head, cache, model::LogitRows::kLast);
      const model::Pass pass = target.model->forward_with_hidden(std::span(context).subspan(head.size()), cache,
                                                                 model::LogitRows::kLast, model::LogitRows::kLast);
      EXPECT_LT(max_difference(mx::flatten(pass.hidden), expected.at(one.index + ".target_hidden")), kTolerance);
      EXPECT_EQ(static_cast<int>(mx::argmax(mx::flatten(pass.logits)).item<std::uint32_t>()), one.next_token);
      const model::SharedHistories shared{*cache.attention(layers.sliding).view(),
                                          *cache.attention(layers.full).view()};
      expect_golden(
          propose(*assistant, *target.model, one.next_token, pass.hidden, shared, static_cast<int>(context.size())),
          expected, one.index, n_visible - (kWindow - 1));
    }
  }
}

TEST_P(Assistant, ProposesWhatTransformersProposesForAnyNumberOfVisiblePositions) {
  const model::LoadedModel target = model::load_model(path("target"));
  const Tensors expected = expected_of(name());
  int n_cases = 0;
  for (const int n_visible : {kWindow - 1, kWindow, kWindow + 1}) {
    const auto assistant = model::load_gemma4_assistant(path("assistant"), n_visible);
    for (const Case& one : cases_of(name())) {
      const auto tensor = [&](const char* what) { return expected.at(one.index + "." + what); };
      if (!expected.contains(one.index + ".full_attention.keys")) continue;
      SCOPED_TRACE(one.index + ", visible " + std::to_string(n_visible));
      ++n_cases;
      const model::SharedHistories shared{
          flat_history(tensor("sliding_attention.keys"), tensor("sliding_attention.values")),
          flat_history(tensor("full_attention.keys"), tensor("full_attention.values"))};
      const mx::array hidden = mx::reshape(tensor("target_hidden"), {1, 1, -1});
      expect_golden(propose(*assistant, *target.model, one.next_token, hidden, shared,
                            static_cast<int>(tensor("context").size())),
                    expected, one.index, n_visible - (kWindow - 1));
    }
  }
  EXPECT_GE(n_cases, 3);
}

TEST_P(Assistant, SeesOneLessThanTheWindowByDefaultAndReadsBothSpellings) {
  const TemporaryFolder folder;
  test::fs::copy_file(path("assistant") / "config.alt.json", folder.path() / "config.json");
  test::fs::copy_file(path("assistant") / "model.safetensors", folder.path() / "model.safetensors");
  const model::LoadedModel target = model::load_model(path("target"));
  const Tensors expected = expected_of(name());
  const auto assistant = model::load_gemma4_assistant(folder.path());
  EXPECT_NO_THROW(assistant->check_fits(*target.model));
  const model::SharedLayers layers = model::shared_layers(*target.model);
  const Case one = cases_of(name())[2];
  const std::vector<TokenId> context = tokens_of(expected.at(one.index + ".context"));
  cache::ModelCache cache = target.model->make_cache();
  const model::Pass pass =
      target.model->forward_with_hidden(context, cache, model::LogitRows::kLast, model::LogitRows::kLast);
  const model::SharedHistories shared{*cache.attention(layers.sliding).view(), *cache.attention(layers.full).view()};
  expect_golden(
      propose(*assistant, *target.model, one.next_token, pass.hidden, shared, static_cast<int>(context.size())),
      expected, one.index, 0);
}

TEST_P(Assistant, HiddenStatesComeWithTheLogitsOfTheSameBits) {
  const model::LoadedModel target = model::load_model(path("target"));
  const std::vector<TokenId> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  cache::ModelCache plain_cache = target.model->make_cache();
  const mx::array plain = target.model->forward(tokens, plain_cache, model::LogitRows::kAll);
  using model::LogitRows;
  for (const LogitRows rows : {LogitRows::kAll, LogitRows::kLast, LogitRows::kNone}) {
    for (const LogitRows hidden_rows : {LogitRows::kAll, LogitRows::kLast, LogitRows::kNone}) {
      cache::ModelCache cache = target.model->make_cache();
      const model::Pass pass = target.model->forward_with_hidden(tokens, cache, rows, hidden_rows);
      const auto count = [&](LogitRows wanted) { return wanted == LogitRows::kAll ? 11 : wanted == LogitRows::kLast; };
      ASSERT_EQ(pass.logits.shape(1), count(rows));
      ASSERT_EQ(pass.hidden.shape(1), count(hidden_rows));
      const mx::array last = mx::slice(plain, {0, 11 - count(rows), 0}, plain.shape());
      EXPECT_TRUE(mx::array_equal(pass.logits, last).item<bool>());
      const mx::array behind = target.model->logits_of(pass.hidden);
      EXPECT_TRUE(
          mx::array_equal(behind, mx::slice(plain, {0, 11 - count(hidden_rows), 0}, plain.shape())).item<bool>());
    }
  }
}

// ---- what is refused

std::string fit_error(const test::fs::path& assistant, const model::Model& target) {
  try {
    model::load_gemma4_assistant(assistant)->check_fits(target);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// Of the target's configuration.
struct Edit {
  const char* key;
  nlohmann::json value;
  const char* message;
};

TEST(AssistantRefusal, AnAssistantForAnotherTargetIsRefusedByName) {
  const std::vector<Edit> edits = {
      {"sliding_window", 16, "text_config.sliding_window: is 8, the model's is 16"},
      {"rope_parameters",
       {{"full_attention", {{"partial_rotary_factor", 0.5}, {"rope_theta", 200000.0}, {"rope_type", "proportional"}}},
        {"sliding_attention", {{"rope_theta", 10000.0}, {"rope_type", "default"}}}},

       "text_config.rope_parameters.sliding_attention: is default with theta 5000"},
  };
  for (const Edit& edit : edits) {
    const TemporaryFolder folder;
    const test::fs::path target = test::copied_model(folder, (test::fs::path("gemma4_assistant") / "target").string());
    test::edit_config(target, [&](nlohmann::json& config) { config[edit.key] = edit.value; });
    const model::LoadedModel loaded = model::load_model(target);
    EXPECT_MENTIONS(fit_error(test::data("gemma4_assistant") / "assistant", *loaded.model), edit.message);
  }
}

TEST(AssistantRefusal, OtherFamiliesSizesAndVocabulariesAreRefusedByName) {
  const test::fs::path assistant = test::data("gemma4_assistant") / "assistant";
  const model::LoadedModel llama = model::load_model(test::data("llama"));
  EXPECT_MENTIONS(fit_error(assistant, *llama.model), "model_type: is gemma4_assistant, the model's is llama");
  EXPECT_THROW(model::shared_layers(*llama.model), UnsupportedError);
  // Of a model with grouped keys, no per-layer inputs and experts; other heads in its full layers.
  const model::LoadedModel moe = model::load_model(test::data("gemma4_moe"));
  EXPECT_MENTIONS(fit_error(assistant, *moe.model), "the assistant was made for another model");
}

// Of a target with another vocabulary, and one without a layer of a kind that the assistant reads; an assistant for
// hidden states of another size.
TEST(AssistantRefusal, AnotherVocabularyLayersAndHiddenSizeAreRefusedByName) {
  const test::fs::path assistant = test::data("gemma4_assistant") / "assistant";
  const auto first = [](mx::array& a, int n, int axis) {
    mx::Shape end = a.shape();
    end[static_cast<std::size_t>(axis)] = n;
    a = mx::contiguous(mx::slice(a, mx::Shape(end.size(), 0), end));
  };
  const auto error_of = [&](const std::function<void(nlohmann::json&)>& edit_of_config,
                            const std::function<void(Tensors&)>& edit_of_tensors) {
    const TemporaryFolder folder;
    const test::fs::path target = test::copied_model(folder, (test::fs::path("gemma4_assistant") / "target").string());
    test::edit_config(target, edit_of_config);
    test::edit_tensors(target, edit_of_tensors);
    const model::LoadedModel loaded = model::load_model(target);
    return fit_error(assistant, *loaded.model);
  };
  const auto fewer_tokens = [](nlohmann::json& config) {
    config["vocab_size"] = config["vocab_size_per_layer_input"] = 96;
  };
  EXPECT_MENTIONS(error_of(fewer_tokens,
                           [&](Tensors& tensors) {
                             first(tensors.at("model.embed_tokens.weight"), 96, 0);
                             first(tensors.at("model.embed_tokens_per_layer.weight"), 96, 0);
                           }),
                  "text_config.vocab_size: is 160, the model's is 96");
  const auto one_layer = [](nlohmann::json& config) {
    config["num_hidden_layers"] = 1;
    config["num_kv_shared_layers"] = 0;
    config["layer_types"] = {"full_attention"};
  };
  EXPECT_MENTIONS(error_of(one_layer,
                           [&](Tensors& tensors) {
                             Tensors kept;  // of the second layer, which is one of this kind
                             for (const auto& [name, tensor] : tensors) {
                               const bool is_second = name.starts_with("model.layers.1.");
                               if (!is_second && name.starts_with("model.layers.")) continue;
                               kept.emplace(is_second ? "model.layers.0." + name.substr(15) : name, tensor);
                             }
                             tensors = kept;
                             first(tensors.at("model.embed_tokens_per_layer.weight"), 8, 1);
                             first(tensors.at("model.per_layer_model_projection.weight"), 8, 0);
                           }),
                  "text_config.layer_types: has sliding_attention, the model has none");
  const TemporaryFolder folder;
  const test::fs::path wider = test::copied_model(folder, (test::fs::path("gemma4_assistant") / "assistant").string());
  test::edit_config(wider, [](nlohmann::json& config) { config["backbone_hidden_size"] = 48; });
  test::edit_tensors(wider, [](Tensors& tensors) {
    tensors.insert_or_assign("pre_projection.weight", mx::zeros({24, 96}));
    tensors.insert_or_assign("post_projection.weight", mx::zeros({48, 24}));
  });
  const model::LoadedModel loaded = model::load_model(test::data("gemma4_assistant") / "target");
  EXPECT_MENTIONS(fit_error(wider, *loaded.model), "backbone_hidden_size: is 48, the model's is 32");
}

TEST(AssistantRefusal, AnAssistantIsNoModelByItself) {
  EXPECT_MENTIONS(test::load_error(test::data("gemma4_assistant") / "assistant"), "'gemma4_assistant' guesses tokens");
}

// Under another name what stands under text_config would be taken for a model.
TEST(AssistantRefusal, AnotherNameOrNoneIsNamed) {
  const auto error_with = [](const std::function<void(nlohmann::json&)>& edit, const auto& load) {
    const TemporaryFolder folder;
    const test::fs::path path = test::copied_model(folder, (test::fs::path("gemma4_assistant") / "assistant").string());
    test::edit_config(path, edit);
    try {
      load(path);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto as_model = [](const test::fs::path& path) { model::load_model(path); };
  const auto as_assistant = [](const test::fs::path& path) { model::load_gemma4_assistant(path); };
  const std::string expected = "expected \"gemma4_assistant\"";
  for (const nlohmann::json& name : {nlohmann::json("gemma5_assistant"), nlohmann::json("gemma4"), nlohmann::json(7)}) {
    const auto rename = [&](nlohmann::json& config) { config["model_type"] = name; };
    EXPECT_MENTIONS(error_with(rename, as_model), "config.json: model_type: is " + name.dump() + ", " + expected);
  }
  for (const auto& drop :
       {std::function<void(nlohmann::json&)>([](auto& config) { config.erase("model_type"); }),
        std::function<void(nlohmann::json&)>([](auto& config) { config["model_type"] = nullptr; })}) {
    EXPECT_MENTIONS(error_with(drop, as_model), "config.json: model_type: is missing, " + expected);
  }
  const auto rename_text = [](nlohmann::json& config) { config["text_config"]["model_type"] = "gemma5_text"; };
  EXPECT_MENTIONS(error_with(rename_text, as_assistant),
                  "text_config.model_type: is \"gemma5_text\", expected \"gemma4_text\"");
  // Which transformers takes it for where it says nothing.
  const auto drop_text = [](nlohmann::json& config) { config["text_config"].erase("model_type"); };
  EXPECT_EQ(error_with(drop_text, as_assistant), "no error");
}

TEST(AssistantRefusal, ItsTensorsAndNumbersAreChecked) {
  const auto damaged = [](const std::function<void(Tensors&)>& edit_of_tensors,
                          const std::function<void(nlohmann::json&)>& edit_of_config) {
    const TemporaryFolder folder;
    const test::fs::path path =
        test::copied_model(folder, (test::fs::path("gemma4_assistant_ordered") / "assistant").string());
    if (edit_of_tensors) test::edit_tensors(path, edit_of_tensors);
    if (edit_of_config) test::edit_config(path, edit_of_config);
    try {
      model::load_gemma4_assistant(path);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto without = [&](const char* name) {
    return damaged([&](Tensors& tensors) { tensors.erase(name); }, nullptr);
  };
  for (const char* name : {"pre_projection.weight", "post_projection.weight", "masked_embedding.token_ordering",
                           "masked_embedding.centroids.weight", "model.layers.2.self_attn.q_proj.weight"}) {
    EXPECT_MENTIONS(without(name), name);
  }
  const auto with = [&](const char* key, const nlohmann::json& value) {
    return damaged(nullptr, [&](nlohmann::json& config) { config[key] = value; });
  };
  EXPECT_MENTIONS(with("backbone_hidden_size", 48), "pre_projection.weight: has shape (24,64), expected (24,96)");
  EXPECT_MENTIONS(with("num_centroids", 7), "num_centroids: 7 does not divide vocab_size 160");
  EXPECT_MENTIONS(with("centroid_intermediate_top_k", 17), "centroid_intermediate_top_k: is 17 of 16");
  EXPECT_MENTIONS(with("backbone_hidden_size", nullptr), "backbone_hidden_size");
  EXPECT_MENTIONS(damaged(
                      [](Tensors& tensors) {
                        tensors.insert_or_assign("masked_embedding.token_ordering", mx::full({160}, 160, mx::int64));
                      },
                      nullptr),
                  "masked_embedding.token_ordering: holds a number outside 0 to 159");
  EXPECT_MENTIONS(damaged([](Tensors& tensors) { tensors.insert_or_assign("extra", mx::zeros({2})); }, nullptr),
                  "extra");
}

}  // namespace
}  // namespace memoir
