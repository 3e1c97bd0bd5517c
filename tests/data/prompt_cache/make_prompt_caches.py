#!/usr/bin/env python3
"""Writes the prompt caches beside this file, with mlx-lm itself: *.v2.safetensors with 0.32.2, *.v1.safetensors with
0.31.3 (run it once with each installed).

Keys are filled with their position, values with its negative, so that a test can read off what a cache holds; slots
with their number. All layers of a file are at one offset.
"""

import importlib.metadata
import pathlib

import mlx.core as mx
import mlx_lm
from mlx_lm.models import cache as caches

HERE = pathlib.Path(__file__).resolve().parent
FORMAT = "v1" if mlx_lm.__version__ == "0.31.3" else "v2"


def rows(begin, end, sign, heads=4, width=8):
    positions = mx.arange(begin, end, dtype=mx.float16)[None, None, :, None] * sign
    return mx.broadcast_to(positions, (1, heads, end - begin, width)).astype(mx.float16)


def feed(cache, *counts, **sizes):
    """Writes as many tokens in each call, one after the other."""
    position = 0
    for n in counts:
        # 0.31.3 cuts its padding here instead of what lies behind it.
        if FORMAT == "v2" and hasattr(cache, "maybe_trim_front"):
            cache.maybe_trim_front()
        cache.update_and_fetch(rows(position, position + n, 1, **sizes), rows(position, position + n, -1, **sizes))
        position += n
    return cache


def slots(*shapes):
    cache = caches.ArraysCache(len(shapes))
    for i, shape in enumerate(shapes):
        cache[i] = mx.full(shape, i + 1, dtype=mx.float32)
    return cache


def save(name, *layers, metadata=None):
    caches.save_prompt_cache(str(HERE / f"{name}.{FORMAT}.safetensors"), list(layers), metadata or {})


save("kv", feed(caches.KVCache(), 5), feed(caches.KVCache(), 3, 1, 1), metadata={"model": "a/b", "about": "five"})
# Before its turn (with padding), at its turn, after it, with kept rows, and right after a prompt longer than the ring.
save(
    "rotating",
    feed(caches.RotatingKVCache(32), *[1] * 13),
    feed(caches.RotatingKVCache(13), *[1] * 13),
    feed(caches.RotatingKVCache(8), *[1] * 13),
    feed(caches.RotatingKVCache(8, keep=2), *[1] * 13),
    feed(caches.RotatingKVCache(8, keep=2), 13),
    feed(caches.RotatingKVCache(8, keep=2), 9, 1, 3),
)
save(
    "quantized",
    feed(caches.QuantizedKVCache(group_size=32, bits=8), 3, 1, heads=1, width=32),
    feed(caches.KVCache(), 4, heads=1, width=32).to_quantized(group_size=32, bits=4),
)
# The first has lost nothing; the second, in v2, its front, and has padding again.
save("chunked", feed(caches.ChunkedKVCache(16), 6, 3), feed(caches.ChunkedKVCache(4), 6, 1, 1, 1),
     feed(caches.KVCache(), 9))
save("arrays", slots((1, 3, 4), (1, 2, 4, 4)), feed(caches.RotatingKVCache(8), 6))
save(
    "list",
    caches.CacheList(feed(caches.RotatingKVCache(4), *[1] * 6), slots((1, 2))),
    caches.CacheList(caches.CacheList(feed(caches.RotatingKVCache(8), 6)), slots((1, 2), (1, 5))),
)
if FORMAT == "v2":  # which v1 can't write
    padded = slots((2, 2))
    padded.left_padding = mx.array([1, -2])
    padded.lengths = mx.array([4, 0])
    save("empty", caches.KVCache(), caches.RotatingKVCache(8, keep=2), caches.QuantizedKVCache(32, 4),
         caches.ChunkedKVCache(4), caches.ArraysCache(2))
    save("padded", padded, feed(caches.RotatingKVCache(4), *[1] * 6))
    save("no_offset", slots((1, 3), (1, 4)))
    save("unknown", feed(caches.RotatingKVCache(4), 2), caches.BatchKVCache([0]))
print(FORMAT, importlib.metadata.version("mlx-lm"))
