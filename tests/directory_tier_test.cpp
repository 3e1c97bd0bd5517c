// What is kept in a directory serves the next process: caches of every kind, whose state after a restart is what
// computing makes, and models of every kind, whose logits are the same bits. Whatever happens to the files, it is never
// something else.

#include "memoir/prefix/directory_tier.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "memoir/engine/generate.h"
#include "memoir/engine/model_runner.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/engine/scheduler.h"
#include "memoir/engine/session.h"
#include "memoir/model/fingerprint.h"
#include "memoir/model/load.h"
#include "memoir/prefix/store.h"
#include "tests/damaged_bytes.h"
#include "tests/fake_runner.h"
#include "tests/model_files.h"
#include "tests/toy_caches.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::prefix {
namespace {

using test::expect_toy_holds;
using test::feed_toy;
using test::joined;
using test::kToyModels;
using test::Layers;
using test::make_toy;
using test::range;
using test::Tokens;
using test::ToyLayer;

constexpr std::size_t kLots = std::size_t{1} << 30;

cache::ModelCache fed_toy(const Layers& layers) {
  cache::ModelCache toy = make_toy(layers);
  feed_toy(toy, {1});
  return toy;
}

DirectoryTierOptions options_for(const fs::path& path) {
  DirectoryTierOptions options;
  options.path = path;
  options.max_bytes = kLots;
  options.model = "toy";
  options.on_warning = [](const std::string& why) { ADD_FAILURE() << why; };
  return options;
}

/// One run of a program over toys.
class PromptRun {
 public:
  PromptRun(Layers layers, const DirectoryTierOptions& options, std::size_t max_bytes = kLots)
      : PromptRun(std::move(layers), options, StoreOptions{.max_bytes = max_bytes}) {}

  PromptRun(Layers layers, const DirectoryTierOptions& options, const StoreOptions& store_options)
      : layers_(std::move(layers)) {
    auto tier = std::make_unique<DirectoryTier>(options, CacheForm(fed_toy(layers_)));
    tier_ = tier.get();
    store_ = std::make_unique<Store>([this] { return make_toy(layers_); }, state_size(fed_toy(layers_)), store_options,
                                     std::move(tier));
  }

  /// A prompt in slices, and an answer token by token. Returns what was restored.
  int serve(const Tokens& prompt, const Tokens& answer = {}, const std::vector<int>& turn_ends = {}) {
    Lease lease;
    cache::ModelCache cache = store_->begin(lease, {prompt, static_cast<int>(prompt.size()), turn_ends});
    const int restored = cache.offset();
    EXPECT_EQ(restored, lease.restored());
    expect_toy_holds(cache, layers_, test::prefix(prompt, restored));
    Tokens all = prompt;
    const auto feed_to = [&](int to) {
      const auto n_before = static_cast<std::size_t>(cache.offset());
      store_->prepare(lease, cache, std::span(all).subspan(n_before, static_cast<std::size_t>(to) - n_before));
      feed_toy(cache, test::prefix(all, to));
      store_->record(lease, cache);
    };
    const int n_prompt = static_cast<int>(prompt.size());
    while (cache.offset() < n_prompt) feed_to(std::min(n_prompt, cache.offset() + 300));
    for (const int token : answer) {
      all.push_back(token);
      feed_to(static_cast<int>(all.size()));
    }
    store_->end(lease, cache);
    EXPECT_EQ(store_->trie().check(), "");
    EXPECT_LE(store_->size_bytes(), store_->max_bytes());
    EXPECT_EQ(store_->counters().n_failed_inserts, 0U);
    EXPECT_EQ(store_->counters().n_failed_tier_calls, 0U);
    return restored;
  }

  Store& store() { return *store_; }
  DirectoryTier& tier() { return *tier_; }

