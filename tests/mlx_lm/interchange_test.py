#!/usr/bin/env python3
"""Prompt caches between memoir and mlx-lm itself, in both directions: what one saves the other loads, and both go on
alike. Run once for each format: with mlx-lm 0.32.2 on the path (v2) and with 0.31.3 (v1).

MEMOIR_PROGRAM is the program, MEMOIR_TEST_DATA the folder tests/data. Only mlx-lm's caches and models are used, so it
is installed without what it depends on, and its package is entered without running its __init__.
"""

import importlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

import mlx.core as mx

PACKAGE = next(pathlib.Path(p) / "mlx_lm" for p in sys.path if (pathlib.Path(p) / "mlx_lm").is_dir())
package = types.ModuleType("mlx_lm")
package.__path__ = [str(PACKAGE)]
sys.modules["mlx_lm"] = package

from mlx_lm.models import cache as caches  # noqa: E402

VERSION = importlib.metadata.version("mlx-lm")
FORMAT = "v1" if VERSION.startswith("0.31.") else "v2"
PROGRAM = os.environ["MEMOIR_PROGRAM"]
DATA = pathlib.Path(os.environ["MEMOIR_TEST_DATA"])
HEADS, WIDTH = 2, 32
mx.set_default_device(mx.cpu)


def memoir(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"memoir {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


# ---- Every class: rows are filled with their position, so that what is in them can be read off


def rows(n, begin, sign=1, batch=1):
    positions = mx.arange(begin, begin + n, dtype=mx.float16)[None, None, :, None] * sign
    by_sequence = 1000 * mx.arange(batch, dtype=mx.float16)[:, None, None, None] * sign
    return mx.broadcast_to(positions + by_sequence, (batch, HEADS, n, WIDTH)).astype(mx.float16)


def feed(cache, *counts, begin=0, batch=1):
    """Writes as many tokens in each call. Returns what the last one returned."""
    returned = None
    for n in counts:
        if FORMAT == "v2" and hasattr(cache, "maybe_trim_front"):  # 0.31.3 cuts its padding there, not what is behind
            cache.maybe_trim_front()
        returned = cache.update_and_fetch(rows(n, begin, 1, batch), rows(n, begin, -1, batch))
        begin += n
    return returned


def fed(cache, *counts, batch=1):
    feed(cache, *counts, batch=batch)
    return cache


def slots(*shapes, **options):
    cache = caches.ArraysCache(len(shapes), **options)
    for i, shape in enumerate(shapes):
        cache[i] = mx.full(shape, i + 1, dtype=mx.float32)
    return cache


def dense(returned, mask=None):
    """Keys and values of an update, sorted by position: a ring's come in the order of its buffer. With a mask, -1 stands
    for what is hidden from the last query."""
    arrays = []
    for part in returned:
        if isinstance(part, (tuple, list)):
            part = mx.dequantize(*part, group_size=32, bits=8)
        part = mx.abs(part).astype(mx.float32)
        if mask is not None:
            part = mx.where(mask[:, :, -1, :, None], part, -1)
        arrays.append(mx.sort(part, axis=2))
    return arrays


def cases():
    kv, ring, chunked = caches.KVCache, caches.RotatingKVCache, caches.ChunkedKVCache
    yield "KVCache", fed(kv(), 9, 1)
    yield "KVCache, 300 rows", fed(kv(), 300)
    yield "RotatingKVCache before its turn", fed(ring(32), *[1] * 13)
    yield "RotatingKVCache at its turn", fed(ring(13), *[1] * 13)
    yield "RotatingKVCache after its turn", fed(ring(8), *[1] * 13)
    yield "RotatingKVCache with keep", fed(ring(8, keep=2), *[1] * 13)
    yield "RotatingKVCache after a long prompt", fed(ring(8, keep=2), 13)
    yield "QuantizedKVCache", fed(caches.QuantizedKVCache(group_size=32, bits=8), 9, 1)
    yield "ChunkedKVCache", fed(chunked(16), 6, 3)
    if FORMAT == "v2":  # in v1 the number of rows is taken for the offset once the front is cut off
        yield "ChunkedKVCache, front cut off", fed(chunked(4), 6, 1, 1, 1)
    yield "BatchKVCache", fed(caches.BatchKVCache([2, 0, 3]), 4, 1, batch=3)
    yield "BatchKVCache merged", caches.BatchKVCache.merge([fed(kv(), 5), fed(kv(), 9)])
    yield "BatchRotatingKVCache before its turn", fed(caches.BatchRotatingKVCache(16, [1, 0]), 5, 1, batch=2)
    yield "BatchRotatingKVCache after its turn", fed(caches.BatchRotatingKVCache(8, [1, 0]), 5, *[1] * 8, batch=2)
    yield "BatchRotatingKVCache after a long prompt", fed(caches.BatchRotatingKVCache(8, [3, 0]), 13, batch=2)
    yield "BatchRotatingKVCache merged", caches.BatchRotatingKVCache.merge([fed(ring(8), 13), fed(ring(8), 3)])


def save(path, *layers, **metadata):
    caches.save_prompt_cache(str(path), list(layers), metadata)


class Classes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def through_memoir(self, *layers):
        """What mlx-lm loads of what memoir writes of what it loads of what mlx-lm saves; and what memoir shows."""
        theirs, ours = self.folder / "theirs.safetensors", self.folder / "ours.safetensors"
        save(theirs, *layers, about="a test")
        memoir("cache", "check", theirs)
        shown = json.loads(memoir("cache", "show", "--json", theirs))
        self.assertEqual(shown["format"], FORMAT)
        self.assertEqual(shown["metadata"], {"about": "a test"})
        memoir("cache", "convert", "--format", FORMAT, "-o", ours, theirs)
        return caches.load_prompt_cache(str(ours)), shown

    def check(self, cache, *counts):
        (again,), shown = self.through_memoir(cache)
        kind = type(cache).__name__
        self.assertEqual(shown["layers"][0]["kind"], kind)
        self.assertEqual(type(again), type(cache))
        if kind == "BatchRotatingKVCache" and not hasattr(again, "_lengths"):
            again._lengths = None  # mlx-lm's loader leaves it out, so that its own files fail at the first update too
            if FORMAT == "v1":
                again.rotated = False  # which is read as bool("False")
        is_batch = kind.startswith("Batch")
        batch = cache.offset.shape[0] if is_batch else 1
        begin = max(cache.offset.tolist()) if is_batch else cache.offset
        self.assertEqual(mx.array(again.offset).tolist(), mx.array(cache.offset).tolist())
        self.assertEqual(shown["offset"], begin)
        for n in counts:
            masks = [c.make_mask(n) if is_batch else None for c in (cache, again)]
            returned = [dense(feed(c, n, begin=begin, batch=batch), mask) for c, mask in zip((cache, again), masks)]
            for a, b in zip(*returned):
                # Of batches the rows that are hidden come first, and memoir drops the rows of older chunks.
                width = min(a.shape[2], b.shape[2])
                if not is_batch and kind != "ChunkedKVCache":
                    self.assertEqual(a.shape, b.shape)
                self.assertTrue(mx.array_equal(a[:, :, -width:], b[:, :, -width:]), f"{a[:, 0, :, 0]} {b[:, 0, :, 0]}")
            begin += n

    def test_what_comes_back_goes_on_alike(self):
        for name, cache in cases():
            with self.subTest(name):
                self.check(cache, 1, 1)
        for name, cache in cases():
            with self.subTest(name + ", several tokens"):
                self.check(cache, 3, 1, 2)

    def test_slots_and_lists(self):
        options = {"left_padding": [1, 0]} if FORMAT == "v2" else {}
        layers = [slots((2, 3, 4), (2, 4), **options), fed(caches.BatchKVCache([1, 0]), 6, batch=2)]
        again, shown = self.through_memoir(*layers)
        self.assertEqual([layer["kind"] for layer in shown["layers"]], ["ArraysCache", "BatchKVCache"])
        for i in (0, 1):
            self.assertTrue(mx.array_equal(again[0][i], layers[0][i]))
        if options:
            self.assertEqual(again[0].left_padding.tolist(), [1, 0])
        listed = caches.CacheList(fed(caches.RotatingKVCache(4), *[1] * 6), slots((1, 2), (1, 5)))
        (again,), shown = self.through_memoir(listed)
        self.assertEqual([child["kind"] for child in shown["layers"][0]["children"]], ["RotatingKVCache", "ArraysCache"])
        for a, b in zip(dense(feed(again[0], 1, begin=6)), dense(feed(listed[0], 1, begin=6))):
            self.assertTrue(mx.array_equal(a, b))
        self.assertTrue(mx.array_equal(again[1][1], listed[1][1]))

    @unittest.skipUnless(FORMAT == "v2", "v1 holds no empty cache")
    def test_empty_ones(self):
        layers = [caches.KVCache(), caches.RotatingKVCache(8, keep=2), caches.QuantizedKVCache(32, 4),
                  caches.ArraysCache(2)]
        again, _ = self.through_memoir(*layers)
        self.assertEqual([type(c) for c in again], [type(c) for c in layers])
        self.assertEqual((again[1].max_size, again[1].keep, again[2].bits), (8, 2, 4))


# ---- A model that goes on where the other stopped


# Of those that both have, some that give the same tokens in both from the start; with ChunkedKVCache and CacheList there
# is none.
MODELS = {"llama": "llama", "gemma3": "gemma3_text", "olmo3": "olmo3", "lfm2": "lfm2", "qwen3_next": "qwen3_next"}
N_NEW = 12


def load(name):
    folder = DATA / name
    config = json.loads((folder / "config.json").read_text())
    module = importlib.import_module("mlx_lm.models." + MODELS[name])
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = mx.load(str(folder / "model.safetensors"))
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()), strict=False)
    model.eval()
    return model


