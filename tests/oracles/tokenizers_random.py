#!/usr/bin/env python3
"""Random Unicode through nibble and through Hugging Face's tokenizers, sentencepiece and tiktoken: published tokenizers, random
pipelines (model, normalizers, pre-tokenizers, post-processor, decoders, added tokens), random sentencepiece models and rank files.

    NIBBLE=build/release/bin/nibble python tests/oracles/tokenizers_random.py [--assets DIR] [--pipelines N] [--texts N] [--seed S]

A line for every tokenizer that differs, with the first text; the counts last; exit 0 when nothing differs.
"""
import argparse, base64, json, os, pathlib, random, subprocess, sys, tempfile

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizers_unicode import LLAMA3, bytes_to_unicode

BLOCKS = [(0x20, 0x7E)] * 6 + [(0xA0, 0x17F), (0x180, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F), (0x590, 0x5FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0xF00, 0xFFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
          (0x2070, 0x218B), (0x2460, 0x24FF), (0x2600, 0x27BF), (0x3000, 0x30FF), (0x31F0, 0x33FF), (0x4E00, 0x4F00), (0xAC00, 0xAD00),
          (0xF900, 0xFA6D), (0xFB00, 0xFDFF), (0xFE00, 0xFEFF), (0xFF01, 0xFFEF), (0x10000, 0x1018F), (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF),
          (0x1F900, 0x1F9FF), (0x20000, 0x20100), (0xE0000, 0xE01EF), (0x10FF00, 0x10FFFF), (1, 0xD7FF), (0xE000, 0x10FFFF)]
WORDS = ("the cat sat on a mat and didn't 12 3456 7.8 Don't stop! we're I'll He'S naïve café ﬁne ＡＢＣ Привет мир 日本語 テキスト 한국어 é ー "
         "x=y+z; def f(a, b): return a**b # 100% <s> </s> <|endoftext|> [UNK] [MASK] ... -- __init__ http://a.b/c?d=e&f 1,000,000 ½ ٣ ǅ İ ß ς").split()
GAPS = [" "] * 8 + ["", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u3000", "\u200d", "\u00a0", "\u2028", "\x00", "\x85", "\u2581"]


def random_text(r, extra=()):
    parts = []
    for _ in range(r.randint(0, 14)):
        pick = r.random()
        if pick < 0.45:
            parts.append(r.choice(WORDS))
        elif pick < 0.55 and extra:
            parts.append(r.choice(extra))
        else:
            low, high = r.choice(BLOCKS)
            parts.append("".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 6))))
        parts.append(r.choice(GAPS))
    return "".join(c for c in "".join(parts) if not 0xD800 <= ord(c) <= 0xDFFF)


# ---- random pipelines -------------------------------------------------------------------------------------------------------

PATTERNS = [r"\p{N}{1,3}", r"\s+(?!\S)|\s+", r"[^\s\p{L}\p{N}]+", r"(?i:'s|'t|'re)", r"\p{Lu}?\p{Ll}+|\p{N}|\s", r"'s|'t|'re|'ve| ?\p{L}+| ?\p{N}+",
            r"[\r\n]", r"\p{Han}+", r"(?<=\d)(?=(?:\d{3})+\b)", r"\w+|[^\w\s]+", r"\S+\s*"]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def normalizer(r, depth=0):
    n = normalizers
    kinds = [n.NFC, n.NFD, n.NFKC, n.NFKD, n.Lowercase, n.StripAccents, n.Nmt, lambda: n.Strip(r.random() < 0.5, r.random() < 0.5),
             lambda: n.Prepend(r.choice(["▁", "x", "_ "])), lambda: n.Replace(r.choice([" ", "a", "..", "\n"]), r.choice(["▁", "", "zz", " "])),
             lambda: n.Replace(Regex(r.choice([" {2,}", r"\s+", r"[aeiou]", r"\p{M}", r"(\d)\d"])), r.choice([" ", "", "#"])),
             lambda: n.BertNormalizer(clean_text=r.random() < 0.7, handle_chinese_chars=r.random() < 0.7,
                                      strip_accents=r.choice([None, True, False]), lowercase=r.random() < 0.5)]
    if depth == 0 and r.random() < 0.4:
        return n.Sequence([normalizer(r, 1) for _ in range(r.randint(1, 4))])
    return r.choice(kinds)()


