"""Makes data/megatron_moe.json: what megatron-core's router makes of random logits on the CPU (choices, weights, dropped
tokens, auxiliary losses with their gradients). Run with a Python that has megatron-core and torch:

    .deps/pyref/bin/python tests/golden/make_moe_routing.py
"""

import json
import pathlib
import warnings

warnings.filterwarnings("ignore")

import megatron.core
import torch
from megatron.core.transformer.moe import moe_utils

DATA = pathlib.Path(__file__).resolve().parent / "data"
LENGTH, ROWS, EXPERTS, TOPK = 12, 2, 8, 2
COEFF = 0.25

ROUTINGS = {
    "softmax": {},
    "pre_softmax": {"use_pre_softmax": True},
    "scaled": {"use_pre_softmax": True, "scaling_factor": 2.5},
    "sigmoid": {"score_function": "sigmoid"},
    "sigmoid_bias": {"score_function": "sigmoid", "expert_bias": True},
    "groups": {"score_function": "sigmoid", "expert_bias": True, "num_groups": 4, "group_topk": 2, "topk": 4},
}


def plain(tensor):
    return tensor.detach().tolist()


def routing(logits, bias, options):
    options = dict(options)
    if options.pop("expert_bias", False):
        options["expert_bias"] = bias
    topk = options.pop("topk", TOPK)
    probs, chosen = moe_utils.topk_routing_with_score_function(logits, topk, **options)
    return {"topk": topk, "probs": plain(probs), "map": plain(chosen.int())}


def dropping(logits, factor, pad):
    probs, chosen = moe_utils.topk_routing_with_score_function(logits, TOPK)
    probs, chosen = moe_utils.apply_router_token_dropping(probs, chosen, TOPK, factor, "probs", pad)
    return {"factor": factor, "pad": pad, "probs": plain(probs), "map": plain(chosen.int()),
            "capacity": moe_utils.get_capacity(logits.shape[0] * TOPK, EXPERTS, factor)}


def balance(logits, score_function, scope):
    """The loss that Megatron-LM attaches in one micro-batch of LENGTH x ROWS tokens, token-major as [length, rows]."""
    logits = logits.clone().requires_grad_()
    chosen, scores = moe_utils.compute_routing_scores_for_aux_loss(logits, TOPK, score_function)
    if scope == "seq_aux_loss":
        scores, chosen = scores.reshape(LENGTH, -1), chosen.reshape(LENGTH, -1)
    tokens = LENGTH if scope == "seq_aux_loss" else LENGTH * ROWS
    loss = moe_utils.switch_load_balancing_loss_func(scores, chosen.sum(0), tokens, TOPK, EXPERTS, COEFF)
    if scope == "seq_aux_loss":
        loss = loss / ROWS
    loss.backward()
    return {"scope": scope, "score_function": score_function, "loss": loss.item(), "grad": plain(logits.grad)}


def global_balance(batches):
    """Of the second micro-batch of a step: counts are averaged over both."""
    counts = torch.zeros(EXPERTS)
    for steps, logits in enumerate(batches, 1):
        logits = logits.clone().requires_grad_()
        chosen, scores = moe_utils.compute_routing_scores_for_aux_loss(logits, TOPK, "softmax")
        counts += chosen.sum(0)
        loss = moe_utils.switch_load_balancing_loss_func(scores, counts / steps, LENGTH * ROWS, TOPK, EXPERTS, COEFF)
    loss.backward()
    return {"loss": loss.item(), "grad": plain(logits.grad)}


def z_loss(logits):
    logits = logits.clone().requires_grad_()
    loss = moe_utils.z_loss_func(logits, COEFF)
    loss.backward()
    return {"loss": loss.item(), "grad": plain(logits.grad)}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    # Row t * ROWS + b is token t of sample b: Megatron-LM's order.
    logits = torch.randn(LENGTH * ROWS, EXPERTS, generator=generator)
    other = torch.randn(LENGTH * ROWS, EXPERTS, generator=generator)
    bias = 0.3 * torch.randn(EXPERTS, generator=generator)
    golden = {
        "made_with": {"torch": torch.__version__.split("+")[0], "megatron-core": megatron.core.__version__},
        "length": LENGTH, "rows": ROWS, "experts": EXPERTS, "topk": TOPK, "coeff": COEFF,
        "logits": plain(logits), "other_logits": plain(other), "bias": plain(bias),
        "routing": {name: routing(logits, bias, options) for name, options in ROUTINGS.items()},
        "dropping": [dropping(logits, 0.5, False), dropping(logits, 1.0, False), dropping(logits, 1.0, True)],
        "balance": [balance(logits, score, scope) for score in ("softmax", "sigmoid")
                    for scope in ("seq_aux_loss", "aux_loss")],
        "global": global_balance([other, logits]),
        "z": z_loss(logits),
    }
    path = DATA / "megatron_moe.json"
    path.write_text(json.dumps(golden) + "\n")
    print(path.stat().st_size, "bytes", {name: len(value["probs"]) for name, value in golden["routing"].items()})


if __name__ == "__main__":
    main()
