"""SIGHUP, SIGINT and SIGTERM at random moments of a run: it always goes on, to the same bits.

    NIBBLE_SIGNALS=200 NIBBLE_SIGNAL_SEED=1 python3 tests/faults/signal_campaign_test.py    of each; default: 6, what ctest runs
    NIBBLE_SIGNAL_AIM=sampling ...                                                          only at that one, instead of all in turn

So many of each meet a process, a tenth of them jobs of two ranks: one that was faster does not count. In turn a signal comes at any
time of a run, while it loads, in a step, an evaluation, samples, a save and the export: at a random time in it, or in a random file
call of it. One in eight is followed by a second one at once. Prints in which phases they came, by what the run said and left, not by
what was aimed at."""
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import program

EACH = int(os.environ.get("NIBBLE_SIGNALS", "6"))
SEED = int(os.environ.get("NIBBLE_SIGNAL_SEED", "1"))
STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
STEPS, EVAL_EVERY, SAVE_EVERY = 24, 4, 5
PHASES = ("before main()", "loading", "step", "evaluation", "sampling", "save", "export")
# What is aimed at: the line of metrics.jsonl that comes before it, or a part of the paths that it opens, writes, renames...
AIMS = (("any time", None, None), ("loading", None, "/model/"), ("step", "step", None), ("evaluation", "due", None),
        ("sampling", "eval", None), ("metrics", None, "/metrics.jsonl"), ("save", None, "/checkpoints/"), ("export", None, "/adapter/"))
AIM = os.environ.get("NIBBLE_SIGNAL_AIM")


def as_in_a_terminal():
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


class Tally:
    def __init__(self):
        self.came, self.runs = {(number, phase): 0 for number in STOPS for phase in PHASES}, 0

    def of(self, number):
        return sum(self.came[number, phase] for phase in PHASES)

    def __str__(self):
        rows = [["signal", *PHASES, "all"]]
        rows += [[signal.Signals(number).name, *(self.came[number, phase] for phase in PHASES), self.of(number)] for number in STOPS]
        lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
        return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


