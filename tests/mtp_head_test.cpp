// Heads that predict further tokens: their logits against the same parts in transformers, put together as vLLM's
// description has them (tests/data/mtp/make_heads.py); the drafter's cache, slot by slot, level with the model.

#include "memoir/model/mtp_head.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/mtp_drafter.h"
#include "memoir/engine/mtp_text.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/golden.h"
#include "tests/mtp_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using engine::MtpDrafter;
using engine::Session;
using model::LogitRows;
using test::kTolerance;
using test::TemporaryFolder;
using test::Tensors;
using test::tokens_of;
using Tokens = std::vector<TokenId>;

constexpr int kCases = 7;
constexpr int kDrafts = 4;

class Mtp : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    path_ = test::model_with_head(folder_.path() / "model", GetParam());
    loaded_ = model::load_model(path_);
    expected_ =
        mx::load_safetensors((test::data("mtp") / (std::string(GetParam()) + "_expected.safetensors")).string()).first;
  }

  mx::array tensor(int index, const char* what) const { return expected_.at(std::to_string(index) + "." + what); }
  const model::Model& model() const { return *loaded_.model; }
  MtpDrafter drafter() const { return {model::load_mtp_head(path_), model()}; }

  // The session takes the tokens in, and the drafter is told.
  void take_in(Session& session, MtpDrafter& drafter, const Tokens& tokens) const {
    const auto offset = static_cast<int>(session.tokens().size());
    const model::Pass pass = session.forward_with_hidden(tokens, LogitRows::kLast, LogitRows::kAll);
    drafter.taken_in({tokens, offset, pass.hidden, session.cache()});
  }

  std::string head_error() const {
    try {
      model::load_mtp_head(path_);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }

  // Of the shard with the head.
  void edit_head(const std::function<void(Tensors&)>& edit) const {
    const std::string file = (path_ / "model-00002-of-00002.safetensors").string();
    Tensors tensors = mx::load_safetensors(file).first;
    for (auto& [name, tensor] : tensors) mx::eval(tensor);
    edit(tensors);
    mx::save_safetensors(file, tensors);
    nlohmann::json index = nlohmann::json::parse(test::read_file(path_ / "model.safetensors.index.json"));
    std::erase_if(index["weight_map"].get_ref<nlohmann::json::object_t&>(),
                  [](const auto& entry) { return entry.first.starts_with("mtp."); });
    for (const auto& [name, tensor] : tensors) index["weight_map"][name] = "model-00002-of-00002.safetensors";
    test::write_file(path_ / "model.safetensors.index.json", index.dump());
  }

  TemporaryFolder folder_;
  test::fs::path path_;
  model::LoadedModel loaded_;
  Tensors expected_;
};
INSTANTIATE_TEST_SUITE_P(Models, Mtp, testing::Values("qwen3_5", "qwen3_next"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(Mtp, LogitsOfDraftsAreThoseOfTransformersParts) {
  const auto head = model::load_mtp_head(path_);
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(i);
    const Tokens context = tokens_of(tensor(i, "context"));
    Session session(model());
    const model::Pass pass = session.forward_with_hidden(context, LogitRows::kLast, LogitRows::kAll);
    Tokens next(context.begin() + 1, context.end());
    next.push_back(tokens_of(tensor(i, "next"))[0]);
    cache::ModelCache cache = head->make_cache();
    const auto ids = [](const Tokens& tokens) {
      return mx::array(tokens.data(), {1, static_cast<int>(tokens.size())}, mx::int32);
    };
    mx::array hidden = head->forward(model().embed(ids(next)), pass.hidden, cache);
    std::vector<mx::array> logits;
    Tokens drafts;
    for (int k = 0; k < kDrafts; ++k) {
      if (k > 0) hidden = head->forward(model().embed(ids({drafts.back()})), hidden, cache);
      hidden = mx::slice(hidden, {0, hidden.shape(1) - 1, 0}, hidden.shape());
      logits.push_back(mx::flatten(model().logits_of(hidden)));
      drafts.push_back(static_cast<TokenId>(mx::argmax(logits.back()).item<std::uint32_t>()));
    }
    EXPECT_EQ(drafts, tokens_of(tensor(i, "tokens")));
    EXPECT_LT(test::max_difference(mx::stack(logits), tensor(i, "logits")), kTolerance);
  }
}

TEST_P(Mtp, TheDrafterProposesTheSameHoweverItWasTold) {
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(i);
    const Tokens context = tokens_of(tensor(i, "context"));
    Tokens text = context;
    text.push_back(tokens_of(tensor(i, "next"))[0]);
    for (const std::size_t n_chunk : {1U, 13U, 1000U}) {
      Session session(model());
      MtpDrafter told = drafter();
      for (std::size_t begin = 0; begin < context.size(); begin += n_chunk) {
        const auto end = std::min(begin + n_chunk, context.size());
        take_in(
            session, told,
            {context.begin() + static_cast<std::ptrdiff_t>(begin), context.begin() + static_cast<std::ptrdiff_t>(end)});
      }
      EXPECT_EQ(told.propose(text, kDrafts), tokens_of(tensor(i, "tokens")));
      EXPECT_EQ(told.propose(text, kDrafts), tokens_of(tensor(i, "tokens")));  // and nothing is changed by it
    }
  }
}

