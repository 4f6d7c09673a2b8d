#!/usr/bin/env python3
"""Every fault, 1 to 90, is listed once in docs/reliability.md and once in tests/RECORD.md, whose tests of it exist.

    python3 tests/faults/listed_faults.py ROOT"""
import pathlib
import re
import sys

NUMBERS = r"(\d+(?:(?:, | - )\d+)*)"
ROWS = re.compile(rf"^\| {NUMBERS} \| .+ \| .+ \|$", re.M)
ITEMS = re.compile(rf"^\* {NUMBERS} ([^:]+): ((?:.|\n  )+)$", re.M)
WITHOUT_TEST = 37  # does not arise


def numbers(text):
    for part in text.split(", "):
        first, _, last = part.partition(" - ")
        yield from range(int(first), int(last or first) + 1)


def files_of_letters(text):
    letters = dict(re.findall(r"`([A-Z])`\s+is (tests/faults/\w+\.\w+|\w+\.\w+)", text))
    letters.update(re.findall(r"`([A-Z])`\s+(\w+_test\.\w+)", text))
    return {letter: name.rsplit("/", 1)[-1] for letter, name in letters.items()}


def missing_tests(cell, letters, root):
    """The tests that a cell such as "M offsets, holes; R a_model; core/data/records/format_test.cpp; fuzz npy" names in vain."""
    source = ""
    for part in re.split(r"[,;] ", cell):
        letter = re.match(r"([A-Z])(?: |$)", part)
        if part.startswith("fuzz ") or (source == "fuzz" and letter is None):
            source = "fuzz"
            if not (root / "tests/fuzz/seeds" / part.removeprefix("fuzz ")).is_dir():
                yield part
            continue
        if "/" in part and part.endswith(".cpp") or part.endswith("_test.py"):
            source = ""
            if not (root / "tests" / part).is_file() and not (root / "tests/faults" / part).is_file():
                yield part
            continue
        if letter:
            source = (root / "tests/faults" / letters.get(letter[1], "no such letter")).read_text()
            part = part[2:]
        for name in part.split("/"):
            if name and not re.search(rf"(def test_|class |TEST\w*\().*{re.escape(name)}|\"{re.escape(name)}\"", source):
                yield part


def main():
    root = pathlib.Path(sys.argv[1])
    table = (root / "docs/reliability.md").read_text()
    record = (root / "tests/RECORD.md").read_text().split("## Faults")[1].split("\n## ")[0]
    letters, items = files_of_letters(record), ITEMS.findall(record)
    rows = ROWS.findall(table[table.index("## The faults"):])
    seen = [number for which in rows for number in numbers(which)]
    tested = [number for which, _, _ in items for number in numbers(which)] + [WITHOUT_TEST]
    wrong = []
    for which, _, cell in items:
        wrong += [f"fault {which}: no test {name}" for name in missing_tests(" ".join(cell.split()), letters, root)]
    for page, faults in (("docs/reliability.md", seen), ("tests/RECORD.md", tested)):
        wrong += [f"fault {number} is not once in {page}" for number in range(1, 91) if faults.count(number) != 1]
    print("\n".join(wrong) or f"{len(seen)} faults are listed, their tests exist")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
