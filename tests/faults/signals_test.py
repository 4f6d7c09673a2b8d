"""Faults 71, 72, 81 and 82 of docs/reliability.md: signals in every phase of a run and of the other commands.

A phase is held by a file call of it that does not return (NIBBLE_FAULT_HOW=HOLD) until the test says so."""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import unittest

import program
from program import run
from rollouts import RolloutTest

STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def as_in_a_terminal():
    """However the tests were started (nohup, in the background), none of these is ignored."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


class Signals(RolloutTest):
    def setUp(self):
        super().setUp()
        self.held = self.folder / "held"

    def start(self, *words, before=as_in_a_terminal, **options):
        file = open(self.folder / "stderr", "wb")
        self.addCleanup(file.close)
        self.addCleanup(self.end_processes)
        env = program.environment(options.pop("env", None))
        return subprocess.Popen([program.PROGRAM, *map(str, words)], env=env, preexec_fn=before,
                                **{"stdout": subprocess.DEVNULL, "stderr": file, **options})

    def held_in(self, root, calls, at=0, part=""):
        """Variables for a program that stays in call number `at` of `calls` on paths that begin with `root`, with `part` in it."""
        return {"NIBBLE_FAULT_ROOT": str(root), "NIBBLE_FAULT_CALLS": calls, "NIBBLE_FAULT_AT": str(at), "NIBBLE_FAULT_IN": part,
                "NIBBLE_FAULT_HOW": "HOLD", "NIBBLE_FAULT_HELD": str(self.held)}

    def start_held(self, root, calls, *words, at=0, part=""):
        """Returns when the program is there."""
        child = self.start(*words, env=self.held_in(root, calls, at, part))
        self.wait_until(lambda: self.held.exists() or child.poll() is not None)
        self.assertTrue(self.held.exists(), f"{words} did not come to {calls} of {root}: {self.errors()}")
        return child

    def says(self, text):
        self.wait_until(lambda: text in self.errors())
        self.assertIn(text, self.errors())

    def evaluating_recipe(self, steps=4):
        return self.recipe(steps=steps, train={"save_every": 0, "eval_every": 2, "samples": 2, "early_stop": 3},
                           data={"eval": str(self.data("eval.jsonl", rows=5))}, output={"keep_best": True})

    def samples(self, out):
        return program.without_clock((out / "samples.jsonl").read_text())

    def finishes_as(self, recipe, out="out"):
        """The same command goes on and leaves what an undisturbed run leaves."""
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        whole = run("train", recipe, f"output.dir={self.folder / 'whole'}")
        self.assertEqual(whole.code, 0, whole.err)
        self.assertEqual(self.result(self.folder / out), self.result(self.folder / "whole"))
        self.assertEqual([(line["step"], line["split"]) for line in self.metrics(self.folder / out)],
                         [(line["step"], line["split"]) for line in self.metrics(self.folder / "whole")])
        self.assertEqual(self.samples(self.folder / out), self.samples(self.folder / "whole"))
        self.assertEqual(list(self.folder.glob("**/.tmp-*")), [])
        shutil.rmtree(self.folder / "whole")
        shutil.rmtree(self.folder / out)

    def no_error_line(self):
        self.assertNotIn("error:", self.errors())

    # runs
    def test_each_signal_in_a_step_is_answered_at_once_and_the_step_saved(self):
        recipe = self.evaluating_recipe()
        for number in STOPS:
            with self.subTest(signal=number):
                child = self.start_held(self.folder / "out/metrics.jsonl", "write", "train", recipe)  # of step 1
                child.send_signal(number)
                self.says("stopping: ")
                self.held.unlink()
                self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
                self.says("stopped after step 1, checkpoint saved; run the same command to continue")
                self.no_error_line()
                self.assertEqual(self.checkpoints(), [1])
                self.finishes_as(recipe)

    def test_an_evaluation_that_is_due_is_left_and_done_when_the_run_goes_on(self):
        recipe = self.evaluating_recipe()
        child = self.start_held(self.folder / "out/metrics.jsonl", "write", "train", recipe, at=1)  # of step 2
        child.send_signal(signal.SIGINT)
        self.says("stopping: ")
        self.held.unlink()
        self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
        self.assertEqual([(line["step"], line["split"]) for line in self.metrics()], [(1, "train"), (2, "train")])
        self.assertEqual(self.checkpoints(), [2])
        self.finishes_as(recipe)

    def test_an_evaluation_of_a_later_save_is_not_written_twice(self):
        """Left, done again, and the process killed before a checkpoint knew of it."""
        recipe = self.evaluating_recipe()
        child = self.start_held(self.folder / "out/metrics.jsonl", "write", "train", recipe, at=1)
        child.send_signal(signal.SIGTERM)
        self.says("stopping: ")
        self.held.unlink()
        self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
        # The line of the evaluation is written, the checkpoint of the new best is not.
        child = self.start_held(self.folder / "out/checkpoints", "mkdir", "train", recipe)
        self.assertIn((2, "eval"), [(line["step"], line["split"]) for line in self.metrics()])
        child.kill()
        child.wait()
        self.held.unlink()
        self.finishes_as(recipe)

    def test_a_second_signal_waits_for_the_step_that_is_being_saved_and_a_third_does_not(self):
        recipe = self.evaluating_recipe()
        for signals, saved in ((2, [1]), (3, [])):
            with self.subTest(signals=signals):
                child = self.start_held(self.folder / "out/metrics.jsonl", "write", "train", recipe)
                for number, said in ((signal.SIGHUP, "stopping: "), (signal.SIGINT, "again to leave without it"))[:signals]:
                    child.send_signal(number)
                    self.says(said)
                if signals == 3:
                    child.send_signal(signal.SIGTERM)
                else:
                    self.held.unlink()
                self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
                self.held.unlink(missing_ok=True)
                self.assertEqual(self.checkpoints(), saved)
                self.finishes_as(recipe)

    def test_a_signal_while_it_loads_ends_it_at_once_and_leaves_nothing(self):
        recipe = self.evaluating_recipe()
        out = self.folder / "made/on/the/way"
        for number in STOPS:
            for root, calls in ((self.model, "open"), (self.folder / "data.jsonl", "open"), (out / ".tmp-", "sync")):
                with self.subTest(signal=number, held=(root, calls)):
                    before = program.snapshot(self.folder)
                    child = self.start_held(root, calls, "train", recipe, f"output.dir={out}")
                    child.send_signal(number)
                    self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
                    self.says("stopping: ")
                    self.no_error_line()
                    self.held.unlink()
                    (self.folder / "stderr").unlink()
                    self.assertEqual(program.snapshot(self.folder), before)

    def test_what_the_command_of_a_reward_started_ends_with_the_run(self):
        """Where what is unfinished is removed first, as the first answers are judged, and where it is left."""
        pid = self.folder / "pid"
        argv = ["sh", "-c", f"sleep 1000000 & echo $! > {pid}; exec \"$@\"", "sh", *self.judge()["argv"]]
        recipe = self.rollout_recipe(rewards=[{"type": "command", "argv": argv}])
        first, second = (signal.SIGTERM, "stopping: "), (signal.SIGINT, "again to leave without it")
        for held, before in (("out/rollouts", []), ("out/metrics.jsonl", [first, second])):
            with self.subTest(held=held):
                child = self.start_held(self.folder / held, "write", "train", recipe)
                state = pathlib.Path("/proc", pid.read_text().strip(), "stat")

                def is_over():  # or nobody has asked yet how it ended
                    try:
                        return state.read_text().rpartition(")")[2].split()[0] == "Z"
                    except (FileNotFoundError, ProcessLookupError):
                        return True

                self.assertFalse(is_over())
                for number, said in before:
                    child.send_signal(number)
                    self.says(said)
                child.send_signal(signal.SIGTERM)
                self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
                self.wait_until(is_over)
                self.held.unlink()
                shutil.rmtree(self.folder / "out")

    def test_a_signal_during_the_export_removes_it_and_the_run_goes_on_to_it(self):
        recipe = self.evaluating_recipe()
        for number in STOPS:
            with self.subTest(signal=number):
                child = self.start_held(self.folder / "out", "write", "train", recipe, part="/adapter/")
                child.send_signal(number)
                self.assertEqual(child.wait(program.LIMIT), 75, self.errors())
                self.says("run the same command to continue")
                self.no_error_line()
                self.held.unlink()
                self.assertEqual(list(self.folder.glob("out/.tmp-*")), [])
                self.assertFalse((self.folder / "out/adapter").exists())
                self.finishes_as(recipe)

    def test_under_nohup_a_run_goes_on_without_its_terminal(self):
        recipe = self.evaluating_recipe()
        ours, terminal = pty.openpty()

        def without_hangups():
            os.setsid()
            os.close(os.open(os.ttyname(terminal), os.O_RDWR))  # it becomes the controlling one
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

        env = program.environment(self.held_in(self.folder / "out/metrics.jsonl", "write", at=1))
        child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdin=terminal, stdout=terminal, stderr=terminal, env=env,
                                 preexec_fn=without_hangups)
        os.close(terminal)
        self.wait_until(self.held.exists)
        os.close(ours)  # the kernel sends SIGHUP
        child.send_signal(signal.SIGHUP)
        self.held.unlink()
        self.assertEqual(child.wait(program.LIMIT), 0)
        self.finishes_as(recipe)

    # other commands
    def test_a_command_that_writes_ends_by_the_signal_and_leaves_nothing(self):
        adapter = self.folder / "trained"
        self.assertEqual(run("train", self.recipe(steps=1), f"output.dir={adapter}").code, 0)
        program.write_ids(self.folder / "ids.npy", [3, 4, 5, 6])
        out = self.folder / "new/result"
        commands = [["quantize", "--model", self.model, "--out", out],
                    ["merge", "--model", self.model, "--adapter", adapter / "adapter", "--out", out],
                    ["init", "--config", self.model / "config.json", "--out", out],
                    ["combine", "--adapter", adapter / "adapter", "--weight", "1", "--adapter", adapter / "adapter", "--weight", "1",
                     "--method", "linear", "--out", out]]
        files = [["logits", "--model", self.model, "--ids", self.folder / "ids.npy", "--out", self.folder / "file.npy"],
                 ["gradients", "--model", self.model, "--ids", self.folder / "ids.npy", "--labels", self.folder / "ids.npy",
                  "--out", self.folder / "file.safetensors"]]
        gguf = self.folder / "here.gguf"
        export = ["export", "--model", self.model, "--no-tokenizer", "--type", "f32"]
        self.assertEqual(run(*export, "--out", gguf).code, 0)
        commands += [["import", "--model", gguf, "--out", out]]
        files += [[*export, "--out", self.folder / "file.gguf", "--modelfile", self.folder / "Modelfile"],
                  [*export, "--adapter", adapter / "adapter", "--out", self.folder / "file.gguf"],
                  [*export, "--adapter", adapter / "adapter", "--adapter-only", "--out", self.folder / "file.gguf"]]
        for number in STOPS:
            for words in commands + files:
                with self.subTest(signal=number, command=words):
                    before = program.snapshot(self.folder)
                    root = self.folder / (".tmp-nibble" if words in files else "new/.tmp-nibble")
                    child = self.start_held(root, "write", *words)
                    child.send_signal(number)
                    self.assertEqual(child.wait(program.LIMIT), -number, self.errors())
                    self.says("stopping: what is not finished is removed")
                    self.held.unlink()
                    (self.folder / "stderr").unlink()
                    self.assertEqual(program.snapshot(self.folder), before)

    def test_a_command_that_computes_ends_by_the_signal(self):
        for number in STOPS:
            with self.subTest(signal=number):
                child = self.start_held(self.model, "open", "generate", "--model", self.model, "--ids", "3,4")
                child.send_signal(number)
                self.assertEqual(child.wait(program.LIMIT), -number)
                self.held.unlink()

    # a sweep
    def test_ctrl_c_on_a_sweep_reaches_every_run_once_and_a_new_call_goes_on(self):
        """Two runs are held in the writing of their fourth step; a third waits for them."""
        recipe = self.recipe(steps=12, train={"save_every": 0})
        for number in STOPS:
            with self.subTest(signal=number):
                words = ["sweep", recipe, "optimizer.lr=1e-3,1e-4,1e-5", "--jobs", "2"]
                sweep = self.start(*words, start_new_session=True,
                                   env=self.held_in(self.folder / "out", "write", at=3, part="metrics.jsonl"))
                logs = lambda: [path for path in self.folder.glob("out/*/metrics.jsonl") if path.read_bytes().count(b"\n") > 2]
                self.wait_until(lambda: len(logs()) >= 2 or sweep.poll() is not None)
                os.killpg(sweep.pid, number)  # as the terminal does
                told = lambda: [path for path in logs() if "stopping: " in (path.parent / "log.txt").read_text()]
                self.wait_until(lambda: len(told()) == 2 or sweep.poll() is not None)
                self.wait_until(lambda: self.held.unlink(missing_ok=True) or sweep.poll() is not None)  # either may come to it last
                self.assertEqual(sweep.wait(program.LIMIT), 75, self.errors())
                self.no_error_line()
                self.assertEqual(self.processes(), {})
                runs = [path.parent for path in logs()]
                self.assertEqual(len(runs), 2, self.errors())
                for folder in runs:
                    self.assertTrue(self.checkpoints(folder), (folder / "log.txt").read_text())
                ended = run(*words)
                self.assertEqual(ended.code, 0, ended.err)
                for folder in runs:
                    self.assertIn("continuing after step", (folder / "log.txt").read_text())
                    lr = json.loads((folder / "recipe.json").read_text())["optimizer"]["lr"]
                    whole = run("train", recipe, f"optimizer.lr={lr}", f"output.dir={self.folder / 'whole'}")
                    self.assertEqual(whole.code, 0, whole.err)
                    self.assertEqual(self.result(folder), self.result(self.folder / "whole"))
                    shutil.rmtree(self.folder / "whole")
                shutil.rmtree(self.folder / "out")

    def test_a_run_that_a_sweep_tells_to_stop_before_it_listens_is_stopped(self):
        begun, script = self.folder / "begun", self.folder / "program"
        script.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 1000000\n")
        script.chmod(0o755)
        sweep = self.start("sweep", self.recipe(steps=2), "optimizer.lr=1e-3,1e-4", env={"NIBBLE_PROGRAM": str(script)})
        self.wait_until(lambda: begun.exists() or sweep.poll() is not None)
        sweep.send_signal(signal.SIGTERM)
        self.assertEqual(sweep.wait(program.LIMIT), 75, self.errors())
        self.assertIn("1/2 lr=1e-3 stopped", self.errors())
        self.assertNotIn("failed", self.errors())

    def test_a_sweep_on_a_terminal_shows_the_steps_of_its_run_and_the_time_left(self):
        ours, terminal = pty.openpty()
        self.addCleanup(os.close, ours)
        sweep = self.start("sweep", self.recipe(**program.ENDLESS), "optimizer.lr=1e-3,1e-4", stderr=terminal)
        os.close(terminal)
        seen = [b""]

        def steps_are_shown():
            if select.select([ours], [], [], 0.1)[0]:
                seen[0] += os.read(ours, 4096)
            return re.search(rb"\r1/2 lr=1e-3 step [1-9]\d*/1000000000  of all [1-9]\d*/2000000000  left \d", seen[0])

        self.wait_until(lambda: steps_are_shown() or sweep.poll() is not None)
        self.assertIsNone(sweep.poll(), seen[0])
        sweep.send_signal(signal.SIGTERM)
        self.assertEqual(sweep.wait(program.LIMIT), 75)

    def test_a_signal_as_chat_begins_to_edit_a_line_leaves_the_terminal_as_it_was(self):
        """Before libedit knows that it has changed the terminal."""
        program.write_tokenizer(self.model, 512)
        ours, terminal = pty.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, terminal)
        before = termios.tcgetattr(terminal)

        def at_the_terminal():
            as_in_a_terminal()
            os.setsid()
            os.close(os.open(os.ttyname(terminal), os.O_RDWR))  # it becomes the controlling one

        child = self.start("chat", "--model", self.model, "--template", "plain", stdin=terminal, stderr=terminal,
                           env={"NIBBLE_FAULT_ROOT": str(self.folder), "NIBBLE_FAULT_RAW": "1"}, before=at_the_terminal)
        self.assertEqual(child.wait(program.LIMIT), -signal.SIGTERM)
        self.assertEqual(termios.tcgetattr(terminal)[:4], before[:4])  # input, output, control and local modes

    def test_on_a_narrow_terminal_the_line_is_wrapped_between_words(self):
        ours, terminal = pty.openpty()
        self.addCleanup(os.close, ours)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        child = self.start("train", self.recipe(**program.ENDLESS), stderr=terminal)
        os.close(terminal)
        seen = b""
        while b"\rstep " not in seen:
            seen += os.read(ours, 4096)
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of it
            while True:
                seen += os.read(ours, 4096)
        self.assertEqual(child.wait(program.LIMIT), 75)
        line = re.search(rb"\r\n(stopping: .*?(?:first|checkpoint))\r\n", seen, re.S)[1].decode().split()
        self.assertIn(" ".join(line), ("stopping: the current step is finished and saved; again to leave at once, with the last checkpoint",
                                       "stopping: the current step is saved first"))  # where a step had just ended
        self.assertTrue(all(len(row) <= 40 for row in seen[seen.index(b"stopping: "):].split(b"\r\n")[:2]), seen)

    # several ranks
    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_ranks_save_whatever_took_the_handlers_of_mpirun(self):
        recipe = self.recipe(**program.ENDLESS, train={"save_every": 0, "accumulate": 2}, parallel={"replicate": 2, "timeout_seconds": 10 * program.LIMIT})
        for number in STOPS:
            with self.subTest(signal=number):
                job = self.launch(2, "train", recipe, env={"NIBBLE_FAULT_ROOT": "/nowhere", "NIBBLE_FAULT_TAKEN": "mpirun"},
                                  preexec_fn=as_in_a_terminal)
                self.wait_until(lambda: len(self.lines()) > 3 or job.poll() is not None)
                job.send_signal(number)
                self.assertEqual(self.ended(job, f"signal {number}"), 75, self.errors())
                self.assertEqual(self.errors().count("stopping: "), 1, self.errors())
                self.says("checkpoint saved; run the same command to continue")
                self.no_error_line()
                self.assertTrue(self.checkpoints())
                shutil.rmtree(self.folder / "out")

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_ranks_that_load_end_at_once(self):
        recipe = self.recipe(steps=3, train={"accumulate": 2}, parallel={"replicate": 2, "timeout_seconds": 10 * program.LIMIT})
        job = self.launch(2, "train", recipe, env=self.held_in(self.model, "open", at=1), preexec_fn=as_in_a_terminal)
        self.wait_until(lambda: self.held.exists() or job.poll() is not None)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(self.ended(job, "while it loads"), 75, self.errors())
        self.no_error_line()
        self.wait_until(lambda: not self.processes())
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
