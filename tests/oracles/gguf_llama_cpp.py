"""Holds exported GGUF files against llama.cpp: the library inside the wheel xllamacpp, its functions as llama-cpp-py-sync declares them.

    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_llama_cpp.py MODEL_DIR [ADAPTER_DIR]

For f32: the same token ids for some texts, logits within 1e-3 of `nibble logits`, the same greedy ids. With an adapter: the merged
export and the exported adapter beside the exported base. For the other types: the largest difference is only told.
LLAMA_CPP_WITHOUT_TABLE=.../libllama.so (llama_cpp_without_table.sh builds it) takes that library instead of the wheel's.
"""
import json, os, subprocess, sys, tempfile
from pathlib import Path
import numpy as np
import xllamacpp
from llama_cpp_py_sync._cffi_bindings import get_ffi

ffi = get_ffi()
WITHOUT_TABLE = os.environ.get("LLAMA_CPP_WITHOUT_TABLE")
lib = ffi.dlopen(WITHOUT_TABLE or str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
NIBBLE = os.environ["NIBBLE"]
TEXTS = ["Once upon a time, there was a little girl.", " two  blanks\n\nand lines\t", "Zahlen 1234567 und Ümläute, 日本語 🙂", "don't we'll"]


@ffi.callback("void(enum ggml_log_level, const char *, void *)")
def quiet(level, text, data):
    if level == 4:
        sys.stderr.write(ffi.string(text).decode(errors="replace"))


def nibble(*arguments):
    done = subprocess.run([NIBBLE, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nibble {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


class Model:
    def __init__(self, path, lora=None):
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model != ffi.NULL, f"llama.cpp does not load {path}"
        self.vocab = lib.llama_model_get_vocab(self.model)
        context = lib.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_threads, context.n_threads_batch = 256, 256, 256, 1, 1
        context.type_k = context.type_v = 0     # f32 cache
        context.flash_attn_type = 0
        self.context = lib.llama_init_from_model(self.model, context)
        if lora:
            adapter = lib.llama_adapter_lora_init(self.model, str(lora).encode())
            assert adapter != ffi.NULL, f"llama.cpp does not load {lora}"
            lib.llama_set_adapters_lora(self.context, ffi.new("struct llama_adapter_lora *[]", [adapter]), 1, ffi.new("float[]", [1.0]))

    def tokenize(self, text, special=True):
        data = text.encode()
        out = ffi.new("llama_token[]", 8192)
        count = lib.llama_tokenize(self.vocab, data, len(data), out, 8192, special, True)
        return [out[i] for i in range(count)]

    def logits(self, ids):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        assert lib.llama_decode(self.context, batch) == 0
        width = lib.llama_vocab_n_tokens(self.vocab)
        made = np.array([np.frombuffer(ffi.buffer(lib.llama_get_logits_ith(self.context, i), 4 * width), np.float32) for i in range(len(ids))])
        lib.llama_batch_free(batch)
        return made

    def greedy(self, ids, count):
        ids = list(ids)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[-count:]


def expected(model, adapter, ids, work):
    np.save(work / "ids.npy", np.array([ids], dtype=np.int64))
    extra = ["--adapter", adapter] if adapter else []
    nibble("logits", "--model", model, *extra, "--compute-dtype", "f32", "--ids", work / "ids.npy", "--out", work / "logits.npy")
    greedy = json.loads(nibble("generate", "--model", model, *extra, "--compute-dtype", "f32", "--ids", ",".join(map(str, ids)),
                               "--max-new-tokens", 16, "--json"))["ids"]
    return np.load(work / "logits.npy")[0], greedy


def main(model, adapter=None):
    lib.llama_log_set(quiet, ffi.NULL)
    lib.llama_backend_init()
    has_tokenizer = any((Path(model) / f).exists() for f in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        ids = np.random.default_rng(3).integers(3, vocabulary, 24).tolist()
        cases = [("f32", None, None)] + [(t, None, None) for t in ("f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")]
        if adapter:
            cases += [("f32", adapter, None), ("f32", None, adapter)]
        for kind, merged, beside in cases:
            extra = ["--adapter", merged] if merged else []
            flags = [] if has_tokenizer else ["--no-tokenizer"]
            told = json.loads(nibble("export", "--model", model, *extra, *flags, "--format", "gguf", "--type", kind, "--out", work / "m.gguf", "--force", "--json"))
            if beside:
                nibble("export", "--model", model, "--adapter", beside, "--adapter-only", "--format", "gguf", "--out", work / "a.gguf", "--force")
            wanted, greedy = expected(model, merged or beside, ids, work)
            loaded = Model(work / "m.gguf", work / "a.gguf" if beside else None)
            difference = float(np.abs(loaded.logits(ids) - wanted).max())
            got = loaded.greedy(ids, 16)[: len(greedy)]
            label = f"{kind}{' merged' if merged else ''}{' lora' if beside else ''}"
            held = kind != "f32" or (difference < 1e-3 and got == greedy)
            bad += not held
            print(f"{'ok   ' if held else 'FAIL '} {Path(model).name} {label}: logits {difference:.1e}, greedy {'same' if got == greedy else 'differs'}")
            if has_tokenizer and kind == "f32" and not merged and not beside:
                for text in TEXTS:
                    a, b = loaded.tokenize(text), json.loads(nibble("tokenize", "--model", model, "--text", text, "--json"))["ids"]
                    left_out = "; ".join(told["llama_cpp_leaves_out"])  # gguf_tokens.py: whether that is all
                    bad += a != b and not left_out
                    print(f"{'ok   ' if a == b else 'told ' if left_out else 'FAIL '} tokens of {text!r}" + ("" if a == b else f": {a} instead of {b} {left_out}"))
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:3]) else 0)
