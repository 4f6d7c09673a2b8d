"""A file system of limited size (tmpfs, needs root) that is full while a run trains on it, and a read-only one."""
import json
import os
import shutil
import subprocess
import unittest

import program
from program import run


def mount(*words):
    return subprocess.run(["mount", *map(str, words)], capture_output=True).returncode == 0


class FullDisk(program.FaultTest):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        if os.getuid() != 0 or not mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", self.disk):
            self.skipTest("mounting a tmpfs needs root")

    def tearDown(self):
        subprocess.run(["umount", "-l", str(self.disk)], check=False)
        super().tearDown()

    def test_training_goes_on_and_the_last_checkpoint_stands(self):
        recipe = self.recipe(steps=80, train={"save_every": 10})  # the first one alone, when the disk is full
        self.assertEqual(run("train", recipe).code, 0)
        whole = self.result()
        out = self.disk / "out"
        held = self.folder / "held"
        env = program.environment({"NIBBLE_FAULT_ROOT": str(out), "NIBBLE_FAULT_CALLS": "mkdir", "NIBBLE_FAULT_IN": "checkpoints",
                                   "NIBBLE_FAULT_AT": "3", "NIBBLE_FAULT_HOW": "HOLD", "NIBBLE_FAULT_HELD": str(held)})
        with open(self.folder / "stderr", "wb") as errors:
            child = subprocess.Popen([program.PROGRAM, "train", str(recipe), f"output.dir={out}"], stdout=subprocess.DEVNULL,
                                     stderr=errors, env=env)
        self.wait_until(lambda: child.poll() is not None or held.exists() and 10 in self.checkpoints(out))
        filler = os.open(self.disk / "filler", os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(filler, b"x" * 4096)
        except OSError:
            os.close(filler)
        held.unlink()
        self.assertEqual(child.wait(program.LIMIT), 4)
        errors = (self.folder / "stderr").read_text()
        self.assertIn("warning: checkpoint failed, training goes on without it", errors)
        last = errors.splitlines()[-1]
        self.assertRegex(last, r"error: .*([Nn]o space left on|needs [0-9.]+ [KMG]?i?B, [0-9.]+ [KMG]?i?B are free on its device)")
        self.assertIn("free space", last)
        stands = self.checkpoints(out)
        self.assertTrue(stands)
        self.assertEqual(run("inspect", out / f"checkpoints/step-{stands[-1]}").code, 0)
        self.assertEqual(list(out.glob("checkpoints/.tmp-*")), [])
        os.remove(self.disk / "filler")
        ended = run("train", recipe, f"output.dir={out}")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertIn(f"continuing after step {stands[-1]} of 80", ended.err)
        self.assertEqual(self.result(out), whole)

    def test_a_disk_too_small_for_a_checkpoint_is_known_before_the_first_step(self):
        config = dict(program.CONFIG, hidden_size=128, intermediate_size=2048)
        (self.folder / "c.json").write_text(json.dumps(config))
        self.assertEqual(run("init", "--config", self.folder / "c.json", "--out", self.folder / "m", "--dtype", "f32").code, 0)
        recipe = self.recipe(model={"path": str(self.folder / "m")})
        text = json.loads(recipe.read_text())
        del text["adapter"]
        recipe.write_text(json.dumps(text))
        self.ends(4, ["train", recipe, f"output.dir={self.disk / 'out'}"], "this run's first two checkpoints", "are free on its device")
        self.ends(4, ["init", "--config", self.folder / "c.json", "--out", self.disk / "q", "--dtype", "f32"], "are free")
        self.assertEqual(list(self.disk.iterdir()), [])

    def large_adapter(self, **sections):
        """A checkpoint takes 0.8 MB, the result a third of that."""
        return self.recipe(adapter={"r": 64}, output={"dir": str(self.disk / "out"), "keep_last": 2}, **sections)

    def test_where_the_disk_holds_fewer_checkpoints_than_asked_the_oldest_goes(self):
        recipe = self.large_adapter(steps=8, train={"save_every": 2})
        self.assertEqual(run("train", recipe, f"output.dir={self.folder / 'out'}").code, 0)
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        self.assertRegex(ended.err, r"warning: .* has room for 2 checkpoints of this run, each of [0-9.]+ KiB, beside [0-9.]+ KiB of metrics; "
                                    r"output.keep_last=2 needs 3, one of them while it is written")
        for before in (2, 4):
            self.assertIn(f"no space for step-{before + 4}: checkpoint step-{before} was removed", ended.err)
        self.assertNotIn("checkpoint failed", ended.err)
        self.assertEqual(self.checkpoints(self.disk / "out"), [6, 8])
        self.assertEqual(self.result(self.disk / "out"), self.result())

    def test_a_run_continues_where_an_older_checkpoint_can_make_room(self):
        recipe = self.large_adapter(steps=4, train={"save_every": 2}, optimizer={"schedule": "constant"})
        self.assertEqual(run("train", recipe).code, 0)
        self.assertEqual(self.checkpoints(self.disk / "out"), [2, 4])
        ended = run("train", recipe, "train.steps=6")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertIn("no space for step-6: checkpoint step-2 was removed", ended.err)
        self.assertIn("no space for what is exported: checkpoint step-4 was removed", ended.err)  # beside the former one
        self.assertEqual(self.checkpoints(self.disk / "out"), [6])

    def test_room_for_one_checkpoint_only_is_known_before_the_first_step(self):
        (self.disk / "filler").write_bytes(b"x" * 850000)
        self.ends(4, ["train", self.large_adapter(steps=8, train={"save_every": 2})],
                  "this run's first two checkpoints", "are free on its device", same_disk=False)
        self.assertEqual([path.name for path in self.disk.iterdir()], ["filler"])
        ended = run("train", self.large_adapter(steps=1))
        self.assertEqual(ended.code, 0, ended.err)

    def test_what_a_checkpoint_has_beside_its_tensors_counts(self):
        recipe = self.recipe(steps=8, train={"save_every": 2})
        self.assertEqual(run("train", recipe).code, 0)
        whole = sum(-(-file.stat().st_size // 4096) * 4096 for file in (self.folder / "out/checkpoints/step-8").iterdir())
        free = os.statvfs(self.disk).f_bavail * os.statvfs(self.disk).f_bsize
        (self.disk / "filler").write_bytes(b"x" * (free - 2 * whole))
        self.ends(4, ["train", recipe, f"output.dir={self.disk / 'out'}"],
                  "this run's first two checkpoints", "are free on its device", same_disk=False)

    def test_a_disk_too_small_for_activations_is_known_before_the_first_step(self):
        place = f"parallel.offload_directory={self.disk}"
        long = self.recipe(train_on=self.data(length=4096), data={"max_length": 4096})
        ended = self.ends(4, ["train", long, "parallel.offload_activations=true", place],
                          f"{self.disk}: no room for activations", "are free", same_disk=False)
        self.assertNotIn("step 1", ended.err)
        self.assertEqual(list(self.disk.iterdir()), [])
        spilled = run("train", self.recipe(), "parallel.offload_activations=true", place,
                      f"output.dir={self.folder / 'spilled'}")
        self.assertEqual(spilled.code, 0, spilled.err)
        self.assertIn("which itself lies in memory (tmpfs)", spilled.err)
        self.assertEqual(run("train", self.recipe(), f"output.dir={self.folder / 'kept'}").code, 0)
        self.assertEqual(self.result(self.folder / "spilled"), self.result(self.folder / "kept"))

    def test_a_run_that_lacks_only_its_result_needs_no_room_for_a_checkpoint(self):
        recipe = self.recipe(steps=2, adapter={"r": 64}, output={"dir": str(self.disk / "out"), "keep_last": 1})
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        whole = self.result(self.disk / "out")
        shutil.rmtree(self.disk / "out/adapter")
        checkpoint = sum(file.stat().st_size for file in (self.disk / "out/checkpoints/step-2").iterdir())
        free = os.statvfs(self.disk).f_bavail * os.statvfs(self.disk).f_bsize
        (self.disk / "filler").write_bytes(b"x" * (free - checkpoint * 2 // 3))  # the result is a third of it
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        self.assertEqual(self.result(self.disk / "out"), whole)

    def test_a_read_only_file_system(self):
        self.assertTrue(mount("-o", "remount,ro", self.disk))
        self.ends(4, ["train", self.recipe(), f"output.dir={self.disk / 'out'}"], "read-only")


if __name__ == "__main__":
    unittest.main(verbosity=2)