 private:
  Layers layers_;
  DirectoryTier* tier_;  // the store's
  std::unique_ptr<Store> store_;
};

class DirectoryTierTest : public testing::Test {
 protected:
  fs::path path() const { return folder_.path() / "cache"; }
  DirectoryTierOptions options() const { return options_for(path()); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> result;
    for (const auto& entry : fs::directory_iterator(path())) result.push_back(entry.path());
    return result;
  }

  test::TemporaryFolder folder_;
};

TEST_F(DirectoryTierTest, AfterARestartAsMuchIsRestoredAsMemoryHad) {
  const Tokens prompt = range(0, 1000);
  const std::vector<Tokens> asked = {prompt, joined(prompt, {5, 6}), joined(test::prefix(prompt, 750), {7}),
                                     joined(test::prefix(prompt, 310), {7, 8}), range(5000, 5010)};
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    fs::remove_all(path());
    std::vector<int> expected;
    {
      PromptRun run(layers, options());
      EXPECT_EQ(run.serve(prompt, {1, 2, 3}, {300, 700}), 0);
      for (const Tokens& tokens : asked) expected.push_back(run.store().restorable(tokens));
    }
    EXPECT_GE(expected[0], 996);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      PromptRun run(layers, options());
      EXPECT_EQ(run.serve(asked[i]), expected[i]) << i;
      const nlohmann::json report = run.store().report()["tier"];
      EXPECT_EQ(report["damaged"], 0);
      EXPECT_EQ(report["is_writing"], true);
    }
  }
}

TEST_F(DirectoryTierTest, ShortPromptsAndAnswersAreKeptToTheirEnds) {
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    fs::remove_all(path());
    const Tokens prompt = range(0, 20);
    Tokens chat = prompt;
    for (int turn = 0; turn < 4; ++turn) {
      PromptRun run(layers, options());
      const int restored = run.serve(chat, range(100 * turn, 100 * turn + 30));
      // The end of the answer before, or its prompt's: the answer's last token may never have been fed.
      EXPECT_EQ(restored, turn == 0 ? 0 : static_cast<int>(chat.size()) - 5);
      chat = joined(joined(chat, range(100 * turn, 100 * turn + 30)), {1, 2, 3, 4, 5});
    }
    EXPECT_LE(files().size(), 12U);  // an end of rows is replaced by a longer one
  }
}

TEST_F(DirectoryTierTest, MemoryGoesOnWhereItEndsAndTheDirectoryBehindIt) {
  const Layers layers = kToyModels.at("Hybrid");
  const Tokens prompt = range(0, 900);
  { PromptRun(layers, options()).serve(prompt, {}, {500}); }
  PromptRun run(layers, options());
  EXPECT_EQ(run.serve(joined(test::prefix(prompt, 510), {1})), 500);
  const auto n_loaded = run.store().report()["tier"]["loaded"].get<int>();
  EXPECT_EQ(run.serve(joined(test::prefix(prompt, 510), {2})), 500);
  EXPECT_EQ(run.store().report()["tier"]["loaded"], n_loaded);  // from memory
  EXPECT_EQ(run.serve(prompt), 896);
}

TEST_F(DirectoryTierTest, OtherModelsFormatsAndTokensFindNothing) {
  const Tokens prompt = range(0, 300);
  { PromptRun({ToyLayer::kFlat}, options()).serve(prompt); }
  EXPECT_EQ(PromptRun({ToyLayer::kHalf}, options()).serve(prompt), 0);
  EXPECT_EQ(PromptRun({ToyLayer::kQuantized}, options()).serve(prompt), 0);
  EXPECT_EQ(PromptRun({ToyLayer::kFlat, ToyLayer::kFlat}, options()).serve(prompt), 0);
  DirectoryTierOptions other = options();
  other.model = "another";
  EXPECT_EQ(PromptRun({ToyLayer::kFlat}, other).serve(prompt), 0);
  EXPECT_EQ(PromptRun({ToyLayer::kFlat}, options()).serve(joined({9}, prompt)), 0);
  EXPECT_EQ(PromptRun({ToyLayer::kFlat}, options()).serve(prompt), 299);
}

