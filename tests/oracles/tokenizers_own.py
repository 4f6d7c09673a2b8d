"""Tokenizers trained on our own text, and ids of strings that are hard to cut: tests/data/tokenizers.

    python tokenizers_own.py DATA

lines.txt: 1000 lines of text. gpt2: byte-level BPE as tokenizer.json and as GGUF; qwen2: the same kind as vocab.json and merges.txt;
spm-bpe: sentencepiece's BPE with bytes as tokenizer.model, as tokenizer.json with the merges that follow from the pieces, and as GGUF;
spm-unigram-en.model, spm-unigram-ja.model: its Unigram with its own normalization. NAME.jsonl has a line {"text", "ids"} for each
string, ids without special tokens: of gpt2 by tokenizers, of qwen2 by Transformers, of spm-bpe by sentencepiece.
"""
import io, json, random, shutil, sys
from pathlib import Path

import gguf, sentencepiece, transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import texts
from tokenizers_random import random_text

END = "<|endoftext|>"
HARD = ["ied 4 ½ months", "Führer", "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", "Hello world", " Hello world", " Hello World!",
        "Hello, world!", " this is 🦙.cpp", "w048 7tuijk dsdfhu", "нещо на Български", "កាន់តែពិសេស", "🚀 (normal) 😶‍🌫️ (several) ✅",
        "    Hello\n    Hello", " (", "\n =", "' era", "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～", "!!!!!!", "3", "33", "333",
        "3333333", "Cửa Việt", " discards", "I'll, we've, DON'T, it's", "a\u0301 e\u0301", "x=1;\n\tif (x) {\r\n\t\treturn;\n\t}\n", "...---___===",
        "ＡＢＣ ｱｲｳ", "٣٤٥", "naïve café", "The harbour, the lighthouse; the island."]
JAPANESE = ["港に船が着いた。", "猫は静かに眠っている。", "「こんにちは」と彼女は言った。", "明日は雨が降るでしょう。", "灯台の光が海を照らす。"]


def lines():
    r = random.Random(5)
    made = []
    for seed in range(400):
        story = texts.stories(seed, 1, r.choice(sorted(texts.WORLDS)))[0]
        made += texts.with_new_words(r, story, 0.15).split("\n")
    made = [line for line in made if line][:900]
    made += [f"Hello world, hello {r.choice(['underworld', 'otherworld'])} of {r.choice('abcdef')}world number {i}!" for i in range(60)]
    made += ["".join(r.sample(JAPANESE, 2)) for _ in range(40)]
    r.shuffle(made)
    return made


def vectors(path, encode, allowed=lambda text: True):
    r = random.Random(9)
    with open(path, "w") as file:
        for text in HARD + [random_text(r) for _ in range(80)]:
            if allowed(text) and "\0" not in text:
                file.write(json.dumps(dict(text=text, ids=encode(text)), ensure_ascii=False) + "\n")


def train_bytes(lines, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def write_gpt2(out, lines):
    folder = out / "gpt2"
    folder.mkdir()
    tokenizer = train_bytes(lines, 1200)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", dict(tokenizer_class="GPT2Tokenizer", bos_token=END, eos_token=END, unk_token=END))
    model = json.loads(tokenizer.to_str())["model"]
    ids = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(out / "gpt2.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(ids)
    writer.add_token_types([int(gguf.TokenType.CONTROL if token == END else gguf.TokenType.NORMAL) for token in ids])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(model["vocab"][END])
    writer.add_eos_token_id(model["vocab"][END])
    finish(writer)
    vectors(out / "gpt2.jsonl", lambda text: tokenizer.encode(text, add_special_tokens=False).ids, lambda text: END not in text)


def write_qwen2(out, lines):
    folder = out / "qwen2"
    folder.mkdir()
    model = json.loads(train_bytes(lines, 900).to_str())["model"]
    vocabulary = {token: i for i, token in enumerate(t for t in sorted(model["vocab"], key=model["vocab"].get) if t != END)}
    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
    added = {str(len(vocabulary) + i): dict(content=token, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
             for i, token in enumerate([END, "<|im_start|>", "<|im_end|>"])}
    write_json(folder / "tokenizer_config.json", dict(
        tokenizer_class="Qwen2Tokenizer", add_prefix_space=False, added_tokens_decoder=added, bos_token=None, eos_token=END, pad_token=END,
        unk_token=None, errors="replace", split_special_tokens=False, clean_up_tokenization_spaces=False))
    write_json(folder / "config.json", dict(model_type="qwen2", eos_token_id=len(vocabulary)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == len(vocabulary) + 3
    vectors(out / "qwen2.jsonl", lambda text: tokenizer.encode(text, add_special_tokens=False), lambda text: "<|" not in text)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train_pieces(path, lines, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2,
                                             character_coverage=1.0, **options)
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(str(path))


def write_spm_bpe(out, lines):
    folder = out / "spm-bpe"
    folder.mkdir()
    pieces = train_pieces(folder / "tokenizer.model", lines, model_type="bpe", vocab_size=1500, byte_fallback=True, split_digits=True,
                          normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True)
    vocabulary = {pieces.id_to_piece(i): i for i in range(len(pieces))}
    merges = [(left, right) for piece, _ in sorted(vocabulary.items(), key=lambda item: item[1]) if not piece.startswith("<")
              for left, right in sorted(((piece[:i], piece[i:]) for i in range(1, len(piece))), key=lambda p: [vocabulary.get(x, 0) for x in p])
              if left in vocabulary and right in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(out / "spm-bpe.tokenizer.json"))
    kind = lambda i: (gguf.TokenType.UNKNOWN if pieces.is_unknown(i) else gguf.TokenType.CONTROL if pieces.is_control(i) else
                      gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL)
    writer = gguf.GGUFWriter(out / "spm-bpe.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(vocabulary))
    writer.add_token_scores([pieces.get_score(i) for i in range(len(pieces))])
    writer.add_token_types([int(kind(i)) for i in range(len(pieces))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    finish(writer)
    plain = lambda text: "<" not in text and "▁" not in text
    vectors(out / "spm-bpe.jsonl", pieces.encode, plain)
    different = [text for text in HARD if text and plain(text) and tokenizer.encode(text, add_special_tokens=False).ids != pieces.encode(text)]
    assert not different, different


if __name__ == "__main__":
    out = Path(sys.argv[1]) / "tokenizers"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    text = lines()
    (out / "lines.txt").write_text("\n".join(text) + "\n")
    write_gpt2(out, text)
    write_qwen2(out, text)
    write_spm_bpe(out, text)
    train_pieces(out / "spm-unigram-en.model", text, model_type="unigram", vocab_size=1000)
    train_pieces(out / "spm-unigram-ja.model", text + JAPANESE * 100, model_type="unigram", vocab_size=700, normalization_rule_name="nmt_nfkc_cf",
                 user_defined_symbols=["<sep>"])
