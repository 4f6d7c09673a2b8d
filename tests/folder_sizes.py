"""No folder of sources holds more than 26 files, no source file more than 500 lines, no page more than 120 columns;
what tests read has at most 20 MB."""
import collections
import pathlib
import sys

ROOMS = ("core", "quant", "adapters", "parallel", "recipes", "cli", "tests", "benchmarks")
FILES, LINES, COLUMNS, DATA = 26, 500, 120, 20_000_000
# Fixtures, of any size and number; scripts that each make one of them, of any number.
FIXTURES, COLLECTIONS = ("tests/data", "tests/fuzz/seeds"), ("tests/oracles",)


def main(root):
    folders, wrong = collections.Counter(), []
    everything = (p for room in ROOMS for p in (root / room).rglob("*"))
    for path in sorted(p for p in everything if p.suffix in (".h", ".cpp", ".c", ".py", ".sh")):
        name = path.relative_to(root).as_posix()
        if name.startswith(FIXTURES) or "__pycache__" in name:
            continue
        folders[str(pathlib.PurePosixPath(name).parent)] += not name.startswith(COLLECTIONS)
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LINES:
            wrong.append(f"{name} has {lines} lines")
    pages = [*root.glob("*.md"), *(p for room in (*ROOMS, "docs") for p in (root / room).rglob("*.md"))]
    for page in sorted(pages):
        widest = max(map(len, page.read_text(encoding="utf-8").splitlines()))
        if widest > COLUMNS:
            wrong.append(f"{page.relative_to(root).as_posix()} is {widest} columns wide")
    data = sum(path.stat().st_size for path in (root / "tests/data").rglob("*") if path.is_file())
    if data > DATA:
        wrong.append(f"tests/data has {data:,} bytes")
    wrong += [f"{folder} has {count} files" for folder, count in folders.items() if count > FILES]
    print("\n".join(wrong) or f"{len(folders)} folders, {sum(folders.values())} files, {len(pages)} pages are small enough; tests/data has {data:,} bytes")
    return 1 if wrong or not folders or not pages else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
