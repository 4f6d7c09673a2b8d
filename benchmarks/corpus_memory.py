"""Memory while a large corpus is encoded and trained from: the process is looked at ten times a second.

    python3 benchmarks/corpus_memory.py PROGRAM TOKENIZER TEXT... [--gigabytes 1 10] [--place DIR] [--steps 20]

A corpus of short records (prompt and completion, about 700 bytes) is put together at random from the sentences of the text
files; with --ids the records are token ids, which costs a tenth of the time. A tiny model is trained on it twice, with data.cache: the first run encodes, the second takes what is there. TOKENIZER: a directory with a tokenizer.json. A row for
each part of a run: the largest anonymous memory (the process's own), the largest share of mapped files in memory (which the
system takes back when it needs room), and how long it took. Needs twice the size of the corpus in DIR, and removes it.
"""
import argparse, json, pathlib, random, re, shutil, subprocess, tempfile, threading, time

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512,
          "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02}


def write_ids(path, size, vocabulary, length):
    draw, written, records = random.Random(1), 0, 0
    runs = [",".join(str(draw.randrange(3, vocabulary)) for _ in range(length)) for _ in range(20000)]
    with open(path, "w") as file:
        while written < size:
            lines = ['{"input_ids": [' + ",".join(draw.choices(runs, k=draw.randint(1, 11))) + "]}\n" for _ in range(10000)]
            written += file.write("".join(lines))
            records += len(lines)
    return records


def write_corpus(path, texts, size):
    words = " ".join(pathlib.Path(text).read_text(encoding="utf-8") for text in texts)
    sentences = [json.dumps(s)[1:-1] for s in re.split(r"(?<=[.!?])\s+", words) if 40 < len(s) < 400]
    draw, written, records = random.Random(1), 0, 0
    with open(path, "w") as file:
        while written < size:
            lines = []
            for _ in range(10000):
                prompt, *answer = draw.choices(sentences, k=draw.randint(2, 9))
                lines.append('{"prompt": "' + prompt + '", "completion": " ' + " ".join(answer) + '"}\n')
            written += file.write("".join(lines))
            records += len(lines)
    return records


class Watch:
    """The parts of a run end with the lines that it says."""

    def __init__(self, command):
        self.rows, self.part, self.began = [], "load", time.time()
        self.peak = {"RssAnon": 0, "RssFile": 0}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines = []
        reader = threading.Thread(target=self.read)
        reader.start()
        while self.process.poll() is None:
            self.look()
            time.sleep(0.1)
        reader.join()
        self.end("train")
        if self.process.returncode:
            raise SystemExit("".join(self.lines))

    def look(self):
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        for name in self.peak:
            if found := re.search(name + r":\s+(\d+)", status):
                self.peak[name] = max(self.peak[name], int(found[1]))

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "training data" in line:
                self.end("encode or find")
            elif re.match(r"\s*(step )?1[ /]", line):
                self.end("split, order, pack")

    def end(self, part):
        self.look()
        self.rows.append((part, *(v / 1024 for v in self.peak.values()), time.time() - self.began))
        self.peak, self.began = dict.fromkeys(self.peak, 0), time.time()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizer")
    parser.add_argument("text", nargs="*")
    parser.add_argument("--ids", type=int, default=0, help="records of up to 11 times as many token ids instead of text")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 10])
    parser.add_argument("--place")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    print("| corpus | records | run | part | own memory, MB | mapped files, MB | seconds |\n|---|---|---|---|---|---|---|", flush=True)
    tokenizer = json.loads((pathlib.Path(options.tokenizer) / "tokenizer.json").read_text())
    vocabulary = 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])])
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(dir=options.place) as directory:
            work = pathlib.Path(directory)
            corpus, size = work / "corpus.jsonl", gigabytes * 1e9
            records = write_ids(corpus, size, vocabulary, options.ids) if options.ids else write_corpus(corpus, options.text, size)
            (work / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": vocabulary}))
            recipe = {"model": {"init": str(work / "config.json"), "tokenizer": options.tokenizer},
                      "data": {"train": str(corpus), "format": "tokens" if options.ids else "completion", "max_length": 512, "cache": str(work / "cache"),
                               "truncate": "cut", "eval_fraction": 0.00001},
                      "train": {"steps": options.steps, "microbatch_size": 4}, "output": {"dir": str(work / "out")}}
            (work / "recipe.json").write_text(json.dumps(recipe))
            for run in ("first", "second"):
                shutil.rmtree(work / "out", ignore_errors=True)
                for part, own, mapped, seconds in Watch([options.program, "train", str(work / "recipe.json")]).rows:
                    print(f"| {gigabytes:g} GB | {records} | {run} | {part} | {own:.0f} | {mapped:.0f} | {seconds:.0f} |", flush=True)
            size = sum(f.stat().st_size for f in (work / "cache").rglob("*") if f.is_file())
            print(f"| {gigabytes:g} GB | {records} | cache on disk | | | {size / 1e6:.0f} | |", flush=True)


if __name__ == "__main__":
    main()
