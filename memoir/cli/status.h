#pragma once

// What the process reports: its exit statuses, and the error that stands for wrong usage.

#include <stdexcept>

namespace memoir::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kSignalled = 128;  // + its number: a signal ended it, once it had saved what there was

/// The command line asks for something that makes no sense. main() reports it and exits with kWrongUsage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace memoir::cli
