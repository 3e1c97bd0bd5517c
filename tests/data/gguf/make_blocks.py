"""Makes the files of this folder and ../safetensors/small.safetensors.

    pip install gguf==0.19.0 safetensors==0.8.0 && python make_blocks.py

blocks.safetensors  for every block type T: "T.blocks" (raw bytes) and "T.values" (what gguf.quants.dequantize gives for
                    them, float32). Half of the blocks of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 come from gguf.quants.quantize, all
                    others are random bytes with small scales, so that every code and scale occurs.
small.gguf          a file as gguf.GGUFWriter writes it: every kind of metadata, several tensor types.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
SCALES_AT = {  # byte offsets of the float16 fields of a block
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}  # fmt: skip
LEGACY = (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0)


def random_blocks(rng, qtype, n_blocks):
    _, size_bytes = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (n_blocks, size_bytes), dtype=np.uint8)
    for at in SCALES_AT[qtype]:
        scales = (rng.standard_normal(n_blocks) * 0.02).astype(np.float16)
        scales[-1] = np.float16(6e-8)  # a subnormal one
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(n_blocks, 2)
    return blocks.reshape(-1)


def make_blocks(rng):
    tensors = {}
    for qtype in SCALES_AT:
        blocks = random_blocks(rng, qtype, 4 if qtype in LEGACY else 2)
        if qtype in LEGACY:
            weights = (rng.standard_normal((1, 4 * 32)) * 0.05).astype(np.float32)
            blocks = np.concatenate([blocks, gguf.quants.quantize(weights, qtype).reshape(-1)])
        tensors[f"{qtype.name}.blocks"] = blocks
        tensors[f"{qtype.name}.values"] = gguf.quants.dequantize(blocks, qtype)
    for qtype, dtype in ((T.F16, np.float16), (T.BF16, np.uint16)):
        raw = (rng.standard_normal(32) * 3).astype(np.float16)
        raw = raw if dtype == np.float16 else gguf.quants.quantize(raw.astype(np.float32)[None], qtype)
        raw = raw.view(np.uint8).reshape(-1)
        tensors[f"{qtype.name}.blocks"] = raw
        tensors[f"{qtype.name}.values"] = gguf.quants.dequantize(raw, qtype).reshape(-1)
    save_file(tensors, HERE / "blocks.safetensors")


def make_gguf(rng):
    writer = gguf.GGUFWriter(HERE / "small.gguf", "llama")
    writer.add_uint8("test.uint8", 200)
    writer.add_int8("test.int8", -100)
    writer.add_uint16("test.uint16", 60000)
    writer.add_int16("test.int16", -30000)
    writer.add_uint32("test.uint32", 4000000000)
    writer.add_int32("test.int32", -2000000000)
    writer.add_uint64("test.uint64", 2**63 - 1)
    writer.add_int64("test.int64", -(2**63))
    writer.add_float32("test.float32", 0.5)
    writer.add_float64("test.float64", 1e300)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "grüße")
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.numbers", [0.25, -4.0])
    writer.add_array("test.strings", ["a", "", "ccc"])
    writer.add_array("test.bools", [True, False])
    writer.add_tensor("plain.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("half.weight", np.arange(4, dtype=np.float16))
    for qtype, rows in ((T.Q8_0, 3), (T.Q4_1, 2)):
        values = rng.standard_normal((rows, 64)).astype(np.float32)
        writer.add_tensor(f"{qtype.name}.weight", gguf.quants.quantize(values, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_safetensors():
    tensors = {
        "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.arange(4, dtype=np.float16),
        "bytes": np.arange(5, dtype=np.uint8),
        "scalar": np.array(-7, dtype=np.int64),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }
    save_file(tensors, HERE.parent / "safetensors" / "small.safetensors", metadata={"format": "np", "note": "ü"})


make_blocks(np.random.default_rng(7))
make_gguf(np.random.default_rng(8))
make_safetensors()
