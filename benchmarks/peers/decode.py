"""bin/decode and llama.cpp (Q4_0, the library inside the wheel xllamacpp) in turn on the same random weights, in one run:
  V/bin/python benchmarks/peers/decode.py build/release/bin MODELS [SHAPE] [TOKENS]
MODELS holds what bin/decode and bin/train_step make; the Q4_0 file is exported beside it once. The fastest token of each counts:
other work on the machine only ever adds time."""
import os
import subprocess
import sys
import time
from pathlib import Path

import xllamacpp
from llama_cpp_py_sync._cffi_bindings import get_ffi

ffi = get_ffi()
ROUNDS = int(os.environ.get("ROUNDS", "3"))


@ffi.callback("void(enum ggml_log_level, const char *, void *)")
def quiet(level, text, data):
    pass


def ours(programs, models, shape, tokens):
    run = subprocess.run([programs / "decode", f"shape={shape}", f"tokens={tokens}", f"models={models}"],
                         capture_output=True, text=True, check=True)
    cells = [cell.strip() for cell in run.stdout.strip().splitlines()[-1].strip("|").split("|")]
    return float(cells[3]), f"{cells[7]} of {cells[6]} GB/s"


def exported(programs, models, shape):
    file = models / f"{shape}-q4_0.gguf"
    if not file.exists():
        subprocess.run([programs / "nibble", "export", "--model", models / f"{shape}-nf4", "--type", "q4_0", "--no-tokenizer",
                        "--out", file], check=True)
    return file


class Peer:
    def __init__(self, file, threads):
        self.lib = ffi.dlopen(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
        self.lib.llama_log_set(quiet, ffi.NULL)
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(str(file).encode(), params)
        assert self.model != ffi.NULL, f"llama.cpp does not load {file}"
        context = self.lib.llama_context_default_params()
        context.n_ctx, context.n_threads, context.n_threads_batch = 512, threads, threads
        self.context = self.lib.llama_init_from_model(self.model, context)

    def fastest(self, tokens):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        batch = self.lib.llama_batch_init(1, 0, 1)
        times = []
        for position in range(tokens):
            batch.n_tokens = 1
            batch.token[0], batch.pos[0], batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1 + position, position, 1, 0, 1
            begin = time.perf_counter()
            assert self.lib.llama_decode(self.context, batch) == 0
            self.lib.llama_synchronize(self.context)
            times.append(time.perf_counter() - begin)
        self.lib.llama_batch_free(batch)
        return 1 / min(times[1:])


def main():
    programs, models = Path(sys.argv[1]), Path(sys.argv[2])
    shape = sys.argv[3] if len(sys.argv) > 3 else "llama2-7b"
    tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 24
    file = exported(programs, models, shape)
    mine, theirs = [], []
    for _ in range(ROUNDS):
        mine.append(ours(programs, models, shape, tokens))
        peer = Peer(file, len(os.sched_getaffinity(0)))
        theirs.append(peer.fastest(tokens))
        peer.lib.llama_free(peer.context)
        peer.lib.llama_model_free(peer.model)
    best, peer = max(mine), max(theirs)
    print("| shape | nibble NF4 tok/s | of read bandwidth | llama.cpp Q4_0 tok/s | ratio |\n|---|---|---|---|---|")
    print(f"| {shape} | {best[0]:.2f} | {best[1]} | {peer:.2f} | {best[0] / peer:.2f}x |")


main()
