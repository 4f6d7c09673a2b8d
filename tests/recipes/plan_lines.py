"""The line about memory and time in every recipe that ships is what `nibble plan` says of the model's shape.

    python3 tests/recipes/plan_lines.py PROGRAM            check (a test)
    python3 tests/recipes/plan_lines.py PROGRAM --write    make the lines
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Times are for ranks of 16 cores with bf16 instructions, as a cluster of one.
MACHINE = {"name": "16 cores", "flops": 4e12, "efficiency": 0.6, "memory_bandwidth": 1e11, "link_bandwidth": 3e9,
           "node_bandwidth": 3e9, "ranks_per_node": 1, "overlap": 1, "growth": 0}
START = "// Plan: "


def model_of(recipe):
    text = "".join(line.split("//")[0] for line in recipe.read_text().splitlines(True))
    return json.loads(text)["model"].get("path", "")


def line_of(program, recipe, shapes, work):
    name = model_of(recipe)
    if name not in shapes:
        return None
    model = work / name
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(shapes[name]))
    cluster = work / "cluster.json"
    cluster.write_text(json.dumps(MACHINE))
    said = subprocess.run([program, "plan", recipe, f"model.path={model}", "model.compute_dtype=bf16", "train.threads=16",
                           "--cluster", cluster, "--json"], check=True, capture_output=True, text=True)
    plan = json.loads(said.stdout)
    each = " a rank" if plan["world_size"] > 1 else ""
    kept = ", blocks recomputed" if plan["gradient_checkpointing"] == "block" else ""
    seconds = plan["step_seconds"]
    time = f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} minutes"
    return (f"{START}{(plan['peak_memory_bytes'] + plan['cached_bytes']) / 2**30:.1f} GiB{each}{kept}; {time} a step on 16 cores of 4 TFLOP/s in "
            f"bf16{' a rank' if each else ''}.\n")


def main():
    program, write = sys.argv[1], "--write" in sys.argv
    shapes = json.loads((ROOT / "tests" / "recipes" / "model_shapes.json").read_text())
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        for recipe in sorted((ROOT / "recipes" / "configs").glob("*.json")):
            line = line_of(program, recipe, shapes, pathlib.Path(directory))
            if line is None:
                continue
            lines = [one for one in recipe.read_text().splitlines(True) if not one.startswith(START)]
            made = lines[0] + line + "".join(lines[1:])
            if write:
                recipe.write_text(made)
            elif made != recipe.read_text():
                wrong.append(f"{recipe.name}: {line.strip()}")
    print("\n".join(wrong) or "every line is what the plan says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
