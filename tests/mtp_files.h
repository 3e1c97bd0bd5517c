#pragma once

// A model's directory with the head of tests/data/mtp beside its own weights.

#include <nlohmann/json.hpp>
#include <string>

#include "tests/model_files.h"

namespace memoir::test {

/// The model in tests/data/`name` in two shards, the second with its head, in `folder`.
inline fs::path model_with_head(const fs::path& folder, const std::string& name) {
  fs::create_directories(folder);
  const auto over = fs::copy_options::overwrite_existing;
  fs::copy_file(data(name) / "config.json", folder / "config.json", over);
  nlohmann::json files = nlohmann::json::object();
  const auto add = [&](const fs::path& from, const std::string& shard) {
    fs::copy_file(from, folder / shard, over);
    for (const auto& [tensor, ignored] : mlx::core::load_safetensors(from.string()).first) files[tensor] = shard;
  };
  add(data(name) / "model.safetensors", "model-00001-of-00002.safetensors");
  add(data("mtp") / (name + ".safetensors"), "model-00002-of-00002.safetensors");
  write_file(folder / "model.safetensors.index.json", nlohmann::json{{"weight_map", files}}.dump());
  return folder;
}

}  // namespace memoir::test
