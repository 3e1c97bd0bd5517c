#pragma once

// The models of a server: loaded when they are asked for, unloaded when nobody has asked for some time or another one
// needs their room. Or one model that is always there.
//
//   unloaded --acquire()--> queued --loader--> loading --> loaded --expired, or evicted--> unloading --> unloaded
// One thread of the pool loads and unloads, one model after the other. A model is not unloaded while somebody holds a
// lease on it. What has to go is the model that nobody uses and that was used longest ago.
// Threads: any, for every member of ModelPool, and of the source, but that one thread alone loads.
// Ownership: the pool owns the source and the engines it made. Leases must not outlive the pool.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "memoir/engine/service.h"
#include "memoir/server/generation.h"
#include "memoir/server/log.h"
#include "memoir/server/metrics.h"
#include "memoir/server/ollama_request.h"
#include "memoir/server/served_model.h"
#include "memoir/server/socket.h"

namespace memoir::server {

/// What the engine tells of its cache and does to it; an empty function is answered by 501.
struct CacheHooks {
  std::function<Json()> describe;
  std::function<void()> clear;
};

/// A model that can be asked.
struct ReadyModel {
  ReadyModel(ServedModel served, std::shared_ptr<engine::Service> engine, CacheHooks cache, Metrics& metrics)
      : model(std::move(served)),
        service(std::move(engine)),
        hooks(std::move(cache)),
        backend{*service, model, metrics, constraints} {}

  ServedModel model;
  std::shared_ptr<engine::Service> service;
  CacheHooks hooks;
  Constraints constraints;
  Backend backend;
};

/// Where several models come from.
class ModelSource {
 public:
  struct Loaded {
    ServedModel model;
    std::shared_ptr<engine::Service> service;
    CacheHooks hooks;
  };

  virtual ~ModelSource() = default;

  /// What there is, with the bytes of its files: it may change from call to call. Names are unique.
  virtual std::vector<ListedModel> list() = 0;

  /// A model of the list without its weights. Throws InputError.
  virtual ServedModel describe(const std::string& name) = 0;

  /// Called on the pool's thread. Throws anything.
  virtual Loaded load(const std::string& name) = 0;

  /// A model's engine is gone, on the same thread: its memory may go back to the system.
  virtual void unloaded() {}
};

struct PoolOptions {
  /// How long a model stays when its last request has ended; nullopt: for ever.
  std::optional<std::chrono::milliseconds> keep_alive = std::chrono::minutes(5);
  int max_loaded = 3;                                     // >= 1
  std::optional<std::uint64_t> max_bytes = std::nullopt;  // of the weights of all loaded models
  std::chrono::milliseconds load_wait = std::chrono::minutes(1);
  std::string default_model = {};  // of requests that name none; empty: the only one, where there is one
};

class ModelPool {
 public:
  /// Held while a model is used. Refers to the pool.
  using Lease = std::shared_ptr<const ReadyModel>;

  /// One model, always there. The service must outlive the pool.
  ModelPool(ServedModel model, engine::Service& service, CacheHooks hooks, Metrics& metrics);
  ModelPool(std::unique_ptr<ModelSource> source, PoolOptions options, Metrics& metrics, Log& log);
  ~ModelPool();
  ModelPool(const ModelPool&) = delete;
  ModelPool& operator=(const ModelPool&) = delete;

  bool is_single() const { return !source_; }

  /// The model of this name ("" for the default one, ":latest" is left out of account), loaded; waits for that up to
  /// load_wait. A single model is returned whatever the name. keep_alive: of the options, where the request says
  /// nothing. Throws ApiError: 404 for a name that is not in the list, 400 where none is given and there is no default,
  /// 503 with Retry-After where it can't be loaded in time, 500 where loading fails, 499 when the client goes away
  /// meanwhile.
  Lease acquire(const std::string& name, ClientWatch& client, std::optional<KeepAlive> keep_alive = std::nullopt);

  /// Unloads it as soon as nobody uses it. Throws 404 as acquire(). Nothing for a single model.
  void expire(const std::string& name);

  std::vector<ListedModel> list();

  /// What is known without loading. Throws 404 as acquire(), 500 where its files are wrong.
  std::shared_ptr<const ServedModel> describe(const std::string& name);

  struct Running {
    ListedModel listed;
    Lease ready;
    std::optional<std::chrono::milliseconds> expires_in;  // nullopt: never
  };
  std::vector<Running> running();

  /// Of all engines together, those that are gone included in what is counted.
  engine::ServiceStats stats();

  /// All engines: Service::drain.
  void drain(std::chrono::steady_clock::time_point deadline);

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kUnloaded, kQueued, kLoading, kLoaded, kUnloading };
  struct Slot {
    ListedModel listed;
    State state = State::kUnloaded;
    std::shared_ptr<ReadyModel> ready;
    int n_users = 0;
    int n_waiting = 0;       // who wants it loaded
    bool is_wanted = false;  // by one who waits no more: to be loaded all the same
    Clock::time_point last_use;
    std::optional<std::chrono::milliseconds> keep_alive;
    int n_failures = 0;
    std::string failure;  // the last one's
  };

  std::string resolved(const std::string& name) const;
  Slot& need(std::unique_lock<std::mutex>& lock, const std::string& name);
  void refresh(std::unique_lock<std::mutex>& lock);
  Lease lease(Slot& slot);
  void release(Slot& slot);
  void await_load(std::unique_lock<std::mutex>& lock, Slot& slot, ClientWatch& client);
  void check_size(const Slot& slot) const;

  void work();
  std::optional<Clock::time_point> expiry(const Slot& slot) const;
  bool unload_expired(std::unique_lock<std::mutex>& lock);
  bool load_next(std::unique_lock<std::mutex>& lock);
  static bool is_idle(const Slot& slot);
  bool has_room(const Slot& wanted) const;
  Slot* least_recently_used();
  void load(std::unique_lock<std::mutex>& lock, Slot& slot);
  void unload(std::unique_lock<std::mutex>& lock, Slot& slot);
  void wait(std::unique_lock<std::mutex>& lock);

  std::unique_ptr<ModelSource> source_;  // null for a single model
  PoolOptions options_;
  Metrics& metrics_;
  Log* log_ = nullptr;
  std::mutex mutex_;  // of all that follows but the thread; never held while the source or an engine is asked to work
  std::condition_variable changed_;
  std::map<std::string, Slot> slots_;  // by name; a slot stays while it is not unloaded or waited for
  std::deque<std::string> queue_;
  engine::ServiceStats gone_;  // of engines that are gone
  bool is_stopping_ = false;
  std::thread loader_;  // last: it uses the others
};

}  // namespace memoir::server
