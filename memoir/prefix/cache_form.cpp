#include "memoir/prefix/cache_form.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <stdexcept>
#include <utility>

#include "memoir/cache/kv_snapshot.h"
#include "memoir/cache/state_snapshot.h"
#include "memoir/kernels/allocated.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::prefix {
namespace {

using Json = nlohmann::ordered_json;
using cache::KVSnapshot;
using cache::Layout;
using cache::Positions;
using cache::StateSnapshot;
using kernels::KvBuffer;

constexpr int kRowAxis = 2;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[prefix.CacheForm] " + what);
}

std::vector<mx::array> present(const cache::StateArrays& arrays) {
  std::vector<mx::array> result;
  for (const auto& a : arrays) {
    if (a) result.push_back(*a);
  }
  return result;
}

// A number of the note; nullopt if there is none that is an offset.
std::optional<int> offset_in(const Json& item, std::size_t index) {
  if (!item.is_array() || index >= item.size() || !item[index].is_number_unsigned()) return std::nullopt;
  const auto value = item[index].get<std::uint64_t>();
  return value <= static_cast<std::uint64_t>(Layout::kMaxRows) ? std::optional(static_cast<int>(value)) : std::nullopt;
}

// [from, n_kept, first] of a ring or chunk that ends at `to`.
struct HeldRows {
  int from;
  Positions positions;
};

std::optional<HeldRows> held_in(const Json& item, int to, const Layout& layout) {
  const std::optional<int> from = offset_in(item, 0);
  const std::optional<int> n_kept = offset_in(item, 1);
  const std::optional<int> first = offset_in(item, 2);
  if (item.size() != 3 || !from || !n_kept || !first) return std::nullopt;
  const Positions positions{*n_kept, *first, to};
  const bool is_sound = *from < to && *n_kept <= layout.keep() && *n_kept <= *first && *first < to &&
                        (*first > 0 || *n_kept == 0) && layout.reaches(positions, to);
  return is_sound ? std::optional(HeldRows{*from, positions}) : std::nullopt;
}

// The next arrays as keys or values.
KvBuffer take_buffer(const cache::KVOptions& options, std::vector<mx::array>::const_iterator& next) {
  mx::array data = *next++;
  if (!options.quantization) return {std::move(data)};
  mx::array scales = *next++;
  mx::array biases = *next++;
  return {std::move(data), kernels::Quantization{std::move(scales), std::move(biases), options.quantization->group_size,
                                                 options.quantization->bits}};
}

std::unique_ptr<KVSnapshot> take_snapshot(const cache::KVOptions& options, const Layout& layout, const HeldRows& held,
                                          std::vector<mx::array>::const_iterator& next) {
  KvBuffer keys = take_buffer(options, next);
  KvBuffer values = take_buffer(options, next);
  return std::make_unique<KVSnapshot>(layout, held.from, held.positions, std::move(keys), std::move(values));
}

}  // namespace

// ---- Forms

CacheForm::CacheForm(const cache::ModelCache& cache, const std::optional<NarrowRows>& narrow) {
  const CacheParts parts = parts_of(cache);
  for (const cache::KVCache* const part : parts.flat) flat_.push_back(part_of(*part));
  for (const cache::LayerCache* const part : parts.others) others_.push_back(part_of(*part));
  if (!narrow) return;
  for (Part& part : flat_) CacheForm::narrow(part, *narrow);
}

// Keys and values become codes, scales and biases each.
void CacheForm::narrow(Part& part, const NarrowRows& rows) {
  std::vector<ArrayForm> arrays;
  for (const ArrayForm& dense : part.arrays) {
    ArrayForm codes{mx::uint32, dense.shape};
    codes.shape.back() = dense.shape.back() * rows.codes.bits / 32;
    ArrayForm scales{mx::float16, dense.shape};
    scales.shape.back() = dense.shape.back() / rows.codes.group_size;
    arrays.insert(arrays.end(), {codes, scales, scales});
  }
  part.arrays = std::move(arrays);
  part.kv->quantization = rows.codes;
  part.narrowed = rows.dtype;
}

