"""Golden values of tests/core/data/golden_masks_test.cpp: ids and label masks of data sets, made by Hugging Face's
tokenizers and rules written down a second time here.

usage: data_masks.py tests/data    prints one line a data set: samples, tokens, trained tokens, FNV-1a of ids and labels
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer

ALPACA = "Below is an instruction that describes a task"
ALPACA_INPUT = ", paired with an input that provides further context"
ALPACA_END = ". Write a response that appropriately completes the request."


def alpaca(r):
    prompt = ALPACA + (ALPACA_INPUT if r["input"] else "") + ALPACA_END
    prompt += "\n\n### Instruction:\n" + r["instruction"]
    if r["input"]:
        prompt += "\n\n### Input:\n" + r["input"]
    prompt += "\n\n### Response:\n"
    return prompt + r["output"], [(len(prompt), len(prompt) + len(r["output"]))], True


def question(r):
    prompt = f"Question: {r['question']}\nAnswer:"
    return f"{prompt} {r['answer']}", [(len(prompt), len(prompt) + 1 + len(r["answer"]))], True


def text(r):
    return r["text"], [(0, len(r["text"]))], True


def chatml(r):
    out, spans = "", []
    for m in r["messages"]:
        content = m["content"]
        if isinstance(content, list):
            content = "".join(part["value"] for part in content)
        out += f"<|im_start|>{m['role']}\n"
        begin = len(out)
        out += content + "<|im_end|>"
        if m["role"] == "assistant":
            spans.append((begin, len(out)))
        out += "\n"
    return out, spans, False


def main(data):
    tokenizer = Tokenizer.from_file(str(data / "tokenizers/gpt2/tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")  # there is no BOS

    def show(name, records, render):
        samples = tokens = trained = 0
        value = 0xCBF29CE484222325

        def add(number):
            nonlocal value
            value = ((value ^ (number & 0xFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF

        for record in records:
            rendered, spans, eos = render(record)
            encoded = tokenizer.encode(rendered, add_special_tokens=False)
            labels = [i if any(e > b and s < t for b, t in spans) else -100 for i, (s, e) in zip(encoded.ids, encoded.offsets)]
            ids = list(encoded.ids)
            if eos and (not ids or ids[-1] != end):
                ids.append(end)
                labels.append(end)
            count = sum(label != -100 for label in labels[1:])
            if count == 0:
                continue
            samples, tokens, trained = samples + 1, tokens + len(ids), trained + count
            for i, label in zip(ids, labels):
                add(i)
                add(label)
        print(f'{{"{name}", {samples}, {tokens}, {trained}, 0x{value:016x}ull}},')

    lines = lambda name: [json.loads(line) for line in open(data / name, encoding="utf-8")]
    show("sums/alpaca.json", json.loads((data / "sums/alpaca.json").read_text("utf-8")), alpaca)
    show("sums/test.jsonl", lines("sums/test.jsonl"), question)
    show("stories/texts.jsonl", lines("stories/texts.jsonl"), text)
    show("stories/chats.jsonl", lines("stories/chats.jsonl"), chatml)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
