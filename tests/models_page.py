"""docs/models.md has the checkpoints with a tower, and the refused types, of core/models/families."""
import pathlib
import re
import sys


def table(source, name):
    body = re.search(name + r"\[\] = \{\n(.*?)\n\};", source, re.S)[1]
    return re.findall(r'^    \{(?:\.model_type = )?"([\w-]+)"', body, re.M)


def main(root):
    families = root / "core" / "models" / "families"
    source = "".join((families / name).read_text() for name in ("families.cpp", "towers/composites.cpp"))
    page = (root / "docs" / "models.md").read_text()
    towers = re.search(r"\*\*Checkpoints with a tower\*\* beside the text \((.*?)\)", page, re.S)[1]
    named, composites = re.findall(r"`(\w+)`", towers), table(source, "kComposites")
    refused = re.search(r"\n## What is refused\n(.*?)\n## ", page, re.S)[1]
    missing = table(source, "kMissing")
    wrong = []
    if sorted(composites) != named:
        wrong.append(f"checkpoints with a tower are {sorted(composites)}, the page has {named}")
    for name in missing:
        text = name + "_text" in missing or name == "inkling_mm_model"  # the text's name stands for both
        if not text and not re.search(rf"(?<![\w-]){name}(?![\w-])", refused):
            wrong.append(f"{name} is not under What is refused")
    print("\n".join(wrong) or f"{len(named)} checkpoints with a tower, {len(missing)} refused types")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