TEST_F(DirectoryTierTest, ADamagedFileIsAShorterHitAndIsWrittenAnew) {
  const Tokens prompt = range(0, 700);
  for (const auto& [name, layers] : kToyModels) {
    SCOPED_TRACE(name);
    fs::remove_all(path());
    int whole = 0;
    {
      PromptRun run(layers, options());
      run.serve(prompt, {}, {300});
      whole = run.store().restorable(prompt);
    }
    std::mt19937 random(20261128);
    for (const fs::path& file : files()) {
      const std::vector<std::byte> valid = test::file_bytes(file);
      std::vector<std::byte> bytes = valid;
      bytes[std::uniform_int_distribution<std::size_t>(0, bytes.size() - 1)(random)] ^= std::byte{0x10};
      test::write_file(file, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      {
        PromptRun run(layers, options());
        EXPECT_LE(run.serve(prompt, {}, {300}), whole);
      }
      EXPECT_EQ(PromptRun(layers, options()).serve(prompt), whole) << file;
    }
  }
}

TEST_F(DirectoryTierTest, FilesThatVanishAreAShorterHit) {
  const Layers layers = kToyModels.at("Hybrid");
  const Tokens prompt = range(0, 700);
  { PromptRun(layers, options()).serve(prompt, {}, {300}); }
  for (const fs::path& file : files()) {
    PromptRun run(layers, options());  // has seen it
    fs::rename(file, folder_.path() / "away");
    run.serve(prompt);
    run.tier().flush();
    fs::rename(folder_.path() / "away", file);
  }
  EXPECT_EQ(PromptRun(layers, options()).serve(prompt), 696);
}

TEST_F(DirectoryTierTest, WhatMemoryHasNoRoomForIsComputed) {
  const Layers layers = {ToyLayer::kFlat};
  const Tokens prompt = range(0, 1000);
  { PromptRun(layers, options()).serve(prompt); }
  const std::size_t n_bytes = 600 * state_size(fed_toy(layers)).row_bytes;
  EXPECT_EQ(PromptRun(layers, options(), n_bytes).serve(prompt), 512);
}

TEST_F(DirectoryTierTest, TwoRunsShareADirectory) {
  const Layers layers = kToyModels.at("FlatAndRing");
  PromptRun first(layers, options());
  PromptRun second(layers, options());
  first.serve(range(0, 600));
  first.tier().flush();
  EXPECT_EQ(second.serve(range(900, 1000)), 0);
  const_cast<BlockFolder&>(second.tier().folder()).refresh(true);
  EXPECT_EQ(second.serve(range(0, 600)), 596);
}

/// A block as only somebody who knows the format can have made it: the checksum is right, the note is not.
TEST_F(DirectoryTierTest, NotesThatCannotBeAreMisses) {
  const Layers layers = {ToyLayer::kRing, ToyLayer::kRecurrent};
  const Tokens prompt = range(0, 100);
  { PromptRun(layers, options()).serve(prompt); }
  ASSERT_EQ(files().size(), 1U);
  const fs::path path = files().front();
  const BlockFile valid(open_file(path));
  std::vector<std::byte> payload(valid.payload_bytes());
  const std::vector<std::span<std::byte>> pieces = {payload};
  valid.read_payload(pieces);
  const auto restored_with = [&](const std::string& note) {
    std::vector<std::byte> bytes =
        block_beginning({valid.identity(), note, valid.kind(), valid.keys()}, payload.size());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    Checksum checksum;
    checksum.add(bytes);
    const std::vector<std::byte> end = block_end(checksum.value());
    bytes.insert(bytes.end(), end.begin(), end.end());
    test::write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    PromptRun run(layers, options());
    Lease lease;
    return run.store().begin(lease, {prompt, 100}).offset();
  };
  nlohmann::json note = nlohmann::json::parse(valid.note());
  EXPECT_EQ(restored_with(note.dump()), 96);
  for (const char* const text :
       {"", "[]", "null", "{", R"({"rule": "prompt_end"})", R"({"rule": 1, "parts": []})",
        R"({"rule": "prompt_end", "parts": {}})", R"({"rule": "prompt_end", "parts": [1, 2]})"}) {
    EXPECT_EQ(restored_with(text), 0) << text;
    EXPECT_FALSE(fs::exists(path)) << text;
  }
  const auto expect_miss = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json other = note;
    other[nlohmann::json::json_pointer(pointer)] = value;
    EXPECT_EQ(restored_with(other.dump()), 0) << other;
  };
  for (const nlohmann::json& value : {nlohmann::json(-1), nlohmann::json(1e9), nlohmann::json(2'000'000'000),
                                      nlohmann::json("0"), nlohmann::json(nullptr), nlohmann::json(96)}) {
    for (const char* const place : {"/parts/0/0", "/parts/0/1", "/parts/0/2", "/parts/1/0"}) expect_miss(place, value);
  }
  expect_miss("/parts/0/2", 95);
  expect_miss("/parts/0/1", 1);
  expect_miss("/parts/1", nlohmann::json::array({0, 0}));
  expect_miss("/rule", "nobody's");
}

// ---- At random

class DirectoryTierRandom : public testing::TestWithParam<std::pair<const std::string, Layers>> {};

TEST_P(DirectoryTierRandom, RestoresWhatComputingMakesAcrossRestarts) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto some_tokens = [&](int n) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(number(0, 1));
    return tokens;
  };
  const test::TemporaryFolder folder;
  DirectoryTierOptions options = options_for(folder.path() / "cache");
  const Layers& layers = GetParam().second;
  const StateSize size = state_size(fed_toy(layers));
  const std::size_t enough = 1500 * size.row_bytes + 12 * size.checkpoint_bytes + 60'000;
  std::vector<Tokens> texts = {some_tokens(300)};
  int n_restored = 0;
  for (int n_runs = 0; n_runs < 8; ++n_runs) {
    options.max_bytes = number(0, 1) == 0 ? kLots : enough;
    PromptRun run(layers, options, number(0, 1) == 0 ? kLots : enough);
    for (int i = 0; i < 4; ++i) {
      const Tokens& before = texts[static_cast<std::size_t>(number(0, static_cast<int>(texts.size()) - 1))];
      const int n_kept = number(1, static_cast<int>(before.size()));
      const Tokens prompt = joined(test::prefix(before, n_kept), some_tokens(number(1, 150)));
      std::vector<int> turn_ends;
      for (int k = number(0, 2); k > 0; --k) turn_ends.push_back(number(1, static_cast<int>(prompt.size())));
      const Tokens answer = some_tokens(number(0, 20));
      n_restored += run.serve(prompt, answer, turn_ends);
      texts.push_back(joined(prompt, answer));
      if (texts.back().size() > 900) texts.back().resize(300);
    }
    if (number(0, 3) > 0) continue;
    run.tier().flush();
    for (const auto& entry : fs::directory_iterator(options.path)) {
      if (number(0, 9) == 0) fs::resize_file(entry.path(), static_cast<std::uintmax_t>(number(0, 2000)));
    }
  }
  EXPECT_GT(n_restored, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DirectoryTierRandom, testing::ValuesIn(kToyModels.begin(), kToyModels.end()),
                         [](const auto& kind) { return kind.param.first; });