// Every slot but the last is there once more is proposed, and no slot of a draft.
TEST_P(Mtp, SlotsAreLevelWithTheModel) {
  Session session(model());
  MtpDrafter told = drafter();
  take_in(session, told, {5, 6, 7, 8});
  EXPECT_EQ(told.n_slots(), 0);
  EXPECT_EQ(told.n_waiting(), 4);
  told.propose(Tokens{5, 6, 7, 8, 9}, 3);
  EXPECT_EQ(told.n_slots(), 3);
  EXPECT_EQ(told.n_waiting(), 1);
  take_in(session, told, {9, 10});  // one draft was right
  EXPECT_EQ(told.n_slots(), 3);
  EXPECT_EQ(told.n_waiting(), 3);
  told.propose(Tokens{5, 6, 7, 8, 9, 10, 11}, 8);
  EXPECT_EQ(told.n_slots(), 5);
  EXPECT_EQ(told.n_waiting(), 1);
}

TEST_P(Mtp, WithoutDraftsSlotsAreWrittenManyAtATime) {
  Session session(model());
  MtpDrafter told = drafter();
  Tokens text;
  for (int i = 0; i < 264; ++i) {
    take_in(session, told, {3 + i % 90});
    text.push_back(3 + i % 90);
    EXPECT_EQ(told.n_slots(), i < 256 ? 0 : 256) << i;
  }
  EXPECT_EQ(told.n_waiting(), 8);
  Session whole(model());
  MtpDrafter at_once = drafter();
  take_in(whole, at_once, text);
  EXPECT_EQ(at_once.n_slots(), 263);
  text.push_back(3);
  EXPECT_EQ(told.propose(text, kDrafts), at_once.propose(text, kDrafts));
}

// What the model may do to its tokens, and what that leaves of the slots.
TEST_P(Mtp, GoesBackWithTheModelAndRewritesTheSlotWhoseNextTokenChanged) {
  const Tokens text = {5, 6, 7, 8, 9, 10, 11, 12};
  const auto whole = [&](const Tokens& tokens, TokenId next) {
    Session session(model());
    MtpDrafter told = drafter();
    take_in(session, told, tokens);
    Tokens longer = tokens;
    longer.push_back(next);
    return told.propose(longer, kDrafts);
  };
  const auto tell = [&](MtpDrafter& told, const Tokens& tokens, int offset) {
    Session session(model());
    const model::Pass pass = session.forward_with_hidden(tokens, LogitRows::kLast, LogitRows::kAll);
    const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(offset));
    const auto n = static_cast<int>(tokens.size());
    told.taken_in(
        {rest, offset, mx::slice(pass.hidden, {0, offset, 0}, {1, n, pass.hidden.shape(2)}), session.cache()});
  };
  for (const bool has_proposed : {false, true}) {
    for (int offset = 0; offset <= 8; ++offset) {
      SCOPED_TRACE(offset);
      MtpDrafter told = drafter();
      tell(told, text, 0);
      if (has_proposed) told.propose(Tokens{5, 6, 7, 8, 9, 10, 11, 12, 13}, kDrafts);
      // The token at the offset is the same, as lookahead() has it; what is behind is another text.
      Tokens other(text.begin(), text.begin() + std::min(offset + 1, 8));
      other.push_back(40);
      other.push_back(41);
      tell(told, other, offset);
      EXPECT_EQ(told.n_slots() + told.n_waiting(), static_cast<int>(other.size()));
      Tokens longer = other;
      longer.push_back(42);
      EXPECT_EQ(told.propose(longer, kDrafts), whole(other, 42));
      EXPECT_EQ(told.n_slots(), static_cast<int>(other.size()) - 1);
    }
  }
  // The slot before was made with another token: the head begins anew.
  MtpDrafter told = drafter();
  tell(told, text, 0);
  told.propose(Tokens{5, 6, 7, 8, 9, 10, 11, 12, 13}, kDrafts);
  tell(told, {5, 6, 7, 50, 51}, 3);
  EXPECT_EQ(told.n_slots() + told.n_waiting(), 2);
  EXPECT_FALSE(told.propose(Tokens{5, 6, 7, 50, 51, 52}, kDrafts).empty());
}

