// What drafters that read the target gain where they are right, and what a round costs where they are not.
//
//   build/release/bin/drafter_bench TARGET DRAFT PROMPT [TOKENS] [ROUNDS]
//
// TARGET: a model's directory or file. DRAFT: "auto", the head that it carries, or an assistant's directory. PROMPT: a
// safetensors file, its tensor "prompt" or "sequence0.prompt". TOKENS: 200 if it isn't given, ROUNDS: 9.
//
// Greedy decoding without drafts and with each way of drafting in turn, ROUNDS times; all must give the same tokens. Of
// each the time for the text by that of plain decoding in the same round, and of a pass by that of a plain one, medians
// over the rounds: as many drafts as pay, always so many, and so many that are wrong (another token than the
// drafter's). The last are the cost of a round without acceptance: drafts made, a pass over them, and all taken back.

#include <mlx/mlx.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benches/median.h"
#include "memoir/engine/drafting.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/model/gemma4_assistant.h"
#include "memoir/model/load.h"
#include "memoir/model/mtp_head.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using bench::median;
using Tokens = std::vector<TokenId>;

// Another token than another drafter's, at each place.
class Wrong final : public engine::Drafter {
 public:
  Wrong(std::unique_ptr<engine::Drafter> drafter, int n_vocab) : drafter_(std::move(drafter)), n_vocab_(n_vocab) {}

  Tokens propose(std::span<const TokenId> tokens, int n_max) override {
    Tokens drafts = drafter_->propose(tokens, n_max);
    for (TokenId& draft : drafts) draft = (draft + n_vocab_ / 2) % n_vocab_;
    return drafts;
  }
  Reads reads() const override { return drafter_->reads(); }
  void taken_in(const engine::TakenIn& taken) override { drafter_->taken_in(taken); }
  int lookahead() const override { return drafter_->lookahead(); }

 private:
  std::unique_ptr<engine::Drafter> drafter_;
  int n_vocab_;
};

struct Way {
  std::string name;
  std::unique_ptr<engine::Drafter> drafter;  // null: plain decoding
  int n_drafts = 8;
  bool adapts = false;
  std::vector<double> seconds = {};  // of the texts
  int n_passes = 0;                  // for one
  engine::DraftCounts counts = {};
};

Tokens prompt_in(const std::string& path) {
  const auto tensors = mx::load_safetensors(path).first;
  const auto found = tensors.contains("prompt") ? tensors.find("prompt") : tensors.find("sequence0.prompt");
  if (found == tensors.end()) throw std::invalid_argument(path + ": has no prompt");
  const mx::array ids = mx::contiguous(mx::astype(mx::flatten(found->second), mx::int32));
  mx::eval(ids);
  return {ids.data<TokenId>(), ids.data<TokenId>() + ids.size()};
}

Tokens run(Way& way, const model::Model& model, const Tokens& prompt, int n_tokens) {
  engine::GenerateOptions options;
  options.max_tokens = n_tokens;
  options.drafter = way.drafter.get();
  options.max_drafts = way.n_drafts;
  options.adapts_drafts = way.adapts;
  engine::Session session(model);
  const engine::Completion completion = generate(session, prompt, options, nullptr);
  way.seconds.push_back(completion.decode_s);
  way.counts = completion.drafts;
  way.n_passes = n_tokens - 1 - completion.drafts.n_accepted;
  return completion.tokens;
}

int measure(const std::string& target, const std::string& draft, const Tokens& prompt, int n_tokens, int n_rounds) {
  const model::LoadedModel loaded = model::load_model(target);
  const model::Model& model = *loaded.model;
  const engine::Drafting drafting = draft == "auto"
                                        ? engine::draft_with_head(model::load_mtp_head(target), model)
                                        : engine::draft_with_assistant(model::load_gemma4_assistant(draft), model);
  const int n_vocab = model.config().vocab_size;
  std::vector<Way> ways;
  ways.push_back({"plain", nullptr});
  ways.push_back({"as many as pay", drafting.make(model), 8, true});
  for (const int n : {1, 2, 4, 8}) ways.push_back({"always " + std::to_string(n), drafting.make(model), n});
  ways.push_back({"wrong, as many as pay", std::make_unique<Wrong>(drafting.make(model), n_vocab), 8, true});
  for (const int n : {1, 2, 4, 8}) {
    ways.push_back({"wrong, always " + std::to_string(n), std::make_unique<Wrong>(drafting.make(model), n_vocab), n});
  }
  for (int round = -1; round < n_rounds; ++round) {
    const Tokens expected = run(ways.front(), model, prompt, n_tokens);
    for (std::size_t i = 1; i < ways.size(); ++i) {
      if (run(ways[i], model, prompt, n_tokens) != expected) throw std::logic_error(ways[i].name + ": other tokens");
    }
    if (round >= 0) continue;  // the first is for the drafters to learn what pays
    for (Way& way : ways) way.seconds.clear();
  }
  const Way& plain = ways.front();
  std::printf("plain: %.3f ms a token\n%-24s%9s%8s%10s%12s\n", 1e3 * median(plain.seconds) / plain.n_passes, "",
              "drafted", "right", "speed-up", "a pass");
  for (const Way& way : ways) {
    std::vector<double> gains;
    for (std::size_t i = 0; i < way.seconds.size(); ++i) gains.push_back(plain.seconds[i] / way.seconds[i]);
    const double gain = median(gains);
    const double right = way.counts.n_drafted > 0 ? 100.0 * way.counts.n_accepted / way.counts.n_drafted : 0;
    std::printf("%-24s%9d%6.0f %%%10.2f%12.2f\n", way.name.c_str(), way.counts.n_drafted, right, gain,
                static_cast<double>(plain.n_passes) / way.n_passes / gain);
  }
  return 0;
}

}  // namespace
}  // namespace memoir

int main(int argc, char** argv) {
  if (argc < 4 || argc > 6) {
    std::fprintf(stderr, "drafter_bench TARGET DRAFT PROMPT [TOKENS] [ROUNDS]\n");
    return 2;
  }
  try {
    mx::set_default_device(mx::Device::cpu);
    return memoir::measure(argv[1], argv[2], memoir::prompt_in(argv[3]), argc > 4 ? std::stoi(argv[4]) : 200,
                           argc > 5 ? std::stoi(argv[5]) : 9);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
