#include "benches/prefix_sim/models.h"

#include <algorithm>
#include <array>
#include <utility>

namespace memoir::prefix_sim {
namespace {

// bfloat16 rows, float32 states. Two FLOPs for each weight used of a token; four for each query head, dimension and
// pair in the layers that see everything. What a window adds is the same for each token, and small beside the weights.
constexpr std::array kModels = {
    Model{.name = "flat",
          .like = "Qwen3 8B: 36 layers, 8 heads of keys",
          .row_bytes = std::size_t{36} * 2 * 8 * 128 * 2,
          .cost = {.per_token = 2 * 8.2e9, .per_pair = 4.0 * 32 * 128 * 36}},
    Model{.name = "window",
          .like = "Gemma 3 4B: 5 layers see all, 29 a window of 1024",
          .row_bytes = std::size_t{5} * 2 * 4 * 256 * 2,
          .ring_row_bytes = std::size_t{29} * 2 * 4 * 256 * 2,
          .window = 1024,
          .slack = 16,
          .cost = {.per_token = 2 * 3.9e9, .per_pair = 4.0 * 8 * 256 * 5}},
    Model{.name = "hybrid",
          .like = "Qwen3-Next 80B-A3B: 12 layers see all, 36 gated delta",
          .row_bytes = std::size_t{12} * 2 * 2 * 256 * 2,
          .state_bytes = std::size_t{36} * (std::size_t{32} * 128 * 128 * 4 + std::size_t{3} * 8192 * 2),
          .cost = {.per_token = 2 * 3e9, .per_pair = 4.0 * 16 * 256 * 12}},
    Model{.name = "recurrent",
          .like = "Mamba2 2.7B: 64 layers",
          .state_bytes = std::size_t{64} * (std::size_t{80} * 64 * 128 * 4 + std::size_t{3} * 5376 * 2),
          .cost = {.per_token = 2 * 2.7e9, .per_pair = 0}}};

class SizedRows final : public prefix::Rows {
 public:
  SizedRows(std::size_t row_bytes, int from, int to) : row_bytes_(row_bytes), from_(from), to_(to) {}

  int from() const override { return from_; }
  int to() const override { return to_; }
  std::size_t size_bytes() const override { return row_bytes_ * static_cast<std::size_t>(to_ - from_); }

  std::unique_ptr<prefix::Rows> split_off(int at) override {
    return std::make_unique<SizedRows>(row_bytes_, at, std::exchange(to_, at));
  }
  bool append(prefix::Rows& next) noexcept override {
    to_ = next.to();
    return true;
  }
  void trim(int at) override { to_ = at; }

 private:
  std::size_t row_bytes_;
  int from_;
  int to_;
};

class SizedCheckpoint final : public prefix::Checkpoint {
 public:
  SizedCheckpoint(std::size_t n_bytes, int offset, int n_rewind)
      : n_bytes_(std::make_shared<std::size_t>(n_bytes)), offset_(offset), n_rewind_(n_rewind) {}

  int offset() const override { return offset_; }
  int n_rewind() const override { return n_rewind_; }
  std::size_t size_bytes() const override { return *n_bytes_; }
  const void* storage() const override { return n_bytes_.get(); }

  std::unique_ptr<prefix::Checkpoint> earlier(int at) const override {
    auto view = std::make_unique<SizedCheckpoint>(*this);
    view->n_rewind_ -= offset_ - at;
    view->offset_ = at;
    return view;
  }

 private:
  std::shared_ptr<const std::size_t> n_bytes_;  // views of one ring share it
  int offset_;
  int n_rewind_;
};

}  // namespace

prefix::StateSize Model::state_size() const {
  return {needs().checkpoint ? state_bytes + ring_row_bytes * static_cast<std::size_t>(window + slack) : 0, row_bytes};
}

std::size_t Model::checkpoint_bytes(int offset) const {
  return state_bytes + ring_row_bytes * static_cast<std::size_t>(std::min(offset, window + slack));
}

int Model::n_rewind(int offset) const {
  if (state_bytes > 0) return 0;
  return offset <= window + slack ? offset - 1 : slack;
}

std::span<const Model> models() {
  return kModels;
}

std::unique_ptr<prefix::Rows> make_rows(const Model& model, int from, int to) {
  return std::make_unique<SizedRows>(model.row_bytes, from, to);
}

std::unique_ptr<prefix::Checkpoint> make_checkpoint(const Model& model, int offset) {
  return std::make_unique<SizedCheckpoint>(model.checkpoint_bytes(offset), offset, model.n_rewind(offset));
}

}  // namespace memoir::prefix_sim
