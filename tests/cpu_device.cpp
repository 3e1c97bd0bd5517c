// In each test program that uses MLX: the CPU computes, also where MLX is one for a GPU and that is its default. The
// bits that tests ask for are promised there; for a GPU see gpu_check.py.

#include <gtest/gtest.h>
#include <mlx/device.h>

namespace memoir::test {
namespace {

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mlx::core::set_default_device(mlx::core::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::test
