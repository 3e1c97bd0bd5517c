#include "memoir/kernels/cpu/attention.h"

#include <algorithm>
#include <vector>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/scratch.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

constexpr int kFewQueries = 8;                                // per sequence: blocks are shared out to threads,
constexpr std::size_t kMaxKeptFloats = std::size_t{1} << 24;  // while their partial results take no more than this
constexpr int kPartsPerThread = 8;                            // then, about
constexpr int kRowsPerPart = 128;  // query rows (heads x queries) of a part otherwise: results fit a core's cache

// The parts of one sequence's attention.
class AttentionPlan {
 public:
  explicit AttentionPlan(AttentionArgs args) : args_(args) {
    find_blocks();
    keeps_blocks_ = args.n_queries <= kFewQueries && args_.n_blocks > 1 && all_blocks_floats() <= kMaxKeptFloats;
    const int group = args.n_heads / args.n_kv_heads;
    queries_per_part_ = keeps_blocks_ ? args.n_queries : std::max(1, kRowsPerPart / group);
    n_query_parts_ = (args.n_queries + queries_per_part_ - 1) / queries_per_part_;
    blocks_per_part_ = std::max(1, args_.n_blocks);
    if (keeps_blocks_) blocks_per_part_ = std::max(1, args_.n_blocks * args.n_kv_heads / (8 * n_threads()));
    n_block_parts_ = std::max(1, (args_.n_blocks + blocks_per_part_ - 1) / blocks_per_part_);
  }

  AttentionArgs& args() { return args_; }
  const AttentionArgs& args() const { return args_; }
  int n_parts() const { return args_.n_kv_heads * n_query_parts_ * n_block_parts_; }
  int n_merges() const { return keeps_blocks_ ? args_.n_heads * args_.n_queries : 0; }
  std::size_t kept_floats() const { return keeps_blocks_ ? all_blocks_floats() : 0; }

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
    if (!keeps_blocks_) {
      limit_blocks(part);
    } else if (index + n_threads() < n_parts()) {
      part.next_kv_head = (index + n_threads()) % args_.n_kv_heads;
      part.next_block = (index + n_threads()) / args_.n_kv_heads * blocks_per_part_;
    }
    return part;
  }

 private:
  std::size_t all_blocks_floats() const {
    return static_cast<std::size_t>(args_.n_heads) * static_cast<std::size_t>(args_.n_queries) *
           static_cast<std::size_t>(args_.n_blocks) * block_floats(args_.values.dim);
  }

  // The lowest position that query `query` can see, those below keep aside.
  int lowest_seen(int query) const {
    const int position = args_.first_position + query;
    int lowest = 0;
    if (args_.window > 0) lowest = std::max(lowest, position + 1 - args_.window);
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
    const int first = args_.ranges.front().first_position;
    const int begin = std::max(first, lowest_seen(0)) / kBlockPositions;
    const int blocks_end = blocks_to(end);
    if (args_.window > 0 && args_.keep > first) {
      args_.first_block = first / kBlockPositions;
      args_.n_kept_blocks = std::min(blocks_to(args_.keep), blocks_end) - args_.first_block;
      args_.n_skipped_blocks = std::max(0, begin - (args_.first_block + args_.n_kept_blocks));
    } else {
      args_.first_block = begin;
    }
    args_.n_blocks = std::max(0, blocks_end - args_.first_block - args_.n_skipped_blocks);
  }

  static int blocks_to(int position) { return position / kBlockPositions + (position % kBlockPositions != 0 ? 1 : 0); }

  // Leaves out the blocks that none of the part's queries sees.
  void limit_blocks(AttentionPart& part) const {
    if (args_.is_causal) {
      const int end = args_.first_position + part.query_end;
      part.block_end = std::clamp(index_of(blocks_to(end)), 0, part.block_end);
    }
    const int begin = index_of(lowest_seen(part.query_begin) / kBlockPositions);
    part.block_begin = args_.n_kept_blocks > 0 ? 0 : std::max(0, begin);
  }

  // Where this block is among those that are looked at: the inverse of block_at().
  int index_of(int block) const {
    const int index = block - args_.first_block;
    return index <= args_.n_kept_blocks ? index : std::max(args_.n_kept_blocks, index - args_.n_skipped_blocks);
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
  return (key_padded + kLanes) * kBlockPositions + (kLanes + 1) * key_padded + value_row * (kBlockPositions + n_rows);
}

void attention(std::span<const AttentionArgs> sequences) {
  const Kernels& set = kernels();
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
    n_merges += plan.n_merges();
  }
  float* blocks = kept.floats(n_kept);
  for (AttentionPlan& plan : plans) {
    plan.args().blocks = blocks;
    blocks += plan.kept_floats();
  }
  run_parts(n_parts, n_scratch, [&, plan = plans.data()](int index, float* scratch) {
    const JobPart at = find_part(index, [plan](std::size_t p) { return plan[p].n_parts(); });
    set.attention_part(plan[at.job].args(), plan[at.job].part(at.part), scratch);
  });
  if (n_merges == 0) return;
  run_parts(n_merges, [&, plan = plans.data()](int index) {
    const JobPart at = find_part(index, [plan](std::size_t p) { return plan[p].n_merges(); });
    const AttentionArgs& args = plan[at.job].args();
    set.merge_blocks(args, at.part % args.n_heads, at.part / args.n_heads);
  });
}

}  // namespace memoir::kernels::cpu
