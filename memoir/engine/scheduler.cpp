#include "memoir/engine/scheduler.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memoir/engine/planner.h"
#include "memoir/engine/request_fault.h"
#include "memoir/engine/request_run.h"
#include "memoir/engine/speculate.h"

namespace memoir::engine {
namespace {

using Clock = std::chrono::steady_clock;
/// Tokens that it must save to give up a prompt's cache for one of what others have computed.
constexpr int kMinCatchUp = 32;

using MakeRunner = std::function<std::unique_ptr<StepRunner>()>;

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void check_options(const ServiceOptions& options) {
  const auto check = [](const char* name, int value, int least) {
    if (value >= least) return;
    throw std::invalid_argument(std::string("[engine.make_service] ") + name + " is " + std::to_string(value) +
                                ", expected at least " + std::to_string(least));
  };
  check("max_running", options.max_running, 1);
  check("max_queued", options.max_queued, 0);
  check("prefill_tokens_per_step", options.prefill_tokens_per_step, 1);
  if (options.max_context) check("max_context", *options.max_context, 1);
}

/// The requests and their steps, on the service's thread alone. Knows no locks.
class Engine {
 public:
  /// What the service reports of the engine.
  struct Report {
    int n_running = 0;
    std::uint64_t n_prompt_tokens = 0;
    std::uint64_t n_cached_tokens = 0;
    std::uint64_t n_completion_tokens = 0;
    std::uint64_t n_drafted_tokens = 0;
    std::uint64_t n_accepted_tokens = 0;
    std::uint64_t n_draft_rounds = 0;
    std::uint64_t n_steps = 0;
    std::size_t cache_bytes = 0;
    PrefixCacheCounts prefix_cache;
  };
  /// Told of each request's last event before it is sent, and when the request is gone.
  struct Listener {
    std::function<void(const Event& last, const Report&)> on_end;
    std::function<void()> on_gone;
  };

  Engine(StepRunner& runner, const PlannerOptions& options, Listener listener)
      : runner_(runner), planner_(options), listener_(std::move(listener)) {
    update_report();
  }

  bool is_idle() const { return jobs_.empty(); }
  const Report& report() const { return report_; }

  StepRunner& runner() { return runner_; }

  void add(RequestId id, std::unique_ptr<RequestRun> run);
  void cancel(RequestId id) { finish(id, FinishReason::kCancelled); }
  void cancel_all();

  /// One step. Never throws: what goes wrong ends requests.
  void step() noexcept;

 private:
  std::optional<Planner::Restored> start(RequestId id, std::size_t max_cache_bytes);
  StepRunner::NewSequence sequence_of(RequestId id) const;
  void catch_up();
  void try_step();
  struct Job {
    std::unique_ptr<RequestRun> run;
    bool has_sequence = false;  // in the runner, under the request's id
    bool is_resumed = false;    // it has lost a cache before
    bool has_drafts = true;     // until making them fails
  };
  /// A step's drafts behind each slice, and what the runner returned.
  struct Step {
    std::vector<std::vector<TokenId>> drafts;
    std::vector<std::span<float>> rows;
    Planner::StepTimes times;
  };
  void draft(const StepPlan& plan, Step& step);
  bool run(const StepPlan& plan, Step& step);
  void blame(const StepPlan& plan, const std::string& message);
  void hand_out(const StepPlan::Slice& slice, std::span<const TokenId> drafts, std::span<float> rows);
  std::optional<FinishReason> push(RequestId id, std::span<const TokenId> drafts, std::span<float> rows);

  void retire(RequestId id, Job& job);
  void drop(RequestId id, Job& job);
  void finish(RequestId id, FinishReason reason);
  void fail(RequestId id, Failed failed);
  void end(RequestId id, const Event& last);
  void update_report();

