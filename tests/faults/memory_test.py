"""The memory of a run on samples of varied lengths is what the plan says, and stays so."""
import itertools
import json
import random
import re
import unittest

import program

# Wide enough that a step's blocks are of 1 KB to 1 MiB, small enough for seconds.
SHAPE = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 12, "vocab_size": 1024,
         "max_position_embeddings": 512}
# Where packing fills every microbatch, or the vocabulary needs the memory, more steps hold no more.
EARLY = {"steps": 6, "save_every": 3}
FLOOR = 6 << 20  # what a process of this size may be off by however small it is


@unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "AddressSanitizer's own memory is resident too")
class VariedLengths(program.JobTest):
    def setUp(self):
        super().setUp()
        self.init(SHAPE)

    def init(self, shape):
        (self.folder / "config.json").write_text(json.dumps(dict(program.CONFIG, **shape)))
        self.model = self.folder / f"wide-{shape['vocab_size']}"
        made = program.run("init", "--config", self.folder / "config.json", "--out", self.model, "--dtype", "nf4")
        self.assertEqual(made.code, 0, made.err)

    def keeps_to_the_plan(self, ranks=1, rows=160, measured=False, **sections):
        """measured: the plan's times are of this machine, which takes seconds; the memory is the same."""
        train = {"steps": 16, "microbatch_size": 1, "accumulate": 4, "save_every": 8} | sections.pop("train", {})
        recipe = self.recipe(train_on=self.data(rows=rows, length=512, vocab=1000, shortest=16), adapter={"r": 16},
                             train=train, **{"data": {"max_length": 512}} | sections)
        if ranks == 1:
            ended = program.run("train", recipe)
            self.assertEqual(ended.code, 0, ended.err)
        else:
            self.assertEqual(self.ended(self.launch(ranks, "train", recipe), "a job"), 0, self.errors())
        decided = self.folder / "out/recipe.json"  # with a number for every degree
        cluster = self.folder / "cluster.json"
        cluster.write_text('{"flops": 1e12}')
        planned = program.run("plan", decided if "auto" in recipe.read_text() else recipe, "-n", ranks, "--json",
                              *([] if measured else ["--cluster", cluster]))
        self.assertEqual(planned.code, 0, planned.err)
        steps = [line for line in self.metrics() if line["split"] == "train"]
        last = steps[-1].get("rank_peak_memory_bytes") or [steps[-1]["peak_memory_bytes"]]
        plans = list(enumerate(json.loads(planned.out)["ranks"]))
        if ranks == 1:  # the run's own, which knows the data
            plans.append((0, float(re.search("planned memory: ([0-9.]+) MiB", ended.out + ended.err)[1]) * 2**20))
        for rank, plan in plans:
            self.assertLess(abs(last[rank] - plan), max(FLOOR, plan / 10),
                            f"rank {rank}: {plan / 2**20:.1f} MiB planned, by step "
                            f"{[round(step['peak_memory_bytes'] / 2**20, 1) for step in steps]}")

    def test_one_sample_a_sequence(self):
        self.keeps_to_the_plan()

    def test_many_samples(self):
        self.keeps_to_the_plan(rows=6000)

    def test_a_directory_and_data_to_evaluate_on(self):
        self.init(SHAPE | {"vocab_size": 1008, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2})
        (self.folder / "many").mkdir()
        many = self.data("many/rows.jsonl", rows=4000, length=512, vocab=1000, shortest=16)
        self.keeps_to_the_plan(data={"train": str(many.parent), "eval": str(many), "max_length": 512},
                               train={"eval_every": 0})

    def test_a_token_more_than_the_model_has(self):
        self.init(SHAPE | {"vocab_size": 8192, "num_hidden_layers": 4})
        program.write_tokenizer(self.model, 8192, ["<|pad|>"])
        self.keeps_to_the_plan()

    def test_a_token_more_than_a_large_vocabulary(self):
        self.init(SHAPE | {"vocab_size": 49152, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2})
        program.write_tokenizer(self.model, 49152, ["<|pad|>"])
        self.keeps_to_the_plan()

    def many_merges(self, max_length, **data):
        """Of 150,000 tokens, which are no more than a run of long sequences has, and more than all of one of short."""
        self.init(SHAPE | {"vocab_size": 150000, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2})
        program.write_tokenizer(self.model, 150000)
        path = self.model / "tokenizer.json"
        texts = ["".join(text) for length in (1, 2, 3, 4)
                 for text in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=length)][:150000]
        bpe = {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts)},
               "merges": [[text[:-1], text[-1]] for text in texts if len(text) > 1]}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model": bpe}))
        self.keeps_to_the_plan(data={"max_length": max_length, "truncate": "cut"} | data, train=EARLY)

    def test_many_merges(self):
        self.many_merges(512)

    def test_many_merges_for_short_sequences(self):
        self.many_merges(16)

    def test_much_text_of_many_merges(self):
        """The codes of all tokens stand beside the tokenizer, and the order of so short sequences beside both."""
        draw, text = random.Random(1), self.folder / "text.jsonl"
        letters = bytes(b" "[0] if byte < 43 else b"a"[0] + byte % 26 for byte in range(256))  # words of 5, about
        with open(text, "w") as file:
            for _ in range(20000):
                words = draw.randbytes(draw.randrange(48, 1536)).translate(letters).decode()
                file.write(json.dumps({"text": words}) + "\n")
        self.many_merges(16, train=str(text), format="text")

    def large_vocabulary(self, measured=False, **train):
        self.init(SHAPE | {"vocab_size": 200000, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2})
        program.write_tokenizer(self.model, 200000)
        self.keeps_to_the_plan(measured=measured, train=EARLY | train)

    def test_a_large_vocabulary(self):
        self.large_vocabulary(measured=True)

    def test_a_large_vocabulary_for_samples(self):
        self.large_vocabulary(samples=1)

    def test_packed(self):
        self.keeps_to_the_plan(data={"max_length": 512, "pack": True}, train=EARLY)

    def pairs(self, prompt=1, length=512, rows=160):
        """Of answers of equal length, which with the prompt is from 16 to `length`; that of a pair in eight."""
        path = self.folder / "pairs.jsonl"
        with open(path, "w") as file:
            for i in range(rows):
                varied = length if i % 8 == 0 else 16 + prompt + 7919 * i % (length - 16 - prompt)
                ids = [[3 + (7 * i + t * t + answer) % 990 for t in range(varied)] for answer in range(2)]
                file.write(json.dumps({"prompt_ids": ids[0][:prompt], "chosen_ids": ids[0][prompt:],
                                       "rejected_ids": ids[1][prompt:]}) + "\n")
        return {"train": str(path), "format": "preference", "max_length": length}

    def test_packed_pairs(self):
        """A pair of two long answers is more than data.max_length."""
        self.keeps_to_the_plan(data=self.pairs() | {"pack": True}, objective={"type": "dpo"}, train=EARLY)

    def test_packed_pairs_sharded(self):
        self.keeps_to_the_plan(ranks=2, data=self.pairs() | {"pack": True}, objective={"type": "dpo"}, train=EARLY,
                               parallel={"shard": 2})

    def test_blocks_recomputed(self):
        self.keeps_to_the_plan(train={"gradient_checkpointing": "block"})

    def test_quantized_while_it_loads(self):
        shape = SHAPE | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
        (self.folder / "large.json").write_text(json.dumps(dict(program.CONFIG, **shape)))
        made = program.run("init", "--config", self.folder / "large.json", "--out", self.folder / "large",
                           "--dtype", "bf16")
        self.assertEqual(made.code, 0, made.err)
        self.keeps_to_the_plan(model={"path": str(self.folder / "large"), "quantize": "nf4", "compute_dtype": "bf16"},
                               train={"gradient_checkpointing": "block", "steps": 2, "save_every": 0})

    def test_sharded(self):
        self.keeps_to_the_plan(ranks=2, parallel={"shard": 2})

    def test_pipelined(self):
        self.keeps_to_the_plan(ranks=2, parallel={"pipeline": 2})

    def test_tensor_parallel(self):
        self.keeps_to_the_plan(ranks=2, parallel={"tensor": 2})

    def test_degrees_decided(self):
        self.keeps_to_the_plan(ranks=2, measured=True, parallel={"pipeline": "auto", "shard": "auto", "tensor": "auto"})

    def test_degrees_of_a_tiny_model_decided(self):
        self.init(program.CONFIG | {"max_position_embeddings": 512, "vocab_size": 1008})
        self.keeps_to_the_plan(ranks=2, measured=True, parallel={"pipeline": "auto", "shard": "auto"})


@unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "AddressSanitizer's own memory is resident too")
class Reading(program.JobTest):
    """What training a tokenizer and encoding take is given back before the steps, and is not more than these."""

    def keeps_to_the_plan(self, records, lines=24000, shape=SHAPE):
        draw = random.Random(1)
        words = ["".join(draw.choice("aeioubcdfglmnprst") for _ in range(draw.randint(2, 9))) for _ in range(20000)]
        path = self.folder / "text.jsonl"
        with open(path, "w") as file:
            for _ in range(records):
                text = "\n".join(" ".join(draw.choices(words, k=12)) for _ in range(lines // records))
                file.write(json.dumps({"text": text}) + "\n")
        (self.folder / "config.json").write_text(json.dumps(dict(program.CONFIG, **shape)))
        recipe = self.folder / "recipe.json"
        recipe.write_text(json.dumps({
            "model": {"init": str(self.folder / "config.json")},
            "data": {"train": str(path), "format": "text", "max_length": 256, "eval_fraction": 0},
            "train": {"steps": 4, "microbatch_size": 4, "save_every": 2, "threads": 1},
            "output": {"dir": str(self.folder / "out")}}))
        planned = program.run("plan", recipe, "--json")
        self.assertEqual(planned.code, 0, planned.err)
        ended = program.run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        plan = json.loads(planned.out)["peak_memory_bytes"]
        seen = [step["peak_memory_bytes"] for step in self.metrics()]
        self.assertLess(abs(seen[-1] - plan), max(FLOOR, plan / 10),
                        f"{plan / 2**20:.1f} MiB planned, by step {[round(bytes / 2**20, 1) for bytes in seen]}")

    def test_many_records(self):
        self.keeps_to_the_plan(records=6000)

    def test_one_long_document(self):
        self.keeps_to_the_plan(records=1)

    def test_a_document_that_is_longer_than_the_model_is_large(self):
        self.keeps_to_the_plan(records=1, lines=60000, shape=SHAPE | {"num_hidden_layers": 4})


if __name__ == "__main__":
    unittest.main(verbosity=2)