// ---- Models

using Row = std::vector<float>;

class DirectoryTierOnTinyModels : public testing::TestWithParam<const char*> {
 protected:
  struct Answer {
    int cached;
    std::vector<Row> rows;  // of the prompt's last token and those of the answer
  };

  static Row last_row(mx::array logits) {
    logits = mx::contiguous(mx::astype(mx::squeeze(logits, 0), mx::float32));
    mx::eval(logits);
    const float* const end = logits.data<float>() + logits.size();
    return {end - logits.shape(1), end};
  }

  /// The program's whole life: model, store, one session, one prompt and the answer forced on it.
  Answer run(const Tokens& prompt, const Tokens& answer, bool has_directory, const std::vector<int>& turn_ends = {}) {
    const fs::path path = test::data(GetParam());
    const model::LoadedModel loaded = model::load_model(path);
    std::unique_ptr<Store> store;
    if (has_directory) {
      DirectoryTierOptions options = options_for(folder_.path() / "cache");
      options.model = model::fingerprint(path);
      store = engine::make_prefix_store(*loaded.model, {.max_bytes = kLots}, {}, options);
    }
    engine::Session session(*loaded.model, {}, store.get());
    Answer result{session.reuse(prompt, turn_ends), {}};
    const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(result.cached));
    result.rows.push_back(last_row(session.forward(rest, model::LogitRows::kLast)));
    for (const TokenId& token : answer) {
      result.rows.push_back(last_row(session.forward({&token, 1}, model::LogitRows::kLast)));
    }
    return result;
  }

  static bool are_same_bits(const std::vector<Row>& a, const std::vector<Row>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Row& x, const Row& y) {
      return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    });
  }

  test::TemporaryFolder folder_;
};