  StepRunner& runner_;
  Planner planner_;
  Listener listener_;
  std::map<RequestId, Job> jobs_;
  std::vector<std::pair<RequestId, std::string>> failed_starts_;
  Report report_;
};

void Engine::add(RequestId id, std::unique_ptr<RequestRun> run) {
  const Planner::NewRequest request{id, static_cast<int>(run->tokens().size()), run->priority(), run->deadline()};
  jobs_.emplace(id, Job{std::move(run)});
  try {
    planner_.add(request);
  } catch (const std::exception& error) {
    fail(id, {error.what()});
  }
}

void Engine::cancel_all() {
  while (!jobs_.empty()) cancel(jobs_.begin()->first);
}

void Engine::step() noexcept {
  try {
    try_step();
  } catch (...) {
    // Nothing above is known to end here (memory for the plan itself, say). The state in between can't be trusted, so
    // every request ends, and the next one finds an empty engine.
    const std::string message = message_of(std::current_exception());
    while (!jobs_.empty()) fail(jobs_.begin()->first, {message});
  }
  update_report();
}

StepRunner::NewSequence Engine::sequence_of(RequestId id) const {
  const RequestRun& run = *jobs_.at(id).run;
  StepRunner::NewSequence sequence{id, run.tokens(), run.n_prompt(), run.turn_ends()};
  sequence.is_shared = !run.is_embedding();  // which needs the states of all its tokens
  return sequence;
}

/// Prompts that begin alike may have been admitted before one of them had computed what they share.
void Engine::catch_up() {
  for (auto& [id, job] : jobs_) {
    if (!job.has_sequence || job.run->is_embedding() || planner_.n_pending(id) <= kMinCatchUp) continue;
    const int n_before = planner_.n_cached(id);
    int n_cached = n_before;
    try {
      n_cached = runner_.catch_up(sequence_of(id), kMinCatchUp);
    } catch (...) {
      continue;  // it computes what it can't have
    }
    if (n_cached == n_before) continue;
    planner_.move_ahead(id, n_cached);
    planner_.set_cache_bytes(id, runner_.cache_bytes(id));
    if (job.is_resumed) continue;  // it has computed them once
    job.run->add_cached(n_cached - n_before);
    report_.n_cached_tokens += static_cast<std::uint64_t>(n_cached - n_before);
  }
}

void Engine::try_step() {
  catch_up();
  const StepPlan plan =
      planner_.plan(Clock::now(), [this](RequestId id, std::size_t n_bytes) { return start(id, n_bytes); });
  for (const RequestId id : plan.expired) finish(id, FinishReason::kCancelled);
  for (const RequestId id : plan.paged_out) retire(id, jobs_.at(id));
  for (const auto& [id, message] : std::exchange(failed_starts_, {})) fail(id, {message});
  if (plan.slices.empty()) return;
  Step step;
  draft(plan, step);
  if (!run(plan, step)) return;
  planner_.commit(plan);
  planner_.observe(plan, step.times);
  ++report_.n_steps;
  for (const StepPlan::Slice& slice : plan.slices) planner_.set_cache_bytes(slice.id, runner_.cache_bytes(slice.id));
  update_report();
  for (std::size_t i = 0; i < plan.slices.size(); ++i) hand_out(plan.slices[i], step.drafts[i], step.rows[i]);
}

std::optional<Planner::Restored> Engine::start(RequestId id, std::size_t max_cache_bytes) {
  Job& job = jobs_.at(id);
  RequestRun& run = *job.run;
  try {
    StepRunner::NewSequence sequence = sequence_of(id);
    sequence.max_cache_bytes = max_cache_bytes;
    const int n_cached = runner_.create(sequence);
    job.has_sequence = true;
    const bool is_first = !run.is_started();
    job.is_resumed = !is_first;
    run.start(n_cached, Clock::now());
    if (is_first) {
      report_.n_prompt_tokens += run.tokens().size();
      report_.n_cached_tokens += static_cast<std::uint64_t>(n_cached);
    }
    return Planner::Restored{n_cached, runner_.cache_bytes(id)};
  } catch (...) {
    failed_starts_.emplace_back(id, message_of(std::current_exception()));
    return std::nullopt;
  }
}

/// A request whose drafts can't be made goes on without.
void Engine::draft(const StepPlan& plan, Step& step) {
  const Clock::time_point begin = Clock::now();
  step.drafts.resize(plan.slices.size());
  for (std::size_t i = 0; i < plan.slices.size(); ++i) {
    const auto& [id, n_tokens, completes_known, n_drafts] = plan.slices[i];
    Job& job = jobs_.at(id);
    if (n_drafts == 0 || !job.has_drafts) continue;
    try {
      std::vector<TokenId> drafts = runner_.propose(id, job.run->tokens(), n_drafts);
      check_drafts(drafts, n_drafts, runner_.n_vocab());
      step.times.n_drafts += static_cast<int>(drafts.size());
      step.drafts[i] = std::move(drafts);
    } catch (...) {
      job.has_drafts = false;
    }
  }
  step.times.drafting_s = std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Returns false if the step failed; the requests at fault have ended or will be computed alone.
bool Engine::run(const StepPlan& plan, Step& step) {
  std::vector<StepRunner::Slice> slices;
  std::vector<std::vector<TokenId>> drafted(plan.slices.size());
  for (std::size_t i = 0; i < plan.slices.size(); ++i) {
    const StepPlan::Slice& slice = plan.slices[i];
    const auto first = static_cast<std::size_t>(planner_.n_cached(slice.id));
    const RequestRun& run = *jobs_.at(slice.id).run;
    std::span<const TokenId> tokens = std::span(run.tokens()).subspan(first, static_cast<std::size_t>(slice.n_tokens));
    const std::vector<TokenId>& drafts = step.drafts[i];
    if (!drafts.empty()) {
      drafted[i] = {tokens.front()};
      drafted[i].insert(drafted[i].end(), drafts.begin(), drafts.end());
      tokens = drafted[i];
    }
    slices.push_back({slice.id, tokens, slice.completes_known && !run.is_embedding(), run.is_embedding(),
                      static_cast<int>(drafts.size())});
  }
  try {
    const Clock::time_point begin = Clock::now();
    step.rows = runner_.run(slices);
    step.times.pass_s = std::chrono::duration<double>(Clock::now() - begin).count();
    return true;
  } catch (...) {
    blame(plan, message_of(std::current_exception()));
    return false;
  }
}

void Engine::blame(const StepPlan& plan, const std::string& message) {
  const bool is_alone = plan.slices.size() == 1 && plan.slices.front().n_drafts == 0;
  if (is_alone) return fail(plan.slices.front().id, {message});
  for (const StepPlan::Slice& slice : plan.slices) {
    planner_.isolate(slice.id);
    if (runner_.offset(slice.id) == planner_.n_cached(slice.id)) continue;
    drop(slice.id, jobs_.at(slice.id));
    planner_.page_out(slice.id);
  }
}

void Engine::hand_out(const StepPlan::Slice& slice, std::span<const TokenId> drafts, std::span<float> rows) {
  RequestRun& run = *jobs_.at(slice.id).run;
  run.report_prefill(planner_.n_cached(slice.id));
  if (run.is_deaf() && drafts.empty()) return finish(slice.id, FinishReason::kCancelled);
  if (run.is_embedding()) run.add_states(rows, slice.n_tokens);
  if (!slice.completes_known) return;
  const Counts before = run.counts();
  std::optional<FinishReason> reason;
  std::optional<Failed> failure;
  try {
    reason = run.is_embedding() ? run.push_embedding(Clock::now()) : push(slice.id, drafts, rows);
  } catch (const RequestFault& fault) {
    failure = Failed{fault.what(), {}, fault.field()};
  } catch (...) {
    failure = Failed{message_of(std::current_exception())};
  }
  const auto grown = [](int now, int then) { return static_cast<std::uint64_t>(now - then); };
  report_.n_completion_tokens += grown(run.counts().completion_tokens, before.completion_tokens);
  report_.n_drafted_tokens += grown(run.counts().drafted_tokens, before.drafted_tokens);
  report_.n_accepted_tokens += grown(run.counts().accepted_tokens, before.accepted_tokens);
  if (!drafts.empty()) ++report_.n_draft_rounds;
  if (failure) return fail(slice.id, std::move(*failure));
  if (reason) return finish(slice.id, *reason);
  planner_.append_token(slice.id, run.max_drafts());
}

/// Judges the drafts, and has the runner keep those that are right.
std::optional<FinishReason> Engine::push(RequestId id, std::span<const TokenId> drafts, std::span<float> rows) {
  const RequestRun::Round round = jobs_.at(id).run->push(rows, drafts, Clock::now());
  if (drafts.empty()) return round.reason;
  runner_.keep_drafts(id, round.n_accepted);
  planner_.accept_drafts(id, static_cast<int>(drafts.size()), round.n_judged, round.n_accepted);
  planner_.set_cache_bytes(id, runner_.cache_bytes(id));
  return round.reason;
}

/// The cache may be kept: for later requests, and for this one if it goes on.
void Engine::retire(RequestId id, Job& job) {
  if (std::exchange(job.has_sequence, false)) runner_.retire(id);
}

void Engine::drop(RequestId id, Job& job) {
  if (std::exchange(job.has_sequence, false)) runner_.drop(id);
}

void Engine::finish(RequestId id, FinishReason reason) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  retire(id, found->second);
  end(id, found->second.run->ending(reason, Clock::now()));
}

void Engine::fail(RequestId id, Failed failed) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  drop(id, found->second);
  end(id, found->second.run->failure(std::move(failed), Clock::now()));
}

void Engine::end(RequestId id, const Event& last) {
  planner_.remove(id);
  update_report();
  listener_.on_end(last, report_);
  const auto found = jobs_.find(id);
  found->second.run->send_last(last);
  jobs_.erase(found);
  listener_.on_gone();
}

void Engine::update_report() {
  report_.n_running = planner_.n_running();
  report_.cache_bytes = 0;
  for (const auto& [id, job] : jobs_) {
    if (job.has_sequence) report_.cache_bytes += runner_.cache_bytes(id);
  }
  report_.prefix_cache = runner_.kept();
}

class Scheduler final : public Service {
 public:
  Scheduler(MakeRunner make_runner, std::optional<text::Tokenizer> tokenizer, const ServiceOptions& options);
  ~Scheduler() override;

