"""Holds K-quants against llama.cpp's own quantizer (ggml_quantize_chunk in the wheel xllamacpp) and the gguf package.

    python tests/oracles/gguf_blocks.py                                           writes tests/data/goldens/gguf_blocks.safetensors
    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_blocks.py MODEL_DIR (rows of multiples of 256 and of others)

The second: every tensor of an export as q4_k_m, q5_k_m and q6_k has the bytes that llama.cpp makes of the f32 export; an
import of it has the numbers that the gguf package reads.
"""
import ctypes, os, subprocess, sys, tempfile
from pathlib import Path
import gguf, numpy as np, xllamacpp
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

ggml = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]


def quantized(values, kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    values = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, values.shape[-1])
    made = np.zeros((len(values), values.shape[1] // elements * size), np.uint8)
    ggml.ggml_quantize_chunk(int(kind), values.ctypes.data, made.ctypes.data, 0, len(values), values.shape[1], None)
    return made


def rows():
    random = np.random.default_rng(7)
    x = random.standard_normal((8, 256)).astype(np.float32)
    x[1] *= np.repeat(np.exp(3 * random.standard_normal(8)), 32)    # groups of very different size
    x[2] = -np.abs(x[2]) - 1
    x[3][random.random(256) < 0.9] = 0
    x[4] = np.repeat(x[4][:8], 32)                                  # groups of one value
    x[5] = 0
    x[6] *= 1e-20
    x[7] = np.round(4 * x[7]) / 4                                   # ties
    return x


def write(path):
    x = rows()
    tensors = {"x": x}
    for kind in (Type.Q4_0, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.MXFP4):
        tensors[kind.name] = quantized(x, kind)
        if kind.name.endswith("_K") or kind == Type.MXFP4:
            tensors[kind.name + ".read"] = gguf.quants.dequantize(tensors[kind.name], kind)
    save_file(tensors, path)


def nibble(*arguments):
    subprocess.run([os.environ["NIBBLE"], *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def main(model):
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        def export(kind):
            nibble("export", "--model", model, "--type", kind, "--out", work / f"{kind}.gguf", "--no-tokenizer")
            return {t.name: t for t in gguf.GGUFReader(work / f"{kind}.gguf").tensors}
        plain = export("f32")
        for kind in ("q4_k_m", "q5_k_m", "q6_k"):
            found = export(kind)
            blocks = {name: t for name, t in found.items() if t.tensor_type not in (Type.F32, Type.F16)}
            same = sum(np.array_equal(np.asarray(t.data).reshape(-1).view(np.uint8),
                                      quantized(np.array(plain[name].data), Type(t.tensor_type)).reshape(-1)) for name, t in blocks.items())
            nibble("import", "--model", work / f"{kind}.gguf", "--dtype", "f32", "--out", work / kind)
            nibble("export", "--model", work / kind, "--type", "f32", "--out", work / "again.gguf", "--no-tokenizer", "--force")
            again = {t.name: t for t in gguf.GGUFReader(work / "again.gguf").tensors}
            read = sum(np.array_equal(np.array(again[name].data), gguf.quants.dequantize(np.array(t.data), Type(t.tensor_type))) for name, t in blocks.items())
            bad += same != len(blocks) or read != len(blocks)
            types = sorted({Type(t.tensor_type).name for t in blocks.values()})
            print(f"{'ok   ' if same == read == len(blocks) else 'FAIL '} {kind}: of {len(blocks)} matrices ({', '.join(types)}) "
                  f"{same} have llama.cpp's bytes, {read} are read as the gguf package reads them")
    return bad


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(1 if main(sys.argv[1]) else 0)
    write(Path(__file__).parents[1] / "data/goldens/gguf_blocks.safetensors")
