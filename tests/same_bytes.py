#!/usr/bin/env python3
"""Whether a change of the code changes any bit of what is trained.

  python3 tests/same_bytes.py build/release/bin/nibble       # a line for every file: its SHA-256, recipe and name
  python3 tests/same_bytes.py OLD/bin/nibble NEW/bin/nibble  # both beside each other; exit code 1 where they differ

Makes a tiny model of random weights and a few packed documents with each program, trains it for three steps in six
recipes (full; LoRA with dropout; QLoRA; DoRA; QLoRA on 2 tensor-parallel ranks; full on 2 pipeline stages of 2 shards),
each computing in f32 and in bf16, and hashes the adapters and models that are left, and the logits that they give for
40 tokens and for one. The model's sizes are chosen for the kernels' edges: rows with more than one scale and with a
part of one, grouped heads, biases, a vocabulary that is no multiple of a vector's width. It takes about five seconds a
program on a core.

The hashes hold for one machine and one NIBBLE_ISA (sums of other vector widths have another order). Run it under
NIBBLE_ISA=avx2 and baseline as well when kernels were touched.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 384,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "vocab_size": 330, "torch_dtype": "float32",
          "hidden_act": "silu", "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2}
LORA = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
RECIPES = {  # name: ranks and what the recipe says beside the rest
    "full": (1, {"model": {}}),
    "lora": (1, {"model": {}, "adapter": {**LORA, "lora_dropout": 0.1}}),
    "qlora": (1, {"model": {"quantize": "nf4", "block_size": 256}, "adapter": LORA}),
    "dora": (1, {"model": {}, "adapter": {**LORA, "use_dora": True}}),
    "tensor2": (2, {"model": {"quantize": "nf4"}, "adapter": LORA, "parallel": {"tensor": 2}}),
    "pipeline2-shard2": (4, {"model": {}, "parallel": {"pipeline": 2, "shard": 2}}),
}


def run(program, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # the ranks share the cores, and threads change no bit
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(map(str, words))}\n{done.stderr}")


def make_data(path):
    """Documents of 20 to 110 token ids."""
    state, lines = 1, []
    for document in range(24):
        ids = [1]
        while len(ids) < 20 + document * 37 % 91:
            state = state * 6364136223846793005 % 2**64 + 1442695040888963407 & 2**64 - 1
            ids.append(3 + (state >> 33) % 300)
        lines.append(json.dumps({"input_ids": ids, "labels": [-100] * 5 + ids[5:]}))
    path.write_text("\n".join(lines) + "\n")


def train(program, folder, name, dtype):
    """The files that one recipe leaves, by name."""
    ranks, parts = RECIPES[name]
    out = folder / f"{name}-{dtype}"
    recipe = {
        **parts,
        "model": {"path": str(folder / "model"), "compute_dtype": dtype, **parts["model"]},
        "data": {"train": str(folder / "data.jsonl"), "format": "tokens", "max_length": 120},
        "train": {"steps": 3, "microbatch_size": 2, "accumulate": 2},
        "optimizer": {"lr": 1e-2, "schedule": "constant"},
        "output": {"dir": str(out)},
    }
    file = folder / f"{name}-{dtype}.json"
    file.write_text(json.dumps(recipe))
    launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
    run(program, *launch, "train", file)

    made = "adapter" if "adapter" in parts else "model"
    model = ["--model", out / "model"]
    if made == "adapter":
        model = ["--model", folder / "model", "--adapter", out / "adapter"]
    if "quantize" in parts["model"]:
        model += ["--quantize", "nf4"]
    left = {path.name: path for path in sorted((out / made).glob("*.safetensors"))}
    for tokens in (40, 1):
        ids = ",".join(str(3 + i * 7 % 300) for i in range(tokens))
        logits = out / f"logits-{tokens}.npy"
        run(program, "logits", *model, "--ids", ids, "--compute-dtype", dtype, "--out", logits)
        left[logits.name] = logits
    return left


def hashes(program, folder):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run(program, "init", "--config", folder / "config.json", "--out", folder / "model", "--dtype", "f32", "--seed", 7)
    make_data(folder / "data.jsonl")
    return {f"{name} {dtype} {file}": hashlib.sha256(path.read_bytes()).hexdigest()[:32]
            for name in RECIPES for dtype in ("f32", "bf16")
            for file, path in train(program, folder, name, dtype).items()}


def main(programs):
    if len(programs) not in (1, 2):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="nibble-same-bytes-") as scratch:
        made = []
        for i, program in enumerate(programs):
            folder = pathlib.Path(scratch) / str(i)
            folder.mkdir()
            made.append(hashes(os.path.abspath(program), folder))
    names = sorted(set().union(*made), key=lambda name: list(made[0]).index(name) if name in made[0] else -1)
    different = [name for name in names if len({one.get(name) for one in made}) > 1]
    for name in names:
        columns = "  ".join(one.get(name, "missing".ljust(32)) for one in made)
        print(columns, name, "DIFFERS" if name in different else "", sep="  ")
    if len(programs) == 2:
        print(f"{len(names)} files, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
