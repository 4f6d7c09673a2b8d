"""kill -9 at random moments of a run that checkpoints every step: the run always goes on, to the same bits.

    NIBBLE_KILLS=1000 NIBBLE_KILL_SEED=1 python3 tests/faults/kill_test.py
    NIBBLE_KILLS=90 ... kill_test.py -k two_ranks                            only of the jobs; -k one_process: only of the others

Without NIBBLE_KILLS there are 18 kills, what ctest runs: of the recipes that draw nothing, and of LoRA on two ranks
(rollouts_test.py kills those that draw). Two thirds of the kills hit a run of one process (every recipe in turn), either after a
random time (between nothing and the length of a whole run) or, every third, in front of a random file call of a save. The others
hit a job of two ranks: one of the ranks (at a random time or in front of a file call), mpirun, or the launcher; then nothing of it
may go on (its own limit of silence is longer than the test waits). Prints what was hit, and after how many seconds the last process
was gone."""
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import program
from rollouts import DRAWING, RolloutTest

KILLS = int(os.environ.get("NIBBLE_KILLS", "18"))
SEED = int(os.environ.get("NIBBLE_KILL_SEED", "1"))
STEPS = 40
KINDS = ("lora", "qlora", "full", "pretrain", "dpo", "kto", "orpo", "simpo")
JOBS = KINDS[:1]
if "NIBBLE_KILLS" in os.environ:
    KINDS = JOBS = KINDS + ("reward", "classification") + tuple(DRAWING)


class Tally:
    def __init__(self):
        self.kills = self.runs = self.resumed = self.fallbacks = self.swept = self.early = 0
        self.hit = {}
        self.slowest = 0.0

    def killed(self, whom, out):
        self.kills += 1
        self.hit[whom] = self.hit.get(whom, 0) + 1
        self.early += not (out / "checkpoints").exists()
        self.swept += bool(list((out / "checkpoints").glob(".tmp-*")))

    def read(self, text):
        self.resumed += "continuing after step" in text
        self.fallbacks += "falling back" in text

    def print(self, what):
        hit = ", ".join(f"{count} of {whom}" for whom, count in sorted(self.hit.items()))
        print(f"\n{what}: {self.kills} kills ({hit}) in {self.runs} runs of {STEPS} steps: {self.resumed} times continued, "
              f"{self.early} kills before the first checkpoint, {self.swept} in the middle of a save, {self.fallbacks} "
              f"fallbacks; always the same bits" + (f"; the last process gone after {self.slowest:.1f} s at most" if self.slowest else ""),
              flush=True)