def pre_tokenizer(r, depth=0):
    p = pre_tokenizers
    scheme = lambda: r.choice(["always", "never", "first"])
    kinds = [p.Whitespace, p.WhitespaceSplit, p.BertPreTokenizer, lambda: p.Punctuation(r.choice(BEHAVIORS)), lambda: p.Digits(r.random() < 0.5),
             lambda: p.CharDelimiterSplit(r.choice(" ae,")), p.UnicodeScripts, lambda: p.FixedLength(r.randint(1, 7)),
             lambda: p.ByteLevel(r.random() < 0.5, use_regex=r.random() < 0.6), lambda: p.Metaspace(r.choice("▁_"), scheme(), r.random() < 0.7),
             lambda: p.Split(Regex(r.choice(PATTERNS)), r.choice(BEHAVIORS), r.random() < 0.3),
             lambda: p.Split(r.choice([" ", "e", "▁"]), r.choice(BEHAVIORS), r.random() < 0.2)]
    if depth == 0 and r.random() < 0.5:
        return p.Sequence([pre_tokenizer(r, 1) for _ in range(r.randint(1, 3))])
    return r.choice(kinds)()


def decoder(r, depth=0):
    d = decoders
    kinds = [d.ByteLevel, d.ByteFallback, d.Fuse, lambda: d.WordPiece(r.choice(["##", "@"]), r.random() < 0.5), lambda: d.BPEDecoder(r.choice(["</w>", "@"])),
             lambda: d.Metaspace(r.choice("▁_"), r.choice(["always", "never", "first"])), lambda: d.Replace(r.choice(["▁", "e", "##"]), r.choice([" ", "E"])),
             lambda: d.Strip(r.choice(" ae"), r.randint(0, 2), r.randint(0, 2)), lambda: d.CTC(r.choice(["<pad>", "a"]), "|", r.random() < 0.5)]
    if depth == 0 and r.random() < 0.5:
        return d.Sequence([decoder(r, 1) for _ in range(r.randint(1, 4))])
    return r.choice(kinds)()


