"""docs/from_the_documents.md names each function, class, flag and argument of the code in the documents, and docs/concepts.md each of their
best practices.

The documents are in shared/seeds beside the repository, if anywhere: skipped (exit status 4) without them.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "from_the_documents.md").read_text()
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()
DOCUMENTS = sorted((ROOT.parent / "shared" / "seeds").glob("*.txt"))
# Of Python itself, argparse and matplotlib, and local variables.
NOT_THEIRS = set("""__getitem__ __init__ __len__ arg1 arg2 cmap color coords dataset description dim dtype figsize help is_training marker
  pred_flat predicted target transform type""".split())


def words(text):
    """Without articles and backticks, in small letters."""
    return re.sub(r"\b(?:the|a) ", "", text.replace("`", "").lower())


if not DOCUMENTS:
    print("skipped: there is no shared/seeds beside the repository")
    sys.exit(4)
missing, practices = [], 0
for document in DOCUMENTS:
    code = "\n".join(re.findall(r"```\w*\n(.*?)```", document.read_text(), re.S))
    names = re.findall(r"^\s*[+-]?\s*(?:def|class)\s+(\w+)", code, re.M) + re.findall(r"--([a-z][\w-]+)", code)
    names += re.findall(r"add_argument\('-*(\w+)'", code) + re.findall(r"[(,]\s*([a-z]\w+)\s*=", code)
    assert len(names) > 5, document
    missing += [f"{document.name}: {name}" for name in sorted(set(names) - NOT_THEIRS) if not re.search(rf"\b{name}\b", PAGE)]
    for listed in re.findall(r"practices = \[(.*?)\]", code, re.S):
        for practice in re.findall(r'"(.+)"', listed):
            practices += 1
            missing += [f"{document.name}: {practice}"] if words(practice) not in words(CONCEPTS) else []
assert practices == 7, practices
print("\n".join(missing) or "passed")
sys.exit(1 if missing else 0)