CacheForm::Part CacheForm::part_of(const cache::LayerCache& cache) {
  Part part;
  part.kind = cache.kind();
  if (const auto* const kv = dynamic_cast<const cache::KVCache*>(&cache)) {
    part.kv = kv->options();
  } else if (const auto* const recurrent = dynamic_cast<const cache::RecurrentCache*>(&cache)) {
    part.recurrent = recurrent->shape();
  } else {
    refuse("a " + part.kind + " has no form");
  }
  for (const mx::array& a : cache.state()) part.arrays.push_back({a.dtype(), a.shape()});
  if (part.arrays.empty()) refuse("a " + part.kind + " has taken in nothing");
  if (part.kv) {
    for (ArrayForm& form : part.arrays) form.shape[kRowAxis] = 1;
  }
  return part;
}

Layout CacheForm::Part::layout() const {
  if (kv->chunk) return Layout::chunk(*kv->chunk);
  return kv->window ? Layout::ring(*kv->window, kv->keep) : Layout::flat();
}

std::vector<CacheForm::ArrayForm> CacheForm::Part::arrays_of(int n_rows) const {
  std::vector<ArrayForm> result = arrays;
  for (ArrayForm& form : result) {
    if (kv) form.shape[kRowAxis] = n_rows;
  }
  return result;
}

Json CacheForm::json() const {
  Json result = Json::array();
  for (const std::vector<Part>* const parts : {&flat_, &others_}) {
    for (const Part& part : *parts) {
      Json one = {{"kind", part.kind}, {"arrays", Json::array()}};
      for (const ArrayForm& form : part.arrays_of(-1)) {
        one["arrays"].push_back(
            {kernels::dtype_text(form.dtype), std::vector<int>(form.shape.begin(), form.shape.end())});
      }
      if (part.kv && part.kv->window) one.update({{"window", *part.kv->window}, {"keep", part.kv->keep}});
      if (part.kv && part.kv->chunk) one["chunk"] = *part.kv->chunk;
      if (part.kv && part.kv->quantization) {
        one.update({{"bits", part.kv->quantization->bits}, {"group_size", part.kv->quantization->group_size}});
      }
      if (part.narrowed) one["narrowed"] = kernels::dtype_text(*part.narrowed);
      result.push_back(std::move(one));
    }
  }
  return result;
}

// ---- To bytes

void CacheForm::add_bytes(const std::vector<mx::array>& arrays, const std::vector<ArrayForm>& forms,
                          PayloadBytes& payload) {
  if (arrays.size() != forms.size())
    refuse(std::to_string(arrays.size()) + " arrays of a part, expected another number");
  const auto held = std::make_shared<std::vector<mx::array>>();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].dtype() != forms[i].dtype || arrays[i].shape() != forms[i].shape) {
      refuse("an array is " + kernels::shape_text(arrays[i]) + " " + kernels::dtype_text(arrays[i].dtype()) +
             ", the model's caches have others");
    }
    held->push_back(mx::contiguous(arrays[i]));
  }
  mx::eval(*held);
  for (const mx::array& a : *held) {
    payload.pieces.emplace_back(reinterpret_cast<const std::byte*>(a.data<std::uint8_t>()), a.nbytes());
  }
  payload.owner = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      std::move(payload.owner), held);
}

PayloadBytes CacheForm::bytes_of(std::shared_ptr<const RowBlock> block) const {
  if (block->parts.size() != flat_.size()) refuse("a block of other caches");
  PayloadBytes payload;
  for (std::size_t i = 0; i < flat_.size(); ++i) {
    add_bytes(block->parts[i]->arrays(), flat_[i].arrays_of(block->to - block->from), payload);
  }
  return payload;
}

PayloadBytes CacheForm::bytes_of(std::shared_ptr<const StateCheckpoint::States> states) const {
  if (states->size() != others_.size()) refuse("states of other caches");
  PayloadBytes payload;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    const cache::Snapshot& state = *(*states)[i];
    if (const auto* const kv = dynamic_cast<const KVSnapshot*>(&state); kv && others_[i].kv) {
      add_bytes(kv->arrays(), others_[i].arrays_of(kv->held().n_rows()), payload);
    } else if (const auto* const one = dynamic_cast<const StateSnapshot*>(&state); one && others_[i].recurrent) {
      add_bytes(present(one->arrays()), others_[i].arrays, payload);
    } else {
      refuse("a state is of another kind than " + others_[i].kind);
    }
  }
  return payload;
}

