"""Memory of the optimizer's state: Muon and AdamW by plan over AdamW alone, at real sizes.

    python benchmarks/state_memory.py

The models are those of the transformers package on the meta device: nothing is allocated. A state
has 4 bytes for each entry of a matrix (one momentum) and 8 for each entry that AdamW steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import write  # isort: skip
import torch
import transformers

from steepest import route

MODELS = {
    "GPT-2 small": ("GPT2LMHeadModel", transformers.GPT2Config, {}),
    "BERT base": ("BertForMaskedLM", transformers.BertConfig, {}),
    "Llama 2 7B": (
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    ),
    "Llama 3 8B": (
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        {
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "vocab_size": 128256,
        },
    ),
    "Mixtral 8x7B": ("MixtralForCausalLM", transformers.MixtralConfig, {}),
}  # fmt: skip


def measure(name):
    kind, config, options = MODELS[name]
    with torch.device("meta"):
        model = getattr(transformers, kind)(config(**options))
    plan = route(model)
    entries = {
        rule: sum(torch.Size(each.shape).numel() for each in plan.by_rule(rule))
        for rule in ("matrix", "adamw")
    }
    total = sum(entries.values())
    state = 4 * entries["matrix"] + 8 * entries["adamw"]
    return {
        "model": name,
        "entries": total,
        "matrix share": entries["matrix"] / total,
        "state GiB": state / 2**30,
        "AdamW GiB": 8 * total / 2**30,
        "over AdamW": state / (8 * total),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    rows = [measure(name) for name in MODELS]
    for row in rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print("wrote", write("state_memory", {"rows": rows}, arguments.out))


if __name__ == "__main__":
    main()
