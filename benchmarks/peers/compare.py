"""train_step and its peer in turn, row by row, on the same machine in the same run; prints a Markdown table.
  python3 -m venv V && V/bin/pip install -r tests/oracles/requirements.txt
  V/bin/python benchmarks/peers/compare.py build/release/bin/train_step MODELS [ROW NUMBERS]
The fastest step of each counts, since other work on the machine only ever adds time; the last column divides the medians of
all steps but each run's first. The rounds alternate ours and theirs."""
import json
import os
import re
import statistics
import subprocess
import sys

ROWS = [
    "shape=tinyllama-1.1b mode=qlora tokens=2048 steps=4",
    "shape=tinyllama-1.1b mode=qlora tokens=2048 prepared=1 steps=2",  # the peer as PEFT's page on quantization says
    "shape=tinyllama-1.1b mode=qlora tokens=2048 checkpointing=1 steps=1",
    "shape=tinyllama-1.1b mode=qlora tokens=2048 prepared=1 autocast=0 steps=1",  # that page trains without autocast
    "shape=tinyllama-1.1b mode=qlora tokens=2048 checkpointing=1 autocast=0 steps=1",
    "shape=tinyllama-1.1b mode=qlora tokens=2048 int8=1 steps=2",
    "shape=tinyllama-1.1b mode=qlora tokens=512 steps=2",
    "shape=tinyllama-1.1b mode=lora tokens=512 steps=2",
    "shape=smollm2-135m mode=lora tokens=2048 steps=2",
    "shape=smollm2-135m mode=qlora tokens=2048 steps=2",
    "shape=smollm2-135m mode=full tokens=2048 steps=2",
    "shape=qwen2.5-0.5b mode=full tokens=2048 steps=1",
    "shape=olmoe-7b:2 mode=lora tokens=2048 steps=1",  # 2 of its 16 layers
    "shape=olmoe-7b mode=lora tokens=2048 checkpointing=1 steps=1",
    # For CPUs with no more than AVX2: NIBBLE_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
    "shape=smollm2-135m mode=lora tokens=512 dtype=f32 steps=3",
    "shape=tinyllama-1.1b mode=qlora tokens=512 dtype=f32 steps=1",
    "shape=tinyllama-1.1b mode=qlora tokens=512 dtype=f32 int8=1 steps=1",
    "shape=tinyllama-1.1b mode=qlora tokens=2048 dtype=f32 int8=1 steps=1",
    # In 8 bits beside the peer as its pages set it up.
    "shape=tinyllama-1.1b mode=qlora tokens=2048 int8=1 prepared=1 steps=1",
    "shape=tinyllama-1.1b mode=qlora tokens=2048 int8=1 prepared=1 autocast=0 steps=1",
]
LABELS = {"int8=1": "int8", "prepared=1": "prepared", "checkpointing=1": "checkpointing", "autocast=0": "without autocast"}
ROUNDS = int(os.environ.get("ROUNDS", "2"))
GIB = 1 << 30


def ours(program, models, row):
    job = [part for part in row.split() if part not in ("prepared=1", "autocast=0")]
    run = subprocess.run([program, "row", *job, f"models={models}"], capture_output=True, text=True, check=True)
    cells = [cell.strip() for cell in run.stdout.strip().strip("|").split("|")]
    steps = [float(seconds) for seconds in re.findall(r"^step .*, ([0-9.]+) s$", run.stderr, re.MULTILINE)]
    return {"steps": steps[1:], "share": cells[6], "memory": float(cells[12].split()[0]) + float(cells[13].split()[0])}


def theirs(models, row):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_step.py")
    job = [part for part in row.split() if part != "int8=1"]
    run = subprocess.run([sys.executable, script, models, *job], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    result = json.loads(run.stdout.strip().splitlines()[-1])
    return {"steps": result["seconds"], "memory": result["memory"] / GIB}


def main():
    program, models = sys.argv[1], sys.argv[2]
    rows = [ROWS[int(n)] for n in sys.argv[3:]] or ROWS
    print("| job | nibble tok/s | of peak | memory | peer tok/s | memory | speed | memory | speed, medians |\n" + "|---" * 9 + "|")
    for row in rows:
        mine, peer = [], []
        for _ in range(ROUNDS):
            mine.append(ours(program, models, row))
            peer.append(theirs(models, row))
        a, b = (min(runs, key=lambda r: min(r["steps"])) for runs in (mine, peer))
        fastest, typical = ([how(sum((run["steps"] for run in runs), [])) for runs in (mine, peer)] for how in (min, statistics.median))
        tokens = int(dict(part.split("=") for part in row.split())["tokens"])
        label = " ".join(LABELS.get(part) or part.split("=")[1] for part in row.split()[:-1])
        print(f"| {label} | {tokens / fastest[0]:.1f} | {a['share']} | {a['memory']:.2f} GiB | {tokens / fastest[1]:.1f} | {b['memory']:.2f} GiB | "
              f"{fastest[1] / fastest[0]:.2f}x | {100 * a['memory'] / b['memory']:.0f}% | {typical[1] / typical[0]:.2f}x |", flush=True)


main()
