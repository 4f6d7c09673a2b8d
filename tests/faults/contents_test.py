"""Fault 79 of docs/reliability.md: what the files of a run hold changes under it, anywhere in a file."""
import json
import os
import tempfile
import unittest

import program
from program import run
from rollouts import RolloutTest


class Contents(program.FaultTest):
    def setUp(self):
        super().setUp()
        cache = tempfile.TemporaryDirectory(prefix="nibble-cache-")
        self.addCleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = cache.name
        self.addCleanup(os.environ.pop, "XDG_CACHE_HOME")

    def started(self, **sections):
        """A run that stands at step 2 of 3."""
        recipe = self.recipe(steps=2, optimizer={"schedule": "constant"}, **sections)
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        return recipe

    def change_middle(self, path):
        """Bytes that lie more than 64 KiB from either end."""
        content = bytearray(path.read_bytes())
        self.assertGreater(len(content), 160 << 10)
        middle = len(content) // 2 & ~3
        before = bytes(content[middle:middle + 4])
        content[middle:middle + 4] = b"\0\0\0\0" if before != b"\0\0\0\0" else b"\0\0\0\1"
        with open(path, "r+b") as file:  # the same inode, the same size
            file.write(content)

    def test_weights_in_the_middle_of_a_file(self):
        config = dict(program.CONFIG, hidden_size=64, intermediate_size=256)
        (self.folder / "c.json").write_text(json.dumps(config))
        self.assertEqual(run("init", "--config", self.folder / "c.json", "--out", self.model, "--dtype", "f32",
                             "--force").code, 0)
        weights = self.model / "model.safetensors"
        whole, times = weights.read_bytes(), os.stat(weights)
        recipe = self.started()
        self.change_middle(weights)
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.ends(2, ["train", recipe, "train.steps=3"], "model.safetensors of model.path has other content", "output.force=true")
        weights.write_bytes(whole)
        ended = run("train", recipe, "train.steps=3")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertIn("continuing", ended.err)

    def test_a_continued_adapter(self):
        self.started()
        adapter = self.folder / "adapter"
        (self.folder / "out/adapter").rename(adapter)
        recipe = self.recipe(steps=2, optimizer={"schedule": "constant"},
                             output={"dir": str(self.folder / "second")})
        recipe.write_text(json.dumps(dict(json.loads(recipe.read_text()), adapter={"path": str(adapter)})))
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        config, weights = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
        said, held = config.read_text(), weights.read_bytes()
        config.write_text(json.dumps(dict(json.loads(said), lora_alpha=640)))
        self.ends(2, ["train", recipe, "train.steps=3"], "adapter_config.json of adapter.path has other content")
        config.write_text(said)
        weights.write_bytes(held[:-4] + b"\0\0\0\0")
        self.ends(2, ["train", recipe, "train.steps=3"], "adapter_model.safetensors of adapter.path has other content")
        weights.write_bytes(held)
        self.assertEqual(run("train", recipe, "train.steps=3").code, 0)

    def test_files_of_the_tokenizer(self):
        config = self.model / "tokenizer_config.json"
        config.write_text('{"bos_token": "a"}')
        recipe = self.started()
        config.write_text('{"bos_token": "b"}')
        self.ends(2, ["train", recipe, "train.steps=3"], "tokenizer_config.json of tokenizer has other content")


class Answers(RolloutTest):
    def test_what_ends_the_answers_that_are_drawn(self):
        ends = self.model / "generation_config.json"
        ends.write_text('{"eos_token_id": 2}')
        recipe = self.rollout_recipe(steps=2, train={"save_every": 1})
        self.assertEqual(run("train", recipe).code, 0)
        ends.write_text('{"eos_token_id": [2, 5]}')
        self.ends(2, ["train", recipe, "train.steps=3"], "generation_config.json of model.path has other content")
        ends.unlink()
        self.ends(2, ["train", recipe, "train.steps=3"], "generation_config.json of model.path is gone")
        ends.write_text('{"eos_token_id": 2}')
        self.assertIn("continuing", run("train", recipe, "train.steps=3").err)

    def test_it_may_change_where_none_are_drawn(self):
        recipe = self.recipe(steps=2, optimizer={"schedule": "constant"})
        self.assertEqual(run("train", recipe).code, 0)
        (self.model / "generation_config.json").write_text('{"eos_token_id": 2}')
        self.assertIn("continuing", run("train", recipe, "train.steps=3").err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
