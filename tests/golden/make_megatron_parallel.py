#!/usr/bin/env python3
"""Writes data/megatron_parallel.json: megatron-core's rank groups, pipeline schedules and layout strings.

    .deps/pyref/bin/python tests/golden/make_megatron_parallel.py        (needs megatron-core)

groups: for each layout and rank order the groups of RankGenerator, the dense one and the experts'.
schedules: for each pipeline the passes of every rank: a forward is micro-batch * V + chunk, a backward -1 minus that.
layouts: for each layout string the layers of every stage, in model order.
"""
import json
import types
from pathlib import Path

import megatron.core
from megatron.core.parallel_state import RankGenerator, default_embedding_ranks
from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

OUT = Path(__file__).resolve().parent / "data" / "megatron_parallel.json"

# tp, cp, dp, pp, ep, etp
SIZES = [
    (1, 1, 4, 1, 1, 1), (2, 1, 2, 2, 1, 2), (2, 2, 2, 2, 1, 2), (2, 2, 2, 2, 2, 2), (2, 2, 2, 2, 4, 1), (4, 1, 2, 2, 8, 1),
    (2, 1, 4, 3, 2, 2), (1, 2, 4, 2, 8, 1), (3, 1, 2, 2, 2, 3), (2, 1, 4, 1, 4, 2), (1, 1, 8, 2, 4, 1),
]
ORDERS = ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-ep-dp-cp-pp", "cp-tp-dp-ep-pp", "dp-ep-tp-cp-pp", "tp-pp-dp-ep-cp"]
# pp, vpp, micro-batches, group (0: 1F1B)
PIPELINES = [(pp, 1, m, 0) for pp in (1, 2, 4, 5) for m in (1, 3, 4, 8)]
PIPELINES += [(2, 2, 4, 2), (2, 2, 2, 2), (2, 3, 6, 2), (2, 2, 8, 4), (2, 2, 7, 5), (3, 2, 9, 3), (3, 3, 11, 4), (4, 2, 8, 4),
              (4, 4, 8, 8), (4, 2, 12, 8), (8, 3, 16, 8)]
LAYOUTS = [
    ("Ettt|(tt|)*29,L", 1), ("Et*3|(tt|)*29t|L", 4), ("E|t*5|t*2|L", 2), ("Et*4||t*3|L", 4), ("E(|t,t)*6|L", 4),
    ("Et|*3tL", 2), ("EtttL", 1), ("Ett|(ttt|tt|)*3tL", 4),
]


def groups_of(sizes, order):
    tp, cp, dp, pp, ep, etp = sizes
    world = tp * cp * dp * pp
    edp = world // (etp * ep * pp)
    dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    expert = RankGenerator(tp=etp, ep=ep, dp=edp, pp=pp, cp=1, order=order)
    # initialize_model_parallel's own condition.
    if not (order.endswith("pp") or pp == 1 or edp == dp):
        return None
    if dense.get_ranks("pp") != expert.get_ranks("pp"):
        return None
    groups = {name: dense.get_ranks(token) for name, token in {
        "tp": "tp", "cp": "cp", "dp": "dp", "dp-cp": "dp-cp", "tp-cp": "tp-cp", "tp-dp-cp": "tp-dp-cp", "model": "tp-pp",
        "pp": "pp"}.items()}
    groups |= {name: expert.get_ranks(token) for name, token in {
        "etp": "tp", "ep": "ep", "etp-ep": "tp-ep", "etp-ep-pp": "tp-ep-pp", "edp": "dp"}.items()}
    groups["embedding"] = [default_embedding_ranks(ranks) for ranks in dense.get_ranks("pp")]
    return groups


def schedule_of(pp, vpp, micro_batches, group):
    table = get_schedule_table(micro_batches, vpp, group or micro_batches)
    ranks = []
    for rank in range(pp):
        communicator = types.SimpleNamespace(
            pp_group=types.SimpleNamespace(size=lambda: pp, rank=lambda: rank),
            virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None)
        total, _, warmup, remaining = get_pp_rank_microbatches(micro_batches, vpp, group, p2p_communicator=communicator)
        forward = [m * vpp + chunk for m, chunk in table]
        backward = [-1 - (m * vpp + vpp - 1 - chunk) for m, chunk in table]
        # As forward_backward_pipelining_with(out)_interleaving walk the table.
        order = forward[:warmup]
        for k in range(remaining):
            order += [forward[warmup + k], backward[k]]
        order += backward[remaining:]
        ranks.append(order)
        assert len(order) == 2 * total
    return ranks


def layout_of(text, pp):
    layout = PipelineParallelLayerLayout(text, pp)
    vpp = layout.virtual_pipeline_model_parallel_size
    layout.validate_layer_layout(layout.flatten_layout.count(LayerType.decoder), None)
    return [[layout.layout[stage % pp][stage // pp].count(LayerType.decoder)] for stage in range(pp * vpp)]


def main():
    golden = {"megatron_core": megatron.core.__version__, "groups": [], "schedules": [], "layouts": []}
    for sizes in SIZES:
        for order in ORDERS:
            golden["groups"].append({"sizes": sizes, "order": order, "groups": groups_of(sizes, order)})
    for pp, vpp, micro_batches, group in PIPELINES:
        golden["schedules"].append({"pp": pp, "vpp": vpp, "micro_batches": micro_batches, "group": group,
                                    "ranks": schedule_of(pp, vpp, micro_batches, group)})
    for text, pp in LAYOUTS:
        golden["layouts"].append({"layout": text, "pp": pp, "layers": [n for (n,) in layout_of(text, pp)]})
    OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    refused = sum(1 for case in golden["groups"] if case["groups"] is None)
    print(f"{len(golden['groups'])} layouts ({refused} refused), {len(golden['schedules'])} schedules")


if __name__ == "__main__":
    main()
