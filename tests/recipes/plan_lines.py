"""What the recipes that ship, and the table of published models, say about memory and time is what `nibble plan` says.

    python3 tests/recipes/plan_lines.py PROGRAM            check (a test)
    python3 tests/recipes/plan_lines.py PROGRAM --write    make the lines and the table
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
CONFIGS = ROOT / "recipes" / "configs"
TABLE = ROOT / "recipes" / "published_models.json"


def model_of(recipe):
    text = "".join(line.split("//")[0] for line in recipe.read_text().splitlines(True))
    return json.loads(text)["model"].get("path", "")


def plan_of(program, recipe, name, shapes, work, values):
    """"27.1 GiB a rank, blocks recomputed; 23 minutes" and whether there are several ranks."""
    model = work / name
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(shapes[name]))
    cluster = work / "cluster.json"
    cluster.write_text(json.dumps(MACHINE))
    overrides = {"model.path": str(model), "model.compute_dtype": "bf16", "train.threads": 16, **values}
    plan = json.loads(subprocess.check_output(
        [program, "plan", recipe, *(f"{key}={json.dumps(value)}" for key, value in overrides.items()),
         "--cluster", cluster, "--json"]))
    each = " a rank" if plan["world_size"] > 1 else ""
    kept = ", blocks recomputed" if plan["gradient_checkpointing"] == "block" else ""
    seconds = plan["step_seconds"]
    time = f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} minutes"
    return f"{(plan['peak_memory_bytes'] + plan['cached_bytes']) / 2**30:.1f} GiB{each}{kept}; {time}", each


def line_of(program, recipe, shapes, work):
    name = model_of(recipe)
    if name not in shapes:
        return None
    needs, each = plan_of(program, recipe, name, shapes, work, {})
    return f"{START}{needs} a step on 16 cores of 4 TFLOP/s in bf16{each}.\n"


def table_of(program, rows, shapes, work):
    """recipes/published_models.json with the needs of every kind of recipe that a row has."""
    made = []
    for row in rows:
        kinds = {kind: plan_of(program, CONFIGS / f"published-{kind}.json", row["path"], shapes, work,
                               row.get("values", {}).get(kind, {}))[0]
                 for kind in row if kind not in ("name", "path", "values")}
        made.append("  " + json.dumps({**row, **kinds}))
    return "[\n" + ",\n".join(made) + "\n]\n"


def main():
    program, write = sys.argv[1], "--write" in sys.argv
    shapes = json.loads((ROOT / "tests" / "recipes" / "model_shapes.json").read_text())
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        for recipe in sorted(CONFIGS.glob("*.json")):
            line = line_of(program, recipe, shapes, pathlib.Path(directory))
            if line is None:
                continue
            lines = [one for one in recipe.read_text().splitlines(True) if not one.startswith(START)]
            made = lines[0] + line + "".join(lines[1:])
            if write:
                recipe.write_text(made)
            elif made != recipe.read_text():
                wrong.append(f"{recipe.name}: {line.strip()}")
        table = table_of(program, json.loads(TABLE.read_text()), shapes, pathlib.Path(directory))
        if write:
            TABLE.write_text(table)
        elif table != TABLE.read_text():
            before = TABLE.read_text().splitlines()
            wrong += [f"{TABLE.name}: {line}" for line in table.splitlines() if line not in before]
    print("\n".join(wrong) or "every line is what the plan says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
