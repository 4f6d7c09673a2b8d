"""Faults 23 to 33 and 66 of docs/reliability.md: data and recipes that cannot be used."""
import json
import os
import shutil
import unittest

import program
from program import run


class Data(program.FaultTest):
    def write(self, content, name="d.jsonl"):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def row(self, ids=(3, 4, 5), **more):
        return json.dumps({"input_ids": list(ids), "labels": list(ids), **more})

    def refused(self, content, *parts, code=3, name="d.jsonl", **data):
        path = self.write(content, name)
        return self.ends(code, ["train", self.recipe(steps=2, train_on=path, data=data)], *parts)

    def trains(self, content, **data):
        path = self.write(content)
        ended = run("train", self.recipe(steps=2, train_on=path, data=data))
        self.assertEqual(ended.code, 0, ended.err)
        return ended

    def test_token_outside_the_vocabulary_names_the_record(self):
        self.refused(self.row() + "\n" + self.row((3, 64)) + "\n", "d.jsonl:2:1", "input_ids[1] is 64, outside the vocabulary of 64")
        self.refused(self.row((3, -5)) + "\n", "d.jsonl:1:")
        self.refused(self.row((3, 2**40)) + "\n", "d.jsonl:1:")

    def test_a_score_head_may_have_more_labels_than_the_vocabulary_tokens(self):
        path = self.write("".join(json.dumps({"input_ids": [3, 4, i], "label": 50 * i}) + "\n" for i in range(8)))
        recipe = self.recipe(steps=2, train_on=path, data={"format": "labeled"}, objective={"type": "classification", "num_labels": 512})
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)

    def test_nothing_to_train_on(self):
        self.refused("", "holds no record")
        self.refused("\n \n\r\n", "holds no record")
        masked = json.dumps({"input_ids": [3, 4, 5], "labels": [-100] * 3})
        self.refused(masked + "\n" + masked + "\n", "of 2 records 2 without a trained token")

    def test_malformed_lines_stop_or_are_counted(self):
        content = self.row() + "\n{\"input_ids\": [3, 4,]}\n" + self.row((6, 7, 8)) + "\n"
        self.refused(content, "d.jsonl:2:")
        self.refused(content + "[]\nx\n", "more than 1 record is bad", "d.jsonl:2:", skip_bad=1)
        ended = self.trains(content, skip_bad=1)
        self.assertIn("1 malformed record left out", ended.err)

    def test_encodings(self):
        good = self.row() + "\n" + self.row((6, 7, 8))
        self.trains(b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode())  # byte order mark, CRLF, no last newline
        self.refused(good.encode("utf-16"), "is not UTF-8 (it begins like UTF-16)")
        self.refused(b'{"input_ids": [3, 4], "x": "\xff"}\n', "d.jsonl:1:")
        surrogate = self.refused(b'{"input_ids": [3, 4], "x": "a\\ud800"}\n', "d.jsonl:1:", "; correct the record, or set data.skip_bad")
        self.assertNotIn("comma", surrogate.err)

    def test_a_line_without_end_is_capped(self):
        path = self.folder / "d.jsonl"
        with open(path, "wb") as file:
            file.write(b'{"text": "')
            file.truncate(2**30)
        ended = self.ends(3, ["train", self.recipe(train_on=path)], "d.jsonl:1:1", "longer than 64 MiB")
        os.remove(path)
        self.assertLess(len(ended.err), 1000)

    def test_wrong_or_missing_fields(self):
        self.refused('{"input_ids": "abc"}\n', "d.jsonl:1:", "input_ids")
        self.refused('{"labels": [1]}\n', "d.jsonl:1:", "input_ids")
        self.refused('{"input_ids": [3, 4], "labels": [3]}\n', "d.jsonl:1:", "labels")
        self.refused('{"input_ids": [3, 4.5]}\n', "d.jsonl:1:")
        self.refused('[1]\n', "d.jsonl")

    def test_a_step_without_labels_is_skipped_and_reported(self):
        rows = [self.row((3, 4, 5)), json.dumps({"input_ids": [3, 4], "labels": [-100, 4]})]
        ended = self.trains("\n".join(rows) + "\n" + json.dumps({"input_ids": [3], "labels": [-100]}) + "\n")
        self.assertIn("1 dropped without a trained token", ended.err)
        self.assertTrue(all(line["loss"] == line["loss"] for line in self.metrics()))

    def test_long_samples_are_cut_only_when_asked(self):
        content = "\n".join(self.row(range(3, 3 + n)) for n in (8, 40, 50)) + "\n"
        self.refused(content, "data.max_length (16 tokens)", "2 of 3 records", "the longest has 50", max_length=16)
        self.assertIn("2 truncated", self.trains(content, max_length=16, truncate="cut").err)

    def test_things_that_are_no_data_files(self):
        os.mkfifo(self.folder / "pipe.jsonl")
        self.ends(3, ["train", self.recipe(train_on=self.folder / "pipe.jsonl")], "pipe.jsonl")
        self.ends(3, ["train", self.recipe(train_on="/dev/zero")], "/dev/zero")
        self.ends(3, ["train", self.recipe(train_on=self.folder / "none.jsonl")], "none.jsonl")
        self.refused("x", "d.parquet", name="d.parquet")

    def test_what_would_steer_a_terminal_is_shown(self):
        """Controls and marks of direction in paths, data and keys: errors say them, the terminal does not obey them."""
        hostile, shown = "a\x1b]0;t\x07\u202eb\u009b2J", "a\\x1b]0;t\\x07<U+202E>b<U+009B>2J"
        missing = self.folder / (hostile + ".jsonl")
        record = self.write(json.dumps({hostile: 1}))
        good = self.data()
        for command, train_on, *more in (["train", missing], ["validate", record, "data.format=auto"],
                                         ["train", good, f"train.{hostile}=1"], ["train", good, "--" + hostile]):
            ended = run(command, self.recipe(steps=2, train_on=train_on), *more)
            self.assertNotEqual(ended.code, 0)
            self.assertIn(shown, ended.err)
            for steering in "\x1b\x07\u202e\u009b":
                self.assertNotIn(steering, ended.err + ended.out)

    def test_results_show_what_would_steer_a_terminal(self):
        hostile, shown = "a\x1b]0;t\x07\u202eb\u009b2J", "a\\x1b]0;t\\x07<U+202E>b<U+009B>2J"
        made = self.folder / ("model " + hostile)
        for command, *words in (["init", "--config", self.model / "config.json", "--out", made],
                                ["quantize", "--model", made, "--out", self.folder / ("nf4 " + hostile)],
                                ["export", "--model", made, "--out", self.folder / (hostile + ".gguf")]):
            ended = run(command, *words)
            self.assertEqual(ended.code, 0, ended.err)
            self.assertIn(shown, ended.out)
            for steering in "\x07\u202e\u009b":
                self.assertNotIn(steering, ended.err + ended.out)

    def test_a_tokenizer_larger_than_the_model(self):
        vocab = {chr(33 + i): i for i in range(80)}
        (self.model / "tokenizer.json").write_text(json.dumps(
            {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
        self.ends(3, ["train", self.recipe()], "the tokenizer has 80 tokens, the model only 64")

    def test_damaged_tokenizers(self):
        for content, part in (('{"model"', "tokenizer.json:1:"), ('{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "tokenizer.json"),
                              ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "merges"),
                              ('{"model": {"type": "WordGuess"}}', "WordGuess"),
                              ('{"model": {"type": "BPE", "vocab": {"a": 2000000000}, "merges": []}}', "tokenizer.json")):
            with self.subTest(content=content):
                (self.model / "tokenizer.json").write_text(content)
                self.ends(3, ["tokenize", "--model", self.model, "--text", "a"], part)
        os.remove(self.model / "tokenizer.json")
        for content in (b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x7f", os.urandom(64)):
            (self.model / "tokenizer.model").write_bytes(content)
            self.ends(3, ["tokenize", "--model", self.model, "--text", "a"], "tokenizer.model")

    def test_an_expression_that_backtracks_for_ever_is_stopped(self):
        (self.model / "tokenizer.json").write_text(json.dumps(
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
             "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}}))
        self.ends(3, ["tokenize", "--model", self.model, "--text", "a" * 500], "backtracks too much")


class Recipes(program.FaultTest):
    def refused(self, key, value, *parts):
        recipe = self.recipe()
        self.ends(2, ["train", recipe, f"{key}={value}"], key, *parts)
        section, name = key.split(".")
        changed = json.loads(recipe.read_text())
        changed[section][name] = "VALUE"
        recipe.write_text(json.dumps(changed).replace('"VALUE"', value))
        self.ends(3 if value in ("NaN", "1e400") else 2, ["train", recipe], "recipe.json")

    def test_numbers_out_of_range(self):
        for key in ("optimizer.lr", "train.steps", "train.epochs", "train.microbatch_size", "data.max_length"):
            self.refused(key, "-1")
        self.refused("optimizer.lr", "1e400")
        self.refused("optimizer.lr", "NaN")
        self.refused("train.steps", "1.5")
        self.refused("train.steps", "99999999999999999999")
        self.refused("adapter.r", "0")

    def test_numbers_that_do_not_fit_where_they_go(self):
        for key in ("output.keep_last", "train.log_every", "train.max_bad_steps", "train.save_every", "data.skip_bad",
                    "optimizer.warmup_steps", "train.steps"):
            self.refused(key, "4294967297")
        for value in ("[0.999999999, 0.999]", "[0.9, 0.99999999999]"):  # 1 in 32 bits
            self.refused("optimizer.betas", value)
        self.refused("adapter.lora_dropout", "0.999999999")
        for key in ("optimizer.lr", "optimizer.weight_decay", "adapter.lora_alpha", "train.max_grad_norm"):
            self.refused(key, "1e39")
        data = self.data()
        for weight in ("1e10", "1e19", "1001", "0", "-1", "1e-60"):
            self.refused("data.train", f'[{{"path": "{data}", "weight": {weight}}}]')

    def test_unknown_keys_and_their_nearest(self):
        self.refused("train.stepz", "3", "did you mean train.steps?")
        self.ends(2, ["train", self.recipe(), "optimiser.lr=1"], "optimiser.lr")
        self.ends(2, ["train", self.recipe(), "--stepz", "3"])

    def test_recipes_that_cannot_be_read(self):
        recipe = self.folder / "r.json"
        recipe.write_text('{\n "train": {"steps": 1,, }}')
        self.ends(3, ["train", recipe], "r.json:2:")
        recipe.write_text('{"train": {"steps": 1}, "train": {}}')
        self.ends(3, ["train", recipe], "r.json", "comes twice")
        recipe.write_text("[" * 100000)
        self.ends(3, ["train", recipe], "r.json:1:")
        self.ends(4, ["train", self.folder / "none.json"], "none.json")
        self.ends(4, ["train", self.folder], "is not a regular file")

    # The command line is later than the file.
    def resolved(self, *overrides):
        """The recipe that a run of these overrides ends up with."""
        ended = run("train", self.folder / "recipe.json", *overrides)
        self.assertEqual(ended.code, 0, ended.err)
        recipe = json.loads((self.folder / "out/recipe.json").read_text())
        shutil.rmtree(self.folder / "out")
        return recipe

    def test_of_two_keys_for_one_thing_the_command_lines_is_taken(self):
        recipe = self.recipe()
        whole = json.loads(recipe.read_text())
        del whole["train"]["steps"]
        whole["train"]["epochs"] = 3
        whole["optimizer"]["warmup_ratio"] = 0.1
        recipe.write_text(json.dumps(whole))
        got = self.resolved("train.steps=2", "optimizer.warmup_steps=1")
        self.assertEqual(got["train"]["steps"], 2)
        self.assertNotIn("epochs", got["train"])
        self.assertEqual((got["optimizer"]["warmup_steps"], got["optimizer"]["warmup_ratio"]), (1, 0))
        self.ends(2, ["train", recipe, "train.steps=2", "train.epochs=1"], "command line: train.steps", "train.epochs=null")
        self.recipe(train={"epochs": 1})  # both in the file
        self.ends(2, ["train", recipe], "train.steps", "contradicts train.epochs")

    def test_evaluation_is_turned_off_by_one_key(self):
        held_out = str(self.data("held.jsonl", rows=3))
        for given in ({"eval": held_out}, {"eval_fraction": 0.25}):
            self.recipe(steps=2, data=given, train={"eval_every": 1, "early_stop": 3}, output={"keep_best": True})
            self.assertIn('"split":"eval"', self.evaluated())
            for off in ("data.eval=null", "data.eval_fraction=0", "data.eval_fraction=null"):
                self.assertNotIn('"split":"eval"', self.evaluated(off), f"{given} {off}")
            self.assertEqual(self.resolved("train.eval_every=0")["train"]["early_stop"], 0)
        self.ends(2, ["train", self.folder / "recipe.json", "data.eval=null", "train.eval_every=1"],
                  "train.eval_every: there is nothing to evaluate on")

    def evaluated(self, *overrides):
        ended = run("train", self.folder / "recipe.json", *overrides)
        self.assertEqual(ended.code, 0, ended.err)
        text = (self.folder / "out/metrics.jsonl").read_text()
        shutil.rmtree(self.folder / "out")
        return text

    def test_a_list_without_its_quotes(self):
        first, second = self.data("a.jsonl", rows=4), self.data("b.jsonl", rows=4)
        recipe = self.recipe(steps=1)
        for words in (f"data.train=[{first},{second}]", f"data.train=[{first}, {second}]"):
            self.assertEqual(self.resolved(words)["data"]["train"], [str(first), str(second)])
        self.assertEqual(self.resolved(f"data.train=[{first}]")["data"]["train"], str(first))
        self.ends(2, ["train", recipe, f"data.train=[{first},{{path:x}}]"], "command line: data.train: is no JSON list",
                  """data.train='["a", "b"]'""")

    def test_doctor_takes_a_directory_that_a_run_would_make(self):
        found = json.loads(run("doctor", "--quick", "--json", "--dir", self.folder / "not/yet").out)["findings"]
        (disk,) = [one for one in found if one["name"] == "disk"]
        self.assertIn(f"free in {self.folder / 'not/yet'}", disk["value"])
        self.assertFalse((self.folder / "not").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
