"""Headers that the documents show are installed: <ddprun/runtime.h>, what it includes, report_error.h and report_status.h."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def installed():
    """As cmake/install_runtime.cmake finds them, as paths below worker/ddprun/ or include/ddprun/."""
    found, queue = {"report_error.h", "report_status.h", "runtime.h"}, ["runtime.h"]
    while queue:
        header = queue.pop()
        text = next(path for path in (ROOT / "worker/ddprun" / header, ROOT / "include/ddprun" / header) if path.exists()).read_text()
        new = set(re.findall(r"^#include <ddprun/(.*)>", text, re.M)) - found
        found |= new
        queue += new
    return found


def shown():
    """(document, header) of every include, and of every header in runtime.md's table."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        headers = re.findall(r"#include <ddprun/([^>]+)>", text)
        if path.name == "runtime.md":
            headers += re.findall(r"`([a-z_/]+/[a-z_]+\.h)`", text)
        yield from ((path.relative_to(ROOT), header) for header in headers)


class DocIncludes(unittest.TestCase):
    def test_headers_in_the_documents_are_installed(self):
        headers = list(shown())
        self.assertGreater(len(headers), 30)
        have = installed()
        self.assertEqual([f"{path}: {header}" for path, header in headers if header not in have], [])


if __name__ == "__main__":
    unittest.main()
