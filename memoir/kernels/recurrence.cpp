#include <mlx/ops.h>

#include <algorithm>
#include <stdexcept>

#include "memoir/kernels/recurrence_args.h"
#include "memoir/kernels/shape.h"
#include "memoir/kernels/weight.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

[[noreturn]] void fail(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[kernels.") + function + "] " + what);
}

std::string shape_text(const mx::Shape& shape) {
  return kernels::shape_text(std::vector<std::int64_t>(shape.begin(), shape.end()));
}

mx::Shape shape_of_part(const mx::Shape& shape, const CallPart& part) {
  mx::Shape result = shape;
  result[0] = part.sequence_end - part.sequence_begin;
  result[1] = part.token_end - part.token_begin;
  return result;
}

}  // namespace

void check_shape(const char* function, const char* name, const mx::array& a, const mx::Shape& expected) {
  if (a.shape() != expected) {
    fail(function, std::string(name) + " has shape " + kernels::shape_text(a) + ", expected " + shape_text(expected));
  }
}

void check_dtype(const char* function, const char* name, const mx::array& a, mx::Dtype expected) {
  if (a.dtype() != expected) {
    fail(function, std::string(name) + " is " + dtype_text(a.dtype()) + ", expected " + dtype_text(expected));
  }
}

void check_is_float(const char* function, const char* name, const mx::array& a) {
  if (!is_float(a.dtype())) {
    fail(function, std::string(name) + " is " + dtype_text(a.dtype()) + ", expected float32, float16 or bfloat16");
  }
}

void check_options(const char* function, const RecurrenceOptions& options, int n_sequences, int n_tokens) {
  if (n_sequences < 1 || n_tokens < 1) {
    fail(function, "there are " + std::to_string(n_sequences) + " sequences of " + std::to_string(n_tokens) +
                       " tokens, expected at least 1 of 1");
  }
  int before = 0;
  for (const int step : options.capture) {
    if (step <= before || step > n_tokens) {
      fail(function, "step " + std::to_string(step) + " is to be captured after " + std::to_string(before) +
                         ", expected ascending steps from 1 to " + std::to_string(n_tokens));
    }
    before = step;
  }
  if (options.spans.empty()) return;
  if (options.spans.size() != static_cast<std::size_t>(n_sequences)) {
    fail(function, std::to_string(options.spans.size()) + " spans for " + std::to_string(n_sequences) + " sequences");
  }
  for (const TokenSpan& span : options.spans) {
    if (span.begin < 0 || span.end < span.begin || span.end > n_tokens) {
      fail(function, "a span is [" + std::to_string(span.begin) + "," + std::to_string(span.end) +
                         "), expected one inside [0," + std::to_string(n_tokens) + ")");
    }
  }
}

RecurrentPrimitive::RecurrentPrimitive(mx::Stream stream, const RecurrenceOptions& options, int n_tokens)
    : CpuPrimitive(stream), steps_(options.capture), spans_(options.spans) {
  if (!steps_.empty() && steps_.back() == n_tokens) steps_.pop_back();
}

cpu::TokenRows RecurrentPrimitive::token_rows(const mx::array& x) {
  const Strided rows = rows_of(x);
  return {static_cast<const float*>(rows.data), rows.strides[0], rows.strides[1], x.ndim() == 4 ? rows.strides[2] : 0};
}

RecurrentPrimitive::States RecurrentPrimitive::states_of(const mx::array* initial, const std::vector<mx::array>& inputs,
                                                         std::vector<mx::array>& outputs) {
  release_inputs(inputs, outputs);
  States states{state_in(initial, outputs[1]), {}};
  for (std::size_t i = 2; i < outputs.size(); ++i) states.captured.push_back(allocate(outputs[i]));
  return states;
}

cpu::StateArgs RecurrentPrimitive::state_in(const mx::array* initial, mx::array& output) {
  cpu::StateArgs args;
  if (initial && is_takeable(*initial)) {
    output.copy_shared_buffer(*initial);
    args.final = output.data<float>();
    args.initial = args.final;
  } else {
    if (initial) args.initial = floats_of(*initial);
    args.final = allocate(output);
  }
  return args;
}