Json CacheForm::note_of(const StateCheckpoint::States& states) const {
  Json note = Json::array();
  for (const auto& state : states) {
    if (const auto* const kv = dynamic_cast<const KVSnapshot*>(state.get())) {
      note.push_back({kv->from(), kv->held().n_kept, kv->held().first});
    } else {
      note.push_back(Json::array({state->from()}));
    }
  }
  return note;
}

// ---- From bytes

std::optional<PayloadArrays> CacheForm::made(const std::vector<ArrayForm>& forms, std::uint64_t n_bytes) {
  std::uint64_t n_needed = 0;
  std::vector<std::size_t> sizes;
  for (const ArrayForm& form : forms) {
    std::uint64_t size = static_cast<std::uint64_t>(mx::size_of(form.dtype));
    for (const int axis : form.shape) {
      size *= static_cast<std::uint64_t>(axis);
      if (size > n_bytes) return std::nullopt;
    }
    sizes.push_back(size);
    n_needed += size;
  }
  if (n_needed != n_bytes) return std::nullopt;
  PayloadArrays result;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    mx::allocator::Data data = kernels::allocated(sizes[i]);
    result.pieces_.emplace_back(static_cast<std::byte*>(data.buffer().raw_ptr()), sizes[i]);
    result.arrays_.emplace_back(std::move(data), forms[i].shape, forms[i].dtype);
  }
  return result;
}

std::optional<PayloadArrays> CacheForm::arrays_for_rows(int from, int to, std::uint64_t n_bytes) const {
  std::vector<ArrayForm> forms;
  for (const Part& part : flat_) {
    for (ArrayForm& form : part.arrays_of(to - from)) forms.push_back(std::move(form));
  }
  return made(forms, n_bytes);
}

std::shared_ptr<const RowBlock> CacheForm::row_block(int from, int to, const PayloadArrays& arrays) const {
  auto block = std::make_shared<RowBlock>(RowBlock{from, to, 0, {}});
  auto next = arrays.arrays_.begin();
  for (const Part& part : flat_) {
    block->parts.push_back(take_snapshot(*part.kv, part.layout(), {from, {0, from, to}}, next));
    block->n_bytes += block->parts.back()->size_bytes();
  }
  return block;
}

std::optional<PayloadArrays> CacheForm::arrays_for_states(const Json& note, int to, std::uint64_t n_bytes) const {
  if (!note.is_array() || note.size() != others_.size()) return std::nullopt;
  std::vector<ArrayForm> forms;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    int n_rows = 0;
    if (others_[i].kv) {
      const std::optional<HeldRows> held = held_in(note[i], to, others_[i].layout());
      if (!held) return std::nullopt;
      n_rows = held->positions.n_rows();
    } else if (const std::optional<int> from = offset_in(note[i], 0); !from || *from >= to || note[i].size() != 1) {
      return std::nullopt;
    }
    for (ArrayForm& form : others_[i].arrays_of(n_rows)) forms.push_back(std::move(form));
  }
  return made(forms, n_bytes);
}

std::unique_ptr<StateCheckpoint> CacheForm::checkpoint(const Json& note, int to, const PayloadArrays& arrays) const {
  StateCheckpoint::States states;
  auto next = arrays.arrays_.begin();
  for (std::size_t i = 0; i < others_.size(); ++i) {
    const Part& part = others_[i];
    if (part.kv) {
      const Layout layout = part.layout();
      states.push_back(take_snapshot(*part.kv, layout, held_in(note[i], to, layout).value(), next));
      continue;
    }
    cache::StateArrays own(2);
    if (part.recurrent->tail_tokens > 0) own[0] = *next++;
    if (!part.recurrent->state.empty()) own[1] = *next++;
    const std::string_view kind = cache::RecurrentCache(*part.recurrent).kind();
    states.push_back(std::make_unique<StateSnapshot>(kind, offset_in(note[i], 0).value(), to, own));
  }
  return std::make_unique<StateCheckpoint>(std::move(states));
}

}  // namespace memoir::prefix
