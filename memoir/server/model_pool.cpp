#include "memoir/server/model_pool.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace memoir::server {
namespace {

// How often who waits for a model looks whether its client is still there.
constexpr std::chrono::milliseconds kLook{100};

ApiError not_found(const std::string& name) {
  return ApiError(404, "the model '" + name.substr(0, 200) + "' does not exist", "model", "model_not_found");
}

}  // namespace

ModelPool::ModelPool(ServedModel model, engine::Service& service, CacheHooks hooks, Metrics& metrics)
    : metrics_(metrics) {
  options_.default_model = model.name();
  options_.keep_alive = std::nullopt;
  Slot slot;
  slot.listed = {model.name(), model.details()};
  slot.state = State::kLoaded;
  const std::shared_ptr<engine::Service> not_owned(std::shared_ptr<void>(), &service);
  slot.ready = std::make_shared<ReadyModel>(std::move(model), not_owned, std::move(hooks), metrics);
  slots_.emplace(options_.default_model, std::move(slot));
}

ModelPool::ModelPool(std::unique_ptr<ModelSource> source, PoolOptions options, Metrics& metrics, Log& log)
    : source_(std::move(source)), options_(std::move(options)), metrics_(metrics), log_(&log) {
  std::unique_lock lock(mutex_);
  refresh(lock);
  loader_ = std::thread([this] { work(); });
}

ModelPool::~ModelPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (loader_.joinable()) loader_.join();
}

// ---- Names and lists

std::string ModelPool::resolved(const std::string& name) const {
  if (is_single()) return options_.default_model;
  if (name.empty()) {
    if (!options_.default_model.empty()) return options_.default_model;
    if (slots_.size() == 1) return slots_.begin()->first;
    throw bad_field("model", "is missing, and there are several models");
  }
  if (slots_.contains(name)) return name;
  constexpr std::string_view kLatest = ":latest";
  return name.ends_with(kLatest) ? name.substr(0, name.size() - kLatest.size()) : name + std::string(kLatest);
}

/// Takes up what the source has now. Gives the lock up meanwhile.
void ModelPool::refresh(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::vector<ListedModel> listed = source_->list();
  lock.lock();
  std::erase_if(slots_, [&](const auto& entry) {
    const bool is_listed =
        std::any_of(listed.begin(), listed.end(), [&](const ListedModel& one) { return one.name == entry.first; });
    return !is_listed && entry.second.state == State::kUnloaded && entry.second.n_waiting == 0;
  });
  for (ListedModel& one : listed) {
    Slot& slot = slots_[one.name];
    if (slot.state == State::kUnloaded) slot.listed = std::move(one);
  }
}

ModelPool::Slot& ModelPool::need(std::unique_lock<std::mutex>& lock, const std::string& name) {
  auto found = slots_.find(resolved(name));
  // It may have come since, or gone, or another be in its place.
  if (source_ && (found == slots_.end() || found->second.state == State::kUnloaded)) {
    refresh(lock);
    found = slots_.find(resolved(name));
  }
  if (found == slots_.end()) throw not_found(name);
  return found->second;
}

std::vector<ListedModel> ModelPool::list() {
  std::unique_lock lock(mutex_);
  if (source_) refresh(lock);
  std::vector<ListedModel> listed;
  for (const auto& [name, slot] : slots_) listed.push_back(slot.listed);
  return listed;
}

std::shared_ptr<const ServedModel> ModelPool::describe(const std::string& name) {
  Lease ready;  // before the lock, as it wants it when it ends
  std::string known;
  {
    std::unique_lock lock(mutex_);
    Slot& slot = need(lock, name);
    if (slot.state == State::kLoaded) ready = lease(slot);
    known = slot.listed.name;
  }
  if (ready) return {ready, &ready->model};
  try {
    return std::make_shared<ServedModel>(source_->describe(known));
  } catch (const std::exception& error) {
    throw ApiError(500, std::string("the model's files are wrong: ") + error.what(), "model", "model_load_failed");
  }
}

std::vector<ModelPool::Running> ModelPool::running() {
  std::vector<Running> running;  // before the lock, as leases want it when they end
  const std::lock_guard lock(mutex_);
  for (auto& [name, slot] : slots_) {
    if (slot.state != State::kLoaded) continue;
    Running one{slot.listed, lease(slot), std::nullopt};
    if (slot.keep_alive) {
      const auto since = slot.n_users > 1 ? Clock::duration::zero() : Clock::now() - slot.last_use;
      one.expires_in = std::max(std::chrono::milliseconds(0),
                                std::chrono::duration_cast<std::chrono::milliseconds>(*slot.keep_alive - since));
    }
    running.push_back(std::move(one));
  }
  return running;
}

