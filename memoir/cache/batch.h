#pragma once

// Batches of whole layers and models: sequences of any lengths side by side, whatever a layer keeps. Keys and values of
// a batch are a BatchKVCache, recurrent states and arrays the same class with more sequences, a list is a list of
// batches. A null layer stays null.
//
//   merged    single caches, empty ones among them, to one batch        extract   one sequence as single caches
//   filter    keeps some sequences                                      extend    appends another batch's
//   pad_left, prepare, finalize   padding before the first and behind the last tokens of what is fed (padding.h)
//
// A call that throws changes nothing. Throws std::invalid_argument, besides what the kinds' own functions refuse, for a
// cache that is no batch (a KVCache, or a list with one), and where the numbers or kinds of layers differ.
// Threads: the thread that owns MLX's work.

#include <memory>
#include <vector>

#include "memoir/cache/cache.h"

namespace memoir::cache {

/// Caches of one kind with the same options, null ones only together.
std::unique_ptr<LayerCache> merged(const std::vector<const LayerCache*>& caches);
ModelCache merged(const std::vector<const ModelCache*>& caches);

/// Sequences of a batch; 1 of a single cache.
int batch_size(const LayerCache& batch);

/// Only while the batch is empty.
void pad_left(LayerCache& batch, const std::vector<int>& left_padding);
void pad_left(ModelCache& batch, const std::vector<int>& left_padding);

/// Of the columns to come, those from lengths[b] on are not real; until finalize().
void prepare(LayerCache& batch, const std::vector<int>& lengths);
void prepare(ModelCache& batch, const std::vector<int>& lengths);
void finalize(LayerCache& batch);
void finalize(ModelCache& batch);

/// Keeps these sequences, in this order.
void filter(LayerCache& batch, const std::vector<int>& sequences);
void filter(ModelCache& batch, const std::vector<int>& sequences);

/// Appends the sequences of `other`, with their types; those that are empty become zeros.
void extend(LayerCache& batch, const LayerCache& other);
void extend(ModelCache& batch, const ModelCache& other);

/// One sequence as caches that a model uses for it alone, at its own offset.
std::unique_ptr<LayerCache> extract(const LayerCache& batch, int sequence);
ModelCache extract(const ModelCache& batch, int sequence);

}  // namespace memoir::cache
