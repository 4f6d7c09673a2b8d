"""Preference training and reinforcement learning beside TRL on the CPU, each tool with its defaults (TRL: bf16, recomputation,
padding), LoRA, on the smollm2-135m or the tinyllama-1.1b shape with random weights; the two in turn.
  V/bin/pip install trl==1.16.0 datasets==5.2.0
  NIBBLE_TEST_ASSETS=DIR V/bin/python benchmarks/peers/trl_objectives.py build/release/bin/nibble MODEL dpo [PAIRS]
  NIBBLE_TEST_ASSETS=DIR V/bin/python benchmarks/peers/trl_objectives.py build/release/bin/nibble MODEL grpo [PROMPTS TOKENS]
MODEL: a 16-bit directory of such a shape. dpo: PAIRS (512) problems of GSM8K in steps of 8, each with its own answer and that of
the next problem. grpo: a step with PROMPTS (8) prompts x 8 completions of TOKENS (128) tokens, drawn by each tool itself. Ours is timed from the
start of the process to the saved adapter, TRL in train() alone: its imports and loading do not count. `ours` or `trl` as the
last argument runs one of them; int8 behind all: our products in 8 bits."""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

LORA = {"type": "lora", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
PEER = """
import json, resource, sys, time
from datasets import load_dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer
kind, model, data, out, prompts, tokens = sys.argv[1:]
common = dict(output_dir=out, report_to="none", save_strategy="no", use_cpu=True, seed=0)
peft = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
rows = load_dataset("json", data_files=data, split="train")
if kind == "dpo":
    trainer = DPOTrainer(model=model, args=DPOConfig(num_train_epochs=1, **common), train_dataset=rows, peft_config=peft)
else:
    digits = lambda completions, **_: [float(sum(c.isdigit() for c in text)) for text in completions]
    trainer = GRPOTrainer(model=model, reward_funcs=digits, train_dataset=rows, peft_config=peft, args=GRPOConfig(
        max_steps=1, per_device_train_batch_size=8, gradient_accumulation_steps=int(prompts), num_generations=8,
        max_completion_length=int(tokens), **common))
begin = time.perf_counter()
trainer.train()
print(json.dumps({"seconds": time.perf_counter() - begin, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def prepare(folder, model, count, prompts):
    from trl_job import ALPACA, put_model
    put_model(folder, model)
    assets = pathlib.Path(os.environ["NIBBLE_TEST_ASSETS"])
    rows = [json.loads(line) for line in (assets / "data-gsm8k/train.jsonl").open(encoding="utf-8")]
    rows = rows[:max(count + 1, prompts)]
    with (folder / "dpo.jsonl").open("w", encoding="utf-8") as out:
        for row, other in zip(rows[:count], rows[1:]):
            out.write(json.dumps({"prompt": ALPACA.format(row["question"]), "chosen": row["answer"],
                                  "rejected": other["answer"]}) + "\n")
    with (folder / "grpo.jsonl").open("w", encoding="utf-8") as out:
        for row in rows[:prompts]:
            out.write(json.dumps({"prompt": ALPACA.format(row["question"]), "answer": "1"}) + "\n")


def ours(program, folder, kind, prompts, tokens, arithmetic):
    recipe = {"model": {"path": str(folder / "model"), "compute_dtype": arithmetic}, "adapter": LORA, "objective": {"type": kind},
              "data": {"train": str(folder / f"{kind}.jsonl"), "max_length": 1024, "pack": False},
              "train": {"epochs": 1, "microbatch_size": 8, "accumulate": 1},
              "optimizer": {"lr": 1e-6, "schedule": "constant"}, "output": {"dir": str(folder / "ours")}}
    if kind == "grpo":
        recipe["train"] = {"steps": 1, "microbatch_size": 8, "accumulate": prompts}
        recipe["rollout"] = {"completions": 8, "max_new_tokens": tokens}
        # Four of five random answers have it: with equal rewards no token would have a gradient, and the head
        # none to compute, which TRL does either way.
        recipe["rewards"] = [{"type": "regex", "pattern": "q"}]
    (folder / "recipe.json").write_text(json.dumps(recipe))
    begin = time.perf_counter()
    run = subprocess.run([program, "train", str(folder / "recipe.json")], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout[-2000:] + run.stderr[-4000:])
    assert (folder / "ours/adapter/adapter_model.safetensors").exists()
    return time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def theirs(folder, kind, prompts, tokens):
    run = subprocess.run([sys.executable, "-c", PEER, kind, str(folder / "model"), str(folder / f"{kind}.jsonl"),
                          str(folder / "theirs"), str(prompts), str(tokens)], capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    if run.returncode != 0:
        sys.exit(run.stdout[-2000:] + run.stderr[-4000:])
    result = json.loads(run.stdout.strip().splitlines()[-1])
    return result["seconds"], result["memory"]


def main():
    program, model, kind, *rest = sys.argv[1:]
    arithmetic = rest.pop() if rest and rest[-1] in ("bf16", "int8") else "bf16"
    which = [rest.pop()] if rest and rest[-1] in ("ours", "trl") else ["ours", "trl"]
    count = int(rest[0]) if rest and kind == "dpo" else 512
    prompts, tokens = (int(rest[0]), int(rest[1])) if len(rest) == 2 else (8, 128)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(folder, model, count, prompts)
        for tool in which:
            found[tool] = (ours(program, folder, kind, prompts, tokens, arithmetic) if tool == "ours" else
                           theirs(folder, kind, prompts, tokens))
            print(f"{kind}, {count if kind == 'dpo' else f'{prompts} x 8 x {tokens}'}: {tool} {found[tool][0]:.1f} s, "
                  f"{found[tool][1] / 2**20:.2f} GiB", flush=True)
    if len(found) == 2:
        print(f"{found['trl'][0] / found['ours'][0]:.2f}x")


main()