TEST_P(Mtp, BeginsBehindTokensThatItWasNotToldOf) {
  Session session(model());
  MtpDrafter told = drafter();
  session.forward(Tokens{5, 6, 7}, LogitRows::kLast);
  take_in(session, told, {8, 9});
  EXPECT_EQ(told.propose(Tokens{5, 6, 7, 8, 9, 10}, 3).size(), 3U);
  EXPECT_EQ(told.n_slots(), 1);
  EXPECT_TRUE(told.propose(Tokens{5, 6, 7, 8, 10, 10}, 3).empty());
  EXPECT_TRUE(told.propose(Tokens{8, 9, 10}, 3).empty());
}

// ---- what the prefix cache keeps

// Rows and states of a text, and a text that goes on from them, against one that computed all of it: to the bit.
TEST_P(Mtp, WhatIsKeptGoesOnAsWhatWasComputed) {
  const std::shared_ptr<const model::MtpHead> head = model::load_mtp_head(path_);
  Tokens text;
  for (int i = 0; i < 70; ++i) text.push_back(3 + i * i % 90);
  const auto told = [&](const Tokens& tokens) {
    Session session(model());
    auto result = std::make_unique<engine::MtpText>(head, model());
    const model::Pass pass = session.forward_with_hidden(tokens, LogitRows::kLast, LogitRows::kAll);
    result->taken_in({tokens, 0, pass.hidden, session.cache()});
    return result;
  };
  const auto keys = [](const Tokens& tokens) { return prefix::token_keys(tokens); };
  const auto whole = told(text);
  ASSERT_TRUE(whole->settle(keys(text)));
  for (const int n : {2, 3, 40, 69}) {
    SCOPED_TRACE(n);
    const Tokens begin(text.begin(), text.begin() + n);
    Tokens other = begin;
    for (int i = n; i < 70; ++i) other.push_back(7);
    // Rows of another text that begins alike are the same, and so is the state.
    const auto donor = told(other);
    ASSERT_TRUE(donor->settle(keys(begin)));
    cache::ModelCache kept = engine::companion_caches(head, model()).make();
    const auto rows = donor->rows(0, n);
    ASSERT_TRUE(kept.layer(0).restore(rows.get(), n));
    ASSERT_TRUE(kept.layer(1).restore(donor->state_at(n).get(), n));
    engine::MtpText restored(head, model());
    restored.restore(begin, kept);
    EXPECT_EQ(restored.slots().offset(), n - 1);
    EXPECT_EQ(restored.n_waiting(), 1);
    // The model goes on from there.
    Session session(model());
    session.forward(begin, LogitRows::kLast);
    const Tokens rest(text.begin() + n, text.end());
    const model::Pass pass = session.forward_with_hidden(rest, LogitRows::kLast, LogitRows::kAll);
    restored.taken_in({rest, n, pass.hidden, session.cache()});
    ASSERT_TRUE(restored.settle(keys(text)));
    const auto mine = restored.slots().layer(0).state();
    const auto expected = whole->slots().layer(0).state();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(mx::array_equal(mine[i], expected[i]).item<bool>());
    Tokens longer = text;
    longer.push_back(9);
    EXPECT_EQ(restored.propose(longer, kDrafts), whole->propose(longer, kDrafts));
  }
}

TEST_P(Mtp, NothingIsKeptOfATextThatItWasNotToldOf) {
  Session session(model());
  engine::MtpText told(model::load_mtp_head(path_), model());
  const auto keys = [](const Tokens& tokens) { return prefix::token_keys(tokens); };
  EXPECT_FALSE(told.settle(keys({5, 6})));
  const model::Pass pass = session.forward_with_hidden(Tokens{5, 6, 7}, LogitRows::kLast, LogitRows::kAll);
  told.taken_in({Tokens{5, 6, 7}, 0, pass.hidden, session.cache()});
  EXPECT_TRUE(told.settle(keys({5, 6, 7})));
  EXPECT_FALSE(told.settle(keys({5, 6, 7, 8})));
  EXPECT_FALSE(told.settle(keys({5, 9, 7})));
  EXPECT_FALSE(told.settle(keys({5})));  // of one token there is no slot
  EXPECT_EQ(told.state_at(0), nullptr);
  EXPECT_NE(told.state_at(3), nullptr);
  EXPECT_EQ(told.state_at(4), nullptr);
  // Behind tokens of a cache from a file.
  engine::MtpText late(model::load_mtp_head(path_), model());
  late.taken_in({Tokens{5, 6, 7}, 10, pass.hidden, session.cache()});
  EXPECT_FALSE(late.settle(keys({5, 6, 7})));
}

// ---- what is refused

