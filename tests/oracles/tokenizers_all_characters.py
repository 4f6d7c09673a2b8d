#!/usr/bin/env python3
"""Every code point (but surrogates), alone and between a few others, through each kind of pre-tokenizer and normalizer of Hugging Face's
tokenizers, and through nibble: NIBBLE=build/release/bin/nibble python tokenizers_all_characters.py [--only NAME ...] [--planes 0,1]

The model behind them writes a token for every byte, another one for the first of a piece, so that ids tell pieces and bytes. A line for every
kind: how many code points differ, and which; exit 0 when none does.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
SMALL = {f"split {p}": p for p in (r"\p{Lu}?\p{Ll}+", r"\p{Lt}|\p{Lm}+|\p{Lo}{2}", r"\p{M}+", r"\p{Nd}|\p{Nl}+|\p{No}", r"\p{P}+", r"\p{Sc}|\p{Sk}|\p{Sm}|\p{So}+", r"\p{Z}|\p{C}+",
                                   r"\w+", r"\s+|\d", r"[[:alpha:]]+|[[:punct:]]", r"\p{Han}+|\p{Hiragana}|\p{Katakana}", r"\p{Latin}+|\p{Cyrillic}|\p{Greek}|\p{Arabic}", r"\b")}


def split(pattern, behavior="isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior)


def kinds():
    p, n = pre_tokenizers, normalizers
    made = {"ByteLevel": p.ByteLevel(add_prefix_space=False), "ByteLevel with prefix": p.ByteLevel(add_prefix_space=True), "Llama 3": split(LLAMA3), "o200k": split(O200K),
            "DeepSeek": p.Sequence([split(x) for x in DEEPSEEK]), "Qwen 2": split(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")), "Whitespace": p.Whitespace(),
            "WhitespaceSplit": p.WhitespaceSplit(), "Bert": p.BertPreTokenizer(), "Punctuation": p.Punctuation(), "Digits": p.Digits(True), "Metaspace": p.Metaspace(),
            "UnicodeScripts": p.UnicodeScripts(), **{name: split(x) for name, x in SMALL.items()}}
    steps = {"Lowercase": n.Lowercase(), "NFC": n.NFC(), "NFD": n.NFD(), "NFKC": n.NFKC(), "NFKD": n.NFKD(), "StripAccents": n.StripAccents(), "NFD, StripAccents": n.Sequence([n.NFD(), n.StripAccents()]),
             "BertNormalizer": n.BertNormalizer(), "BertNormalizer, cased": n.BertNormalizer(lowercase=False), "Nmt": n.Nmt(), "Strip": n.Strip(),
             "Replace \\s": n.Replace(Regex(r"\s+"), " ")}
    return {**{k: (None, v) for k, v in made.items()}, **{k: (v, None) for k, v in steps.items()}}


def tokenizer_of(normalizer, pre_tokenizer):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {x: k for k, x in enumerate(letters + ["##" + x for x in letters])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], continuing_subword_prefix="##"))
    if normalizer:
        made.normalizer = normalizer
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, bytes_of]) if pre_tokenizer else bytes_of
    return made


def nibble(directory, texts):
    rows = directory / "rows.jsonl"
    rows.write_text("".join(json.dumps(t) + "\n" for t in texts))
    done = subprocess.run([os.environ["NIBBLE"], "tokenize", "--model", str(directory), "--jsonl", str(rows), "--no-special"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def in_context(c):
    return f"{c} a{c}b{c}1 {c}.{c}{c}\n"


def differing(directory, tokenizer, points):
    texts = ["".join(in_context(chr(c)) for c in points[k:k + 256]) for k in range(0, len(points), 256)]
    alone = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    bad = [k for k, (got, want) in enumerate(zip(nibble(directory, texts), alone)) if got != want]
    suspects = [c for k in bad for c in points[256 * k:256 * k + 256]]
    texts = [t for c in suspects for t in (chr(c), in_context(chr(c)))]
    wants = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    gots = nibble(directory, texts) if texts else []
    return [c for k, c in enumerate(suspects) if gots[2 * k:2 * k + 2] != wants[2 * k:2 * k + 2]], len(bad)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--planes", default=",".join(map(str, range(17))))
    args = parser.parse_args()
    planes = set(map(int, args.planes.split(",")))
    all_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c >> 16 in planes]
    wrong = 0
    for name, (normalizer, pre_tokenizer) in kinds().items():
        if args.only and name not in args.only:
            continue
        tokenizer = tokenizer_of(normalizer, pre_tokenizer)
        found, lines = [], 0
        with tempfile.TemporaryDirectory() as d:
            tokenizer.save(f"{d}/tokenizer.json")
            for k in range(0, len(all_points), 1 << 16):
                more, bad = differing(pathlib.Path(d), tokenizer, all_points[k:k + (1 << 16)])
                found += more
                lines += bad
        wrong += bool(found or lines)
        print(f"{name}: {len(found)} of {len(all_points)} differ" + (f" ({lines} lines)" if lines else "") + (": " + " ".join(f"{c:X}" for c in found[:40]) if found else ""), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
