#pragma once

// Model directories for tests: copies of those in tests/data that a test may damage.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

namespace memoir::test {

namespace fs = std::filesystem;

/// A folder of its own for each test, removed with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::temp_directory_path() / ("memoir-" + std::string(info->test_suite_name()) + "-" + info->name() + "-" +
                                         std::to_string(testing::UnitTest::GetInstance()->random_seed()) + "-" +
                                         std::to_string(reinterpret_cast<std::uintptr_t>(this)));
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline fs::path data(const std::string& name) {
  return fs::path(MEMOIR_TEST_DATA) / name;
}

inline void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  ASSERT_TRUE(file.flush()) << path;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A copy of the model in tests/data/`name`, with `config` as its config.json.
inline fs::path copied_model(const TemporaryFolder& folder, const std::string& name,
                             const std::string& config = "config.json") {
  fs::copy_file(data(name) / config, folder.path() / "config.json");
  fs::copy_file(data(name) / "model.safetensors", folder.path() / "model.safetensors");
  return folder.path();
}

/// Rewrites the config.json of a copied model.
inline void edit_config(const fs::path& model, const std::function<void(nlohmann::json&)>& edit) {
  nlohmann::json config = nlohmann::json::parse(read_file(model / "config.json"));
  edit(config);
  write_file(model / "config.json", config.dump());
}

using Tensors = std::unordered_map<std::string, mlx::core::array>;

/// Rewrites the tensors of a copied model.
inline void edit_tensors(const fs::path& model, const std::function<void(Tensors&)>& edit) {
  const std::string path = (model / "model.safetensors").string();
  Tensors tensors = mlx::core::load_safetensors(path).first;
  for (auto& [name, tensor] : tensors) mlx::core::eval(tensor);
  edit(tensors);
  mlx::core::save_safetensors(path, tensors);
}

}  // namespace memoir::test
