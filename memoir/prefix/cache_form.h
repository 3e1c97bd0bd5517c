#pragma once

// How the caches of one model keep their state, as one of them that has taken in a token shows: kinds, types and
// shapes. With it rows and checkpoints become bytes, and bytes become what the same caches can take; no number of the
// bytes' writer is believed that the form does not say itself.
//
// Bytes are those of the arrays, part by part in the order of CacheParts; of keys and values the data, then scales and
// biases where rows are quantized.
// Threads: the thread that owns MLX's work.

#include <mlx/array.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/recurrent.h"
#include "memoir/prefix/row_blocks.h"
#include "memoir/prefix/state_checkpoint.h"

namespace memoir::prefix {

/// Bytes to be written, and what holds them.
struct PayloadBytes {
  std::vector<std::span<const std::byte>> pieces;
  std::shared_ptr<const void> owner;
};

/// Arrays to be read into.
class PayloadArrays {
 public:
  std::span<const std::span<std::byte>> pieces() const { return pieces_; }

 private:
  friend class CacheForm;
  std::vector<mlx::core::array> arrays_;
  std::vector<std::span<std::byte>> pieces_;
};

class CacheForm {
 public:
  /// Of a cache that has taken in a token, computed or not. narrow: rows are kept as these codes. Throws
  /// std::invalid_argument if a part is of a kind whose state has no form (an ArraysCache) or has taken in nothing.
  explicit CacheForm(const cache::ModelCache& cache, const std::optional<NarrowRows>& narrow = {});

  bool has_rows() const { return !flat_.empty(); }
  bool has_states() const { return !others_.empty(); }

  /// All of it: [{"kind", "arrays": [[dtype, [axes]]], and what the kind has of "window", "keep", "chunk", "bits",
  /// "group_size", "narrowed" (the type that codes are made of)}], an axis of -1 standing for rows.
  nlohmann::ordered_json json() const;

  /// Throws std::invalid_argument if the block is of other caches.
  PayloadBytes bytes_of(std::shared_ptr<const RowBlock> block) const;

  /// Arrays for the rows of [from, to), and the block that they make once they are read. n_bytes: what there is to
  /// read; nullopt if that is not what such a block has.
  std::optional<PayloadArrays> arrays_for_rows(int from, int to, std::uint64_t n_bytes) const;
  std::shared_ptr<const RowBlock> row_block(int from, int to, const PayloadArrays& arrays) const;

  /// The same of states. The note says which rows of rings and chunks there are: a JSON array, one item for each part.
  PayloadBytes bytes_of(std::shared_ptr<const StateCheckpoint::States> states) const;
  nlohmann::ordered_json note_of(const StateCheckpoint::States& states) const;

  /// Nullopt also if the note is none that note_of() could have made of states at `to`.
  std::optional<PayloadArrays> arrays_for_states(const nlohmann::ordered_json& note, int to,
                                                 std::uint64_t n_bytes) const;
  std::unique_ptr<StateCheckpoint> checkpoint(const nlohmann::ordered_json& note, int to,
                                              const PayloadArrays& arrays) const;

 private:
  struct ArrayForm {
    mlx::core::Dtype dtype;
    mlx::core::Shape shape;  // of one row, where there are rows
  };
  struct Part {
    std::string kind;
    std::optional<cache::KVOptions> kv;              // of keys and values,
    std::optional<cache::RecurrentShape> recurrent;  // or this
    std::vector<ArrayForm> arrays;
    std::optional<mlx::core::Dtype> narrowed = std::nullopt;  // the rows' type, if codes are kept

    cache::Layout layout() const;
    std::vector<ArrayForm> arrays_of(int n_rows) const;
  };

  static Part part_of(const cache::LayerCache& cache);
  static void narrow(Part& part, const NarrowRows& rows);
  static void add_bytes(const std::vector<mlx::core::array>& arrays, const std::vector<ArrayForm>& forms,
                        PayloadBytes& payload);
  static std::optional<PayloadArrays> made(const std::vector<ArrayForm>& forms, std::uint64_t n_bytes);

  std::vector<Part> flat_;
  std::vector<Part> others_;
};

}  // namespace memoir::prefix