  std::variant<RequestId, Refusal> submit(Request request) override;
  int max_requests() const override { return options_.max_running + options_.max_queued; }
  void cancel(RequestId id) override;
  ServiceStats stats() const override;
  std::string prefix_cache_report() override;
  void clear_prefix_cache() override;
  void drain(Clock::time_point deadline) override;

 private:
  /// What waits for the engine's thread.
  struct Mail {
    std::vector<std::pair<RequestId, std::unique_ptr<RequestRun>>> requests;
    std::vector<RequestId> cancels;
    std::vector<std::function<void(StepRunner&)>> calls;
    bool cancels_all = false;
    bool stops = false;

    bool is_empty() const { return requests.empty() && cancels.empty() && calls.empty() && !cancels_all && !stops; }
  };

  void work(const MakeRunner& make_runner, std::promise<RequestRun::Limits>& ready);
  void serve(Engine& engine);
  Mail take_mail(bool waits);
  RequestRun::Limits limits_of(const StepRunner& runner) const;
  PlannerOptions planner_options(const StepRunner& runner) const;
  std::optional<Refusal> refusal() const;
  void count_end(const Event& last, const Engine::Report& report);
  template <class Answer>
  Answer ask(std::function<Answer(StepRunner&)> question);

  const ServiceOptions options_;
  const std::optional<text::Tokenizer> tokenizer_;
  RequestRun::Limits limits_{};

