"""check_includes.py passes this tree and catches each kind of breach."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_includes.py"


def check(files):
    """Exit status and output for a tree of these files, or for our own tree."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in (files or {}).items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, str(SCRIPT)] + ([root] if files is not None else [])
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class CheckIncludes(unittest.TestCase):
    def test_our_own_tree_keeps_the_rules(self):
        status, output = check(None)
        self.assertEqual(status, 0, output)

    def test_allowed_includes_pass(self):
        status, output = check({"worker/train/a.cpp": '#include "worker/ddp/b.h"\n#include <torch/types.h>\n'})
        self.assertEqual(status, 0, output)
        status, output = check({"worker/models/a.h": '#include "worker/ddp/sync_batch_norm.h"\n'})
        self.assertEqual(status, 0, output)

    def test_breaches_are_named(self):
        for path, line in [
            ("common/a.cpp", '#include "launcher/options.h"'),
            ("launcher/a.cpp", '#include "worker/config.h"'),
            ("launcher/a.cpp", "#include <torch/torch.h>"),
            ("launcher/a.cpp", "#include <spdlog/spdlog.h>"),
            ("launcher/binding.cpp", "#include <hwloc.h>"),
            ("worker/ddp/a.cpp", '#include "worker/data/loader.h"'),
            ("worker/models/a.h", '#include "worker/ddp/process_group.h"'),
            ("worker/models/a.h", '#  include "worker/train/trainer.h"'),
            ("worker/train/a.cpp", '#include "worker/tasks/registry.h"'),
            ("worker/train/a.cpp", "#include <torch/csrc/distributed/c10d/reducer.hpp>"),
            ("worker/report/a.cpp", "#include <torch/types.h>"),
            ("worker/report/a.cpp", '#include "worker/image/image.h"'),
            ("worker/train/a.cpp", "#include <cairo.h>"),
            ("worker/train/a.cpp", "#include <boost/crc.hpp>"),
            ("worker/a.cpp", '#include "tests/support/catch.h"'),
        ]:
            status, output = check({path: line + "\n"})
            self.assertEqual(status, 1, f"{path}: {line}")
            self.assertIn(path, output)

    def test_a_folder_without_sources_is_an_error(self):
        self.assertEqual(check({})[0], 1)


if __name__ == "__main__":
    unittest.main()
