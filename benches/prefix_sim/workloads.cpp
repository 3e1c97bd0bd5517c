#include "benches/prefix_sim/workloads.h"

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace memoir::prefix_sim {
namespace {

// A run of tokens that no other run has. The same number and length give the same tokens.
struct Text {
  std::uint64_t number = 0;
  int n_tokens = 0;
};

// What a prompt is put together of; markers are what a chat template writes around a turn.
constexpr Text kOpenUser = {1, 3};
constexpr Text kOpenAssistant = {2, 3};
constexpr Text kOpenThoughts = {3, 2};
constexpr Text kCloseThoughts = {4, 2};
constexpr Text kCloseTurn = {5, 2};
constexpr Text kOpenTool = {6, 4};
constexpr std::uint64_t kFirstFree = 16;

void append(Keys& keys, const Text& text) {
  for (int i = 0; i < text.n_tokens; ++i) {
    keys.push_back((text.number << 20) | static_cast<prefix::Key>(i));
  }
}

// Draws that are the same with every standard library: its engines are specified, its distributions are not.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }

  // Mostly near the lower end: the smaller of two. From `least` to `most`.
  int length(int least, int most) {
    const int n = most - least + 1;
    return least + std::min(below(n), below(n));
  }

  Text text(int least, int most) { return {next_++, length(least, most)}; }

 private:
  std::mt19937_64 random_;
  std::uint64_t next_ = kFirstFree;
};

void check(const WorkloadOptions& options) {
  if (options.n_requests < 0) throw std::invalid_argument("[prefix_sim.workload] n_requests must not be negative");
}

// A prompt while it is written.
class Prompt {
 public:
  Prompt& add(const Text& text) {
    append(request_.prompt, text);
    return *this;
  }
  Prompt& end_turn() {
    append(request_.prompt, kCloseTurn);
    request_.turn_ends.push_back(static_cast<int>(request_.prompt.size()));
    return *this;
  }
  Prompt& user(const Text& text) { return add(kOpenUser).add(text).end_turn(); }

  Request answered(std::initializer_list<Text> texts) && {
    for (const Text& text : texts) append(request_.answer, text);
    return std::move(request_);
  }

 private:
  Request request_;
};

// ---- chat

struct Turn {
  Text question;
  Text answer;
};

struct Chat {
  Text system;
  std::vector<Turn> turns;
  std::int64_t next_ms = 0;
};

Prompt chat_prompt(const Chat& chat) {
  Prompt prompt;
  prompt.add(chat.system).end_turn();
  for (std::size_t i = 0; i + 1 < chat.turns.size(); ++i) {
    prompt.user(chat.turns[i].question).add(kOpenAssistant).add(chat.turns[i].answer).end_turn();
  }
  prompt.user(chat.turns.back().question).add(kOpenAssistant).add(kOpenThoughts);
  return prompt;
}

Trace chat_trace(const WorkloadOptions& options) {
  check(options);
  Draws draws(options.seed);
  std::vector<Text> systems;
  for (int i = 0; i < 5; ++i) systems.push_back(draws.text(200, 2500));
  std::vector<Chat> chats(40);
  const auto begin = [&](Chat& chat) { chat = {systems[static_cast<std::size_t>(draws.below(5))], {}, chat.next_ms}; };
  for (Chat& chat : chats) {
    chat.next_ms = draws.below(1'000'000);
    begin(chat);
  }
  Trace trace;
  while (static_cast<int>(trace.size()) < options.n_requests) {
    Chat& chat = *std::min_element(chats.begin(), chats.end(),
                                   [](const Chat& a, const Chat& b) { return a.next_ms < b.next_ms; });
    const bool goes_back = !chat.turns.empty();
    if (goes_back && draws.chance(8)) {  // another answer
    } else if (goes_back && draws.chance(10)) {
      chat.turns.back().question = draws.text(20, 600);
    } else {
      chat.turns.push_back({draws.text(20, 600), {}});
    }
    chat.turns.back().answer = draws.text(50, 700);
    const Text thoughts = draws.text(100, 1500);
    Request request = chat_prompt(chat).answered({thoughts, kCloseThoughts, chat.turns.back().answer, kCloseTurn});
    request.arrival_ms = chat.next_ms;
    trace.push_back(std::move(request));
    // Some come back at once, some after a long while.
    chat.next_ms += draws.chance(60) ? 10'000 + draws.below(120'000) : 300'000 + draws.below(3'000'000);
    if (draws.chance(12)) begin(chat);
  }
  return trace;
}

// ---- agent

struct Step {
  Text call;
  Text result;
};

struct Agent {
  Text task;
  std::vector<Step> steps;
  std::int64_t next_ms = 0;
  int n_steps = 0;
};

