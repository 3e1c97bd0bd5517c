#pragma once

// The families of models that memoir has, and what each of them supports. Static values, any thread.

#include <string_view>
#include <vector>

namespace memoir::model {

struct FamilyInfo {
  std::string_view model_type;  // of config.json, or of its text part
  std::string_view models;      // what they are called

  /// The kinds of caches that its layers can have, by the names they have in files, with commas between.
  std::string_view caches;

  /// The architectures of GGUF files that are read as this family, with commas between; empty: none.
  std::string_view gguf;

  /// Whether a cache of it can go back by itself to any token that it holds (rows that stay), or only a few tokens, and
  /// else to where a snapshot was taken (rings, chunks, states).
  bool rewinds_anywhere() const { return caches == "KVCache"; }

  /// Whether drafts can be taken back: from every kind but slots, which are known before and after a pass only.
  bool takes_drafts() const { return caches.find("ArraysCache") == std::string_view::npos; }
};

/// All of them, by model_type.
std::vector<FamilyInfo> families();

}  // namespace memoir::model
