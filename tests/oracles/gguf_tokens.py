"""Token ids that llama.cpp makes with the vocabulary of `nibble export --format gguf`, against those of the original tokenizer.

    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_tokens.py ASSETS [--only gpt2,qwen2] [--show 3]

ASSETS holds oracle-tokenizers: vectors of tokenizers and sentencepiece, 647 texts for each of its tokenizers. A row for each: how many
texts have the same ids; what the export says that llama.cpp leaves out, which must explain all the others (the same ids when llama.cpp
gets the text as it is behind that step); or the words in which the export refuses the tokenizer. Last, tokenizers trained here with
published expressions.
"""
import argparse, gzip, json, re, shutil, sys, tempfile, unicodedata
from pathlib import Path
import numpy as np, sentencepiece, tokenizers
from safetensors.numpy import save_file

from gguf_llama_cpp import Model, ffi, lib, nibble, quiet

ROWS, WIDTH = 152064, 8  # as many as the largest of the vocabularies
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=ROWS, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1,
              num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD, ENDING, REST = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "trained, Llama 3's expression": ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST,
    "trained, GPT-4o's": f"{WORD}{UPPER}*{LOWER}+{ENDING}?|{WORD}{UPPER}+{LOWER}*{ENDING}?" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST,
    "trained, Tekken's": f"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST,
    "trained, BLOOM's": r" ?[^(\s|[.,!?…。，、।۔،])]+",
}


def trained(expression, texts):
    """A byte-level BPE of these texts."""
    pre = tokenizers.pre_tokenizers
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = pre.Sequence([pre.Split(tokenizers.Regex(expression), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = pre.ByteLevel.alphabet()
    made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False))
    return made


def write_model(folder):
    square = np.zeros((WIDTH, WIDTH), np.float32)
    tensors = {"model.embed_tokens.weight": np.zeros((ROWS, WIDTH), np.float32), "model.norm.weight": np.ones(WIDTH, np.float32)}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        tensors[f"model.layers.0.{name}.weight"] = square.copy()
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = np.ones(WIDTH, np.float32)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))


def excused(text, folder, left_out):
    """The text as it is after the step that llama.cpp leaves out; None where it cannot be told so."""
    if "marks and cases" in left_out:
        return None if any(unicodedata.category(c)[0] == "M" or (not c.isascii() and c.isupper()) for c in text) else text
    if "NFC" in left_out:
        return unicodedata.normalize("NFC", text)
    if "begins with a blank" in left_out:
        special = "|".join(re.escape(token["content"]) for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"])
        if re.search(f"(^|{special})[ \u2581]($|{special})", text):
            return None  # of what would be left, nothing, llama.cpp makes no token
        return re.sub(f"(^|{special})[ \u2581]", r"\1", text)
    if left_out:
        original = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        # llama.cpp puts the first blank there itself, which the original leaves out for a text of nothing else
        return original.normalize(text).replace("\u2581", " ").removeprefix(" ")
    return text


def compare(rows, loaded, folder, left_out, show):
    """Texts with the same ids, those with them behind the steps that are left out, all."""
    same = normal = 0
    for text, ids in rows:
        as_it_is, behind = loaded.tokenize(text), excused(text, folder, left_out)
        same += as_it_is == ids
        # a byte-level vocabulary with </s> in it: llama.cpp takes that for one token wherever it stands
        held = behind is None or loaded.tokenize(behind) == ids or ("</s>" in text and not (folder / "tokenizer.model").exists())
        normal += held
        if not held and show:
            show -= 1
            print(f"    {text!r}: {as_it_is} instead of {ids}")
    return same, normal, len(rows)


def texts_of(path):
    rows = [json.loads(line) for line in gzip.open(path, "rt")]
    return [(row["text"], row["ids_special"]) for row in rows if "text" in row and not row.get("control_in_text")]


def check(name, folder, rows, show):
    try:
        told = json.loads(nibble("export", "--model", folder, "--format", "gguf", "--type", "f32", "--out", folder / "m.gguf", "--json"))
    except SystemExit as refused:
        print(f"| {name} | {str(refused).split('tokenizer', 1)[-1].split(': ', 1)[1].split(';')[0]} |", flush=True)
        return True
    left_out = "; ".join(told["llama_cpp_leaves_out"])
    same, normal, count = compare(rows, Model(folder / "m.gguf"), folder, left_out, show)
    print(f"| {name} | {same} of {count} | {'' if normal == count else f'NOT EXPLAINED {count - normal}; '}{left_out and 'left out: ' + left_out} |", flush=True)
    return normal == count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("assets", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=0, help="so many texts that differ")
    options = parser.parse_args()
    lib.llama_log_set(quiet, ffi.NULL)
    lib.llama_backend_init()
    home, held = options.assets / "oracle-tokenizers", []
    for entry in json.loads((home / "tokenizers.json").read_text()):
        if options.only and entry["name"] not in options.only.split(","):
            continue
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory) / "model"
            folder.mkdir()
            write_model(folder)
            for name, path in entry["files"].items():
                shutil.copyfile(home / path if path.startswith("./") else options.assets / path, folder / name)
            held.append(check(entry["name"], folder, texts_of(home / entry["vectors"]), options.show))
    texts = [text for text, _ in texts_of(home / "gpt2.jsonl.gz")]
    for name, expression in EXPRESSIONS.items():
        if options.only and name not in options.only.split(","):
            continue
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            write_model(folder)
            original = trained(expression, texts)
            original.save(str(folder / "tokenizer.json"))
            held.append(check(name, folder, [(text, original.encode(text).ids) for text in texts], options.show))
    print(f"{sum(held)} of {len(held)} hold")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
