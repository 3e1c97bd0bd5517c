#pragma once

// The mean of what came last: what lies back half a thousand counts half.

namespace memoir::prefix {

class LateMean {
 public:
  void add(double x) {
    sum_ += x;
    n_ += 1;
    if (n_ < kMost) return;
    sum_ /= 2;
    n_ /= 2;
  }

  bool is_known() const { return n_ >= kFewest; }
  double value() const { return n_ > 0 ? sum_ / n_ : 0; }

 private:
  static constexpr double kMost = 1024;
  static constexpr double kFewest = 16;

  double sum_ = 0;
  double n_ = 0;
};

}  // namespace memoir::prefix
