"""Exports against the files that llama.cpp's own converter makes of the same models: the same logits, bit for bit, in llama.cpp as it
is on pip. So what llama.cpp's table of GELU takes away, it takes away from its own files as well.

    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_converter.py SOURCE [--seed S]     (convert_hf_to_gguf.py is in SOURCE)

SOURCE: the folder `source` that llama_cpp_without_table.sh unpacks. The models are those of gguf_families.py; tokenizers are left out on
both sides. A row for each: whether `nibble import` of the converter's file has the weights of the model, the largest difference of a logit between
the two files, and of the export from Transformers.
"""
import argparse, json, multiprocessing, os, random, subprocess, sys, tempfile, warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import numpy as np, torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM

from families import randomize
from gguf_families import CASES, HYBRIDS, logits_of, same_weights
from gguf_llama_cpp import Model, ffi, lib, nibble, quiet

# The converter without its tokenizers, which random models do not have.
CONVERT = """
import sys
source, *words = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
import conversion
find = conversion.get_model_class
def without_vocabulary(*arguments, **more):
    found = find(*arguments, **more)
    def set_vocab(self):
        self._set_vocab_none()
        self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])
    found.set_vocab = set_vocab
    return found
conversion.get_model_class = without_vocabulary
import convert_hf_to_gguf
sys.argv = ["convert_hf_to_gguf.py", *words]
convert_hf_to_gguf.main()
"""


def as_published(kind, file):
    """What the converter looks for and Transformers 5 no longer writes."""
    config = json.loads(file.read_text())
    words = dict(full_attention="attention", linear_attention="mamba")
    if kind == "gpt2":
        config["n_ctx"] = config["n_positions"]
    if kind == "granitemoehybrid":
        config["layer_types"] = [words.get(t, t) for t in config["layer_types"]]
        config["num_experts_per_tok"] *= config["num_local_experts"] > 0
    if kind == "nemotron_h":
        kinds = dict(full_attention="*", attention="*", mlp="-", moe="E")
        config["hybrid_override_pattern"] = "".join(kinds.get(t, "M") for t in config["layers_block_type"])
        if "E" not in config["hybrid_override_pattern"]:
            del config["num_experts_per_tok"]
    if kind in ("deepseek_v3", "glm4_moe_lite"):
        config["scoring_func"] = "sigmoid"
    if "gemma" in kind:  # whose rows of the embedding are counted
        vocabulary = {str(i): i for i in range(config["vocab_size"])}
        (file.parent / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    file.write_text(json.dumps(config))


def case(name, kind, options, seed, source, work):
    draw = random.Random(f"{name}-{seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options, dtype="float32"), attn_implementation="eager").float().eval()
    randomize(model, draw.randrange(1 << 30))
    model.save_pretrained(work / "model")
    model = AutoModelForCausalLM.from_pretrained(work / "model", attn_implementation="eager", dtype=torch.float32).eval()
    ids = np.random.default_rng(draw.randrange(1 << 30)).integers(3, 96, 16).tolist()
    as_published(kind, work / "model/config.json")
    nibble("export", "--model", work / "model", "--no-tokenizer", "--format", "gguf", "--type", "f32", "--out", work / "ours.gguf")
    made = subprocess.run([sys.executable, "-c", CONVERT, source, work / "model", "--outtype", "f32", "--outfile", work / "theirs.gguf",
                           *(["--no-mtp"] if kind.startswith("qwen3_") else [])],
                          capture_output=True, text=True)
    ours = Model(work / "ours.gguf").logits(ids)
    from_transformers = float(abs(ours - logits_of(model, ids)).max())
    if not (work / "theirs.gguf").exists():
        print(f"| {name} | not converted: {made.stderr.strip().splitlines()[-1][:150]} | {from_transformers:.1e} |", flush=True)
        return None
    try:
        nibble("import", "--model", work / "theirs.gguf", "--out", work / "back")
        back = same_weights(work / "model", work / "back", kind)
    except SystemExit as error:
        back = str(error)[-150:]
    print(f"| {name} | {back} | ", end="", flush=True)  # llama.cpp may abort
    try:
        difference = float(abs(ours - Model(work / "theirs.gguf").logits(ids)).max())
    except AssertionError:
        print(f"llama.cpp does not load what its converter made | {from_transformers:.1e} |", flush=True)
        return None
    print(f"{difference:.1e} | {from_transformers:.1e} |", flush=True)
    return difference == 0 and back in ("same bits", "with multipliers")


def in_child(*arguments):
    """case(), None where llama.cpp aborts."""
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit({True: 0, False: 1, None: 2}[case(*arguments)]))
    child.start()
    child.join()
    return {0: True, 1: False}.get(child.exitcode)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--families", default="")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lib.llama_log_set(quiet, ffi.NULL)
    lib.llama_backend_init()
    held = []
    for name, (kind, config) in (CASES | HYBRIDS).items():
        if options.families and kind not in options.families.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            held.append(in_child(name, kind, config, options.seed, options.source, Path(folder)))
    print(f"{held.count(True)} of {len(held)} have the same bits and come back, {held.count(None)} have no such file")
    return 1 if False in held else 0


if __name__ == "__main__":
    sys.exit(main())
