#include "memoir/kernels/cpu/attention.h"

#include <algorithm>
#include <vector>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/scratch.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

constexpr int kFewQueries = 8;     // per sequence: blocks are shared out to threads
constexpr int kRowsPerPart = 128;  // query rows (heads x queries) of a part otherwise: results fit a core's cache

// The parts of one sequence's attention.
class AttentionPlan {
 public:
  explicit AttentionPlan(AttentionArgs args) : args_(args) {
    find_blocks();
    keeps_blocks_ = args.n_queries <= kFewQueries && args_.n_blocks > 1;
    const int group = args.n_heads / args.n_kv_heads;
    queries_per_part_ = keeps_blocks_ ? args.n_queries : std::max(1, kRowsPerPart / group);
    n_query_parts_ = (args.n_queries + queries_per_part_ - 1) / queries_per_part_;
    blocks_per_part_ = std::max(1, args_.n_blocks);
    if (keeps_blocks_) blocks_per_part_ = std::max(1, args_.n_blocks * args.n_kv_heads / (8 * n_threads()));
    n_block_parts_ = std::max(1, (args_.n_blocks + blocks_per_part_ - 1) / blocks_per_part_);
  }

  AttentionArgs& args() { return args_; }
  const AttentionArgs& args() const { return args_; }
  bool keeps_blocks() const { return keeps_blocks_; }
  int n_parts() const { return args_.n_kv_heads * n_query_parts_ * n_block_parts_; }

  std::size_t kept_floats() const {
    if (!keeps_blocks_) return 0;
    return static_cast<std::size_t>(args_.n_heads) * static_cast<std::size_t>(args_.n_queries) *
           static_cast<std::size_t>(args_.n_blocks) * block_floats(args_.values.dim);
  }

  // The last queries, which see the most, first.
  AttentionPart part(int index) const {
    const int kv_head = index % args_.n_kv_heads;
    const int rest = index / args_.n_kv_heads;
    const int block = rest % n_block_parts_ * blocks_per_part_;
    const int query = (n_query_parts_ - 1 - rest / n_block_parts_) * queries_per_part_;
    AttentionPart part{kv_head,
                       query,
                       std::min(query + queries_per_part_, args_.n_queries),
                       block,
                       std::min(block + blocks_per_part_, args_.n_blocks),
                       keeps_blocks_};
    if (!keeps_blocks_) limit_blocks(part);
    return part;
  }

 private:
  // The lowest position that query `query` can see.
  int lowest_seen(int query) const {
    const int position = args_.first_position + query;
    int lowest = 0;
    if (args_.window > 0 && args_.keep == 0) lowest = std::max(lowest, position + 1 - args_.window);
    if (args_.chunk > 0) lowest = std::max(lowest, position / args_.chunk * args_.chunk);
    return lowest;
  }

  void find_blocks() {
    args_.first_block = 0;
    args_.n_blocks = 0;
    if (args_.ranges.empty()) return;
    const KvRange& last = args_.ranges.back();
    int end = last.first_position + last.n_rows;
    if (args_.is_causal) end = std::min(end, args_.first_position + args_.n_queries);
    const int begin = std::max(args_.ranges.front().first_position, lowest_seen(0));
    args_.first_block = begin / kBlockPositions;
    args_.n_blocks = std::max(0, (end + kBlockPositions - 1) / kBlockPositions - args_.first_block);
  }

  // Leaves out the blocks that none of the part's queries sees.
  void limit_blocks(AttentionPart& part) const {
    if (args_.is_causal) {
      const int end = args_.first_position + part.query_end;
      part.block_end = std::clamp((end + kBlockPositions - 1) / kBlockPositions - args_.first_block, 0, part.block_end);
    }
    part.block_begin = std::max(0, lowest_seen(part.query_begin) / kBlockPositions - args_.first_block);
  }

  AttentionArgs args_;
  bool keeps_blocks_;
  int queries_per_part_;
  int n_query_parts_;
  int blocks_per_part_;
  int n_block_parts_ = 0;
};

}  // namespace

std::size_t attention_scratch_floats(const AttentionArgs& args) {
  const auto key_padded = static_cast<std::size_t>(padded_to_lanes(args.keys.dim));
  const std::size_t value_row = block_floats(args.values.dim);
  const auto group = static_cast<std::size_t>(args.n_heads / args.n_kv_heads);
  const std::size_t n_rows = group * std::max({std::size_t{1}, std::size_t{kFewQueries}, kRowsPerPart / group});
  return static_cast<std::size_t>(args.keys.dim + kLanes) * kBlockPositions + (kLanes + 1) * key_padded +
         value_row * (kBlockPositions + n_rows);
}

void attention(std::span<const AttentionArgs> sequences) {
  const Kernels& set = kernels();
  thread_local Scratch scratch;
  thread_local Scratch kept;
  thread_local std::vector<AttentionPlan> plans;
  plans.clear();
  std::size_t n_scratch = 0;
  std::size_t n_kept = 0;
  int n_parts = 0;
  int n_merges = 0;
  for (const AttentionArgs& args : sequences) {
    const AttentionPlan& plan = plans.emplace_back(args);
    n_scratch = std::max(n_scratch, attention_scratch_floats(args));
    n_kept += plan.kept_floats();
    n_parts += plan.n_parts();
    if (plan.keeps_blocks()) n_merges += args.n_heads * args.n_queries;
  }
  float* parts_scratch = scratch.floats(n_scratch * static_cast<std::size_t>(n_threads()));
  float* blocks = kept.floats(n_kept);
  for (AttentionPlan& plan : plans) {
    plan.args().blocks = blocks;
    blocks += plan.kept_floats();
  }
  run_parts(n_parts, [&, plan = plans.data()](int part, int thread) {
    std::size_t p = 0;
    for (; part >= plan[p].n_parts(); ++p) part -= plan[p].n_parts();
    set.attention_part(plan[p].args(), plan[p].part(part),
                       parts_scratch + n_scratch * static_cast<std::size_t>(thread));
  });
  if (n_merges == 0) return;
  run_parts(n_merges, [&, plan = plans.data()](int merge) {
    for (std::size_t p = 0;; ++p) {
      const AttentionArgs& args = plan[p].args();
      const int n_here = plan[p].keeps_blocks() ? args.n_heads * args.n_queries : 0;
      if (merge < n_here) return set.merge_blocks(args, merge % args.n_heads, merge / args.n_heads);
      merge -= n_here;
    }
  });
}

}  // namespace memoir::kernels::cpu
