"""Memory of a run by step on samples of varied lengths, beside the plan: flat, and within a tenth of it.

    python3 benchmarks/memory_by_step.py PROGRAM [--shape quickstart|smollm2-135m] [--steps 2000] [--mode full,lora,qlora]
                                         [--pack false,true] [--minutes M]

A model of random weights and samples of random tokens are made in a temporary directory: lengths from 16 to --tokens, one in
16 of the longest, which the plan counts for all. Each row trains STEPS steps of 4 microbatches (--accumulate) of one sequence.
With --minutes a run is asked to end (SIGTERM, a checkpoint) after so long and the row says how far it came.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
from plan_accuracy import SHAPES

MODES = {"full": ("bf16", {}), "lora": ("bf16", {"adapter": {"r": 16}}), "qlora": ("nf4", {"adapter": {"r": 16}})}
MIB = 2**20


def config_of(shape):
    if shape == "quickstart":
        return json.loads((ROOT / "recipes/quickstart/config.json").read_text())
    return SHAPES[shape]


def write_data(path, longest, vocabulary):
    draw = random.Random(1)
    with open(path, "w") as file:
        for i in range(2000):
            ids = [draw.randrange(3, vocabulary) for _ in range(longest if i % 16 == 0 else draw.randint(16, longest))]
            file.write(json.dumps({"input_ids": ids, "labels": [-100] * (len(ids) // 3) + ids[len(ids) // 3:]}) + "\n")


def resident_after(program, recipe, seconds):
    """Resident bytes by step, as the kernel counts them (the peak so far), and the last step."""
    run = subprocess.Popen([program, "train", recipe], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = run.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGTERM)
        said = run.communicate()[1]
    if run.returncode not in (0, 75):
        raise SystemExit(said)
    lines = map(json.loads, (recipe.parent / "out/metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["peak_memory_bytes"] for line in lines if line["split"] == "train"}


def row(work, options, mode, pack):
    dtype, tuner = MODES[mode]
    base = work / f"base-{dtype}"
    if not base.exists():
        subprocess.run([options.program, "init", "--config", work / "config.json", "--out", base, "--dtype", dtype],
                       check=True, capture_output=True)
    shutil.rmtree(work / "out", ignore_errors=True)
    recipe = work / "recipe.json"
    recipe.write_text(json.dumps(tuner | {
        "model": {"path": str(base)},
        "data": {"train": str(work / "data.jsonl"), "format": "tokens", "pack": pack, "max_length": options.tokens},
        "train": {"steps": options.steps, "accumulate": options.accumulate, "threads": options.threads},
        "output": {"dir": str(work / "out")}}))
    plan = json.loads(subprocess.run([options.program, "plan", recipe, "--json"], check=True, capture_output=True,
                                     text=True).stdout)["peak_memory_bytes"]
    seen = resident_after(options.program, recipe, options.minutes * 60 or None)
    last = max(seen)
    at = [1, 10, last // 4, last // 2, last]
    print(f"| {options.shape} | {mode} | {'packed' if pack else 'one sample'} | {last} | {plan / MIB:.1f} | "
          + ", ".join(f"{seen[max(1, min(step, last))] / MIB:.1f}" for step in at)
          + f" | {100 * (seen[last] / plan - 1):+.1f}% |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--shape", default="quickstart", choices=["quickstart", *SHAPES])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mode", default="full,lora,qlora")
    parser.add_argument("--pack", default="false,true")
    parser.add_argument("--minutes", type=float, default=0)
    options = parser.parse_args()
    options.program = str(pathlib.Path(options.program).resolve())
    print("| shape | mode | sequences | steps | planned MiB | peak MiB after steps 1, 10, a quarter, half, all | last to plan |\n"
          "|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        config = config_of(options.shape)
        (work / "config.json").write_text(json.dumps(config))
        write_data(work / "data.jsonl", options.tokens, config["vocab_size"])
        for mode in options.mode.split(","):
            for pack in options.pack.split(","):
                row(work, options, mode, pack == "true")


if __name__ == "__main__":
    main()
