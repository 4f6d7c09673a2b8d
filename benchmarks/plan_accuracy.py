"""The plan against real runs: largest resident size and time of a step, for every way to train and several layouts.

    python3 benchmarks/plan_accuracy.py PROGRAM [--tokens 256] [--only PART] [--rows 3,7] [--threads N] [--repeat N]

Models with random weights and a byte-level tokenizer are made in a temporary directory; each row trains a few steps.
Memory does not depend on what else the machine does; times do, and are told only for comparison on an idle machine.
The time of a run is the median from the third step on: before that the system is still handing out memory, which a run
of any length pays for once. On a machine that is shared a step takes half as long again in one minute as in the next:
with --repeat the plan and the run take turns, and the medians are compared.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile

BASE = {"max_position_embeddings": 2048, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = BASE | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
                "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
SHAPES = {
    "smollm2-135m": LLAMA | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                             "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
                             "tie_word_embeddings": True},
    "tinyllama-4-layers": LLAMA | {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
                                   "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
                                   "tie_word_embeddings": False},
    "neox-70m": BASE | {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu",
                        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
                        "num_attention_heads": 8, "vocab_size": 50304, "rotary_pct": 0.25, "rotary_emb_base": 10000,
                        "layer_norm_eps": 1e-5, "use_parallel_residual": True, "tie_word_embeddings": False},
}
LORA = {"adapter": {"r": 16}}
# shape, mode, checkpointing, ranks, parallel
ROWS = [
    ("smollm2-135m", "lora", "none", 1, {}), ("smollm2-135m", "lora", "block", 1, {}),
    ("smollm2-135m", "qlora", "none", 1, {}), ("smollm2-135m", "full", "none", 1, {}),
    ("smollm2-135m", "full", "block", 1, {}), ("smollm2-135m", "pretrain", "none", 1, {}),
    ("tinyllama-4-layers", "lora", "none", 1, {}), ("tinyllama-4-layers", "qlora", "none", 1, {}),
    ("tinyllama-4-layers", "qlora", "block", 1, {}),
    ("neox-70m", "lora", "none", 1, {}), ("neox-70m", "full", "none", 1, {}),
    ("smollm2-135m", "lora", "none", 2, {"replicate": 2}), ("neox-70m", "full", "none", 2, {"replicate": 2}),
    ("neox-70m", "full", "none", 2, {"shard": 2, "zero": 1}), ("neox-70m", "full", "none", 2, {"shard": 2, "zero": 2}),
    ("neox-70m", "full", "none", 4, {"shard": 4}), ("neox-70m", "full", "none", 4, {"shard": 2, "replicate": 2}),
    ("smollm2-135m", "qlora", "none", 2, {"shard": 2}),
    ("neox-70m", "qlora", "none", 2, {"pipeline": 2, "schedule": "naive"}),
    ("neox-70m", "full", "none", 2, {"pipeline": 2, "schedule": "gpipe"}),
    ("neox-70m", "full", "none", 2, {"pipeline": 2}),
    ("neox-70m", "qlora", "none", 4, {"pipeline": 2, "shard": 2}),
    ("neox-70m", "full", "none", 2, {"tensor": 2}), ("neox-70m", "qlora", "none", 2, {"tensor": 2}),
    ("neox-70m", "full", "none", 4, {"tensor": 2, "shard": 2}),
    ("neox-70m", "full", "none", 4, {"pipeline": 2, "tensor": 2}),
    ("neox-70m", "qlora", "none", 4, {"pipeline": 2, "tensor": 2}),
    ("tinyllama-4-layers", "qlora", "none", 2, {"tensor": 2}),
    ("tinyllama-4-layers", "qlora", "none", 4, {"pipeline": 2, "tensor": 2}),
    ("smollm2-135m", "lora", "none", 1, {"offload_activations": True}),
    ("smollm2-135m", "lora", "block", 1, {"offload_activations": True}),
    ("neox-70m", "full", "none", 2, {"pipeline": 2, "schedule": "gpipe", "offload_activations": True}),
    ("smollm2-135m", "lora dpo", "none", 1, {}), ("smollm2-135m", "lora grpo", "none", 1, {}),
    ("smollm2-135m", "qlora grpo", "none", 1, {}), ("smollm2-135m", "lora ppo", "none", 1, {}),
    ("smollm2-135m", "lora distillation", "none", 1, {}), ("smollm2-135m", "lora distillation on-policy", "none", 1, {}),
    ("smollm2-135m", "lora grpo", "none", 2, {"replicate": 2}),
    ("smollm2-135m", "lora sft", "none", 1, {}),  # as many tokens as "lora dpo" has
    ("smollm2-135m", "lora grpo", "none", 2, {"pipeline": 2}), ("smollm2-135m", "qlora grpo", "none", 2, {"shard": 2}),
]


def write_data(path, tokens, vocabulary):
    draw = random.Random(1)
    with open(path, "w") as file:
        for _ in range(16):
            ids = [draw.randrange(3, vocabulary) for _ in range(tokens)]
            file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def add_objective(made, work, base, shape, objective, options):
    """Pairs of two long answers, or prompts of half the length to which answers of the other half are drawn."""
    draw = random.Random(1)
    half = options.tokens // 2
    ids = lambda count: [draw.randrange(3, SHAPES[shape]["vocab_size"]) for _ in range(count)]
    kind, _, on_policy = objective.partition(" ")
    data = work / f"{shape}-{kind}{on_policy}.jsonl"
    made["objective"] = {"type": kind}
    made["train"]["microbatch_size"] = 8 if kind == "sft" else 4
    if kind == "distillation":
        made["objective"]["teacher_model_name_or_path"] = str(base)
    if kind == "dpo":
        lines = [{"prompt_ids": ids(4), "chosen_ids": ids(options.tokens - 4), "rejected_ids": ids(options.tokens - 4)}
                 for _ in range(16)]
        made["data"] = {"train": str(data), "max_length": options.tokens}
    elif kind == "sft" or (kind == "distillation" and not on_policy):
        return
    else:
        lines = [{"prompt_ids": ids(half)} for _ in range(16)]
        made["rollout"] = {"completions": 4, "max_new_tokens": half}
        made["data"] = {"train": str(data), "max_length": options.tokens}
        made["train"]["accumulate"] = max(2, made["train"]["accumulate"])
        if kind != "distillation":
            made["rewards"] = [{"type": "length", "max_completion_len": 2 * half, "soft_punish_cache": half}]
        if kind == "grpo":
            made["objective"]["beta"] = 0.04
    with open(data, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def recipe_of(work, program, shape, mode, checkpointing, parallel, options):
    config = work / f"{shape}.json"
    config.write_text(json.dumps(SHAPES[shape]))
    data = work / f"{shape}.jsonl"
    if not data.exists():
        write_data(data, options.tokens, SHAPES[shape]["vocab_size"])
    ranks = 1
    for name in ("pipeline", "shard", "replicate", "tensor"):
        ranks *= parallel.get(name, 1)
    made = {"data": {"train": str(data), "format": "tokens", "pack": False, "max_length": options.tokens},
            "train": {"steps": options.steps, "save_every": 0, "accumulate": max(1, 2 * ranks if ranks > 1 else 1),
                      "gradient_checkpointing": checkpointing, "threads": options.threads or max(1, len(os.sched_getaffinity(0)) // ranks)},
            "output": {"dir": str(work / "out")}}
    if parallel:
        made["parallel"] = parallel
    if mode == "pretrain":
        made["model"] = {"init": str(config), "tokenizer": options.tokenizer}
        return made
    mode, _, objective = mode.partition(" ")
    dtype = "nf4" if mode == "qlora" else "bf16"
    base = work / f"{shape}-{dtype}"
    if not base.exists():
        subprocess.run([program, "init", "--config", config, "--out", base, "--dtype", dtype], check=True,
                       capture_output=True)
    made["model"] = {"path": str(base)}
    if objective:
        add_objective(made, work, base, shape, objective, options)
    return made | (LORA if mode in ("lora", "qlora") else {})


def planned_and_measured(work, options, recipe, ranks):
    """Bytes of each rank and seconds of a step, twice."""
    shutil.rmtree(work / "out", ignore_errors=True)
    os.sync()  # so that nothing of the last run is written to the disk while the plan's trial is timed
    plan = json.loads(subprocess.run([options.program, "plan", recipe, "--json"], check=True, capture_output=True,
                                     text=True).stdout)
    launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
    run = subprocess.Popen([options.program, *launch, "train", recipe], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    said = run.stderr.read()
    _, status, _ = os.wait4(run.pid, 0)
    if status != 0:
        raise SystemExit(said)
    lines = [json.loads(line) for line in open(work / "out" / "metrics.jsonl")]
    last = [line for line in lines if line["split"] == "train"][-1]
    steps = [line["seconds"] for line in lines if line["split"] == "train"]
    # A step's seconds begin when its answers are there; from one block to the next everything is in them.
    blocks = sorted((work / "out" / "rollouts").glob("step-*.jsonl"), key=lambda file: file.stat().st_mtime)
    if len(blocks) > 1:
        made = [(file.stat().st_mtime, int(file.stem.partition("-")[2])) for file in blocks]
        of_step = [(later - earlier) / (next_step - step) for (earlier, step), (later, next_step) in zip(made, made[1:])]
        steps = [steps[0], steps[1], *of_step]
    return (plan["ranks"], plan["step_seconds"], last.get("rank_peak_memory_bytes") or [last["peak_memory_bytes"]],
            statistics.median(steps[2:] or steps))


def row(work, options, shape, mode, checkpointing, ranks, parallel):
    made = recipe_of(work, options.program, shape, mode, checkpointing, parallel, options)
    recipe = work / "recipe.json"
    recipe.write_text(json.dumps(made))
    turns = [planned_and_measured(work, options, recipe, ranks) for _ in range(options.repeat)]
    planned, peaks = turns[-1][0], turns[-1][2]
    expected, seconds = (statistics.median(turn[at] for turn in turns) for at in (1, 3))
    errors = [p / m - 1 for p, m in zip(planned, peaks)]
    worst = max(errors, key=abs)
    layout = ", ".join(f"{k} {v}" for k, v in parallel.items()) or "one rank"
    print(f"| {shape} | {mode} | {checkpointing} | {layout} | {max(planned) / 2**20:.0f} | {max(peaks) / 2**20:.0f} "
          f"| {100 * worst:+.1f}% | {expected:.2f} | {seconds:.2f} | {100 * (expected / seconds - 1):+.0f}% |", flush=True)
    return abs(worst), abs(expected / seconds - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=0, help="of a rank; 0: the cores, shared out")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", default="", help="numbers of rows, from 0; all")
    parser.add_argument("--tokenizer", default="", help="for pretraining: a directory with a tokenizer")
    options = parser.parse_args()
    options.program = str(pathlib.Path(options.program).resolve())
    print("| shape | mode | recomputed | layout | planned MiB | measured MiB | worst rank | planned s | measured s | |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    numbers = [int(n) for n in options.rows.split(",") if n] or range(len(ROWS))
    wanted = [ROWS[n] for n in numbers if options.only in " ".join(map(str, ROWS[n]))
              and (ROWS[n][1] != "pretrain" or options.tokenizer)]
    with tempfile.TemporaryDirectory() as directory:
        errors = [row(pathlib.Path(directory), options, *what) for what in wanted]
    memory, time = zip(*errors)
    print(f"\nmemory: worst {100 * max(memory):.1f}%, {sum(e <= 0.1 for e in memory)} of {len(memory)} within 10%"
          f"\ntime: worst {100 * max(time):.0f}%, {sum(e <= 0.15 for e in time)} of {len(time)} within 15%")


if __name__ == "__main__":
    main()
