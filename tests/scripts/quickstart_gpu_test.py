"""quickstart.sh builds the CUDA plug-in where there is an NVIDIA driver, and says which backend the first run used;
setup.sh installs what ddprun calls.

The scripts run as they are, in a folder whose programs only note how they were called.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
DRIVER = pathlib.Path("/dev/nvidiactl").exists()

# Writes what a run leaves that quickstart.sh reads.
DDPRUN = """#!/bin/sh
mkdir -p runs/quickstart
printf '%s' "$ENVIRONMENT" >runs/quickstart/environment.json
echo '  "test_acc": 0.9' >runs/quickstart/summary.json
"""


class Quickstart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ["quickstart.sh", "common.sh"]:
            (self.root / "scripts").mkdir(exist_ok=True)
            shutil.copy(SCRIPTS / name, self.root / "scripts")
        self.script("build/bin/ddprun", DDPRUN)
        self.note("scripts/build.sh")
        self.note("scripts/setup.sh")

    def script(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def note(self, path, then="exit 0"):
        self.script(path, f'#!/bin/sh\necho "{pathlib.Path(path).name} $*" >>calls\n{then}\n')

    def run_it(self, device, backend):
        environment = {"backend": backend, "device": device}
        path = f"{self.root}/bin:/usr/bin:/bin"
        done = subprocess.run([self.root / "scripts/quickstart.sh"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": path, "ENVIRONMENT": json.dumps(environment, indent=2)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done, (self.root / "calls").read_text().splitlines()

    def test_with_a_driver_the_plug_in_is_built(self):
        self.script("bin/nvidia-smi", "#!/bin/sh\n")
        done, calls = self.run_it("cuda:0", "nccl")
        self.assertEqual(calls, ["setup.sh --cuda", "build.sh --programs --cuda"])
        self.assertIn("Backend:       nccl, on cuda:0\n", done.stdout)

    def test_ranks_that_share_a_gpu_are_told_why_it_is_gloo(self):
        self.script("bin/nvidia-smi", "#!/bin/sh\n")
        self.assertIn("Backend:       gloo, on cuda:0 (NCCL needs a GPU for each rank)\n", self.run_it("cuda:0", "gloo")[0].stdout)

    def test_where_the_libraries_cannot_be_had_it_goes_on_on_the_cpu(self):
        self.script("bin/nvidia-smi", "#!/bin/sh\n")
        self.note("scripts/setup.sh", '[ "$1" != --cuda ]')
        done, calls = self.run_it("cpu", "gloo")
        self.assertEqual(calls, ["setup.sh --cuda", "setup.sh ", "build.sh --programs"])
        self.assertIn("going on without what a GPU needs", done.stderr)
        self.assertIn("Backend:       gloo, on cpu\n", done.stdout)

    @unittest.skipIf(DRIVER or shutil.which("nvidia-smi"), "this machine has an NVIDIA driver")
    def test_without_a_driver_nothing_is_fetched_for_a_gpu(self):
        done, calls = self.run_it("cpu", "gloo")
        self.assertEqual(calls, ["setup.sh ", "build.sh --programs"])
        self.assertIn("Backend:       gloo, on cpu\n", done.stdout)

    def test_the_plug_in_alone_is_refused(self):
        done = subprocess.run([SCRIPTS / "build.sh", "--cuda"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("--cuda: expected with --programs", done.stderr)

    def test_setup_installs_a_tool_for_stacks(self):
        for name in ["apt-get", "apt-cache", "sudo"]:
            self.note(f"bin/{name}", '[ "$1" = env ] || exit 1; exec "$@"')
        self.script("bin/dpkg-query", "#!/bin/sh\n")  # nothing is installed
        shutil.copy(SCRIPTS / "setup.sh", self.root / "scripts")
        done = subprocess.run([self.root / "scripts/setup.sh", "--no-libtorch"], capture_output=True, text=True, timeout=60, cwd=self.root,
                              env={**os.environ, "PATH": f"{self.root}/bin:/usr/bin:/bin", "HOME": str(self.root)})
        self.assertEqual(done.returncode, 1, done.stderr)
        installs = [call.split() for call in (self.root / "calls").read_text().splitlines() if call.startswith("apt-get install ")]
        self.assertEqual(len(installs), 1, done.stderr)
        self.assertIn("elfutils", installs[0])


if __name__ == "__main__":
    unittest.main()
