"""Holds exported GGUF files against the gguf package: it reads them, and rounds the same weights to the same bytes.

    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_package.py MODEL_DIR      (a llama without 4-bit weights)
"""
import os, subprocess, sys, tempfile
from pathlib import Path
import gguf, numpy as np
from gguf import GGMLQuantizationType as Type


def export(model, kind, out):
    subprocess.run([os.environ["NIBBLE"], "export", "--model", model, "--format", "gguf", "--type", kind, "--out", out, "--no-tokenizer"],
                   check=True, stdout=subprocess.DEVNULL)
    return {t.name: t for t in gguf.GGUFReader(out).tensors}


def main(model):
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        plain = export(model, "f32", Path(work) / "f32.gguf")
        for kind in ("f16", "bf16", "q8_0", "q4_0"):
            same = total = 0
            for name, tensor in export(model, kind, Path(work) / f"{kind}.gguf").items():
                values = np.array(plain[name].data, dtype=np.float32)
                wanted = gguf.quants.quantize(values, Type(tensor.tensor_type))
                same += np.array_equal(np.asarray(tensor.data).view(np.uint8).reshape(-1), np.ascontiguousarray(wanted).view(np.uint8).reshape(-1))
                total += 1
            bad += same != total
            print(f"{'ok   ' if same == total else 'FAIL '} {kind}: {same} of {total} tensors have the same bytes")
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
