"""Losses on held-out text after training with model.compute_dtype f32, bf16 and int8, a few seeds each.

    python3 benchmarks/int8_losses.py PROGRAM MODEL TEXT [--seeds 3] [--steps 100] [--outliers 1 20 100] [--quantize nf4]

MODEL: a Llama directory of one model.safetensors in f32 or bf16. outliers: what one channel in sixteen of every block's
inputs is multiplied by; the norms' weights take the factor, the projections behind them its inverse, so that the model
computes what it did. Needs numpy. A row for each factor and dtype: the first step's loss, the loss on the held-out
fifth at the end, its spread over the seeds (a seed draws adapter, order and fifth), and what it is above f32's with the
same seed.
"""
import argparse, json, pathlib, shutil, statistics, subprocess, tempfile

import numpy


def read(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        if entry["dtype"] == "BF16":
            values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            assert entry["dtype"] == "F32", entry["dtype"]
            values = numpy.frombuffer(raw, "<f4")
        tensors[name] = values.reshape(entry["shape"]).copy()
    return tensors


def write(path, tensors):
    header, blobs, at = {}, [], 0
    for name, values in tensors.items():
        blobs.append(values.astype("<f4").tobytes())
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def plant(model, factor, to):
    shutil.copytree(model, to, copy_function=shutil.copyfile)
    to.chmod(0o755)
    tensors = read(model / "model.safetensors")
    behind = {"input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
              "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"]}
    for name in [name for name in tensors if name.split(".")[-2] in behind]:
        prefix, norm = name.rsplit(".", 2)[:2]
        tensors[name][::16] *= factor
        for module in behind[norm]:
            tensors[f"{prefix}.{module}.weight"][:, ::16] /= factor
    write(to / "model.safetensors", tensors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--outliers", type=float, nargs="+", default=[1, 20, 100])
    parser.add_argument("--quantize", default="nf4")
    parser.add_argument("--lr", type=float, default=2e-3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = given.text.read_text()
        records = [text[at:at + 400] for at in range(0, len(text) - 400, 400)]
        (folder / "data.jsonl").write_text("".join(json.dumps({"text": record}) + "\n" for record in records))
        print(f"{len(records)} records, {given.steps} steps, base {given.quantize}")
        print("| outliers | dtype | first step | held out | spread of seeds | above f32, each seed |\n|---|---|---|---|---|---|")
        for factor in given.outliers:
            model = folder / f"model-{factor:g}"
            plant(given.model, factor, model)
            exact = []
            for dtype in ("f32", "bf16", "int8"):
                before, after = [], []
                for seed in range(1, given.seeds + 1):
                    out = folder / "out"
                    shutil.rmtree(out, ignore_errors=True)
                    recipe = {"model": {"path": str(model), "quantize": given.quantize, "compute_dtype": dtype},
                              "adapter": {"r": 8, "lora_alpha": 16},
                              "data": {"train": str(folder / "data.jsonl"), "eval_fraction": 0.2, "max_length": 256},
                              "train": {"steps": given.steps, "microbatch_size": 4, "eval_every": given.steps - 1, "seed": seed},
                              "optimizer": {"lr": given.lr, "warmup_steps": 5}, "output": {"dir": str(out)}}
                    (folder / "recipe.json").write_text(json.dumps(recipe))
                    subprocess.run([given.program, "train", str(folder / "recipe.json")], check=True, capture_output=True)
                    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
                    before.append(next(line["loss"] for line in lines if line["split"] == "train"))
                    after.append([line["loss"] for line in lines if line["split"] == "eval"][-1])
                exact = after if dtype == "f32" else exact
                above = " ".join(f"{mine - his:+.4f}" for mine, his in zip(after, exact))
                print(f"| {factor:g} | {dtype} | {statistics.mean(before):.4f} | {statistics.mean(after):.4f} | "
                      f"{max(after) - min(after):.4f} | {above} |", flush=True)


main()
