"""Includes point one way: every #include "nibble/..." goes to a room that the including room may know (docs/design.md)."""
import pathlib
import re
import sys

# room -> rooms it may include besides itself
CORE = {
    "base": [],
    "formatting": ["base"],
    "tensor": ["formatting"],
    "ops": ["tensor"],
    "comm": ["tensor"],
    "nn": ["ops"],
    "models": ["nn", "io"],
    "io": ["tensor"],
    "text": ["io"],
    "data": ["text", "models"],
    "objectives": ["text", "data"],
    "train": ["io", "objectives", "comm"],
}
TOP = {
    "core": [],
    "quant": ["core"],
    "adapters": ["core"],
    "parallel": ["core"],
    "recipes": ["parallel", "adapters", "quant", "core"],
    "cli": ["recipes", "parallel", "adapters", "quant", "core"],
}


def reachable(graph, room):
    seen, waiting = {room}, [room]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def main(root):
    core = {room: reachable(CORE, room) for room in CORE}
    failures, checked = [], 0
    for path in sorted(p for top in TOP for p in (root / top).rglob("*") if p.suffix in (".h", ".cpp", ".cc")):
        parts = path.relative_to(root).parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not found:
                continue
            if found[1] == '"' and not found[2].startswith("nibble/"):
                failures.append(f'{path}:{number}: include "{found[2]}" is not spelled nibble/...')
                continue
            if not found[2].startswith("nibble/"):
                continue
            checked += 1
            target = found[2].split("/")[1:]
            if target == ["nibble.h"]:
                if parts[0] != "cli":
                    failures.append(f"{path}:{number}: only users of the library include nibble/nibble.h")
            elif target == ["nibble_c.h"]:
                if parts != ("recipes", "c_interface", "nibble_c.cpp"):
                    failures.append(f"{path}:{number}: only what implements nibble/nibble_c.h includes it")
            elif target[0] not in TOP or target[0] not in [parts[0], *TOP[parts[0]]]:
                failures.append(f"{path}:{number}: {parts[0]} must not include {'/'.join(target)}")
            elif parts[0] == "core" and target[1] not in core[parts[1]]:
                failures.append(f"{path}:{number}: core/{parts[1]} must not include {'/'.join(target)}")
    print("\n".join(failures) or f"{checked} includes point the right way")
    return 1 if failures or not checked else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