  mutable std::mutex mutex_;  // guards all that follows but the thread
  std::condition_variable has_mail_;
  std::condition_variable is_drained_;
  Mail mail_;
  ServiceStats stats_;  // the counters; the rest comes from report_
  Engine::Report report_;
  RequestId next_id_ = 1;
  int n_alive_ = 0;  // accepted, the last event not sent
  int n_open_ = 0;   // the same, and those whose last event is being sent
  bool is_draining_ = false;

  std::thread thread_;  // last: it uses the others
};

Scheduler::Scheduler(MakeRunner make_runner, std::optional<text::Tokenizer> tokenizer, const ServiceOptions& options)
    : options_(options), tokenizer_(std::move(tokenizer)) {
  check_options(options);
  std::promise<RequestRun::Limits> ready;
  std::future<RequestRun::Limits> limits = ready.get_future();
  thread_ =
      std::thread([this, make = std::move(make_runner), promise = std::move(ready)]() mutable { work(make, promise); });
  try {
    limits_ = limits.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    mail_.cancels_all = true;
    mail_.stops = true;
  }
  has_mail_.notify_one();
  thread_.join();
}

void Scheduler::work(const MakeRunner& make_runner, std::promise<RequestRun::Limits>& ready) {
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<Engine> engine;
  try {
    runner = make_runner();
    const RequestRun::Limits limits = limits_of(*runner);
    engine = std::make_unique<Engine>(
        *runner, planner_options(*runner),
        Engine::Listener{[this](const Event& last, const Engine::Report& report) { count_end(last, report); },
                         [this] {
                           const std::lock_guard lock(mutex_);
                           if (--n_open_ == 0) is_drained_.notify_all();
                         }});
    report_ = engine->report();
    ready.set_value(limits);
  } catch (...) {
    runner.reset();
    ready.set_exception(std::current_exception());
    return;
  }
  serve(*engine);
}

void Scheduler::serve(Engine& engine) {
  for (;;) {
    Mail mail = take_mail(engine.is_idle());
    for (auto& [id, run] : mail.requests) engine.add(id, std::move(run));
    for (const RequestId id : mail.cancels) engine.cancel(id);
    if (mail.cancels_all) engine.cancel_all();
    for (const auto& call : mail.calls) call(engine.runner());
    if (mail.stops) return;
    if (!engine.is_idle()) engine.step();
    const std::lock_guard lock(mutex_);
    report_ = engine.report();
  }
}

Scheduler::Mail Scheduler::take_mail(bool waits) {
  std::unique_lock lock(mutex_);
  if (waits) has_mail_.wait(lock, [this] { return !mail_.is_empty(); });
  return std::exchange(mail_, {});
}

RequestRun::Limits Scheduler::limits_of(const StepRunner& runner) const {
  int n_context = runner.context();
  if (options_.max_context) n_context = std::min(n_context, *options_.max_context);
  if (options_.max_cache_bytes) n_context = std::min(n_context, runner.cost().tokens_within(*options_.max_cache_bytes));
  if (n_context < 1) {
    throw std::invalid_argument("[engine.make_service] max_cache_bytes is " +
                                std::to_string(*options_.max_cache_bytes) + ", expected at least the " +
                                std::to_string(runner.cost().bytes(1)) + " bytes of one token's cache");
  }
  return {runner.n_vocab(), n_context};
}

PlannerOptions Scheduler::planner_options(const StepRunner& runner) const {
  PlannerOptions options;
  options.max_running = options_.max_running;
  options.prefill_tokens_per_step = options_.prefill_tokens_per_step;
  options.cost = runner.cost();
  options.max_cache_bytes = options_.max_cache_bytes;
  options.max_drafts = runner.max_drafts();
  options.adapts_drafts = runner.adapts_drafts();
  return options;
}

/// With the mutex held.
std::optional<Refusal> Scheduler::refusal() const {
  if (is_draining_) return Refusal::kDraining;
  if (n_alive_ - options_.max_running >= options_.max_queued) return Refusal::kQueueFull;
  return std::nullopt;
}

std::variant<RequestId, Refusal> Scheduler::submit(Request request) {
  const auto refused = [this](Refusal why) {
    ++stats_.n_refused;
    return why;
  };
  {
    // Before the work of taking it: a full queue is when there is least time for that.
    const std::lock_guard lock(mutex_);
    if (const auto why = refusal()) return refused(*why);
  }
  auto run =
      std::make_unique<RequestRun>(std::move(request), limits_, tokenizer_ ? &*tokenizer_ : nullptr, Clock::now());
  const std::lock_guard lock(mutex_);
  if (const auto why = refusal()) return refused(*why);
  const RequestId id = next_id_++;
  mail_.requests.emplace_back(id, std::move(run));
  ++n_alive_;
  ++n_open_;
  ++stats_.n_submitted;
  has_mail_.notify_one();
  return id;
}

void Scheduler::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  mail_.cancels.push_back(id);
  has_mail_.notify_one();
}