Recurrence make_recurrence(const RecurrenceShape& shape, const RecurrenceOptions& options,
                           std::shared_ptr<RecurrentPrimitive> primitive, std::vector<mx::array> inputs) {
  const bool is_last_captured = !options.capture.empty() && options.capture.back() == shape.y[1];
  const std::size_t n_captured = options.capture.size() - (is_last_captured ? 1 : 0);
  std::vector<mx::Shape> shapes = {shape.y};
  shapes.resize(2 + n_captured, shape.state);
  const std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
  std::vector<mx::array> outputs = mx::array::make_arrays(shapes, dtypes, std::move(primitive), inputs);
  const auto converted = [](const mx::array& a, mx::Dtype dtype) { return mx::astype(a, dtype, cpu_stream()); };
  Recurrence result{converted(outputs[0], shape.y_dtype), converted(outputs[1], shape.state_dtype)};
  for (std::size_t i = 2; i < outputs.size(); ++i) {
    result.captured.push_back(converted(outputs[i], shape.state_dtype));
  }
  if (is_last_captured) result.captured.push_back(result.state);
  return result;
}

mx::array CallPart::of(const mx::array& x) const {
  if (sequence_begin == 0 && sequence_end == x.shape(0) && token_begin == 0 && token_end == x.shape(1)) return x;
  mx::Shape start(x.ndim(), 0);
  mx::Shape stop = x.shape();
  start[0] = sequence_begin;
  stop[0] = sequence_end;
  start[1] = token_begin;
  stop[1] = token_end;
  return mx::slice(x, start, stop);
}

namespace {

// One run of sequences that share a span.
Recurrence run_sequences(const RecurrenceShape& shape, const RecurrenceOptions& options, CallPart all,
                         const TokenSpan& span, mx::array state, const PartRunner& run) {
  std::vector<mx::array> outputs;
  std::vector<mx::array> captured;
  const auto pad = [&](int begin, int end) {
    CallPart part = all;
    part.token_begin = begin;
    part.token_end = end;
    if (begin < end) outputs.push_back(mx::zeros(shape_of_part(shape.y, part), shape.y_dtype));
  };
  pad(0, span.begin);
  int token = span.begin;
  const auto advance = [&](int step) {
    const int end = std::min(step, span.end);
    if (token >= end) return;
    auto [y, next] = run({all.sequence_begin, all.sequence_end, token, end}, state);
    outputs.push_back(std::move(y));
    state = std::move(next);
    token = end;
  };
  for (const int step : options.capture) {
    advance(step);
    captured.push_back(state);
  }
  advance(span.end);
  pad(span.end, shape.y[1]);
  return {outputs.size() == 1 ? outputs[0] : mx::concatenate(std::move(outputs), 1), std::move(state),
          std::move(captured)};
}

}  // namespace

Recurrence run_in_parts(const RecurrenceShape& shape, const RecurrenceOptions& options,
                        const std::optional<mx::array>& state, const PartRunner& run) {
  const int n_sequences = shape.y[0];
  const mx::array initial = state ? *state : mx::zeros(shape.state, shape.state_dtype);
  if (options.spans.empty()) {
    return run_sequences(shape, options, {0, n_sequences, 0, 0}, {0, shape.y[1]}, initial, run);
  }
  std::vector<mx::array> outputs;
  std::vector<mx::array> states;
  std::vector<std::vector<mx::array>> captured(options.capture.size());
  for (int i = 0; i < n_sequences; ++i) {
    Recurrence part = run_sequences(shape, options, {i, i + 1, 0, 0}, options.spans[static_cast<std::size_t>(i)],
                                    CallPart{i, i + 1, 0, initial.shape(1)}.of(initial), run);
    outputs.push_back(std::move(part.y));
    states.push_back(std::move(part.state));
    for (std::size_t step = 0; step < captured.size(); ++step) captured[step].push_back(std::move(part.captured[step]));
  }
  Recurrence result{mx::concatenate(std::move(outputs), 0), mx::concatenate(std::move(states), 0)};
  for (std::vector<mx::array>& step : captured) result.captured.push_back(mx::concatenate(std::move(step), 0));
  return result;
}

}  // namespace memoir::kernels