// ---- Leases

/// Without counting as use: release() leaves last_use as it is.
ModelPool::Lease ModelPool::lease(Slot& slot) {
  ++slot.n_users;
  ReadyModel* const ready = slot.ready.get();
  // Not the slot's own pointer: what the pool unloads must be gone when it says so.
  return {ready, [this, &slot](const ReadyModel*) { release(slot); }};
}

void ModelPool::release(Slot& slot) {
  const std::lock_guard lock(mutex_);
  if (--slot.n_users == 0) changed_.notify_all();
}

ModelPool::Lease ModelPool::acquire(const std::string& name, ClientWatch& client, std::optional<KeepAlive> keep_alive) {
  std::unique_lock lock(mutex_);
  Slot& slot = need(lock, name);
  if (slot.state != State::kLoaded) {
    check_size(slot);
    await_load(lock, slot, client);
  }
  if (source_) slot.keep_alive = keep_alive ? keep_alive->time : options_.keep_alive;
  const Lease held = lease(slot);
  // Its end is the use that counts.
  return {held.get(), [this, held, &slot](const ReadyModel*) {
            const std::lock_guard end(mutex_);
            slot.last_use = Clock::now();
          }};
}

void ModelPool::check_size(const Slot& slot) const {
  const std::uint64_t n_bytes = slot.listed.details.size_bytes;
  if (!options_.max_bytes || n_bytes <= *options_.max_bytes) return;
  throw ApiError(503,
                 "the model '" + slot.listed.name + "' takes " + std::to_string(n_bytes) + " bytes, more than the " +
                     std::to_string(*options_.max_bytes) + " that models may take",
                 "model", "model_too_large");
}

void ModelPool::await_load(std::unique_lock<std::mutex>& lock, Slot& slot, ClientWatch& client) {
  const auto deadline = Clock::now() + options_.load_wait;
  const int n_failures = slot.n_failures;
  struct Waiting {
    explicit Waiting(int& counter) : n(counter) { ++n; }
    ~Waiting() { --n; }
    int& n;
  } const waiting(slot.n_waiting);
  while (slot.state != State::kLoaded) {
    if (slot.n_failures != n_failures) {
      throw ApiError(500, "the model '" + slot.listed.name + "' can't be loaded: " + slot.failure, "model",
                     "model_load_failed");
    }
    if (slot.state == State::kUnloaded) {
      slot.state = State::kQueued;
      queue_.push_back(slot.listed.name);
      changed_.notify_all();
    }
    if (is_stopping_) throw not_ready("the server is stopping");
    if (Clock::now() >= deadline) {
      const bool has_no_room = slot.state == State::kQueued && !has_room(slot) && !least_recently_used();
      if (has_no_room) throw not_ready("other models are in use, and there is no room for this one");
      slot.is_wanted = true;  // for who asks again
      throw not_ready("the model is being loaded");
    }
    changed_.wait_until(lock, std::min(deadline, Clock::now() + kLook));
    lock.unlock();
    const bool is_gone = client.client_is_gone();
    lock.lock();
    if (is_gone) throw ApiError(499, "the client has gone");
  }
}

void ModelPool::expire(const std::string& name) {
  std::unique_lock lock(mutex_);
  Slot& slot = need(lock, name);
  if (!source_) return;
  slot.keep_alive = std::chrono::milliseconds(0);
  changed_.notify_all();
}

// ---- The loader's thread

void ModelPool::work() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    if (!unload_expired(lock) && !load_next(lock)) wait(lock);
  }
  for (auto& [name, slot] : slots_) {
    if (slot.state == State::kLoaded) unload(lock, slot);
  }
}

/// Loaded, and nobody has it or is about to.
bool ModelPool::is_idle(const Slot& slot) {
  return slot.state == State::kLoaded && slot.n_users == 0 && slot.n_waiting == 0;
}

std::optional<ModelPool::Clock::time_point> ModelPool::expiry(const Slot& slot) const {
  if (!is_idle(slot) || !slot.keep_alive) return std::nullopt;
  return slot.last_use + *slot.keep_alive;
}

bool ModelPool::unload_expired(std::unique_lock<std::mutex>& lock) {
  for (auto& [name, slot] : slots_) {
    const auto end = expiry(slot);
    if (!end || *end > Clock::now()) continue;
    unload(lock, slot);
    return true;
  }
  return false;
}

