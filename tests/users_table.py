"""docs/users.md has its 30 rows, and every test that tests/RECORD.md names for them exists."""
import pathlib
import re
import sys


def main(root):
    have = set()
    for path in (root / "tests").rglob("*_test.cpp"):
        have |= {f"{a}.{b}" for a, b in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)", path.read_text())}
    users = (root / "docs" / "users.md").read_text()
    text = (root / "tests" / "RECORD.md").read_text().split("## Complaints of users")[1]
    named = set(re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", text))
    files = set(re.findall(r"`((?:tests|core)/[\w/.]+)`", text))
    wrong = sorted(named - have) + sorted(f for f in files if not (root / f).exists())
    numbers = [str(i) for i in range(1, 31)]
    if re.findall(r"^\| (\d+) \|", users, re.M) != numbers or re.findall(r"^(\d+)\. ", text, re.M) != numbers:
        wrong.append("the rows are not 1 to 30")
    print("\n".join(wrong) or f"{len(named)} tests are there")
    return 1 if wrong or not named else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
