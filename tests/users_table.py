"""Every test that docs/users.md names exists."""
import pathlib
import re
import sys


def main(root):
    have = set()
    for path in (root / "tests").rglob("*_test.cpp"):
        have |= {f"{a}.{b}" for a, b in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)", path.read_text())}
    text = (root / "docs" / "users.md").read_text()
    named = set(re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", text))
    files = set(re.findall(r"`((?:tests|core)/[\w/.]+)`", text))
    wrong = sorted(named - have) + sorted(f for f in files if not (root / f).exists())
    rows = re.findall(r"^\| (\d+) \|", text, re.M)
    if rows != [str(i) for i in range(1, 31)]:
        wrong.append("the rows are not 1 to 30")
    print("\n".join(wrong) or f"{len(named)} tests are there")
    return 1 if wrong or not named else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