void Scheduler::count_end(const Event& last, const Engine::Report& report) {
  const std::lock_guard lock(mutex_);
  report_ = report;
  --n_alive_;
  if (const auto* finished = std::get_if<Finished>(&last)) {
    ++stats_.n_finished[finished->reason];
  } else {
    ++stats_.n_failed;
  }
}

ServiceStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  ServiceStats stats = stats_;
  stats.n_running = report_.n_running;
  stats.n_queued = n_alive_ - report_.n_running;
  stats.n_prompt_tokens = report_.n_prompt_tokens;
  stats.n_cached_tokens = report_.n_cached_tokens;
  stats.n_completion_tokens = report_.n_completion_tokens;
  stats.n_drafted_tokens = report_.n_drafted_tokens;
  stats.n_accepted_tokens = report_.n_accepted_tokens;
  stats.n_draft_rounds = report_.n_draft_rounds;
  stats.n_steps = report_.n_steps;
  stats.cache_bytes = report_.cache_bytes;
  stats.prefix_cache = report_.prefix_cache;
  return stats;
}

/// Asked between two steps, on the engine's thread.
template <class Answer>
Answer Scheduler::ask(std::function<Answer(StepRunner&)> question) {
  auto task = std::make_shared<std::packaged_task<Answer(StepRunner&)>>(std::move(question));
  std::future<Answer> answer = task->get_future();
  {
    const std::lock_guard lock(mutex_);
    mail_.calls.emplace_back([task](StepRunner& runner) { (*task)(runner); });
  }
  has_mail_.notify_one();
  return answer.get();
}

std::string Scheduler::prefix_cache_report() {
  return ask<std::string>([](StepRunner& runner) { return runner.kept_report(); });
}

void Scheduler::clear_prefix_cache() {
  ask<void>([](StepRunner& runner) { runner.clear_kept(); });
}

void Scheduler::drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  is_draining_ = true;
  const auto is_done = [this] { return n_open_ == 0; };
  if (is_drained_.wait_until(lock, deadline, is_done)) return;
  mail_.cancels_all = true;
  has_mail_.notify_one();
  is_drained_.wait(lock, is_done);
}

}  // namespace

std::unique_ptr<Service> make_service(MakeRunner make_runner, std::optional<text::Tokenizer> tokenizer,
                                      const ServiceOptions& options) {
  return std::make_unique<Scheduler>(std::move(make_runner), std::move(tokenizer), options);
}

}  // namespace memoir::engine
