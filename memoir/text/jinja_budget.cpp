#include "memoir/text/jinja_budget.h"

#include <string>

#include "memoir/text/jinja_error.h"

namespace memoir::text::jinja {
namespace {

thread_local Budget* current_budget = nullptr;

}  // namespace

Budget::Scope::Scope(Budget& budget) : previous_(current_budget) {
  current_budget = &budget;
}
Budget::Scope::~Scope() {
  current_budget = previous_;
}

Budget* Budget::current() {
  return current_budget;
}

void Budget::spend(std::uint64_t units) {
  if (units > max_units_ - units_) {
    fail_unsupported("the template does more work than the limit of " + std::to_string(max_units_) + " steps");
  }
  units_ += units;
}

void Budget::hold(std::uint64_t n_bytes) {
  if (n_bytes > kMaxLiveBytes - live_bytes_) {
    fail_unsupported("the template's values need more than the limit of " + std::to_string(kMaxLiveBytes >> 20) +
                     " MiB");
  }
  live_bytes_ += n_bytes;
}

void spend(std::uint64_t units) {
  if (current_budget != nullptr) current_budget->spend(units);
}

void spend_text(std::uint64_t n_bytes) {
  if (n_bytes > Budget::kMaxLiveBytes) {
    fail_unsupported("a text of " + std::to_string(n_bytes) + " bytes is above the limit of " +
                     std::to_string(Budget::kMaxLiveBytes >> 20) + " MiB");
  }
  spend(1 + n_bytes / Budget::kBytesPerUnit);
}

HeldBytes::HeldBytes(std::uint64_t n_bytes) : budget_(current_budget), n_bytes_(n_bytes) {
  if (budget_ != nullptr) budget_->hold(n_bytes_);
}

HeldBytes::~HeldBytes() {
  if (budget_ != nullptr) budget_->release(n_bytes_);
}

}  // namespace memoir::text::jinja
