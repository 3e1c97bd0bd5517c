#pragma once

// What one rendering may cost. A template comes with a model file from anywhere, so a loop that never ends or a
// string that doubles a hundred times must end with an error.
//
// Two accounts: work (units spent, never given back) and memory (bytes of live strings, lists and dicts). A unit is a
// node evaluated, an item copied, or kBytesPerUnit bytes of text produced, each a few dozen nanoseconds.
// The budget of the running render is reached through a thread-local pointer, so that the value functions need not
// carry it; outside a render (template constants made by the parser) there is none and nothing is counted.
// Threads: one budget per render, used by the thread that renders.

#include <cstddef>
#include <cstdint>

namespace memoir::text::jinja {

class Budget {
 public:
  static constexpr std::uint64_t kBytesPerUnit = 256;
  static constexpr std::uint64_t kMaxLiveBytes = 512ULL << 20;
  static constexpr std::size_t kMaxOutputBytes = 256ULL << 20;

  explicit Budget(std::uint64_t max_units) : max_units_(max_units) {}

  /// Makes `this` the calling thread's budget until the scope ends; restores the one before.
  class Scope {
   public:
    explicit Scope(Budget& budget);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Budget* previous_;
  };

  /// The calling thread's budget, or nullptr outside a render.
  static Budget* current();

  /// Throws Error (kUnsupported) once more than max_units were spent.
  void spend(std::uint64_t units);

  /// Throws Error (kUnsupported) where more than kMaxLiveBytes would be live; nothing is counted then.
  void hold(std::uint64_t n_bytes);
  void release(std::uint64_t n_bytes) { live_bytes_ -= n_bytes; }

 private:
  std::uint64_t max_units_;
  std::uint64_t units_ = 0;
  std::uint64_t live_bytes_ = 0;
};

/// Spends from the current budget, if there is one.
void spend(std::uint64_t units);

/// Refuses a result of n_bytes before it is built (a repetition, a padding): throws Error (kUnsupported) above the
/// memory limit, else spends the work of producing it.
void spend_text(std::uint64_t n_bytes);

/// The share of one object in the live bytes: counted from construction to destruction.
class HeldBytes {
 public:
  explicit HeldBytes(std::uint64_t n_bytes);
  ~HeldBytes();
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

 private:
  Budget* budget_;
  std::uint64_t n_bytes_;
};

}  // namespace memoir::text::jinja
