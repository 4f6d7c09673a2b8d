"""Runs nibble on cases of families.py and prints rows for "Families beside Transformers" of tests/RECORD.md: cases, the
largest difference of a logit, the largest relative difference of a gradient, how many greedy texts are equal; all with
and without the adapter.

    NIBBLE=build/release/bin/nibble python compare_families.py DIR
"""
import json, os, subprocess, sys, tempfile
from pathlib import Path

import numpy
from safetensors.numpy import load_file


def nibble(*arguments):
    done = subprocess.run([os.environ["NIBBLE"], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def relative(got, want):
    """Largest |got - want| / |want| of a tensor; one that is zero but for rounding counts against all gradients."""
    whole = numpy.sqrt(sum(float((w.astype("f8") ** 2).sum()) for w in want.values()))
    norm = lambda a: float(numpy.sqrt((a.astype("f8") ** 2).sum()))
    assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())[:3]
    return max(norm(got[n] - w) / max(norm(w), 1e-3 * whole) for n, w in want.items())


def compare(case, scratch):
    record = json.loads((case / "case.json").read_text())
    ids = numpy.load(case / "input_ids.npy")
    logits, gradients, texts = 0.0, 0.0, True
    for adapter, prefix in ((None, ""), (case / "lora", "lora_")):
        if adapter and not adapter.exists():
            continue
        model = ["--model", case / "model", *(["--adapter", adapter] if adapter else []), "--compute-dtype", "f32"]
        nibble("logits", *model, "--ids", case / "input_ids.npy", "--out", scratch / "l.npy")
        logits = max(logits, float(abs(numpy.load(scratch / "l.npy") - numpy.load(case / f"{prefix}logits.npy")).max()))
        nibble("gradients", *model, "--ids", case / "input_ids.npy", "--labels", case / "labels.npy", "--out", scratch / "g.safetensors")
        gradients = max(gradients, relative(load_file(scratch / "g.safetensors"), load_file(case / f"{prefix}grads.safetensors")))
        want = numpy.load(case / f"{prefix}greedy.npy").tolist()
        prompt = ",".join(map(str, ids[0, :record["prompt_tokens"]]))
        said = json.loads(nibble("generate", *model, "--ids", prompt, "--max-new-tokens", len(want), "--json"))
        texts = texts and said["ids"][-len(want):] == want
    return record["family"], logits, gradients, texts


def main(folder):
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in sorted(p.parent for p in folder.glob("*/case.json")):
            family, *found = compare(case, Path(scratch))
            rows.setdefault(family, []).append(found)
    for family, found in rows.items():
        logits, gradients, texts = zip(*found)
        print(f"| {family} | {len(found)} | {max(logits):.1e} | {max(gradients):.1e} | {sum(texts)} of {len(texts)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
