"""Memory of a run by step on samples of varied lengths, beside the plan: flat, and within a tenth of it.

    python3 benchmarks/memory_by_step.py PROGRAM [--shape quickstart|smollm2-135m] [--steps 2000] [--mode full,lora,qlora]
                                         [--pack false,true] [--layout one,shard=2,pipeline=2] [--minutes M]

A model of random weights and samples of random tokens are made in a temporary directory: lengths from 16 to --tokens, one in
16 of the longest, which the plan counts for all; with --mostly-short they are a third of --tokens on average. Each row trains
STEPS steps of 4 microbatches (--accumulate) of one sequence, with 40 saves on the way.
Of several ranks a row has the one that is furthest off its plan. With --minutes a run is asked to end (SIGTERM, a checkpoint)
after so long and the row says how far it came.
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


def write_data(path, longest, vocabulary, mostly_short):
    draw = random.Random(1)
    with open(path, "w") as file:
        for i in range(2000):
            share = draw.random() ** (2 if mostly_short else 1)
            length = longest if i % 16 == 0 else 16 + round(share * (longest - 16))
            ids = [draw.randrange(3, vocabulary) for _ in range(length)]
            file.write(json.dumps({"input_ids": ids, "labels": [-100] * (len(ids) // 3) + ids[len(ids) // 3:]}) + "\n")


def resident_after(program, recipe, ranks, threads, seconds):
    """Resident bytes of every rank by step, as the kernel counts them (the peak so far)."""
    launch = ["launch", "-n", str(ranks), "--threads", str(threads), "--"] if ranks > 1 else []
    run = subprocess.Popen([program, *launch, "train", recipe], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = run.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGTERM)
        said = run.communicate()[1]
    if run.returncode not in (0, 75):
        raise SystemExit(said)
    lines = map(json.loads, (recipe.parent / "out/metrics.jsonl").read_text().splitlines())
    return {line["step"]: line.get("rank_peak_memory_bytes") or [line["peak_memory_bytes"]]
            for line in lines if line["split"] == "train"}


def row(work, options, mode, pack, layout):
    dtype, tuner = MODES[mode]
    degrees = {} if layout == "one" else {name: int(degree) for name, degree in [layout.split("=")]}
    ranks = max([1, *degrees.values()])
    base = work / f"base-{dtype}"
    if not base.exists():
        subprocess.run([options.program, "init", "--config", work / "config.json", "--out", base, "--dtype", dtype],
                       check=True, capture_output=True)
    shutil.rmtree(work / "out", ignore_errors=True)
    recipe = work / "recipe.json"
    recipe.write_text(json.dumps(tuner | {
        "model": {"path": str(base)},
        "data": {"train": str(work / "data.jsonl"), "format": "tokens", "pack": pack, "max_length": options.tokens},
        "train": {"steps": options.steps, "save_every": max(1, options.steps // 40), "accumulate": options.accumulate,
                  "threads": options.threads},
        "parallel": degrees,
        "output": {"dir": str(work / "out")}}))
    plans = json.loads(subprocess.run([options.program, "plan", recipe, "-n", str(ranks), "--json"], check=True,
                                      capture_output=True, text=True).stdout)["ranks"]
    if options.plan_only:
        print(f"{mode} {pack} {layout}: " + ", ".join(f"{plan / MIB:.1f}" for plan in plans), flush=True)
        return
    seen = resident_after(options.program, recipe, ranks, options.threads, options.minutes * 60 or None)
    last = max(seen)
    rank = max(range(ranks), key=lambda r: abs(seen[last][r] / plans[r] - 1))
    at = [1, 10, last // 4, last // 2, last]
    print(f"| {options.shape} | {mode} | {'packed' if pack else 'one sample'} | {'one rank' if ranks == 1 else layout} | {last} "
          f"| {plans[rank] / MIB:.1f} | " + ", ".join(f"{seen[max(1, min(step, last))][rank] / MIB:.1f}" for step in at)
          + f" | {100 * (seen[last][rank] / plans[rank] - 1):+.1f}% |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--shape", default="quickstart", choices=["quickstart", *SHAPES])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--mostly-short", action="store_true")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mode", default="full,lora,qlora")
    parser.add_argument("--pack", default="false,true")
    parser.add_argument("--layout", default="one")
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--minutes", type=float, default=0)
    options = parser.parse_args()
    options.program = str(pathlib.Path(options.program).resolve())
    print("| shape | mode | sequences | layout | steps | planned MiB | peak MiB after steps 1, 10, a quarter, half, all "
          "| last to plan |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        config = config_of(options.shape)
        (work / "config.json").write_text(json.dumps(config))
        write_data(work / "data.jsonl", options.tokens, config["vocab_size"], options.mostly_short)
        for mode in options.mode.split(","):
            for pack in options.pack.split(","):
                for layout in options.layout.split(","):
                    row(work, options, mode, pack == "true", layout)


if __name__ == "__main__":
    main()
