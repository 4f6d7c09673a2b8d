"""Adapters on experts from nibble to PEFT, and merged ones to Transformers.

    NIBBLE=build/release/bin/nibble python3 tests/oracles/peft_experts.py MODEL_DIRECTORY ...

Every directory is a small mixture that Transformers loads (float32, or gpt-oss with MXFP4 experts). nibble trains a LoRA
on attention, experts and router for two steps; PEFT loads it, and Transformers what `nibble merge` makes of it. Prints the
largest difference of logits in float32 from those of nibble with the adapter, and how far the adapter moves them; fails
above 1e-4 of their size.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import peft
import torch
import transformers

from model_types import auto_class

TARGETS = {
    "granitemoe": ["block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj",
                   "block_sparse_moe.router.weight"],
    "llama4_text": ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"],
    "gpt_oss": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "nemotron_h": ["mixer.experts.up_proj", "mixer.experts.down_proj", "mixer.gate.weight"],
}
PLAIN = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]


def nibble(*arguments):
    return subprocess.run([os.environ["NIBBLE"], *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval().float()(torch.from_numpy(ids)).logits.float().numpy()


def load(directory):
    kind = json.loads((directory / "config.json").read_text())["model_type"]
    model, info = auto_class(kind).from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key != "error_msgs"}
    assert not problems, problems
    return model


def check(model):
    config = json.loads((model / "config.json").read_text())
    ids = numpy.random.default_rng(1).integers(3, config["vocab_size"], (2, 20))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        rows = [json.dumps({"input_ids": row.tolist(), "labels": row.tolist()}) for row in ids]
        (scratch / "data.jsonl").write_text("\n".join(rows * 2) + "\n")
        (scratch / "recipe.json").write_text(json.dumps({
            "model": {"path": str(model), "compute_dtype": "f32"},
            "adapter": {"r": 3, "lora_alpha": 9, "init_lora_weights": False, "target_modules": ["q_proj", "o_proj"],
                        "target_parameters": TARGETS.get(config["model_type"], PLAIN)},
            "data": {"train": str(scratch / "data.jsonl"), "format": "tokens", "pack": False},
            "train": {"steps": 2, "microbatch_size": 2, "accumulate": 1},
            "optimizer": {"lr": 1e-2}, "output": {"dir": str(scratch / "run")}}))
        nibble("train", scratch / "recipe.json")
        adapter, merged = scratch / "run" / "adapter", scratch / "merged"
        numpy.save(scratch / "ids.npy", ids)
        nibble("logits", "--model", model, "--adapter", adapter, "--compute-dtype", "f32", "--ids", scratch / "ids.npy",
               "--out", scratch / "logits.npy")
        nibble("merge", "--model", model, "--adapter", adapter, "--out", merged, "--dtype", "f32")
        ours = numpy.load(scratch / "logits.npy")
        plain = logits_of(load(model), ids)
        theirs = logits_of(peft.PeftModel.from_pretrained(load(model), adapter), ids)
        whole = logits_of(load(merged), ids)
    size = max(1.0, float(numpy.sqrt((ours ** 2).mean())))
    adapted, of_merged = float(abs(theirs - ours).max()), float(abs(whole - ours).max())
    moved = float(abs(plain - ours).max())
    print(f"{model.parent.name:24s} PEFT {adapted:.1e}, merged {of_merged:.1e}, moved by {moved:.2f}", flush=True)
    assert adapted <= 1e-4 * size and of_merged <= 1e-4 * size and moved > 1e-2, model


if __name__ == "__main__":
    torch.set_num_threads(1)
    for directory in sys.argv[1:]:
        check(pathlib.Path(directory).resolve())
