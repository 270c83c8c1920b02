#!/usr/bin/env python3
"""Writes what Megatron-LM, the safetensors library and huggingface_hub write, for tests of engine/format.

    .deps/pyref/bin/python tests/golden/make_indexed_dataset.py

Needs megatron-core, safetensors, huggingface_hub, torch and numpy. Everything is small and deterministic.
  data/indexed_dataset/<name>.{bin,idx}   IndexedDatasetBuilder's files
  data/safetensors/all_types.safetensors  every element type that we know, odd names, a scalar and an empty tensor
  data/safetensors/sharded/               a model in shards of at most 400 bytes, with its index
"""
import json
import pathlib

import numpy
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).parent / "data"


def write_indexed(name, dtype, documents):
    """Documents are lists of sequences; an empty document has none."""
    prefix = str(DATA / "indexed_dataset" / name)
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for sequences in documents:
        for sequence in sequences:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(prefix + ".idx")


def merge_indexed(name, dtype, parts):
    prefix = str(DATA / "indexed_dataset" / name)
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for part in parts:
        builder.add_index(str(DATA / "indexed_dataset" / part))
    builder.finalize(prefix + ".idx")


def main():
    (DATA / "indexed_dataset").mkdir(parents=True, exist_ok=True)
    eod = 258
    # An empty document in the middle, first, and alone: it keeps its boundary and gets no end-of-document id.
    write_indexed("empty_middle", numpy.uint16, [[[97, 98, 99, eod]], [], [[100, 101, eod]]])
    write_indexed("empty_first", numpy.uint16, [[], [[97, 98, 99, eod]], [[100, 101, eod]]])
    write_indexed("empty_all", numpy.uint16, [[], []])
    write_indexed("two_documents", numpy.uint16, [[[97, 98, 99, eod]], [[100, 101, eod]]])
    write_indexed("three_documents", numpy.int32, [[[1, 2, 3]], [[4, 5]], [[70000, 7, 8, 9]]])
    write_indexed("sentences", numpy.int32, [[[1, 2], [3]], [[4, 5, 6], [7], [8]]])
    merge_indexed("merged", numpy.int32, ["three_documents", "sentences", "three_documents"])

    (DATA / "safetensors" / "sharded").mkdir(parents=True, exist_ok=True)
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
             torch.uint8, torch.bool]
    tensors = {f"t.{i}": torch.arange(6).reshape(2, 3).to(dtype) for i, dtype in enumerate(types)}
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.ones(0, 3)
    tensors['odd "name"\\ \n\té/'] = torch.ones(1)
    save_file(tensors, DATA / "safetensors" / "all_types.safetensors", metadata={"format": "pt"})

    # As transformers' save_pretrained does it.
    model = {f"model.layers.{i}.w": torch.full((5 + 3 * i, 7), float(i), dtype=torch.float32) for i in range(5)}
    model["model.norm"] = torch.ones(4, dtype=torch.bfloat16)
    split = split_torch_state_dict_into_shards(model, max_shard_size=400, filename_pattern="model{suffix}.safetensors")
    directory = DATA / "safetensors" / "sharded"
    for file, names in split.filename_to_tensors.items():
        save_file({name: model[name] for name in names}, directory / file, metadata={"format": "pt"})
    parameters = sum(tensor.numel() for tensor in model.values())
    index = {"metadata": {"total_parameters": parameters, **split.metadata}, "weight_map": split.tensor_to_filename}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
