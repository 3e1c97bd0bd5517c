#!/usr/bin/env python3
"""Makes a model to measure drafting with: a GGUF file that says what another one says, at a multiple of its cost.

    tools/make_draft_target.py models/smollm2.gguf slow.gguf --times 8
    tools/make_draft_target.py models/smollm2.gguf short.gguf --keep 24

--times N: N - 1 more layers stand behind each layer, with its matrices, but the two that write to the stream
(attn_output, ffn_down) are zeros: it computes the same function, to the bit, and reads N times the layers. The model
itself is then a drafter that is always right at 1/N of the cost; its other quantizations are often right.
--keep K: a drafter of the first K layers.

For llama-like architectures, whose layers add to a stream: any quantization, since zero bytes are zeros in each.
Needs the Python package gguf (pip install gguf).
"""

import argparse
import re

import gguf
import numpy

LAYER = re.compile(r"blk\.(\d+)\.(.+)")
WRITES_TO_STREAM = ("attn_output.weight", "ffn_down.weight")


def copied_fields(reader, writer, n_layers):
    architecture = reader.get_field("general.architecture").contents()
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        value = n_layers if field.name == f"{architecture}.block_count" else field.contents()
        writer.add_key_value(field.name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def tensors(reader, times, keep):
    """Names, values and types, layer by layer."""
    for tensor in reader.tensors:
        match = LAYER.fullmatch(tensor.name)
        if not match:
            yield tensor.name, tensor.data, tensor.tensor_type
            continue
        layer, part = int(match[1]), match[2]
        if layer >= keep:
            continue
        yield f"blk.{layer * times}.{part}", tensor.data, tensor.tensor_type
        data = numpy.zeros_like(tensor.data) if part in WRITES_TO_STREAM else tensor.data
        for i in range(1, times):
            yield f"blk.{layer * times + i}.{part}", data, tensor.tensor_type


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--keep", type=int)
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.source)
    architecture = reader.get_field("general.architecture").contents()
    n_layers = int(reader.get_field(f"{architecture}.block_count").contents())
    keep = n_layers if args.keep is None else args.keep
    if args.times < 1 or not 1 <= keep <= n_layers:
        parser.error(f"--times is at least 1, --keep 1 to {n_layers}")
    writer = gguf.GGUFWriter(args.target, architecture)
    copied_fields(reader, writer, keep * args.times)
    for name, data, kind in tensors(reader, args.times, keep):
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
