"""Faults 46 to 49 and 52 to 56 of docs/reliability.md: what happens to runs of several ranks."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import unittest

import program
from program import run


def as_root(*words):
    return subprocess.run([*map(str, words)], capture_output=True).returncode == 0


@unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
class Ranks(program.JobTest):
    def recipe_of_two(self, train=None, **sections):
        """Silence alone never ends it: what does end it was noticed."""
        return self.recipe(train={"accumulate": 2, **(train or {})}, parallel={"replicate": 2, "timeout_seconds": 10 * program.LIMIT},
                           **sections)

    def training(self, recipe, saved=True, **options):
        """A job that has done steps of its own, and saved one."""
        before = len(self.lines())
        job = self.launch(2, "train", recipe, **options)
        self.wait_until(lambda: len(self.lines()) > before + 3 and (self.checkpoints() or not saved) or job.poll() is not None)
        self.assertIsNone(job.poll(), self.errors())
        return job

    def to_mpirun(self, sent):
        os.kill(next(process for process, words in self.processes().items() if words[0] == "mpirun"), sent)

    def lost(self, job, code=76):
        """The job must have ended with `code`, all of its processes be gone, and the newest checkpoint verify."""
        self.assertEqual(self.ended(job, "a job that was disturbed"), code, self.errors())
        self.wait_until(lambda: not self.processes())
        begin = "error: " if code != 75 else f"{self.folder / 'out'}: stopped after step "
        lines = [line for line in self.errors().splitlines() if line.startswith(("error: ", begin))]
        self.assertEqual(len(lines), 1, self.errors())
        self.assertTrue(lines[0].startswith(begin), self.errors())
        steps = self.checkpoints()
        self.assertTrue(steps)
        self.assertEqual(run("inspect", self.folder / f"out/checkpoints/step-{steps[-1]}").code, 0)
        return lines[0]

    def finishes_as_one(self, recipe):
        """The job goes on for some steps and ends with the bits of one undisturbed process."""
        end = f"train.steps={self.checkpoints()[-1] + 5}"
        self.assertEqual(self.ended(self.launch(2, "train", recipe, end), "a job that goes on"), 0, self.errors())
        whole = run("train", recipe, end, "parallel.replicate=1", f"output.dir={self.folder / 'whole'}")
        self.assertEqual(whole.code, 0, whole.err)
        self.assertEqual(self.result()[0], self.result(self.folder / "whole")[0])

    def test_a_rank_that_dies_ends_all_of_them_without_a_save_and_the_run_goes_on(self):
        recipe = self.recipe_of_two(train={"save_every": 20}, **program.ENDLESS)
        for dies_of in (signal.SIGKILL, signal.SIGSEGV):
            # AddressSanitizer would make an exit with code 1 of the SIGSEGV.
            job = self.training(recipe, env={"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"})
            os.kill(self.ranks()[1 if dies_of == signal.SIGKILL else 0], dies_of)
            line = self.lost(job)
            self.assertRegex(line, rf"rank [01] on host \S+ was ended by signal {int(dies_of)}")
            self.assertIn("the same command continues from the last checkpoint", line)
            self.assertNotIn("stopping: ", self.errors(), "nothing is saved")
            # The survivor got SIGTERM; it must not have waited for the dead one to save with it.
            self.assertEqual([step for step in self.checkpoints() if step % 20], [])
        self.finishes_as_one(recipe)

    def test_a_launcher_that_dies_takes_its_ranks_along(self):
        recipe = self.recipe_of_two(train={"save_every": 20}, **program.ENDLESS)
        job = self.training(recipe)
        self.to_mpirun(signal.SIGKILL)
        self.assertIn("mpirun: was ended by signal 9; the same command continues", self.lost(job))
        job = self.training(recipe)
        job.kill()
        job.wait()
        self.wait_until(lambda: not self.processes())
        self.finishes_as_one(recipe)

    def test_a_rank_that_dies_while_mpirun_hangs_ends_all_of_them(self):
        recipe = self.recipe_of_two(train={"save_every": 20}, **program.ENDLESS)
        for victim in (0, 1):
            job = self.training(recipe)
            self.to_mpirun(signal.SIGSTOP)
            os.kill(self.ranks()[victim], signal.SIGKILL)
            line = self.lost(job)
            self.assertIn("a rank on this host was lost, and mpirun did not end; the same command continues", line)
        self.finishes_as_one(recipe)

    @unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "AddressSanitizer needs so much memory that the launcher is ended as well")
    def test_a_rank_that_the_kernel_ends_for_want_of_memory_is_distinguished(self):
        recipe = self.large_recipe(train={"accumulate": 2}, parallel={"replicate": 2})
        with program.memory_limit(self, 200 << 20) as inside:
            self.assertEqual(self.launch(2, "train", recipe, **inside).wait(program.LIMIT), 76, self.errors())
        lines = [line for line in self.errors().splitlines() if line.startswith("error: ")]
        self.assertEqual(len(lines), 1, self.errors())
        self.assertRegex(lines[0], r"^error: rank [01] on host \S+ was ended by signal 9 while this host had no memory left; shard more")

    def test_a_rank_that_stands_still_is_named_and_the_job_ends(self):
        recipe = self.recipe_of_two(train={"save_every": 20}, **program.ENDLESS)
        for hanging in ("rank", "mpirun too"):  # which then passes on nothing
            with self.subTest(hanging=hanging):
                variables, haste = self.hasty()
                job = self.training(recipe, env=variables)
                if hanging != "rank":
                    self.to_mpirun(signal.SIGSTOP)
                os.kill(self.ranks()[1], signal.SIGSTOP)
                haste.touch()
                line = self.lost(job)
                self.assertRegex(line, rf"error: rank 1 on host \S+: silent for {10 * program.LIMIT} s while rank 0 waited in \"")
                self.assertIn("the same command continues from the last checkpoint", line)
        self.finishes_as_one(recipe)

    def test_a_signal_lets_all_ranks_save(self):
        recipe = self.recipe_of_two(train={"save_every": 0}, **program.ENDLESS)
        for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            job = self.training(recipe, saved=False, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
            job.send_signal(sent)
            self.lost(job, code=75)  # the step under way ends, and all of them save
            self.assertEqual(self.checkpoints()[-1], self.metrics()[-1]["step"])
        self.finishes_as_one(recipe)

    def differing(self, *changes):
        """Three ranks in folders of their own, alike but for what `changes` make of them."""
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        for rank, change in enumerate(changes):
            home = self.folder / f"home{rank}"
            shutil.copytree(self.model, home / "model")
            shutil.copy(self.data(), home / "data.jsonl")
            recipe = self.recipe(model={"path": "model"}, data={"train": "data.jsonl"}, train={"accumulate": 3}, parallel={"replicate": 3})
            shutil.copy(recipe, home / "recipe.json")
            shutil.copy(program.PROGRAM, home / "nibble")
            change(home)
            words += [*([":"] if rank else []), "-wdir", str(home), "-n", "1", str(home / "nibble"), "train", "recipe.json"]
        ended = subprocess.run(words, capture_output=True, env=program.environment(), timeout=program.LIMIT)
        errors = ended.stderr.decode()
        for rank in range(len(changes)):
            shutil.rmtree(self.folder / f"home{rank}")
        self.assertEqual(ended.returncode, 2, errors)
        self.assertFalse((self.folder / "out").exists(), errors)
        lines = [line for line in errors.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(lines), 1, errors)
        return lines[0]

    def test_ranks_that_disagree_are_named_before_anything_is_written(self):
        def alike(home):
            pass

        def other_recipe(home):
            text = (home / "recipe.json").read_text()
            (home / "recipe.json").write_text(text.replace('"steps": 6', '"steps": 7'))

        def other_program(home):
            with open(home / "nibble", "ab") as file:
                file.write(b"\0")

        def other_data(home):
            text = (home / "data.jsonl").read_text()
            (home / "data.jsonl").write_text(text.replace("[3,", "[4,"))

        def other_base(home):
            weights = (home / "model/model.safetensors").read_bytes()
            (home / "model/model.safetensors").write_bytes(weights[:-4] + b"\0\0\0\0")

        for change, what in ((other_recipe, "recipe"), (other_program, "nibble"), (other_data, "data.fingerprint"),
                             (other_base, "model.fingerprint")):
            for odd in range(3):
                with self.subTest(what=what, odd=odd):
                    line = self.differing(*(change if rank == odd else alike for rank in range(3)))
                    self.assertRegex(line, rf"^error: rank {odd} on host \S+: has another {re.escape(what)}.* than the other ranks")
                if what != "recipe":
                    break

    def test_degrees_that_do_not_fit_the_ranks(self):
        recipe = self.recipe()
        job = self.launch(3, "train", recipe, "parallel.shard=2")
        self.assertEqual(job.wait(program.LIMIT), 2)
        lines = [line for line in self.errors().splitlines() if line.startswith("error: ")]
        self.assertEqual(len(lines), 1, self.errors())
        self.assertIn("the job has 3 ranks", lines[0])
        self.assertFalse((self.folder / "out").exists())

    def test_another_launchers_variables_without_ranks(self):
        self.ends(2, ["train", self.recipe()], "WORLD_SIZE is 4", "nibble launch -n 4", env={"WORLD_SIZE": "4", "RANK": "1"})
        self.assertEqual(run("train", self.recipe(), env={"WORLD_SIZE": "1", "RANK": "0"}).code, 0)

    def test_a_launcher_that_does_not_start_the_ranks_is_reported(self):
        places = self.folder / "bin"
        places.mkdir()
        words = ["launch", "-n", "2", "--", "train", self.recipe()]
        self.ends(4, words, "mpirun: cannot be started", "check that PATH names", env={"PATH": str(places)})

        def launcher(code):
            for name in ("mpirun", "mpiexec.hydra"):
                (places / name).write_text(f"#!/bin/sh\necho no agent was found >&2\nexit {code}\n")
                (places / name).chmod(0o755)

        launcher(137)  # a rank died before it could say which
        self.ends(76, words, "a rank was ended by signal 9", env={"PATH": str(places)})
        launcher(213)
        ended = self.ends(4, words, "mpirun: ended with exit code 213 before the ranks began", "PATH",
                          env={"PATH": str(places)})
        self.assertIn("no agent was found", ended.err)

    def test_a_launcher_that_may_not_write_its_files_is_reported(self):
        places = self.folder / "bin"
        places.mkdir()
        for name in ("mpirun", "mpiexec.hydra"):
            (places / name).write_text("#!/bin/sh\necho 'mpirun: Forwarding signal 25 to job' >&2\nexit 1\n")
            (places / name).chmod(0o755)
        self.ends(4, ["launch", "-n", "2", "--", "train", self.recipe()],
                  "mpirun: needs larger files than the limit of 2.00 KiB; raise it: ulimit -f unlimited",
                  env={"PATH": str(places)}, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)))

    def test_what_mpirun_logs_of_itself_is_shown_only_where_no_rank_said_why(self):
        places = self.folder / "bin"
        places.mkdir()
        words = ["launch", "-n", "2", "--", "train", self.recipe()]
        log = "[host:1] [[7,0],0] ORTE_ERROR_LOG: Out of resource in file show_help.c at line 501"
        for rank, line in (("error: a: b; c", ""), ("", log)):
            for name in ("mpirun", "mpiexec.hydra"):
                (places / name).write_text(f"#!/bin/sh\necho '{log}' >&2\necho '{rank}' >&2\nexit 2\n")
                (places / name).chmod(0o755)
            ended = run(*words, env={"PATH": f"{places}:{os.environ['PATH']}"})
            self.assertEqual(ended.code, 2, ended.err)
            self.assertEqual([l for l in ended.err.splitlines() if l], [rank or line], ended.err)

    def test_a_launcher_that_hangs_without_ranks_is_ended(self):
        places, began = self.folder / "bin", self.folder / "began"
        places.mkdir()
        for name in ("mpirun", "mpiexec.hydra"):
            (places / name).write_text(f"#!/bin/sh\ntrap '' TERM INT\ntouch {began}\nwhile :; do sleep 1; done\n")
            (places / name).chmod(0o755)
        path = f"{places}:{os.environ['PATH']}"
        job = subprocess.Popen([program.PROGRAM, "launch", "-n", "2", "--", "train", self.recipe()], stderr=subprocess.PIPE,
                               env=program.environment({"PATH": path}))
        self.wait_until(began.exists)
        job.send_signal(signal.SIGTERM)
        self.assertIn(b"stopped; ", job.communicate()[1])
        self.assertEqual(job.returncode, 75)

    def test_however_a_launcher_ends_that_the_user_ended_the_run_goes_on(self):
        places, began = self.folder / "bin", self.folder / "began"
        places.mkdir()
        noise = "echo '[host:1] *** Process received signal ***' >&2; echo ------------------------------------------------------------ >&2"
        for end in ("exit 1", "kill -SEGV $$"):
            for name in ("mpirun", "mpiexec.hydra"):
                (places / name).write_text(f"#!/bin/sh\ntrap \"{noise}; {end}\" TERM\ntouch {began}\nwhile :; do sleep 1; done\n")
                (places / name).chmod(0o755)
            job = self.launch(2, "train", self.recipe(), env={"PATH": f"{places}:{os.environ['PATH']}"})
            self.wait_until(began.exists)
            began.unlink()
            for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # of one kind two could become one
                job.send_signal(sent)
            self.assertEqual(self.ended(job, end), 75, self.errors())
            self.assertTrue(self.errors().endswith("stopped; the same command continues from the last checkpoint\n"), self.errors())
            self.assertNotRegex(self.errors(), r"error:|\*\*\*|---")

    @unittest.skipIf(program.WITH_ADDRESS_SANITIZER, "AddressSanitizer reserves more address space than any limit allows")
    def test_little_address_space_is_refused_or_named(self):
        limited = lambda mib: {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))}
        recipe = self.recipe_of_two(train={"threads": 400, "microbatch_size": 8}, train_on=self.data(rows=64, length=64))
        for mib in (100, 120, 250):  # mpirun may crash; the ranks may wait for each other
            self.ends(4, ["launch", "-n", "2", "--", "train", recipe], f"address space: is limited to {mib} MiB, ", " need 512 MiB; raise ",
                      **limited(mib))
        (self.folder / "wide.json").write_text(json.dumps(dict(program.CONFIG, hidden_size=128, intermediate_size=1024)))
        self.assertEqual(run("init", "--config", self.folder / "wide.json", "--out", self.folder / "wide").code, 0)
        ended = run("launch", "-n", "2", "--", "train", recipe, f"model.path={self.folder / 'wide'}", **limited(512))
        self.assertEqual(ended.code, 4, ended.err)
        # Whichever finds none first: a thread, or a tensor beside those that run.
        self.assertRegex(ended.err, r"\nerror: (no memory or no process is left for a thread; raise|.* and the system has none left; lower) ")

    def test_more_threads_than_cores_are_reported_with_the_plan(self):
        cores = os.cpu_count()
        job = self.launch(2, "train", self.recipe_of_two(steps=2), threads=cores)
        self.assertEqual(job.wait(program.LIMIT), 0, self.errors())
        self.assertIn(f"warning: 2 ranks with {cores} threads each share {cores} cores", self.errors())

    def test_shared_memory_that_is_small_or_full(self):
        recipe = self.recipe_of_two(steps=4)
        command = f"{program.PROGRAM} launch -n 2 --threads 1 -- train {recipe}"
        inside = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True)
        if inside.returncode != 0:  # without root, or in a changed one
            self.skipTest(f"mounting for one process is not permitted here: {inside.stderr.strip()}")
        for size, fill in (("64m", ""), ("64k", ""), ("16m", "cat /dev/zero > /dev/shm/filler 2>/dev/null;")):
            with self.subTest(size=size, full=bool(fill)):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                words = ["unshare", "-m", "sh", "-c",
                         f"mount -t tmpfs -o size={size} tmpfs /dev/shm || exit 1; {fill} exec {command}"]
                ended = subprocess.run(words, capture_output=True, env=program.environment(), timeout=program.LIMIT)
                self.assertEqual(ended.returncode, 0, ended.stderr.decode())
                self.assertEqual(len(self.metrics()), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
