"""Where a tensor of a PiSSA adapter ends a few hundredths of its change off PEFT's: an element whose first gradient is rounding.

    NIBBLE=bin/nibble python tests/oracles/pissa_first_steps.py [DRAWS]          default: 8 draws of tokens

Eight AdamW steps (lr 5e-3) of r 8, alpha 16 on q, v and down of tests/data/stories-llama: PEFT in f32, PEFT in f64 from the same
start, nibble. For the tensor of each draw that is furthest off: its distance as a share of its change, the same without the one
element that is furthest off, that element's first gradient in f64 beside the largest of its tensor, and which way AdamW's first step
took it, which is lr up or down by the sign of the gradient alone. Last, how close the singular values are that PiSSA starts from.
"""
import json, os, subprocess, sys, tempfile, zlib
from pathlib import Path
import numpy as np, torch, transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

import peft_options

STEPS, ROWS, LENGTH, LR = peft_options.STEPS, peft_options.ROWS, peft_options.LENGTH, 5e-3
BASE = peft_options.base_directory("stories", Path())
TARGETS = ["q_proj", "v_proj", "down_proj"]


def started():
    torch.manual_seed(0)
    return get_peft_model(peft_options.load(BASE), LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=TARGETS,
                                                              init_lora_weights="pissa"))


def of(model):
    return {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}


def values(model):
    return {name: p.detach().double().clone() for name, p in of(model).items()}


def trained(model, ids, labels):
    """Values at the start, after one step and after all, and the first gradients."""
    optimizer = torch.optim.AdamW(of(model).values(), lr=LR, weight_decay=0.01)
    kept = [values(model)]
    for step in range(STEPS):
        rows = slice(ROWS * step, ROWS * (step + 1))
        logits = model(torch.from_numpy(ids[rows])).logits[:, :-1]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.from_numpy(labels[rows])[:, 1:].reshape(-1),
                                          ignore_index=-100).backward()
        if step == 0:
            first = {name: p.grad.double().clone() for name, p in of(model).items()}
        optimizer.step()
        if step in (0, STEPS - 1):
            kept.append(values(model))
    return kept, first


def nibble(ids, labels, work, steps):
    """What a run of so many steps leaves; pairs have PEFT's signs."""
    (work / "data.jsonl").write_text("".join(json.dumps({"input_ids": i.tolist(), "labels": l.tolist()}) + "\n" for i, l in zip(ids, labels)))
    recipe = {"model": {"path": str(BASE), "compute_dtype": "f32"},
              "adapter": {"r": 8, "lora_alpha": 16, "target_modules": TARGETS, "init_lora_weights": "pissa"},
              "data": {"train": str(work / "data.jsonl"), "format": "tokens", "pack": False, "shuffle": False, "max_length": 64},
              "train": {"steps": steps, "microbatch_size": ROWS, "accumulate": 1, "max_grad_norm": 0},
              "optimizer": {"type": "adamw", "lr": LR, "weight_decay": 0.01, "schedule": "constant"},
              "output": {"dir": str(work / f"run-{steps}")}}
    (work / "recipe.json").write_text(json.dumps(recipe))
    done = subprocess.run([os.environ["NIBBLE"], "train", str(work / "recipe.json")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return load_file(work / f"run-{steps}/adapter/adapter_model.safetensors")


def with_signs_of(start, tensors):
    """Singular pairs have free signs."""
    out = {name: value.double() for name, value in tensors.items()}
    for name in [n for n in out if n.endswith("lora_A.weight")]:
        signs = torch.sign((out[name] * start[name]).sum(1))
        out[name] = out[name] * signs[:, None]
        out[name.replace("lora_A", "lora_B")] *= signs
    return out


def share(a, b, start):
    return ((a - b).norm() / (b - start).norm()).item()


def draw(number, work):
    random = np.random.default_rng(zlib.crc32(f"pissa-{number}".encode() if number else b"pissa"))  # 0: what peft_options.py draws
    ids = random.integers(3, 512, size=(STEPS * ROWS, LENGTH))
    labels = np.where(random.random(ids.shape) < 0.7, ids, -100)
    (start, one, end), gradients32 = trained(started(), ids, labels)
    (_, one64, end64), gradients = trained(started().double(), ids, labels)
    ours, ours_one = (with_signs_of(start, nibble(ids, labels, work, steps)) for steps in (STEPS, 1))
    shares = {name: share(ours[name], end[name], start[name]) for name in end}
    name = max(shares, key=shares.get)
    at = (ours[name] - end[name]).abs().argmax().item()
    rest = ours[name].clone().flatten()
    rest[at] = end[name].flatten()[at]
    way = lambda after: "up" if after[name].flatten()[at] > start[name].flatten()[at] else "down"
    all64 = max(share(end64[n], end[n], start[n]) for n in end)
    print(f"draw {number}: {name.removeprefix('base_model.model.model.')} {100 * shares[name]:.2f}%, without element {at} of "
          f"{rest.numel()} {100 * share(rest.reshape(end[name].shape), end[name], start[name]):.2f}%; its first gradient "
          f"{gradients[name].flatten()[at]:.1e} (f64), {gradients32[name].flatten()[at]:.1e} (f32), the largest {gradients[name].abs().max():.1e}, "
          f"smaller ones {(gradients[name].abs() < gradients[name].flatten()[at].abs()).sum()}; PEFT f32 went {way(one)}, PEFT f64 {way(one64)}, "
          f"nibble {way(ours_one)}; PEFT f64 from PEFT f32 at most {100 * all64:.2f}% of a tensor", flush=True)


def gaps():
    for name, module in started().named_modules():
        if hasattr(module, "lora_A"):
            values = torch.linalg.svdvals(peft_options.load(BASE).get_submodule(name.removeprefix("base_model.model.")).weight.double())[:9]
            yield ((values[:-1] - values[1:]) / values[:-1]).min().item(), name.removeprefix("base_model.model.model.")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 8):
            folder = Path(work) / str(number)
            folder.mkdir()
            draw(number, folder)
    print("the closest of the nine largest singular values: %.2f%% apart, of %s" % ((lambda gap: (100 * gap[0], gap[1]))(min(gaps()))))