TEST_P(DirectoryTierOnTinyModels, LogitsAfterARestartAreTheSameBits) {
  std::mt19937 random(20261128);
  Tokens text;
  for (int i = 0; i < 150; ++i) text.push_back(std::uniform_int_distribution<int>(0, 119)(random));
  const Tokens prompt = test::prefix(text, 100);
  const Tokens answer = range(20, 32);
  const Answer expected = run(prompt, answer, false);
  const Answer first = run(prompt, answer, true, {60});
  EXPECT_EQ(first.cached, 0);
  EXPECT_TRUE(are_same_bits(first.rows, expected.rows));
  const bool is_flat = std::string(GetParam()) == "llama";
  // Again; cut off behind a turn; and gone on with.
  const Answer again = run(prompt, answer, true);
  EXPECT_EQ(again.cached, is_flat ? 99 : 96);
  EXPECT_TRUE(are_same_bits(again.rows, expected.rows));
  const Tokens edited = joined(test::prefix(text, 70), range(0, 20));
  const Answer after_edit = run(edited, answer, true);
  EXPECT_EQ(after_edit.cached, is_flat ? 70 : 60);
  EXPECT_TRUE(are_same_bits(after_edit.rows, run(edited, answer, false).rows));
  const Tokens longer = joined(joined(prompt, answer), {1, 2, 3, 4, 5, 6});
  const Answer continued = run(longer, answer, true);
  EXPECT_EQ(continued.cached, 112);
  EXPECT_TRUE(are_same_bits(continued.rows, run(longer, answer, false).rows));
}

// The same through a service: requests after its restart.
TEST_P(DirectoryTierOnTinyModels, AServiceGoesOnWithWhatTheOneBeforeHasComputed) {
  const Tokens prompt = range(10, 110);
  std::vector<Tokens> answers;
  for (int n_starts = 0; n_starts < 2; ++n_starts) {
    engine::ServiceOptions options;
    options.prefix_cache_bytes = kLots;
    options.prefix_cache_directory = options_for(folder_.path() / "cache");
    const auto service = engine::make_service(model::load_model(test::data(GetParam())), options);
    const auto listener = std::make_shared<test::Listener>();
    service->submit(test::request_for(prompt, 8, listener));
    listener->wait();
    ASSERT_TRUE(listener->finished);
    EXPECT_EQ(listener->finished->counts.cached_tokens >= 96, n_starts > 0);
    answers.push_back(listener->tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

INSTANTIATE_TEST_SUITE_P(Families, DirectoryTierOnTinyModels,
                         testing::Values("llama", "mistral", "gemma3", "llama4", "mamba2", "lfm2", "qwen3_next",
                                         "falcon_h1"));

}  // namespace
}  // namespace memoir::prefix