def greedy(model, tokens, n, cache):
    found = []
    for _ in range(n):
        logits = model(mx.array([tokens]), cache=cache)[0, -1]
        found.append(mx.argmax(logits).item())
        tokens = found[-1:]
    return found


class Models(unittest.TestCase):
    def generate(self, name, tokens, n, *more):
        return json.loads(memoir("generate", "-m", DATA / name, "--tokens", ",".join(map(str, tokens)), "-n", n,
                                 "--temp", 0, "--json", *more))

    def check(self, name, path):
        model = load(name)
        prompt = mx.load(str(DATA / name / "expected.safetensors"))["prompt"].tolist()
        expected = greedy(model, prompt, N_NEW, caches.make_prompt_cache(model))
        self.assertEqual(self.generate(name, prompt, N_NEW)["tokens"], expected)

        # mlx-lm begins, memoir goes on.
        cache = caches.make_prompt_cache(model)
        model(mx.array([prompt[:-1]]), cache=cache)
        save(path, *cache)
        memoir("cache", "convert", "-m", DATA / name, "--tokens", ",".join(map(str, prompt[:-1])), path)
        result = self.generate(name, prompt, N_NEW, "--prompt-cache", path)
        self.assertEqual(result["cached_tokens"], len(prompt) - 1)
        self.assertEqual(result["tokens"], expected)

        # memoir begins, mlx-lm goes on.
        path.unlink()
        n = N_NEW // 2
        self.assertEqual(self.generate(name, prompt, n, "--prompt-cache", path)["tokens"], expected[:n])
        shown = json.loads(memoir("cache", "show", "--json", path))
        memoir("cache", "convert", "--format", FORMAT, path)
        cache = caches.load_prompt_cache(str(path))
        rest = (prompt + expected)[shown["offset"]:len(prompt) + n]
        self.assertEqual(greedy(model, rest, N_NEW - n, cache), expected[n:])

    def test_both_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in MODELS:
                with self.subTest(name):
                    self.check(name, pathlib.Path(folder) / f"{name}.safetensors")


if __name__ == "__main__":
    print(f"mlx-lm {VERSION}, format {FORMAT}", file=sys.stderr)
    unittest.main()
