"""Losses on held-out text after training with model.compute_dtype f32, bf16 and int8, a few seeds each.

    python3 benchmarks/int8_losses.py [--seeds 3] job PROGRAM RECIPE [KEY=VALUE ...]
    python3 benchmarks/int8_losses.py [--seeds 3] outliers PROGRAM MODEL TEXT [--steps 100] [--factors 1 20 100]

job: a recipe with data.eval. outliers: LoRA on MODEL, a Llama directory of one model.safetensors in f32 or bf16, put
into NF4; factors: what one channel in sixteen of every block's inputs is multiplied by; the norms' weights take the
factor, the projections behind them its inverse, so that the model computes what it did (needs numpy). A row for each
dtype: the first step's loss, the loss on the held-out text at the end, its spread over the seeds (a seed draws adapter
and order, for outliers the held-out fifth too), and what it is above f32's with the same seed.
"""
import argparse, json, pathlib, shutil, statistics, subprocess, sys, tempfile


def read(path):
    import numpy
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


def train(program, recipe, overrides, out):
    """First loss in training and last loss on held-out text of a run of the recipe."""
    shutil.rmtree(out, ignore_errors=True)
    run = subprocess.run([program, "train", str(recipe), *overrides, f"output.dir={out}"], capture_output=True,
                         text=True)
    if run.returncode != 0:
        sys.exit(run.stderr[-2000:])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return (next(line["loss"] for line in lines if line["split"] == "train"),
            [line["loss"] for line in lines if line["split"] == "eval"][-1])


def compare(given, name, recipe, overrides, folder):
    exact = []
    for dtype in ("f32", "bf16", "int8"):
        runs = [train(given.program, recipe, [*overrides, f"model.compute_dtype={dtype}", f"train.seed={seed}"],
                      folder / "out") for seed in range(1, given.seeds + 1)]
        before, after = zip(*runs)
        exact = after if dtype == "f32" else exact
        above = " ".join(f"{mine - his:+.4f}" for mine, his in zip(after, exact))
        print(f"| {name} | {dtype} | {statistics.mean(before):.4f} | {statistics.mean(after):.4f} | "
              f"{max(after) - min(after):.4f} | {above} |", flush=True)


def with_outliers(given, folder):
    text = given.text.read_text()
    records = [text[at:at + 400] for at in range(0, len(text) - 400, 400)]
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": record}) + "\n" for record in records))
    for factor in given.outliers:
        model = folder / f"model-{factor:g}"
        plant(given.model, factor, model)
        recipe = {"model": {"path": str(model), "quantize": given.quantize},
                  "adapter": {"r": 8, "lora_alpha": 16},
                  "data": {"train": str(folder / "data.jsonl"), "eval_fraction": 0.2, "max_length": 256},
                  "train": {"steps": given.steps, "microbatch_size": 4, "eval_every": given.steps - 1},
                  "optimizer": {"lr": given.lr, "warmup_steps": 5}}
        (folder / "recipe.json").write_text(json.dumps(recipe))
        compare(given, f"{factor:g}", folder / "recipe.json", [], folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    forms = parser.add_subparsers(required=True)
    outliers = forms.add_parser("outliers")
    outliers.add_argument("program")
    outliers.add_argument("model", type=pathlib.Path)
    outliers.add_argument("text", type=pathlib.Path)
    outliers.add_argument("--steps", type=int, default=100)
    outliers.add_argument("--factors", dest="outliers", type=float, nargs="+", default=[1, 20, 100])
    outliers.add_argument("--quantize", default="nf4")
    outliers.add_argument("--lr", type=float, default=2e-3)
    outliers.set_defaults(run=with_outliers)
    job = forms.add_parser("job")
    job.add_argument("program")
    job.add_argument("recipe", type=pathlib.Path)
    job.add_argument("overrides", nargs="*")
    job.set_defaults(run=lambda given, folder: compare(given, given.recipe.stem, given.recipe, given.overrides, folder))
    given = parser.parse_args()
    print("| outliers or job | dtype | first step | held out | spread of seeds | above f32, each seed |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        given.run(given, pathlib.Path(folder))


main()