class Campaign(program.JobTest):
    def long_recipe(self, **sections):
        return self.recipe(train_on=self.data(rows=96), steps=STEPS, adapter={"lora_dropout": 0.1}, output={"keep_best": True},
                           train={"accumulate": 12, "save_every": SAVE_EVERY, "eval_every": EVAL_EVERY, "samples": 64,
                                  "early_stop": 50},
                           data={"eval": str(self.data("eval.jsonl", rows=96, length=64))}, **sections)

    def phase(self, code):
        """Where the signal came, by what the run said and left."""
        said, saved = self.errors(), self.checkpoints()
        if code < 0:
            return "before main()"
        # A second one may come before the first is answered: nothing is said then.
        if "what is not finished is removed" in said or "stopping" not in said:
            return "export" if STEPS in saved else "loading"
        if "the current step is finished" in said:
            return "step"
        state = self.folder / f"out/checkpoints/step-{saved[-1]}/state.json"
        left = json.loads(state.read_text()).get("unfinished")
        return {"evaluation": "evaluation", "samples": "sampling"}.get(left, "save")

    def held_in(self, part, at):
        """Variables for a program that stays in file call number `at` on paths of the test with `part` in them."""
        return {"NIBBLE_FAULT_ROOT": str(self.folder), "NIBBLE_FAULT_IN": part, "NIBBLE_FAULT_AT": str(at),
                "NIBBLE_FAULT_HOW": "HOLD", "NIBBLE_FAULT_HELD": str(self.folder / "held"),
                "NIBBLE_FAULT_COUNT": str(self.folder / "count")}

    def wait_for_line(self, child, kind, more):
        """Until the run has written `more` lines before phases of that kind."""
        def before_it(line):
            train = "due" if line["step"] % EVAL_EVERY == 0 else "step"
            return kind == (train if line["split"] == "train" else "eval")

        def written():
            return sum(before_it(json.loads(line)) for line in self.lines() if line.endswith("}"))

        least = written() + more
        while written() < least and child.poll() is None:
            time.sleep(0.0005)

    def stop(self, child, chance, number, seconds, line, held):
        """Sends the signal; False when the run was faster."""
        if held:
            while not held.exists() and child.poll() is None:
                time.sleep(0.001)
        else:
            if line:
                self.wait_for_line(child, line, chance.randrange(1, 4))
            try:
                child.wait(chance.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                pass
        if child.poll() is not None:
            return False
        child.send_signal(number)
        if chance.random() < 0.125:
            child.send_signal(number)
        if held:
            self.wait_until(lambda: "stopping" in self.errors() or child.poll() is not None)
            held.unlink(missing_ok=True)
        return True

    def finished(self, whole, tally):
        self.assertEqual(self.bits(self.folder / "out"), whole, str(tally))
        self.assertEqual(list(self.folder.glob("**/.tmp-*")), [])
        shutil.rmtree(self.folder / "out")
        tally.runs += 1

    def undisturbed(self, recipe):
        """Bits of a run, its seconds, and how many file calls are on paths with each part."""
        whole, calls = self.folder / "whole", {}
        for part in sorted({part for _, _, part in AIMS if part}):
            shutil.rmtree(whole, ignore_errors=True)
            began = time.monotonic()
            ended = program.run("train", recipe, "parallel.replicate=1", f"output.dir={whole}", env=self.held_in(part, -1))
            seconds = time.monotonic() - began
            self.assertEqual(ended.code, 0, ended.err)
            calls[part] = int((self.folder / "count").read_text())
            self.assertGreater(calls[part], 0, part)
        return self.bits(whole), seconds, calls

    def campaign(self, start, whole, seconds, each, calls):
        """Stops what `start` starts, with these variables, until so many of each signal met a process. calls: of files that may be
        held, by part of the path; where there are none all signals come at random times."""
        aims = [aim for aim in AIMS if AIM in (None, aim[0]) and (calls or not aim[2])]
        if not aims:
            self.skipTest(f"nothing to aim at: NIBBLE_SIGNAL_AIM={AIM}")
        chance, tally, held, turn = random.Random(SEED), Tally(), self.folder / "held", 0
        while min(tally.of(number) for number in STOPS) < each:
            number = min(STOPS, key=tally.of)
            aim, line, part = aims[turn % len(aims)]
            in_a_call = part and (aim != "loading" or chance.random() < 0.5)
            turn += 1
            child = start(self.held_in(part, chance.randrange(calls[part])) if in_a_call else {})
            sent = self.stop(child, chance, number, seconds if aim == "any time" else seconds / STEPS, line, in_a_call and held)
            code = self.ended(child, f"signal {number}")
            held.unlink(missing_ok=True)
            self.wait_until(lambda: not self.processes())
            self.assertNotIn("error:", self.errors())
            if code == 0:  # done, or the signal came after the last thing it did
                self.finished(whole, tally)
                continue
            self.assertTrue(sent, self.errors())
            self.assertIn(code, (75, -number), self.errors())
            tally.came[number, self.phase(code)] += 1
        self.assertEqual(self.ended(start({}), "the last one"), 0, self.errors())
        self.finished(whole, tally)
        return f"{turn} processes of {tally.runs} runs of {STEPS} steps, always the same bits:\n{tally}"

    def test_one_process_stopped_at_any_moment_ends_with_the_same_bits(self):
        recipe = self.long_recipe()

        def start(env):
            with open(self.folder / "stderr", "wb") as file:
                return subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL, stderr=file,
                                        env=program.environment(env), preexec_fn=as_in_a_terminal)

        whole, seconds, calls = self.undisturbed(recipe)
        print(f"\n{self.campaign(start, whole, seconds, EACH, calls)}", flush=True)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_two_ranks_stopped_at_any_moment_end_with_the_bits_of_one(self):
        recipe = self.long_recipe(parallel={"replicate": 2, "timeout_seconds": 10 * program.LIMIT})

        def start(env):
            return self.launch(2, "train", recipe, env=env, preexec_fn=as_in_a_terminal)

        whole, _, _ = self.undisturbed(recipe)
        began = time.monotonic()
        self.assertEqual(start({}).wait(program.LIMIT), 0, self.errors())
        seconds = time.monotonic() - began
        self.finished(whole, Tally())
        # A file call that does not return would hold both ranks: only random times.
        print(f"\ntwo ranks, the bits of one: {self.campaign(start, whole, seconds, max(1, EACH // 10), {})}", flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
