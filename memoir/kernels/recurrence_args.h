#pragma once

// How the recurrent operations check their inputs, read them on the CPU, and are composed from MLX's operations for a
// GPU. Internal to kernels/.

#include <mlx/array.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memoir/kernels/gated_delta.h"
#include "memoir/kernels/primitive.h"
#include "memoir/kernels/recurrence.h"
#include "memoir/kernels/selective_scan.h"
#include "memoir/kernels/short_convolution.h"

namespace memoir::kernels {

/// Throws std::invalid_argument "[kernels.<function>] <name> has shape ..., expected ..." unless a has this shape.
void check_shape(const char* function, const char* name, const mlx::core::array& a, const mlx::core::Shape& expected);

/// The same for a type; and for any floating type.
void check_dtype(const char* function, const char* name, const mlx::core::array& a, mlx::core::Dtype expected);
void check_is_float(const char* function, const char* name, const mlx::core::array& a);

/// Throws std::invalid_argument if spans or captured steps don't fit B sequences of T tokens, or B or T is 0.
void check_options(const char* function, const RecurrenceOptions& options, int n_sequences, int n_tokens);

/// The base of the recurrent operations: outputs are y, the state, and the states of all captured steps below T.
class RecurrentPrimitive : public CpuPrimitive {
 public:
  RecurrentPrimitive(mlx::core::Stream stream, const RecurrenceOptions& options, int n_tokens);

 protected:
  /// Where the elements of x [B, T, D] or [B, T, H, D] lie.
  cpu::TokenRows token_rows(const mlx::core::array& x);

  /// The states to read and write, for queue_with(). The new state lies in the memory of the initial one, if nothing
  /// else refers to that; the other outputs are fresh memory.
  struct States {
    cpu::StateArgs args;
    std::vector<float*> captured;
  };
  States states_of(const mlx::core::array* initial, const std::vector<mlx::core::array>& inputs,
                   std::vector<mlx::core::array>& outputs);

  /// Of one output, the state after `initial` (null: zeros), once the inputs are released.
  cpu::StateArgs state_in(const mlx::core::array* initial, mlx::core::array& output);

  /// Queues work(states), the operation's steps and spans among them.
  template <typename Work>
  void queue_with(States states, Work work) {
    queue([states = std::move(states), work = std::move(work), steps = steps_, spans = spans_]() mutable {
      states.args.spans = spans.empty() ? nullptr : spans.data();
      states.args.n_captured = static_cast<int>(steps.size());
      states.args.steps = steps.data();
      states.args.captured = states.captured.data();
      work(states.args);
    });
  }

 private:
  std::vector<int> steps_;  // those below T
  std::vector<TokenSpan> spans_;
};

/// Shapes and types of an operation's result.
struct RecurrenceShape {
  mlx::core::Shape y;
  mlx::core::Dtype y_dtype;
  mlx::core::Shape state;
  mlx::core::Dtype state_dtype;
};

/// The arrays that the operation will compute, from inputs on the CPU stream.
Recurrence make_recurrence(const RecurrenceShape& shape, const RecurrenceOptions& options,
                           std::shared_ptr<RecurrentPrimitive> primitive, std::vector<mlx::core::array> inputs);

/// A part of a call: some of its sequences, some of its tokens.
struct CallPart {
  int sequence_begin;
  int sequence_end;
  int token_begin;
  int token_end;

  /// Those of x [B, T, ...].
  mlx::core::array of(const mlx::core::array& x) const;
};

/// What a part gives: its outputs, and the state after it.
using PartRunner =
    std::function<std::pair<mlx::core::array, mlx::core::array>(const CallPart& part, const mlx::core::array& state)>;

/// A call in parts, cut where states are captured and, with padding, between sequences.
Recurrence run_in_parts(const RecurrenceShape& shape, const RecurrenceOptions& options,
                        const std::optional<mlx::core::array>& state, const PartRunner& run);

/// The operations composed from MLX's; what a GPU runs. They check nothing.
Recurrence composed_gated_delta(const GatedDelta& input, const RecurrenceOptions& options);
Recurrence composed_short_convolution(const mlx::core::array& x, const ShortConvolution& spec,
                                      const std::optional<mlx::core::array>& tail, const RecurrenceOptions& options);
Recurrence composed_selective_scan(const SelectiveScan& input, const RecurrenceOptions& options);

}  // namespace memoir::kernels
