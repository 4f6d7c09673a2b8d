"""What pages link to is there, headings too; so are the files that they name by their path, here or in tests/."""
import pathlib
import re
import subprocess
import sys

ROOMS = "core|quant|adapters|parallel|recipes|cli|tests|benchmarks|docs|cmake"


def anchors(page):
    """Headings as GitHub names them; lines of code blocks are none."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)", text, re.M)}


def main(root):
    wrong, links = [], 0
    pages = [*root.glob("*.md"), *(p for room in ROOMS.split("|") for p in (root / room).rglob("*.md"))]
    for page in sorted(pages):
        name, text = page.relative_to(root).as_posix(), page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text.replace("\n", " ")):
            links += 1
            file, _, anchor = target.partition("#")
            to = page.parent / file if file else page
            if not to.exists() or anchor and anchor not in anchors(to):
                wrong.append(f"{name}: nothing is at {target}")
        for file in re.findall(rf"(?<![\w./-])(?:nibble/)?((?:{ROOMS})/[\w/-]+\.(?:cpp|h|py|sh|md|json|cmake|svg))\b", text):
            if "NAME" not in file and not (root / file).exists() and not (root / "tests" / file).exists():
                wrong.append(f"{name}: no file {file}")
    print("\n".join(wrong) or f"{len(pages)} pages, {links} links")
    return 1 if wrong or not links else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
