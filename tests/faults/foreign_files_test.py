"""Files of others where a command or a run writes its own."""
import json
import shutil
import unittest

import program
from outputs_test import OutputTest
from program import run, snapshot


class Results(OutputTest):
    """Fault 68, of commands without --force: they are called again with the same --out."""

    def test_they_replace_what_they_wrote_and_nothing_else(self):
        program.write_tokenizer(self.model, 60)
        pair = {"prompt": "w5 w6", "chosen": "w7", "rejected": "w8"}
        pairs = self.folder / "pairs.jsonl"
        pairs.write_text(json.dumps(pair) + "\n")
        base, out = ["--model", self.model], self.folder / "out"
        ids, weights = self.ids.read_bytes(), (self.model / "model.safetensors").read_bytes()
        # As numpy.save writes an array of the shape and type of logits.
        array = (b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2), }".ljust(117) + b"\n" + bytes(8))
        scores, own = b'{"chosen":0.5,"rejected":0.25}\n', b'{"completion":-0.5,"completion_tokens":1}\n'
        commands = {
            "logits": ([*base, "--ids", self.ids, "--out"], [ids, array]),
            "gradients": ([*base, "--ids", self.ids, "--labels", self.ids, "--out"], [weights]),
            "logprobs": ([*base, "--data", pairs, "--out"], [pairs.read_bytes(), scores, own + b"my own line\n"]),
            "plan": ([self.recipe(), "--measure"], [b'{"model": {"path": "m"}}']),
        }
        for command, (words, like) in commands.items():
            for foreign in (b"the only copy", *like):
                out.write_bytes(foreign)
                self.ends(2, [command, *words, out], f"{out}: is not a file that nibble {command}",
                          "wrote; choose another name, or remove it")
            out.write_bytes(b"")  # as mktemp makes it
            for _ in range(2):
                self.does(command, *words, out)
            self.assertGreater(out.stat().st_size, 0)
        for foreign in ('{"score": "mine"}', json.dumps(pair), '{"chosen": [{"role": "user"}]}', "[0.5]",
                        '{"score": 0.25}', own.decode(), '{"score":0.25}\n{"mine":1}'):
            out.write_text(foreign + "\n")
            self.ends(2, ["score", *base, "--data", pairs, "--out", out], "is not a file that nibble score wrote")
        out.write_text('{"score":[0.25,null]}\n')  # what stands there is its own: the model has no score head
        self.ends(2, ["score", *base, "--data", pairs, "--out", out], "has no score head")

    def test_manual_pages_replace_manual_pages_alone(self):
        pages = self.folder / "man1"
        for _ in range(2):
            self.does("man", "--out", pages)
        (pages / "nibble-train.1").write_text("the only copy")
        (pages / "nibble.1").unlink()
        self.ends(2, ["man", "--out", pages], pages / "nibble-train.1", "is not a file that nibble man wrote")


class OthersInOutputDir(OutputTest):
    """A run takes for its own only what nibble wrote."""

    def others(self, home, *names):
        for name in names:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("the only copy")
        return snapshot(home)

    def keeps(self, before, home):
        after = snapshot(home)
        self.assertEqual({name: after.get(name) for name in before}, before)

    def test_a_directory_of_another_program_is_no_run(self):
        home = self.folder / "home"
        names = ["metrics.jsonl", "recipe.json", "samples.jsonl", "report.html", "checkpoints/epoch=3.ckpt", "rollouts/step-1.jsonl",
                 "profile/me.txt", "tensorboard/notes", "value_model/weights.bin"]
        words = ["train", self.recipe(steps=1), f"output.dir={home}"]
        self.others(home, *names)
        (home / "metrics.jsonl").write_text('{"epoch": 0, "step": 1, "split": "train"}\n')
        before = snapshot(home)
        for more in [[], ["output.resume=never"]]:
            self.ends(2, [*words, *more], f"{home}: has a metrics.jsonl that is not of a run", "output.force=true", same_disk=False)
            self.keeps(before, home)
        for more in [["output.force=true"], ["output.resume=never", "output.force=true"]]:
            self.ends(2, [*words, *more], home / "value_model", "not a directory that nibble wrote", same_disk=False)
            self.keeps(before, home)
        for name in ["metrics.jsonl", "samples.jsonl", "report.html", "recipe.json", "rollouts"]:
            self.ends(2, words, f"{home}: has a {name}", "not of a run", same_disk=False)
            self.keeps(before, home)
            shutil.rmtree(home / name) if name == "rollouts" else (home / name).unlink()
            before = snapshot(home)
        shutil.rmtree(home / "value_model")
        before = snapshot(home)
        self.does(*words)
        self.keeps(before, home)

    def test_starting_afresh_by_force_keeps_what_is_not_of_the_run(self):
        home = self.folder / "run"
        self.trained()
        before = self.others(self.folder / "others", "checkpoints/epoch=3.ckpt", "checkpoints/.tmp-x/mine", "rollouts/thesis",
                             "profile/me.txt", "tensorboard/notes", "tokenizer/thesis", "thesis.tex")
        shutil.copytree(self.folder / "others", home, dirs_exist_ok=True)
        events = set((home / "tensorboard").glob("events*"))
        self.does("train", self.recipe(steps=2), f"output.dir={home}", "output.resume=never", "output.force=true")
        self.keeps(before, home)
        self.assertEqual(self.checkpoints(home), [1, 2])
        self.assertFalse(events & set((home / "tensorboard").glob("events*")))
        self.does("report", home)

    def test_a_run_killed_at_any_write_that_replaces_another_is_a_run(self):
        home = self.folder / "run"
        for at in range(1, 12, 2):
            self.trained()
            self.others(home, "checkpoints/mine", "rollouts/thesis")
            words = ["train", self.recipe(steps=2), f"output.dir={home}"]
            self.killed(*words, "output.resume=never", "output.force=true", at=at, root=home, calls="rename,remove")
            ended = run(*words)
            if ended.code != 0:  # the former run still stands
                self.assertIn("differs from the run that began here", ended.err)
                self.does(*words, "output.resume=never", "output.force=true")
            self.assertEqual((home / "checkpoints/mine").read_text(), "the only copy")
            self.assertEqual((home / "rollouts/thesis").read_text(), "the only copy")
            shutil.rmtree(home)

    def test_a_pretraining_keeps_a_tokenizer_of_others(self):
        home = self.folder / "home"
        (self.folder / "new.json").write_text(json.dumps(dict(program.CONFIG, vocab_size=300)))
        (self.folder / "text.txt").write_text("".join(f"It is {i}, and {i * i} is its square.\n\n" for i in range(60)))
        words = ["train", self.recipe(steps=1), f"model.init={self.folder / 'new.json'}", "model.path=null", "adapter=null",
                 f"data.train={self.folder / 'text.txt'}", "data.format=text", f"output.dir={home}"]
        self.others(home, "tokenizer/thesis")
        for more in [[], ["output.force=true"]]:
            self.ends(2, [*words, *more], home / "tokenizer", "not a directory that nibble wrote")
        shutil.rmtree(home)
        self.does(*words)
        self.does(*words, "train.steps=2", "output.force=true")

    def test_a_sweep_keeps_a_page_of_others(self):
        page = self.folder / "out/sweep.html"
        self.others(self.folder / "out", "sweep.html")
        words = ["sweep", self.recipe(steps=1), "optimizer.lr=1e-3,1e-4"]
        self.ends(2, words, page, "is no page of nibble", "another output.dir")
        page.unlink()
        self.does(*words)
        self.does(*words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
