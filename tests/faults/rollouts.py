"""Runs that learn from answers of the model itself, and a command that judges them."""
import json
import sys

import program
from program import run

JUDGE = """
import json, sys
for line in sys.stdin:
    answer = json.loads(line)
    print(json.dumps(sum(answer["completion_ids"]) % 7 / 7), flush=True)
"""


# Rewards that need no process.
SHAPES = [{"type": "repetition"}, {"type": "length", "max_completion_len": 12, "soft_punish_cache": 10}]

# Objectives whose answers are drawn: how many steps learn from a block of them, and settings.
DRAWING = {"grpo": (1, {"beta": 0.05}), "rloo": (2, {"num_iterations": 2}), "ppo": (2, {"num_ppo_epochs": 2}),
           "distillation": (1, {"beta": 0.5, "lmbda": 0.6, "seq_kd": True})}


class RolloutTest(program.JobTest):
    def setUp(self):
        super().setUp()
        self.prompts = self.folder / "prompts.jsonl"
        with open(self.prompts, "w") as file:
            for i in range(6):
                file.write(json.dumps({"prompt_ids": [1, 5 + i, 9 + 2 * i][: 2 + i % 2], "answer": str(i)}) + "\n")

    def judge(self, text=JUDGE):
        path = self.folder / "judge.py"
        path.write_text(text)
        return {"type": "command", "argv": [sys.executable, str(path)]}

    def rollout_recipe(self, out="out", steps=4, rewards=None, objective=None, train=None, **sections):
        settings = {
            "model": {"path": str(self.model), "compute_dtype": "f32"},
            "adapter": {"type": "lora", "r": 4, "lora_alpha": 8},
            "objective": {"type": "grpo", **(objective or {})},
            "rollout": {"completions": 4, "max_new_tokens": 12},
            "rewards": [self.judge()] if rewards is None else rewards or None,
            "data": {"train": str(self.prompts), "max_length": 32},
            "train": {"steps": steps, "microbatch_size": 4, "accumulate": 2, "save_every": 0, **(train or {})},
            "optimizer": {"lr": 1e-2, "schedule": "constant"},
            "output": {"dir": str(self.folder / out)}, **sections}
        path = self.folder / f"{out}.json"
        path.write_text(json.dumps(settings))
        return path

    def drawing_recipe(self, kind, out="out", objective=None, **sections):
        """A run with this objective of DRAWING; without its settings when others are given."""
        objective = {"type": kind, **(DRAWING[kind][1] if objective is None else objective)}
        if kind == "distillation":
            objective["teacher_model_name_or_path"] = str(self.other_model())
        return self.rollout_recipe(out, rewards=[] if kind == "distillation" else SHAPES, objective=objective, **sections)

    def adapter(self, out="out"):
        return (self.folder / out / "adapter" / "adapter_model.safetensors").read_bytes()

    def answers(self, out="out", step=1):
        lines = (self.folder / out / "rollouts" / f"step-{step}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def other_model(self):
        other = self.folder / "other"
        if not other.exists():
            made = run("init", "--config", self.shared / "config.json", "--out", other, "--dtype", "f32", "--seed", 7)
            self.assertEqual(made.code, 0, made.err)
        return other

    def waiting_judge(self, answers, gate, waits):
        """JUDGE that, after so many answers, says that it waits and does until the gate is there."""
        return self.judge("import os, pathlib, time\ncount = 0\n" + JUDGE.replace(
            "    print", f"    count += 1\n    while count > {answers} and not os.path.exists({str(gate)!r}):\n"
            f"        pathlib.Path({str(waits)!r}).touch()\n        time.sleep(0.01)\n    print"))