def model_and_trainer(r):
    specials = r.sample(["<unk>", "[UNK]", "<s>", "</s>", "<pad>", "[MASK]"], r.randint(1, 5))
    unk = r.choice(specials)
    size = r.choice([120, 300, 700])
    quiet = dict(vocab_size=size, special_tokens=specials, show_progress=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if r.random() < 0.5 else []
    kind = r.choice(["bpe", "bpe", "bpe", "unigram", "unigram", "wordpiece", "wordlevel"])
    if kind == "bpe":
        ends = r.random() < 0.2
        affixes = {**({"continuing_subword_prefix": "##"} if r.random() < 0.2 else {}), **({"end_of_word_suffix": "</w>"} if ends else {})}
        made = models.BPE(unk_token=r.choice([None, unk]), fuse_unk=r.random() < 0.5, byte_fallback=r.random() < 0.3,
                          ignore_merges=r.random() < 0.3, **affixes)
        return made, trainers.BpeTrainer(initial_alphabet=alphabet, **affixes, **quiet)
    if kind == "unigram":
        quiet["vocab_size"] += 3000  # it must hold every character
        return models.Unigram(byte_fallback=False), trainers.UnigramTrainer(unk_token=unk, initial_alphabet=alphabet, **quiet)
    if kind == "wordpiece":
        prefix = r.choice(["##", "@"])
        return (models.WordPiece(unk_token=unk, max_input_chars_per_word=r.choice([100, 8]), continuing_subword_prefix=prefix),
                trainers.WordPieceTrainer(initial_alphabet=alphabet, continuing_subword_prefix=prefix, **quiet))
    return models.WordLevel(unk_token=unk), trainers.WordLevelTrainer(**quiet)


def add_bytes(model):
    """The 256 tokens that byte fallback needs."""
    for byte in range(256):
        name = f"<0x{byte:02X}>"
        if isinstance(model["vocab"], dict):
            model["vocab"].setdefault(name, len(model["vocab"]))
        else:
            model["vocab"].append([name, -20.0])


def pipeline(r, corpus):
    model, trainer = model_and_trainer(r)
    tokenizer = Tokenizer(model)
    if r.random() < 0.7:
        tokenizer.normalizer = normalizer(r)
    if r.random() < 0.85:
        tokenizer.pre_tokenizer = pre_tokenizer(r)
    tokenizer.train_from_iterator(corpus, trainer)
    if r.random() < 0.8:
        tokenizer.decoder = decoder(r)
    for content in r.sample(["<|x|>", "foo", " bar", "cat", "é", "Ａ", "<mask>", "12", "日本", "a b", "  ", "\n"], r.randint(0, 5)):
        token = AddedToken(content, single_word=r.random() < 0.3, lstrip=r.random() < 0.3, rstrip=r.random() < 0.3,
                           normalized=r.random() < 0.5, special=r.random() < 0.5)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    first = tokenizer.id_to_token(0)
    post = r.random()
    if post < 0.3:
        tokenizer.post_processor = processors.TemplateProcessing(single=r.choice([f"{first} $A", f"$A {first}", f"{first} $A {first}"]),
                                                                 special_tokens=[(first, 0)])
    elif post < 0.5:
        kind = r.choice([processors.BertProcessing, processors.RobertaProcessing])
        tokenizer.post_processor = kind((first, 0), (tokenizer.id_to_token(1), 1))
    elif post < 0.6:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=r.random() < 0.5)
    if r.random() < 0.3:  # what only the file can say
        said = json.loads(tokenizer.to_str())
        if "byte_fallback" in said["model"] and r.random() < 0.5:
            add_bytes(said["model"])
        if said["model"]["type"] == "Unigram":
            said["model"]["byte_fallback"] = r.random() < 0.5
        tokenizer = Tokenizer.from_str(json.dumps(said))
    return tokenizer


# ---- comparison -------------------------------------------------------------------------------------------------------------

