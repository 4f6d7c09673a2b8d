"""Faults 34 to 45, 50, 51, 57, 63, 65, 69 and 70 of docs/reliability.md: runs that are disturbed."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import unittest

import program
from program import run


class Run(program.FaultTest):
    def out(self):
        return self.folder / "out"

    def start(self, *words, env=None, **options):
        return subprocess.Popen([program.PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL,
                                stderr=self.errors_file(), env=program.environment(env), **options)

    def errors_file(self):
        file = open(self.folder / "stderr", "wb")
        self.addCleanup(file.close)
        return file

    def errors(self):
        return (self.folder / "stderr").read_text(errors="replace")

    def wait_for_lines(self, count, child):
        path = self.out() / "metrics.jsonl"
        self.wait_until(lambda: child.poll() is not None or path.exists() and path.read_bytes().count(b"\n") >= count)

    def whole(self, **recipe):
        """The result of an undisturbed run."""
        words = self.recipe(**recipe)
        ended = run("train", words, f"output.dir={self.folder / 'whole'}")
        self.assertEqual(ended.code, 0, ended.err)
        return self.result(self.folder / "whole")

    def finishes_as(self, whole):
        ended = run("train", self.folder / "recipe.json")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertEqual(self.result(), whole)
        return ended

    def disturbed(self, how, at, calls="", root="out", code=0):
        """A run whose disk fails."""
        shutil.rmtree(self.out(), ignore_errors=True)
        env = {"NIBBLE_FAULT_ROOT": str(self.folder / root), "NIBBLE_FAULT_HOW": how, "NIBBLE_FAULT_AT": str(at),
               "NIBBLE_FAULT_CALLS": calls}
        ended = run("train", self.folder / "recipe.json", env={k: v for k, v in env.items() if v})
        self.assertEqual(ended.code, code, f"{how} at {at}\n{ended.err}")
        return ended

    # what must not change
    def test_changed_data_settings_or_base_are_listed(self):
        self.whole(steps=3)
        recipe = self.recipe(steps=2)
        self.assertEqual(run("train", recipe, "train.steps=2").code, 0)
        before = program.snapshot(self.out())
        (self.folder / "data.jsonl").write_text((self.folder / "data.jsonl").read_text().replace("[3,", "[4,"))
        self.ends(2, ["train", recipe, "train.steps=3"], "data.jsonl\" has other content", "output.force=true")
        self.data()
        self.ends(2, ["train", recipe, "train.steps=3", "optimizer.lr=0.5", "train.seed=9"],
                  "optimizer.lr was 0.001 and is 0.5", "train.seed was 0 and is 9")
        weights = (self.model / "model.safetensors").read_bytes()
        (self.model / "model.safetensors").write_bytes(weights[:-4] + b"\0\0\0\0")
        self.ends(2, ["train", recipe, "train.steps=3"], "model.safetensors of model.path has other content")
        self.assertEqual(program.snapshot(self.out()), before)

    def test_other_settings_come_with_the_words_to_continue_and_to_start_afresh(self):
        recipe = self.recipe(steps=3, optimizer={"schedule": "constant"})
        self.assertEqual(run("train", recipe, "train.steps=2").code, 0)
        refused = self.ends(2, ["train", recipe, "optimizer.lr=0.5"], "optimizer.lr was 0.001 and is 0.5")
        self.assertIn("to continue with the new ones: output.force=true;", refused.err)
        self.assertIn("to start afresh, which deletes the run here: output.resume=never output.force=true", refused.err)
        ended = run("train", recipe, "optimizer.lr=0.5", "output.force=true")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertEqual([line["lr"] for line in self.metrics()], [0.001, 0.001, 0.5])
        ended = run("train", recipe, "optimizer.lr=0.25", "output.resume=never", "output.force=true")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertEqual([line["lr"] for line in self.metrics()], [0.25, 0.25, 0.25])

    # numbers
    def test_steps_that_are_not_finite_are_skipped_then_end_the_run(self):
        self.recipe(steps=20, optimizer={"lr": 1e38, "schedule": "constant"}, train={"max_grad_norm": 0})
        ended = run("train", self.folder / "recipe.json")
        self.assertEqual(ended.code, 5, ended.err)
        self.assertIn("skipped: ", ended.err)
        self.assertRegex(ended.err.splitlines()[-1], r"^error: .*(base_model|model\.layers|lora|loss).* could not be used")
        bad = json.loads((self.out() / "diagnostic.json").read_text())["bad_steps"]
        self.assertEqual(len(bad), 3)
        self.assertTrue(bad[0]["nonfinite"])
        for step in self.checkpoints():  # whatever stands verifies and is finite
            self.assertLess(step, bad[0]["step"])
            ended = run("inspect", self.out() / f"checkpoints/step-{step}")
            self.assertEqual(ended.code, 0, ended.err)
        self.assertFalse((self.out() / "adapter").exists())

    # the disk
    def test_a_disk_that_fills_up_costs_checkpoints_not_the_run(self):
        whole = self.whole(steps=6)
        ended = self.disturbed("ENOSPC", 150, "open,write,mkdir,reserve", "out/checkpoints", code=4)
        self.assertIn("warning: checkpoint failed, training goes on without it: ", ended.err)
        last = ended.err.splitlines()[-1]
        self.assertRegex(last, "[Nn]o space left on")
        self.assertIn("free space", last)
        self.assertIn("run the same command", last)
        self.assertEqual([line["step"] for line in self.metrics()], [1, 2, 3, 4, 5, 6])
        self.assertTrue(self.checkpoints())
        self.assertEqual(list(self.out().glob("checkpoints/.tmp-*")), [])
        self.finishes_as(whole)

    def test_a_checkpoint_that_fails_once_is_made_good_by_the_next(self):
        whole = self.whole(steps=6)
        for how, call in (("EIO", "sync"), ("EIO", "rename"), ("EDQUOT", "write"), ("EIO", "close"), ("EIO", "remove")):
            self.disturbed(how, 5, call, "out/checkpoints")
            self.assertEqual(self.result(), whole, how)
            self.assertEqual(self.checkpoints()[-1], 6)

    def test_short_writes_and_interruptions_change_nothing(self):
        whole = self.whole(steps=2)
        for how in ("SHORT", "EINTR"):
            for at in (0, 3, 17, 40, 71):
                self.assertNotIn("warning", self.disturbed(how, at).err)
                self.assertEqual(self.result(), whole)

    def test_metrics_that_cannot_be_written_now_come_later(self):
        whole = self.whole(steps=6)
        recipe = self.folder / "recipe.json"
        recipe.write_text(recipe.read_text().replace('"save_every": 1', '"save_every": 4'))
        ended = self.disturbed("EIO", 1, "write", "out/metrics.jsonl")
        self.assertIn("metrics.jsonl cannot be written; its lines are kept until it can", ended.err)
        self.assertEqual(self.result(), whole)

    def test_places_that_cannot_be_written_are_found_before_the_model_is_read(self):
        recipe = self.recipe()
        (self.folder / "file").write_text("x")
        for out, part in (("/proc/nibble", "/proc/nibble"), (self.folder / "file", "file"), (self.folder / "file/x", "file")):
            self.ends(4, ["train", recipe, f"output.dir={out}"], part)
        self.ends(4, ["train", recipe], "choose another place",
                  env={"NIBBLE_FAULT_ROOT": str(self.out()), "NIBBLE_FAULT_HOW": "EROFS", "NIBBLE_FAULT_AT": "0"})
        self.ends(4, ["train", recipe], "o space left on",
                  env={"NIBBLE_FAULT_ROOT": str(self.out()), "NIBBLE_FAULT_HOW": "ENOSPC", "NIBBLE_FAULT_AT": "1"})
        if os.getuid() == 0:
            os.chmod(self.folder, 0o755)
            self.ends(4, ["train", recipe], "ermission denied", user=65534)

    def test_a_model_that_is_bad_changes_nothing(self):
        weights = self.model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        self.ends(3, ["train", self.recipe()], weights)

    def test_a_base_that_is_bad_keeps_the_run_that_force_would_replace(self):
        self.whole(steps=2)
        recipe = self.recipe(steps=2)
        self.assertEqual(run("train", recipe).code, 0)
        weights = self.model / "model.safetensors"
        header, data = program.read_safetensors(weights)
        del header["model.norm.weight"]
        weights.write_bytes(weights.read_bytes().replace(b"model.norm.weight", b"model.morn.weight"))
        self.ends(3, ["train", recipe, "output.resume=never", "output.force=true"], "model.norm.weight")

    # checkpoints
    def test_a_flipped_bit_is_found_and_an_older_checkpoint_taken(self):
        whole = self.whole(steps=4)
        recipe = self.recipe(steps=4)
        self.assertEqual(run("train", recipe).code, 0)
        shutil.rmtree(self.out() / "adapter")
        for name in ("trainable-00000-of-00001.safetensors", "optimizer-00000-of-00001.safetensors", "state.json", "recipe.json"):
            path = self.out() / "checkpoints/step-4" / name
            original = path.read_bytes()
            path.write_bytes(original[:-9] + bytes([original[-9] ^ 4]) + original[-8:])
            ended = self.finishes_as(whole)
            self.assertIn(f"checkpoint cannot be used: {path}: is damaged: its hash differs", ended.err)
            self.assertIn("falling back to checkpoint", ended.err)
            self.assertIn("step-3", ended.err)
        for path in self.out().glob("checkpoints/step-*/state.json"):
            path.write_text("{}")
        self.ends(3, ["train", recipe], "no checkpoint can be used", "output.resume=never")

    def test_a_checkpoint_of_a_newer_format_is_refused(self):
        recipe = self.recipe(steps=2)
        self.assertEqual(run("train", recipe).code, 0)
        manifest = self.out() / "checkpoints/step-2/manifest.json"
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
        self.ends(3, ["train", recipe, "train.steps=4"], "step-2", "checkpoint format 99", "knows up to 1")

    def test_leftovers_of_killed_saves_are_swept(self):
        whole = self.whole(steps=3)
        recipe = self.recipe(steps=3)
        self.assertEqual(run("train", recipe, "train.steps=3", env={
            "NIBBLE_FAULT_ROOT": str(self.out() / "checkpoints"), "NIBBLE_FAULT_HOW": "KILL", "NIBBLE_FAULT_AT": "40"}).code, -9)
        self.assertTrue(list(self.out().glob("checkpoints/.tmp-*")))
        self.finishes_as(whole)
        self.assertEqual(list(self.out().glob("checkpoints/.tmp-*")), [])

    # signals
    def test_a_second_signal_ends_the_program_at_once(self):
        recipe = self.recipe(train={"save_every": 0}, **program.ENDLESS)
        child = self.start("train", recipe)
        self.wait_for_lines(2, child)
        os.kill(child.pid, signal.SIGSTOP)  # both are there before it can act on the first
        os.kill(child.pid, signal.SIGTERM)
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGCONT)
        self.assertEqual(child.wait(program.LIMIT), 75)
        # Unless it met a finished step that was not saved yet: then that is saved, and said.
        if "as soon as the step is saved" not in self.errors():
            self.assertNotIn("checkpoint saved", self.errors())

    def test_a_restart_loop_comes_to_the_end(self):
        """Each start gets 30 steps far: there it is held until the signal is heard."""
        whole = self.whole(steps=100)
        recipe = self.recipe(steps=100, train={"save_every": 0})
        held = self.folder / "held"
        env = {"NIBBLE_FAULT_ROOT": str(self.out()), "NIBBLE_FAULT_IN": "metrics.jsonl", "NIBBLE_FAULT_CALLS": "write",
               "NIBBLE_FAULT_AT": "29", "NIBBLE_FAULT_HOW": "HOLD", "NIBBLE_FAULT_HELD": str(held)}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            child = self.start("train", recipe, env=env)
            self.wait_until(lambda: held.exists() or child.poll() is not None)
            child.send_signal(number)
            self.wait_until(lambda: "stopping: " in self.errors() or child.poll() is not None)
            held.unlink()
            self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
        self.assertEqual(self.start("train", recipe, env=env).wait(program.LIMIT), 0, self.errors())
        self.assertEqual(self.result(), whole)

    def test_a_second_run_in_the_directory_is_turned_away(self):
        recipe = self.recipe(**program.ENDLESS)
        first = self.start("train", recipe)
        self.wait_for_lines(1, first)
        ended = run("train", recipe)
        self.assertEqual(ended.code, 4)
        self.assertIn("is in use by another run (process %d on " % first.pid, ended.err)
        first.kill()
        first.wait()

    # the system
    def test_a_model_cut_while_it_is_mapped_is_named(self):
        recipe = self.recipe(**program.ENDLESS)
        child = self.start("train", recipe)
        self.wait_for_lines(2, child)
        os.truncate(self.model / "model.safetensors", 4096)
        self.assertEqual(child.wait(program.LIMIT), 4)
        self.assertIn(f"error: {self.model / 'model.safetensors'}: was shortened", self.errors())

    def test_memory_that_will_not_be_enough_is_reported_before_anything_loads(self):
        recipe = self.recipe(parallel={name: "auto" for name in ("pipeline", "tensor", "shard", "replicate")})
        before = program.snapshot(self.folder)
        ended = run("plan", recipe, "--max-memory", "1MiB")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertRegex(ended.out.splitlines()[-1], "^nothing fits: one rank: needs .* MiB a rank.*, the budget is 1.00 MiB; ")
        peaks = [rung["peak_memory_bytes"] for rung in self.ladder(recipe)["ladder"] if "peak_memory_bytes" in rung]
        self.assertGreater(peaks[0], min(peaks))
        between = self.ladder(recipe, "--max-memory", str((peaks[0] + min(peaks)) // 2))
        self.assertFalse(between["ladder"][0]["fits"])
        self.assertNotIn(between["first_fit"], (None, between["ladder"][0]["name"]))
        self.assertEqual(program.snapshot(self.folder), before)
        self.ends(2, ["train", recipe, "--max-memory", "1MiB"], "parallel", "fits the memory budget", "raise --max-memory")

    def test_a_run_that_cannot_fit_is_refused_before_anything_loads(self):
        for recomputing in ("auto", "block", "none"):
            recipe = self.recipe(train={"gradient_checkpointing": recomputing})
            before = program.snapshot(self.folder)
            self.ends(4, ["train", recipe, "--max-memory", "64KiB"], "memory", "by the plan", "lower train.microbatch_size")
            self.assertEqual(program.snapshot(self.folder), before)

    def ladder(self, recipe, *words):
        ended = run("plan", recipe, "--json", *words)
        self.assertEqual(ended.code, 0, ended.err)
        return json.loads(ended.out)

    def test_the_memory_of_a_container_is_what_counts(self):
        with program.memory_limit(self, 200 << 20) as inside:
            ended = run("doctor", **inside)
            planned = run("plan", self.recipe(), "--json", **inside)
            text = run("plan", self.recipe(), **inside)
        self.assertEqual(ended.code, 0, ended.err)
        self.assertIn("the control group allows 200", ended.out)
        self.assertEqual(planned.code, 0, planned.err)
        self.assertEqual(json.loads(planned.out)["max_memory_bytes"], 200 << 20)
        self.assertIn(" of 200 MiB that the control group allows\n", text.out)

    @unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "AddressSanitizer reserves more address space than any limit allows")
    def test_a_limit_of_the_address_space_counts_where_it_is_less(self):
        words = "the limit of the address space (ulimit -v) allows"
        inside = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))}
        planned = run("plan", self.recipe(), "--json", **inside)
        self.assertEqual(planned.code, 0, planned.err)
        self.assertEqual(json.loads(planned.out)["max_memory_bytes"], 1 << 30)
        self.assertIn(f" of 1.00 GiB that {words}\n", run("plan", self.recipe(), **inside).out)
        self.assertIn(f"{words} 1.00 GiB", run("doctor", **inside).out)
        recipe = self.recipe(train={"microbatch_size": 1 << 20, "gradient_checkpointing": "none"},
                             train_on=self.data(rows=8000, length=64))
        self.assertRegex(run("train", recipe, **inside).err.splitlines()[-1],
                         r"^error: memory: the tensors of the run need [0-9.]+ GiB by the plan, " + re.escape(words) + " 1.00 GiB; ")

    @unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "AddressSanitizer reserves more address space than any limit allows")
    def test_memory_that_is_refused_is_named(self):
        recipe = self.large_recipe()
        for mib in range(60, 4000, 40):  # the least that it starts with
            ended = run("train", recipe, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)))
            if "for a thread" in ended.err:
                self.assertEqual(ended.code, 4, ended.err)
            elif ended.code not in (127, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGKILL):
                break
        self.assertEqual(ended.code, 4, f"{mib} MiB: {ended.err}")
        self.assertRegex(ended.err.splitlines()[-1], r"error: .*((model\.|lm_head|tensor|file).*[0-9.]+ [KMG]iB|cannot be mapped)|error: out of memory; lower ")
        self.assertFalse(self.out().exists())

    def test_output_that_nobody_reads_does_not_stop_training(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([program.PROGRAM, "train", str(self.recipe(steps=3))], stdout=writer, stderr=writer,
                              env=program.environment(), timeout=program.LIMIT)
        os.close(writer)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(self.metrics()), 3)

    def test_a_clock_that_jumps_back_changes_nothing(self):
        whole = self.whole(steps=3)
        ended = run("train", self.folder / "recipe.json", env={"NIBBLE_FAULT_ROOT": "/nowhere", "NIBBLE_FAULT_CLOCK": "1"})
        self.assertEqual(ended.code, 0, ended.err)
        self.assertEqual(self.result(), whole)
        self.assertTrue(all(line["seconds"] >= 0 for line in self.metrics()))

    def test_a_processor_without_the_newest_instructions_trains_too(self):
        named = run("doctor", env={"NIBBLE_ISA": "unknown"}).err.split("use ")[-1]
        levels = named.strip().replace(" or ", ", ").split(", ")
        self.assertIn("baseline", levels)
        losses = {}
        for isa in [*levels, ""]:
            shutil.rmtree(self.out(), ignore_errors=True)
            ended = run("train", self.recipe(steps=3), env={"NIBBLE_ISA": isa} if isa else {})
            self.assertEqual(ended.code, 0, f"{isa}: {ended.err}")
            losses[isa] = [line["loss"] for line in self.metrics()]
        for isa in levels:
            for a, b in zip(losses[isa], losses[""]):
                self.assertAlmostEqual(a, b, delta=1e-3 * b)

    def limited(self, which, size):
        return {"preexec_fn": lambda: resource.setrlimit(which, (size, size))}

    def test_a_limit_on_the_size_of_files_is_one_line(self):
        self.ends(4, ["train", self.recipe(steps=2)], "File too large", same_disk=False,
                  **self.limited(resource.RLIMIT_FSIZE, 1024))

    @unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "it needs a larger stack before main")
    def test_a_tiny_stack_is_enlarged_or_refused(self):
        recipe = self.recipe(steps=2, train={"threads": 2})
        ended = run("train", recipe, **self.limited(resource.RLIMIT_STACK, 64 << 10))
        if ended.code == 0:  # the administrator may raise a hard limit
            return
        self.ends(4, ["train", recipe], "stack: is limited to 64 KiB, 4096 KiB are needed; raise the limit: ulimit -s 8192",
                  **self.limited(resource.RLIMIT_STACK, 64 << 10))

    def test_absurd_numbers_of_threads_are_refused(self):
        self.ends(2, ["generate", "--model", self.model, "--ids", "1,5", "--threads", "100000"], "--threads")
        self.ends(2, ["train", self.recipe(steps=2)], "OMP_NUM_THREADS: asks for 100000 threads; use at most 4096",
                  env={"OMP_NUM_THREADS": "100000"})

    @unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "it reserves more address space than any limit allows")
    def test_little_address_space_does_not_hang_before_main(self):
        for size in (140, 200, 250):
            ended = run("--version", **self.limited(resource.RLIMIT_AS, size << 20))
            self.assertEqual(ended.code, 0, f"{size} MiB: {ended.err}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
