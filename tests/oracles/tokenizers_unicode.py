#!/usr/bin/env python3
"""Small tokenizers of kinds that the published ones in the assets do not have, with the ids and texts that Hugging Face's
tokenizers, tiktoken and sentencepiece give for random Unicode: python tokenizers_unicode.py OUT.json"""
import base64, json, pathlib, random, sys, tempfile

import sentencepiece
import tiktoken
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

RANDOM = random.Random(20261121)
BLOCKS = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA),
          (0x620, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0x1100, 0x1175), (0x2000, 0x206F), (0x2150, 0x218B),
          (0x3041, 0x30FF), (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0xFB00, 0xFB06), (0xFF01, 0xFF60), (0x1F600, 0x1F64F)]
WORDS = "the cat sat on a mat and didn't 12 3456 7.8 Don't stop! naïve café ﬁne ＡＢＣ Привет мир 日本語 テキスト 한국어 é ー".split()
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


def random_text():
    parts = []
    for _ in range(RANDOM.randint(1, 12)):
        if RANDOM.random() < 0.5:
            parts.append(RANDOM.choice(WORDS))
        else:
            low, high = RANDOM.choice(BLOCKS)
            parts.append("".join(chr(RANDOM.randint(low, high)) for _ in range(RANDOM.randint(1, 5))))
        parts.append(RANDOM.choice([" ", " ", "", "  ", "\n", "\t", "\r\n", "\u3000", "\u200d"]))
    return "".join(parts)


TEXTS = [random_text() for _ in range(60)]


def cases(encode, decode):
    return [{"text": t, "ids": encode(t), "decoded": decode(encode(t))} for t in TEXTS]


def hugging_face(tokenizer):
    return {"tokenizer": json.loads(tokenizer.to_str()),
            "cases": cases(lambda t: tokenizer.encode(t).ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))}


def trained(model, trainer, **parts):
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20 + TEXTS[:20], trainer)
    return tokenizer


def charsmap():
    """A precompiled table of a few rules, as sentencepiece compiles it."""
    with tempfile.TemporaryDirectory() as d:
        rules = {"ﬁ": "fi", "Ａ": "A", "Ｂ": "B", "Ｃ": "C", "é": "e", "e\u0301": "é", "\t": " ", "\n": " ", "\u3000": " ",
                 "ア": "a", "カ\u3099": "ガ", "한": "h", "\u200d": " "}
        lines = ["\t".join(" ".join(f"{ord(c):X}" for c in part) for part in pair) for pair in rules.items()]
        pathlib.Path(d, "rules.tsv").write_text("\n".join(lines) + "\n")
        pathlib.Path(d, "text.txt").write_text("\n".join([" ".join(WORDS)] * 20))
        sentencepiece.SentencePieceTrainer.train(
            input=f"{d}/text.txt", model_prefix=f"{d}/m", vocab_size=90, character_coverage=1.0, hard_vocab_limit=False,
            normalization_rule_tsv=f"{d}/rules.tsv", minloglevel=2)
        from sentencepiece import sentencepiece_model_pb2 as proto
        model = proto.ModelProto()
        model.ParseFromString(pathlib.Path(d, "m.model").read_bytes())
        return model.normalizer_spec.precompiled_charsmap


def rank_file():
    tokenizer = trained(models.BPE(), trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                          show_progress=False),
                        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    letters = {c: b for b, c in bytes_to_unicode().items()}
    merged = [bytes(letters[c] for c in token) for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda x: x[1])]
    ranks = {token: rank for rank, token in enumerate(sorted((t for t in merged if len(t) == 1)) + [t for t in merged if len(t) > 1])}
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    encoding = tiktoken.Encoding("small", pat_str=LLAMA3, mergeable_ranks=ranks,
                                 special_tokens={n: len(ranks) + k for k, n in enumerate(names)})
    file = "".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items())
    return {"file": file, "cases": cases(encoding.encode_ordinary, encoding.decode)}


def bytes_to_unicode():
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + k) for k, b in enumerate(rest)}}


def main(out):
    quiet = {"show_progress": False}
    precompiled = normalizers.Precompiled(charsmap())
    word_piece = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=220, special_tokens=["[UNK]"], **quiet),
                         normalizer=normalizers.BertNormalizer(), pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
                         decoder=decoders.WordPiece())
    unigram = trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>"], unk_token="<unk>", **quiet),
                      normalizer=normalizers.Sequence([precompiled, normalizers.Replace(" {2,}", " ")]),
                      pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())
    scripts = trained(models.WordLevel(unk_token="?"), trainers.WordLevelTrainer(vocab_size=150, special_tokens=["?"], **quiet),
                      pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.UnicodeScripts()]))
    ctc = trained(models.WordLevel(unk_token="<pad>"), trainers.WordLevelTrainer(vocab_size=100, special_tokens=["<pad>", "|"], **quiet),
                  normalizer=normalizers.Replace(" ", "|"),
                  pre_tokenizer=pre_tokenizers.Split("|", "isolated"), decoder=decoders.CTC())
    result = {"hugging_face": {name: hugging_face(t) for name, t in
                               {"word_piece": word_piece, "unigram_precompiled": unigram, "unicode_scripts": scripts, "ctc": ctc}.items()},
              "rank_file": rank_file()}
    json.dump(result, open(out, "w", encoding="utf-8"), ensure_ascii=True, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1])
