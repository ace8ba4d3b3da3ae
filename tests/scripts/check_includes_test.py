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
        for path, line in [
            ("worker/ddprun/train/loop/a.cpp", '#include <ddprun/ddp/b.h>\n#include <torch/types.h>'),
            ("worker/models/a.h", "#include <ddprun/ddp/sync_batch_norm.h>"),
            ("worker/commands/a.cpp", '#include "worker/config/config.h"\n#include <ddprun/common/files.h>'),
            ("launcher/job/a.cpp", '#include "launcher/cli/options.h"\n#include <ddprun/common/text.h>'),
            ("launcher/host/cpus.cpp", "#include <hwloc.h>"),
            ("common/files.cpp", "#include <ddprun/common/text.h>\n#include <ddprun/report_error.h>"),
        ]:
            status, output = check({path: line + "\n"})
            self.assertEqual(status, 0, output)

    def test_breaches_are_named(self):
        for path, line, problem in [
            # An area includes only itself and common.
            ("common/a.cpp", '#include "launcher/cli/options.h"', "may not include launcher/cli"),
            ("launcher/job/a.cpp", '#include "worker/config/config.h"', "may not include worker/config"),
            ("launcher/job/a.cpp", "#include <ddprun/ddp/distributed_data_parallel.h>", "may not include worker/ddprun/ddp"),
            # Within an area, a room includes only earlier rooms.
            ("common/a.cpp", "#include <ddprun/common/settings/command.h>", "may not include common/settings"),
            ("launcher/cli/a.cpp", '#include "launcher/plan/program.h"', "may not include launcher/plan"),
            ("launcher/output/a.h", '#include "launcher/main.h"', "may not include launcher "),
            ("worker/ddprun/ddp/a.cpp", "#include <ddprun/data/loader.h>", "may not include worker/ddprun/data"),
            ("worker/ddprun/train/loop/a.cpp", '#include "worker/tasks/registry.h"', "may not include worker/tasks"),
            ("worker/models/a.h", "#  include <ddprun/train/loop/trainer.h>", "may not include worker/ddprun/train/loop"),
            # Some rooms see fewer.
            ("worker/ddprun/report/a.cpp", "#include <ddprun/image/image.h>", "may not include worker/ddprun/image"),
            ("worker/precompiled/a.h", "#include <ddprun/ddp/distributed_data_parallel.h>", "may not include worker/ddprun/ddp"),
            # Headers of common and the library are spelled as users spell them.
            ("launcher/job/a.cpp", '#include "common/files.h"', "expected <ddprun/...> as users do"),
            ("worker/ddprun/ddp/a.cpp", '#include "worker/ddprun/ddp/join.h"', "expected <ddprun/...> as users do"),
            ("worker/a.cpp", '#include "tests/support/catch.h"', "from the tests"),
            # Libraries that a room must not see.
            ("common/a.cpp", "#include <boost/asio.hpp>", "common is free of torch and Boost"),
            ("launcher/cli/a.cpp", "#include <torch/torch.h>", "the launcher links no LibTorch"),
            ("worker/models/a.h", "#include <ddprun/ddp/distributed_data_parallel.h>", "through SyncBatchNorm only"),
            ("worker/ddprun/ddp/a.cpp", "#include <boost/asio.hpp>", "no Boost but its CRC"),
            ("worker/ddprun/image/a.cpp", "#include <torch/types.h>", "pictures are plain buffers"),
            ("worker/ddprun/report/a.cpp", "#include <torch/types.h>", "reports are of plain values"),
            ("worker/config/a.cpp", "#include <fmt/format.h>", "log through common/logging.h"),
            # Libraries for a few files only.
            ("launcher/job/a.cpp", "#include <spdlog/spdlog.h>", "which only common/logging.cpp may"),
            ("launcher/plan/placement.cpp", "#include <hwloc.h>", "which only launcher/host/cpus.cpp may"),
            ("worker/ddprun/image/image.cpp", "#include <png.h>", "which only worker/ddprun/image/image_files.cpp may"),
            ("worker/ddprun/report/a.cpp", "#include <boost/crc.hpp>", "which only"),
            ("worker/ddprun/ddp/a.cpp", "#include <torch/csrc/distributed/c10d/reducer.hpp>", "which only"),
        ]:
            status, output = check({path: line + "\n"})
            self.assertEqual(status, 1, f"{path}: {line}")
            self.assertIn(path, output)
            self.assertIn(problem, output)

    def test_an_unknown_folder_is_named(self):
        status, output = check({"launcher/attic/a.cpp": ""})
        self.assertEqual(status, 1)
        self.assertIn("launcher/attic/a.cpp: its folder", output)
        status, output = check({"launcher/cli/a.cpp": '#include "launcher/attic/b.h"\n'})
        self.assertEqual(status, 1)
        self.assertIn("may not include launcher/attic/b.h", output)

    def test_a_crowded_folder_is_named(self):
        files = {f"launcher/cli/file_{i}.cpp": "" for i in range(35)}
        self.assertEqual(check({**files, "launcher/cli/CMakeLists.txt": ""})[0], 0)
        status, output = check({**files, "launcher/cli/one_more.h": ""})
        self.assertEqual(status, 1)
        self.assertIn("launcher/cli: 36 files, expected at most 35", output)

    def test_a_folder_without_sources_is_an_error(self):
        self.assertEqual(check({})[0], 1)


if __name__ == "__main__":
    unittest.main()