TEST_P(Mtp, MissingExtraAndMisshapenTensorsAreNamed) {
  for (const char* name : {"mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight",
                           "mtp.pre_fc_norm_embedding.weight", "mtp.layers.0.self_attn.q_norm.weight"}) {
    test::model_with_head(path_, GetParam());
    edit_head([&](Tensors& tensors) { tensors.erase(name); });
    EXPECT_MENTIONS(head_error(), name);
    test::model_with_head(path_, GetParam());
    edit_head([&](Tensors& tensors) { tensors.insert_or_assign(name, mx::zeros({3, 5})); });
    EXPECT_MENTIONS(head_error(), std::string(name) + ": has shape (3,5)");
  }
  test::model_with_head(path_, GetParam());
  edit_head([](Tensors& tensors) { tensors.insert_or_assign("mtp.extra.weight", mx::zeros({4})); });
  EXPECT_MENTIONS(head_error(), "mtp.extra.weight");
  edit_head([](Tensors& tensors) { tensors.insert_or_assign("mtp.layers.1.mlp.x.weight", mx::zeros({4})); });
  EXPECT_MENTIONS(head_error(), "mtp_num_hidden_layers: the head has several layers, expected one");
  test::edit_config(path_, [](nlohmann::json& config) { config["mtp_num_hidden_layers"] = 2; });
  EXPECT_MENTIONS(head_error(), "mtp_num_hidden_layers: the head has 2 layers, expected one");
  EXPECT_NO_THROW(model::load_model(path_));  // which needs none
}

TEST_P(Mtp, OfExpertsAndOfAFeedForwardWhatIsMissingIsNamed) {
  const auto without = [&](const std::function<bool(const std::string&)>& is_gone) {
    test::model_with_head(path_, GetParam());
    edit_head([&](Tensors& tensors) { std::erase_if(tensors, [&](const auto& one) { return is_gone(one.first); }); });
    return head_error();
  };
  const bool has_experts = std::string(GetParam()) == "qwen3_next";
  const std::string first = has_experts ? "mtp.layers.0.mlp.gate.weight" : "mtp.layers.0.mlp.gate_proj.weight";
  const auto is_first = [&](const std::string& name) { return name == first; };
  const auto is_mlp = [](const std::string& name) { return name.starts_with("mtp.layers.0.mlp."); };
  EXPECT_MENTIONS(without(is_first), first + ": missing");
  EXPECT_MENTIONS(without(is_mlp), first + ": missing");
}

TEST_P(Mtp, AHeadWhoseOnlyLayerIsNotTheFirstLacksTheFirst) {
  test::model_with_head(path_, GetParam());
  edit_head([](Tensors& tensors) {
    Tensors moved;
    for (const auto& [name, tensor] : tensors) {
      const std::string layer = "mtp.layers.0.";
      moved.insert_or_assign(name.starts_with(layer) ? "mtp.layers.1." + name.substr(layer.size()) : name, tensor);
    }
    tensors = moved;
  });
  EXPECT_MENTIONS(head_error(), "mtp.layers.0.input_layernorm.weight: missing");
}

// What the configuration says of a head's layers is that there are none, or nothing; its tensors say that there is one.
TEST_P(Mtp, AHeadIsThereWhereItsTensorsAre) {
  for (const nlohmann::json& n : {nlohmann::json(0), nlohmann::json(1), nlohmann::json()}) {
    test::model_with_head(path_, GetParam());
    test::edit_config(path_, [&](nlohmann::json& config) {
      config.erase("mtp_num_hidden_layers");
      if (!n.is_null()) config["mtp_num_hidden_layers"] = n;
    });
    EXPECT_NO_THROW(model::load_mtp_head(path_)) << n;
  }
}

TEST_P(Mtp, AHeadInAFileThatNoIndexNamesIsNotThere) {
  const TemporaryFolder folder;
  const test::fs::path path = test::copied_model(folder, GetParam());
  test::fs::copy_file(test::data("mtp") / (std::string(GetParam()) + ".safetensors"), path / "mtp.safetensors");
  try {
    model::load_mtp_head(path);
    ADD_FAILURE() << "a head was found";
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(error.key(), model::kNoMtpHead);
    EXPECT_MENTIONS(std::string(error.what()), "carries no head");
  }
}

TEST(MtpRefusal, AModelWithoutAHeadIsNamed) {
  for (const char* name : {"llama", "qwen3_5"}) {
    EXPECT_THROW(model::load_mtp_head(test::data(name)), UnsupportedError);
  }
  EXPECT_THROW(model::load_mtp_head(test::data("llama") / "model.safetensors"), FormatError);
  EXPECT_THROW(model::load_mtp_head(test::data("gguf") / "small.gguf"), InputError);
  EXPECT_THROW(model::load_mtp_head("/nowhere"), FileError);
}

}  // namespace
}  // namespace memoir