class Kill(RolloutTest):
    def whole(self, recipe):
        """What an undisturbed run of one process leaves, and the seconds it took."""
        whole = self.folder / "whole"
        began = time.monotonic()
        ended = program.run("train", recipe, "parallel.replicate=1", f"output.dir={whole}")
        seconds = time.monotonic() - began
        self.assertEqual(ended.code, 0, ended.err)
        bits = self.bits(whole)
        shutil.rmtree(whole)
        return bits, seconds

    def losses(self, lines):
        return [line["loss"] for line in lines if line["split"] == "train"]

    def each(self, kinds, kills, kill):
        """kill(kind, its share of the kills) for each kind, as a test of its own."""
        for number, kind in enumerate(kinds):
            shutil.rmtree(self.folder / "out", ignore_errors=True)  # of a kind that failed
            with self.subTest(kind=kind):
                kill(kind, kills * (number + 1) // len(kinds) - kills * number // len(kinds))

    def recipe_of(self, kind, train=None, **sections):
        train = {"save_every": 1, **(train or {})}
        if kind in DRAWING:
            return self.drawing_recipe(kind, steps=STEPS, train=train, **sections)
        recipe = self.recipe(steps=STEPS, adapter={"lora_dropout": 0.1}, train={"accumulate": 2, "eval_every": 7, **train},
                             data={"eval": str(self.data("eval.jsonl", rows=3))}, **sections)
        whole = json.loads(recipe.read_text())
        if kind == "qlora":
            whole["model"]["quantize"] = "nf4"
        if kind in ("full", "pretrain"):
            del whole["adapter"]
        if kind == "pretrain":  # with a tokenizer of its own
            (self.folder / "new.json").write_text(json.dumps(dict(program.CONFIG, vocab_size=300)))
            (self.folder / "text.txt").write_text("".join(f"It is {i}, and {i * i} is its square.\n\n" for i in range(60)))
            whole["model"] = {"init": str(self.folder / "new.json"), "compute_dtype": "f32"}
            whole["data"] = {"train": str(self.folder / "text.txt"), "eval_fraction": 0.1, "format": "text", "max_length": 32}
        if kind in ("dpo", "kto", "orpo", "simpo", "reward", "classification"):
            answers = [{"prompt_ids": [5 + i, 9, 2 * i + 4], "chosen_ids": [20 + i, 7, 2], "rejected_ids": [40, 3 + i, 11, 2]}
                       for i in range(12)]
            if kind == "kto":
                answers = [{"prompt_ids": one["prompt_ids"], "completion_ids": one[which], "label": which == "chosen_ids"}
                           for one in answers for which in ("chosen_ids", "rejected_ids")]
            if kind == "classification":
                answers = [{"input_ids": one["prompt_ids"], "label": i % 3} for i, one in enumerate(answers)]
            for name in ("train", "eval"):
                (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in answers))
            whole["data"] = {"train": str(self.folder / "train.jsonl"), "eval": str(self.folder / "eval.jsonl"), "max_length": 64}
            whole["objective"] = {"type": kind, **({"num_labels": 3} if kind == "classification" else {})}
            whole["model"]["quantize"] = "nf4"
        recipe.write_text(json.dumps(whole))
        return recipe

    def failing_call(self, chance, share):
        if chance.random() >= share:
            return {}
        return {"NIBBLE_FAULT_ROOT": str(self.folder / "out"), "NIBBLE_FAULT_HOW": "KILL",
                "NIBBLE_FAULT_AT": str(chance.randrange(0, 600))}

    def finished(self, whole, tally):
        self.assertEqual(self.bits(self.folder / "out"), whole, f"after {tally.kills} kills")
        self.assertEqual(list(self.folder.glob("out/**/.tmp-*")), [])
        shutil.rmtree(self.folder / "out")
        tally.runs += 1

    def test_one_process_killed_at_any_moment_ends_with_the_same_bits(self):
        self.each(KINDS, KILLS - KILLS // 3, self.kill_runs)

    def kill_runs(self, kind, kills):
        recipe = self.recipe_of(kind)
        whole, seconds = self.whole(recipe)
        chance, tally = random.Random(f"{SEED} {kind}"), Tally()
        while tally.kills < kills:
            env = self.failing_call(chance, 0.34)
            with open(self.folder / "stderr", "wb") as file:
                child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL, stderr=file,
                                         env=program.environment(env))
                if not env:
                    try:
                        child.wait(chance.uniform(0, seconds * 0.6))
                    except subprocess.TimeoutExpired:
                        child.kill()
                code = child.wait(program.LIMIT)
            tally.read(self.errors())
            if code == 0:
                self.finished(whole, tally)
                continue
            self.assertEqual(code, -9, self.errors())
            tally.killed("a process in front of a file call" if env else "a process", self.folder / "out")
        ended = program.run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        tally.read(ended.err)
        self.finished(whole, tally)
        tally.print(f"one process, {kind}")

    def kill_one(self, chance, seconds, job):
        """After a random time one of the job's processes dies. Returns which; None when the job was faster."""
        try:
            job.wait(chance.uniform(0, seconds))
            return None
        except subprocess.TimeoutExpired:
            pass
        whom = chance.choice(["rank 0", "rank 1", "mpirun", "the launcher"])
        processes = self.processes()
        found = [process for process, words in processes.items() if words[0] == "mpirun"] if whom == "mpirun" else \
            [job.pid] if whom == "the launcher" else self.ranks()[int(whom[-1]):][:1]
        for process in found:
            try:
                self.since = time.monotonic()
                os.kill(process, signal.SIGKILL)
                return whom
            except ProcessLookupError:
                pass
        return None

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_a_job_of_two_ranks_killed_at_any_moment_ends_with_the_bits_of_one(self):
        self.each(JOBS, KILLS // 3, self.kill_jobs)

    def kill_jobs(self, kind, kills):
        recipe = self.recipe_of(kind, train={"gradient_sum": "tree"},
                                parallel={"replicate": 2, "timeout_seconds": 10 * program.LIMIT})
        (files, lines), _ = self.whole(recipe)
        began = time.monotonic()
        self.assertEqual(self.launch(2, "train", recipe).wait(program.LIMIT), 0, self.errors())
        seconds = time.monotonic() - began
        whole = self.bits(self.folder / "out")  # evaluations and other metrics are sums of doubles in another order
        self.assertEqual((whole[0], self.losses(whole[1])), (files, self.losses(lines)))
        chance, tally = random.Random(f"{SEED} {kind}"), Tally()
        self.finished(whole, tally)
        while tally.kills < kills:
            env = self.failing_call(chance, 0.25)
            job = self.launch(2, "train", recipe, env=env)
            whom = "a rank in front of a file call" if env else self.kill_one(chance, seconds * 0.6, job)
            code = self.ended(job, f"{whom} was killed")
            self.wait_until(lambda: not self.processes())
            if whom in ("rank 0", "rank 1", "mpirun", "the launcher"):
                tally.slowest = max(tally.slowest, time.monotonic() - self.since)
            tally.read(self.errors())
            if code == 0:
                self.finished(whole, tally)
                continue
            self.assertIn(code, (-9, 75, 76), f"{whom}: {self.errors()}")
            tally.killed(whom, self.folder / "out")
        self.assertEqual(self.launch(2, "train", recipe).wait(program.LIMIT), 0, self.errors())
        tally.read(self.errors())
        self.finished(whole, tally)
        tally.print(f"two ranks, {kind}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