def nibble(directory, flags, rows):
    file = directory.parent / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run([os.environ["NIBBLE"], "tokenize", "--model", str(directory), "--jsonl", str(file), *flags],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def first_difference(what, asked, got, want):
    for a, g, w in zip(asked, got, want):
        if g != w:
            return f"{what} of {ascii(a)}: {ascii(g)} instead of {ascii(w)}"
    return None if len(got) == len(want) else f"{what}: {len(got)} answers instead of {len(want)}"


def compare_hugging_face(directory, tokenizer, texts, r):
    ids = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    whole = [e.ids for e in tokenizer.encode_batch(texts)]
    size = tokenizer.get_vocab_size()
    back = ids + [[r.randrange(size) for _ in range(r.randint(0, 12))] for _ in texts[: len(texts) // 2]]
    back = [[i for i in row if tokenizer.id_to_token(i) is not None] for row in back]
    return (first_difference("ids", texts, nibble(directory, ["--no-special"], texts), ids)
            or first_difference("ids with special tokens", texts, nibble(directory, [], texts), whole)
            or first_difference("text", back, nibble(directory, ["--decode"], back), [tokenizer.decode(b, skip_special_tokens=False) for b in back])
            or first_difference("text without special tokens", back, nibble(directory, ["--decode", "--skip-special"], back),
                                [tokenizer.decode(b, skip_special_tokens=True) for b in back]))


def compare_sentencepiece(directory, model, texts, r):
    controls = [model.id_to_piece(i) for i in range(model.vocab_size()) if model.is_control(i)]
    texts = [t for t in (t.replace("\x00", "") for t in texts) if not any(c in t for c in controls)]  # nibble reads those as tokens
    ids = [model.encode(t) for t in texts]
    back = ids + [[r.randrange(model.vocab_size()) for _ in range(r.randint(0, 12))] for _ in texts[: len(texts) // 2]]
    return (first_difference("ids", texts, nibble(directory, ["--no-special"], texts), ids)
            or first_difference("text", back, nibble(directory, ["--decode", "--skip-special"], back), [model.decode(b) for b in back]))


def sentencepiece_model(r, corpus, folder):
    (folder / "corpus.txt").write_text("\n".join(c.replace("\n", " ").replace("\x00", "") for c in corpus))
    kind = r.choice(["bpe", "unigram", "unigram", "char", "word"])
    options = dict(model_type=kind, vocab_size=r.choice([2500, 4000]), character_coverage=r.choice([0.98, 0.995]), hard_vocab_limit=False,
                   byte_fallback=r.random() < 0.5, add_dummy_prefix=r.random() < 0.7, remove_extra_whitespaces=r.random() < 0.6,
                   normalization_rule_name=r.choice(["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]),
                   split_digits=r.random() < 0.4, treat_whitespace_as_suffix=r.random() < 0.2, allow_whitespace_only_pieces=r.random() < 0.4,
                   split_by_unicode_script=r.random() < 0.6, split_by_whitespace=r.random() < 0.8)
    if r.random() < 0.5:
        options["user_defined_symbols"] = r.sample(["foo", "<x>", "cat", "日", "12", "  "], r.randint(1, 4))
    if r.random() < 0.4:
        options["control_symbols"] = ["<ctl>", "<sep>"]
    if r.random() < 0.3:
        options.update(pad_id=3)
    if kind in ("char", "word"):
        options.update(byte_fallback=False)
    sentencepiece.SentencePieceTrainer.train(input=str(folder / "corpus.txt"), model_prefix=str(folder / "m"), minloglevel=2, num_threads=1, **options)
    return options


def rank_file(r, directory):
    """Llama 3's form, trained on few letters so that a token can be put together in several ways."""
    letters = "".join(r.sample("abcdefgh ", r.randint(2, 4)))
    corpus = ["".join(r.choice(letters) for _ in range(200)) for _ in range(40)] + WORDS * 3
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=r.choice([300, 500, 900]), show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    bytes_of = {c: b for b, c in bytes_to_unicode().items()}
    tokens = [bytes(bytes_of[c] for c in t) for t, _ in sorted(made.get_vocab().items(), key=lambda x: x[1])]
    ranks = {t: k for k, t in enumerate(sorted(t for t in tokens if len(t) == 1) + [t for t in tokens if len(t) > 1])}
    (directory / "tokenizer.model").write_text("".join(f"{base64.b64encode(t).decode()} {k}\n" for t, k in ranks.items()))
    encoding = tiktoken.Encoding("small", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    return encoding, ["".join(r.choice(letters) for _ in range(r.randint(1, 60))) for _ in range(100)]


def compare_tiktoken(directory, encoding, texts):
    ids = [encoding.encode_ordinary(t) for t in texts]
    return (first_difference("ids", texts, nibble(directory, ["--no-special"], texts), ids)
            or first_difference("text", ids, nibble(directory, ["--decode"], ids), [encoding.decode(i) for i in ids]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--assets", type=pathlib.Path)
    parser.add_argument("--pipelines", type=int, default=40)
    parser.add_argument("--sentencepiece", type=int, default=10)
    parser.add_argument("--rank-files", type=int, default=10)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the tokenizers that differ")
    args = parser.parse_args()
    compared = differing = 0

    def report(name, compare, directory):
        nonlocal compared, differing
        try:
            said = compare()
        except BaseException as error:  # tokenizers panics
            said = f"{type(error).__name__}: {error}"
        compared += 1
        if said:
            differing += 1
            print(f"{name}: {said[:1500]}", flush=True)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                for file in directory.iterdir():
                    (args.keep / f"{name.replace('/', '-')}-{file.name}").write_bytes(file.read_bytes())

    if args.assets:
        for file in sorted(args.assets.glob("*/tokenizer.json")) + sorted(args.assets.glob("tok-*/*/tokenizer.json")):
            r = random.Random(args.seed)
            tokenizer = Tokenizer.from_file(str(file))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            extra = [t.content for t in tokenizer.get_added_tokens_decoder().values()][:40]
            texts = [random_text(r, extra) for _ in range(args.texts * 5)]
            with tempfile.TemporaryDirectory() as d:
                directory = pathlib.Path(d, "m")
                directory.mkdir()
                (directory / "tokenizer.json").write_bytes(file.read_bytes())
                report(file.parent.name, lambda: compare_hugging_face(directory, tokenizer, texts, r), directory)
        for file in sorted(args.assets.glob("**/*.model")):
            r = random.Random(args.seed)
            model = sentencepiece.SentencePieceProcessor(model_file=str(file))
            texts = [random_text(r) for _ in range(args.texts * 5)]
            with tempfile.TemporaryDirectory() as d:
                directory = pathlib.Path(d, "m")
                directory.mkdir()
                (directory / "tokenizer.model").write_bytes(file.read_bytes())
                report(f"{file.parent.name}/{file.name}", lambda: compare_sentencepiece(directory, model, texts, r), directory)
    for seed in range(args.seed, args.seed + args.pipelines):
        r = random.Random(f"pipeline-{seed}")
        corpus = [random_text(r) for _ in range(150)] + [" ".join(WORDS)] * 10
        try:
            tokenizer = pipeline(r, corpus)
            extra = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
            texts = [random_text(r, extra) for _ in range(args.texts)]
            tokenizer.encode_batch(texts)
            tokenizer.decode_batch([[k] for k in range(tokenizer.get_vocab_size())])
        except BaseException as error:  # a combination that tokenizers itself cannot train or run (it panics)
            print(f"pipeline-{seed}: not made: {str(error)[:80]}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as d:
            directory = pathlib.Path(d, "m")
            directory.mkdir()
            tokenizer.save(str(directory / "tokenizer.json"))
            report(f"pipeline-{seed}", lambda: compare_hugging_face(directory, tokenizer, texts, r), directory)
    for seed in range(args.seed, args.seed + args.sentencepiece):
        r = random.Random(f"sentencepiece-{seed}")
        corpus = [random_text(r) for _ in range(300)] + [" ".join(r.sample(WORDS, 30)) for _ in range(300)]
        with tempfile.TemporaryDirectory() as d:
            directory = pathlib.Path(d, "m")
            directory.mkdir()
            try:
                options = sentencepiece_model(r, corpus, pathlib.Path(d))
            except Exception as error:
                print(f"sentencepiece-{seed}: not made: {str(error)[:80]}", file=sys.stderr)
                continue
            (directory / "tokenizer.model").write_bytes(pathlib.Path(d, "m.model").read_bytes())
            model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
            texts = [random_text(r, options.get("user_defined_symbols", ())) for _ in range(args.texts)]
            report(f"sentencepiece-{seed}", lambda: compare_sentencepiece(directory, model, texts, r), directory)
    for seed in range(args.seed, args.seed + args.rank_files):
        r = random.Random(f"rank-file-{seed}")
        with tempfile.TemporaryDirectory() as d:
            directory = pathlib.Path(d, "m")
            directory.mkdir()
            encoding, own = rank_file(r, directory)
            texts = own + [random_text(r) for _ in range(args.texts)]
            report(f"rank-file-{seed}", lambda: compare_tiktoken(directory, encoding, texts), directory)
    print(f"{compared} tokenizers, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