bool ModelPool::has_room(const Slot& wanted) const {
  int n_loaded = 1;
  std::uint64_t n_bytes = wanted.listed.details.size_bytes;
  for (const auto& [name, slot] : slots_) {
    if (slot.state != State::kLoaded) continue;
    ++n_loaded;
    n_bytes += slot.ready->model.details().size_bytes;
  }
  return n_loaded <= options_.max_loaded && (!options_.max_bytes || n_bytes <= *options_.max_bytes);
}

ModelPool::Slot* ModelPool::least_recently_used() {
  Slot* oldest = nullptr;
  for (auto& [name, slot] : slots_) {
    if (!is_idle(slot)) continue;
    if (!oldest || slot.last_use < oldest->last_use) oldest = &slot;
  }
  return oldest;
}

/// Does something for the model at the front of the queue. False if nothing can be done now.
bool ModelPool::load_next(std::unique_lock<std::mutex>& lock) {
  if (queue_.empty()) return false;
  Slot& slot = slots_.at(queue_.front());
  if (slot.n_waiting == 0 && !slot.is_wanted) {
    queue_.pop_front();
    slot.state = State::kUnloaded;
    return true;
  }
  if (has_room(slot)) {
    queue_.pop_front();
    load(lock, slot);
    return true;
  }
  Slot* const victim = least_recently_used();
  if (victim) unload(lock, *victim);
  return victim != nullptr;
}

void ModelPool::load(std::unique_lock<std::mutex>& lock, Slot& slot) {
  slot.state = State::kLoading;
  slot.is_wanted = false;
  const std::string name = slot.listed.name;
  lock.unlock();
  const auto begin = Clock::now();
  std::shared_ptr<ReadyModel> ready;
  std::string failure;
  try {
    ModelSource::Loaded loaded = source_->load(name);
    ready = std::make_shared<ReadyModel>(std::move(loaded.model), std::move(loaded.service), std::move(loaded.hooks),
                                         metrics_);
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "an exception that is no std::exception";
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (ready) {
    metrics_.add_model_load();
    log_->write("info", "model loaded", {{"model", name}, {"seconds", seconds}});
  } else {
    log_->write("error", "model not loaded", {{"model", name}, {"what", failure}});
  }
  lock.lock();
  slot.ready = std::move(ready);
  slot.state = slot.ready ? State::kLoaded : State::kUnloaded;
  slot.keep_alive = options_.keep_alive;
  slot.last_use = Clock::now();
  if (!slot.ready) {
    ++slot.n_failures;
    slot.failure = failure;
  }
  changed_.notify_all();
}

void ModelPool::unload(std::unique_lock<std::mutex>& lock, Slot& slot) {
  slot.state = State::kUnloading;
  std::shared_ptr<ReadyModel> ready = slot.ready;
  const std::string name = slot.listed.name;
  lock.unlock();
  ready->service->drain(Clock::now());  // what clients that are gone have left behind
  lock.lock();
  add_counts(gone_, ready->service->stats());
  slot.ready.reset();
  lock.unlock();
  ready.reset();
  source_->unloaded();
  metrics_.add_model_unload();
  log_->write("info", "model unloaded", {{"model", name}});
  lock.lock();
  slot.state = State::kUnloaded;
  changed_.notify_all();
}

void ModelPool::wait(std::unique_lock<std::mutex>& lock) {
  std::optional<Clock::time_point> first;
  for (const auto& [name, slot] : slots_) {
    const auto end = expiry(slot);
    if (end && (!first || *end < *first)) first = end;
  }
  // Who waits for the model at the front of the queue may leave without a word.
  if (!queue_.empty()) first = std::min(first.value_or(Clock::time_point::max()), Clock::now() + kLook);
  if (first) {
    changed_.wait_until(lock, *first);
  } else {
    changed_.wait(lock);
  }
}

// ---- All of them

engine::ServiceStats ModelPool::stats() {
  const std::lock_guard lock(mutex_);
  engine::ServiceStats sum = gone_;
  for (const auto& [name, slot] : slots_) {
    if (!slot.ready) continue;
    const engine::ServiceStats one = slot.ready->service->stats();
    add_counts(sum, one);
    sum.n_running += one.n_running;
    sum.n_queued += one.n_queued;
    sum.cache_bytes += one.cache_bytes;
    sum.prefix_cache.bytes += one.prefix_cache.bytes;
    sum.prefix_cache.directory_bytes = std::max(sum.prefix_cache.directory_bytes, one.prefix_cache.directory_bytes);
  }
  return sum;
}

void ModelPool::drain(Clock::time_point deadline) {
  std::vector<Lease> all;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [name, slot] : slots_) {
      if (slot.state == State::kLoaded) all.push_back(lease(slot));
    }
  }
  for (const Lease& one : all) one->service->drain(deadline);
}

}  // namespace memoir::server
