#!/usr/bin/env python3
"""Writes data/megatron_order.json: megatron-core's sample order over a small dataset, and a prepared dataset's bytes.

    .deps/pyref/bin/python tests/golden/make_megatron_order.py        (needs megatron-core and its compiled helpers)

The dataset has sequences of the lengths given, whose tokens count up from 0 over the whole dataset.
"""
import json
import tempfile
import types
from pathlib import Path

import megatron.core
import numpy
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

OUT = Path(__file__).resolve().parent / "data" / "megatron_order.json"
LENGTHS = [7, 1, 0, 23, 5, 5, 64, 2, 11, 0, 3, 40, 9, 1, 1, 17, 30, 6, 8, 12, 4, 19, 2, 26, 10, 33, 15, 0, 21, 13]
# split, part, samples requested, sequence length, seed
CASES = [
    ("1,0,0", 0, 20, 8, 1234), ("1,0,0", 0, 60, 8, 1234), ("1,0,0", 0, 58, 8, 7), ("1,0,0", 0, 200, 8, 0),
    ("969,30,1", 0, 30, 16, 1234), ("8,1,1", 0, 9, 16, 42), ("8,1,1", 1, 25, 4, 42), ("8,1,1", 2, 7, 64, 42),
    ("1,0,0", 0, 1, 500, 3), ("1,0,0", 0, 3, 1000, 3),
]
DOCUMENTS = [[[97, 98, 99, 258]], [], [[100, 101, 258]], [[1], [2, 3], [259, 0, 258]]]


class FakeTokenizer:
    """GPTDataset asks for these and nothing else."""
    eod, pad, vocab_size, unique_identifiers = 100000, 100001, 100002, {"class": "fake"}


def build(prefix: str) -> IndexedDataset:
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.int32)
    first = 0
    for length in LENGTHS:
        builder.add_document(torch.arange(first, first + length), [length])
        first += length
    builder.finalize(prefix + ".idx")
    return IndexedDataset(prefix)


def split_range(config: GPTDatasetConfig, part: int) -> numpy.ndarray:
    lo, hi = config.split_matrix[part]
    return numpy.arange(int(round(lo * len(LENGTHS))), int(round(hi * len(LENGTHS))), dtype=numpy.int32)


def run(dataset: IndexedDataset, cache: str, case: tuple) -> dict:
    split, part, samples, length, seed = case
    config = GPTDatasetConfig(random_seed=seed, sequence_length=length, blend=([dataset.path_prefix], None), split=split,
                              path_to_cache=cache, reset_position_ids=False, reset_attention_mask=False,
                              eod_mask_loss=False, create_attention_mask=False, tokenizer=FakeTokenizer())
    made = GPTDataset(dataset, dataset.path_prefix, split_range(config, part), samples, Split(part), config)
    return {"split": split, "part": part, "num_samples": samples, "seq_length": length, "seed": seed,
            "document_index": made.document_index.tolist(), "sample_index": made.sample_index.tolist(),
            "shuffle_index": made.shuffle_index.tolist(),
            "labels": [made[i]["labels"].tolist() for i in range(min(len(made), 12))]}


def prepared(directory: str) -> dict:
    prefix = directory + "/prepared"
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.uint16)
    for document in DOCUMENTS:
        builder.add_document([token for sequence in document for token in sequence], [len(s) for s in document])
    builder.finalize(prefix + ".idx")
    return {"documents": DOCUMENTS, "bin": Path(prefix + ".bin").read_bytes().hex(), "idx": Path(prefix + ".idx").read_bytes().hex()}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        dataset = build(directory + "/data")
        result = {"megatron_core": megatron.core.__version__, "lengths": LENGTHS,
                  "cases": [run(dataset, directory + "/cache", case) for case in CASES], "prepared": prepared(directory)}
    OUT.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
