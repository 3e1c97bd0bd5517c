#!/usr/bin/env python3
"""Writes sampler_golden.json beside this file: token sequences by the formulas of memoir/engine/sampler.h.

Written for plainness, to check the C++ against: every step sorts the whole vocabulary, sums with fsum and uses the
platform's exp. Only Python's standard library.
"""

import json
import math
import pathlib
import struct

MASK = (1 << 64) - 1


class Mt19937_64:
    """Matsumoto and Nishimura's 64-bit Mersenne Twister, as in [rand.predef] of the C++ standard."""

    def __init__(self, seed):
        self.state = [seed & MASK]
        for i in range(1, 312):
            last = self.state[-1]
            self.state.append((6364136223846793005 * (last ^ (last >> 62)) + i) & MASK)
        self.i = 312

    def __call__(self):
        if self.i == 312:
            for k in range(312):
                x = (self.state[k] & 0xFFFFFFFF80000000) | (self.state[(k + 1) % 312] & 0x7FFFFFFF)
                twist = 0xB5026F5AA96619E9 if x & 1 else 0
                self.state[k] = self.state[(k + 156) % 312] ^ (x >> 1) ^ twist
            self.i = 0
        x = self.state[self.i]
        self.i += 1
        x ^= (x >> 29) & 0x5555555555555555
        x ^= (x << 17) & 0x71D67FFFEDA60000
        x ^= (x << 37) & 0xFFF7EEE000000000
        return x ^ (x >> 43)


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def make_logits(n_vocab, step, spread, quantum):
    """Bell-shaped: four 16-bit numbers of a hash, summed; rounded down to multiples of quantum to make ties."""
    logits = []
    for t in range(n_vocab):
        h = splitmix64(step * n_vocab + t)
        total = sum((h >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
        value = (total / 65536.0 - 2.0) * spread
        if quantum:
            value = math.floor(value / quantum) * quantum
        logits.append(float32(value))
    return logits


def sample(logits, history, o, generator):
    logits = list(logits)
    for token, bias in o["logit_bias"]:
        logits[token] = float32(logits[token] + bias)
    window = o["penalty_window"]
    seen = history if window < 0 else history[max(0, len(history) - window):]
    for token in set(seen):
        value = logits[token]
        r = o["repetition_penalty"]
        value = value / r if value > 0 else value * r
        value -= seen.count(token) * o["frequency_penalty"] + o["presence_penalty"]
        logits[token] = float32(value)

    ranked = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    if o["temperature"] == 0:
        return ranked[0]
    if o["top_k"]:
        ranked = ranked[:o["top_k"]]
    top = logits[ranked[0]]
    if o["top_p"] < 1:
        weights = [math.exp(logits[t] - top) for t in ranked]
        goal, n, mass = o["top_p"] * math.fsum(weights), 0, 0.0
        while n == 0 or (mass < goal and n < len(ranked)):
            mass += weights[n]
            n += 1
        ranked = ranked[:n]
    if o["min_p"] > 0:
        ranked = [t for t in ranked if logits[t] - top >= math.log(o["min_p"])]
    kept = sorted(ranked)
    weights = [math.exp((logits[t] - top) / o["temperature"]) for t in kept]
    goal = (generator() >> 11) * 2.0**-53 * sum(weights)
    running = 0.0
    for t, weight in zip(kept, weights):
        running += weight
        if running > goal:
            return t
    raise AssertionError("the sum of the weights was not reached")


DEFAULTS = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "penalty_window": 64, "logit_bias": [], "seed": 1,
    # how the test makes its logits and history
    "n_vocab": 1000, "n_steps": 100, "spread": 8.0, "quantum": 0.0, "prompt": [],
}

CASES = {
    "plain": {},
    "cold": {"temperature": 0.3, "seed": 2},
    "hot": {"temperature": 2.5, "seed": 2**64 - 1},
    "top_k": {"top_k": 40, "seed": 3},
    "top_k_with_ties": {"top_k": 37, "quantum": 0.5, "seed": 4},
    "top_p": {"top_p": 0.9, "seed": 5},
    "top_p_flat": {"top_p": 0.95, "spread": 1.0, "seed": 6},
    "top_p_with_ties": {"top_p": 0.83, "spread": 2.0, "quantum": 0.25, "seed": 7},
    "min_p": {"min_p": 0.05, "seed": 8},
    "all_filters": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 9},
    "large_vocabulary_top_p": {"n_vocab": 50000, "n_steps": 4, "top_p": 0.9, "seed": 10},
    "large_vocabulary_top_k": {"n_vocab": 50000, "n_steps": 4, "top_k": 1000, "temperature": 3.0, "seed": 11},
    "greedy_with_penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.25,
                              "frequency_penalty": 0.5, "penalty_window": -1, "n_vocab": 30, "prompt": [3, 3, 7]},
    "repetition_window": {"repetition_penalty": 1.5, "penalty_window": 8, "n_vocab": 20, "spread": 3.0, "seed": 12,
                          "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]},
    "everything": {"temperature": 1.2, "top_k": 15, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1,
                   "presence_penalty": 0.3, "frequency_penalty": 0.2, "penalty_window": 16, "n_vocab": 50,
                   "spread": 3.0, "logit_bias": [[4, 2.5], [7, -3.0]], "seed": 13, "prompt": [4, 4, 4, 11]},
}


def main():
    generator = Mt19937_64(5489)
    for _ in range(9999):
        generator()
    assert generator() == 9981545732273789042  # [rand.predef]: the 10000th number of the default seed

    lines = []
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        generator, history, tokens = Mt19937_64(case["seed"]), list(case["prompt"]), []
        for step in range(case["n_steps"]):
            logits = make_logits(case["n_vocab"], step, case["spread"], case["quantum"])
            tokens.append(sample(logits, history, case, generator))
            history.append(tokens[-1])
        lines.append(json.dumps({"name": name, **case, "tokens": tokens}))
    with open(pathlib.Path(__file__).parent / "sampler_golden.json", "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