Trace agent_trace(const WorkloadOptions& options) {
  check(options);
  Draws draws(options.seed);
  const Text tools = draws.text(2500, 3500);
  std::vector<Agent> agents(12);
  const auto begin = [&](Agent& agent) { agent = {draws.text(50, 800), {}, agent.next_ms, draws.length(10, 40)}; };
  for (Agent& agent : agents) {
    agent.next_ms = draws.below(200'000);
    begin(agent);
  }
  Trace trace;
  while (static_cast<int>(trace.size()) < options.n_requests) {
    Agent& agent = *std::min_element(agents.begin(), agents.end(),
                                     [](const Agent& a, const Agent& b) { return a.next_ms < b.next_ms; });
    Prompt prompt;
    prompt.add(tools).end_turn().add(kOpenUser).add(agent.task);
    for (const Step& step : agent.steps) {
      prompt.end_turn().add(kOpenAssistant).add(step.call).end_turn().add(kOpenTool).add(step.result);
    }
    const Text time = {draws.text(1, 1).number, 18};
    prompt.add(time).end_turn().add(kOpenAssistant);
    agent.steps.push_back({draws.text(30, 250), draws.text(50, 1800)});
    Request request = std::move(prompt).answered({agent.steps.back().call, kCloseTurn});
    request.arrival_ms = agent.next_ms;
    trace.push_back(std::move(request));
    agent.next_ms += 3'000 + draws.below(30'000);
    if (static_cast<int>(agent.steps.size()) >= agent.n_steps) {
      agent.next_ms += draws.below(300'000);
      begin(agent);
    }
  }
  return trace;
}

// ---- users

Trace users_trace(const WorkloadOptions& options) {
  check(options);
  Draws draws(options.seed);
  const Text system = draws.text(6000, 6000);
  struct User {
    std::vector<Turn> turns;
    std::int64_t next_ms;
  };
  std::vector<User> waiting;
  Trace trace;
  std::int64_t now_ms = 0;
  while (static_cast<int>(trace.size()) < options.n_requests) {
    now_ms += draws.below(4'000);
    User user = {{}, now_ms};
    const auto due = std::find_if(waiting.begin(), waiting.end(), [&](const User& u) { return u.next_ms <= now_ms; });
    if (due != waiting.end()) {
      user.turns = std::move(due->turns);
      waiting.erase(due);
    }
    user.turns.push_back({draws.text(15, 300), draws.text(50, 500)});
    Prompt prompt;
    prompt.add(system).end_turn();
    for (std::size_t i = 0; i + 1 < user.turns.size(); ++i) {
      prompt.user(user.turns[i].question).add(kOpenAssistant).add(user.turns[i].answer).end_turn();
    }
    prompt.user(user.turns.back().question).add(kOpenAssistant);
    Request request = std::move(prompt).answered({user.turns.back().answer, kCloseTurn});
    request.arrival_ms = now_ms;
    trace.push_back(std::move(request));
    if (draws.chance(30)) {
      user.next_ms = now_ms + 20'000 + draws.below(200'000);
      waiting.push_back(std::move(user));
    }
  }
  return trace;
}

// ---- search

struct State {
  std::vector<Text> thoughts;
  std::int64_t next_ms;
};

struct Search {
  Text problem;
  std::vector<State> open;
  int n_left = 0;  // states to expand
};

Trace search_trace(const WorkloadOptions& options) {
  check(options);
  Draws draws(options.seed);
  const Text instruction = draws.text(600, 1200);
  std::vector<Search> searches(6);
  const auto begin = [&](Search& search) { search = {draws.text(100, 1500), {{{}, 0}}, draws.length(8, 30)}; };
  for (Search& search : searches) begin(search);
  Trace trace;
  std::int64_t now_ms = 0;
  while (static_cast<int>(trace.size()) < options.n_requests) {
    Search& search = searches[static_cast<std::size_t>(draws.below(static_cast<int>(searches.size())))];
    // The best is often one of the newest, and sometimes any.
    const int n_open = static_cast<int>(search.open.size());
    const int index = draws.chance(70) ? n_open - 1 - draws.below(std::min(n_open, 3)) : draws.below(n_open);
    const State state = search.open[static_cast<std::size_t>(index)];
    search.open.erase(search.open.begin() + index);
    const int n_samples = 2 + draws.below(3);
    for (int i = 0; i < n_samples && static_cast<int>(trace.size()) < options.n_requests; ++i) {
      now_ms += draws.below(5'000);
      Prompt prompt;
      prompt.add(instruction).end_turn().user(search.problem).add(kOpenAssistant);
      for (const Text& thought : state.thoughts) prompt.add(thought);
      const Text next = draws.text(60, 400);
      Request request = std::move(prompt).answered({next});
      request.arrival_ms = now_ms;
      trace.push_back(std::move(request));
      if (!draws.chance(70)) continue;
      State child = state;
      child.thoughts.push_back(next);
      search.open.push_back(std::move(child));
    }
    if (--search.n_left <= 0 || search.open.empty()) begin(search);
  }
  return trace;
}

constexpr std::array kWorkloads = {Workload{"chat", chat_trace}, Workload{"agent", agent_trace},
                                   Workload{"users", users_trace}, Workload{"search", search_trace}};

}  // namespace

std::span<const Workload> workloads() {
  return kWorkloads;
}

}  // namespace memoir::prefix_sim
