"""get_data.sh fetches from a small mirror: whole, checked, resumable, and nothing is left of what was wrong.

The script runs as it is, from its own folder with a table of small files beside it.
"""
import gzip
import hashlib
import http.server
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import unittest
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
IMAGES = bytes(range(256)) * 400


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def tar_gz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class GetData(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="get_data_test"))
        self.addCleanup(shutil.rmtree, self.root)
        self.mirror, self.data, scripts = self.root / "mirror", self.root / "data", self.root / "scripts"
        scripts.mkdir()
        for name in ["get_data.sh", "common.sh"]:
            shutil.copy(SCRIPTS / name, scripts)
        self.script = scripts / "get_data.sh"
        self.images = gzip.compress(IMAGES, mtime=0)
        self.files = {
            "mnist/images.gz": self.images,
            "mnist/labels.gz": gzip.compress(b"labels", mtime=0),
            "cifar10/binary.tar.gz": tar_gz({"batches-bin/a.bin": IMAGES, "batches-bin/b.bin": b"b"}),
            "nuclei/train.zip": zipped({"1/images/1.png": b"one", "2/images/2.png": b"two"}),
        }
        folders = {"cifar10": "batches-bin", "nuclei": "stage1_train"}
        lines = ["# a table"]
        for path, content in self.files.items():
            name, file = path.split("/")
            of_content = sha256(gzip.decompress(content)) if name == "mnist" else "-"
            lines.append(f"{name} {file} {sha256(content)} {of_content} {folders.get(name, '-')} http://127.0.0.1:1/{path}")
            self.put(path, content)
        (scripts / "data_files.txt").write_text("\n".join(lines) + "\n")

    def put(self, path, content):
        file = self.mirror / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def run_script(self, *arguments, mirror=None, script=None, **variables):
        environment = os.environ | {"DDPRUN_DATA_MIRROR": mirror or f"file://{self.mirror}"} | variables
        for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"]:
            environment.pop(name, None)
        done = subprocess.run([script or self.script, *arguments], capture_output=True, text=True, env=environment,
                              timeout=100)
        return done.returncode, done.stderr

    def get(self, name, **options):
        return self.run_script(name, str(self.data), **options)

    def in_data(self):
        return sorted(str(p.relative_to(self.data)) for p in self.data.rglob("*") if p.is_file())

    def part(self, path, content):
        name, file = path.split("/")
        part = self.data / f".{name}.part" / f".{file}"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)

    def test_files_are_fetched_and_a_second_call_changes_nothing(self):
        status, output = self.get("mnist")
        self.assertEqual(status, 0, output)
        self.assertEqual(self.in_data(), ["mnist/images.gz", "mnist/labels.gz"])
        self.assertEqual((self.data / "mnist/images.gz").read_bytes(), self.images)
        shutil.rmtree(self.mirror)
        status, output = self.get("mnist")
        self.assertEqual((status, "already there" in output), (0, True), output)

    def test_archives_are_unpacked_and_nothing_else_is_left(self):
        self.assertEqual(self.get("cifar10")[0], 0)
        self.assertEqual(self.get("nuclei")[0], 0)
        self.assertEqual(self.in_data(), ["cifar10/batches-bin/a.bin", "cifar10/batches-bin/b.bin",
                                          "nuclei/stage1_train/1/images/1.png", "nuclei/stage1_train/2/images/2.png"])
        self.assertEqual(sorted(p.name for p in self.data.iterdir()), ["cifar10", "nuclei"])

    def test_the_default_folder_is_the_cache(self):
        status, output = self.run_script("mnist", XDG_CACHE_HOME=str(self.root / "cache"))
        self.assertEqual(status, 0, output)
        self.assertTrue((self.root / "cache/ddprun/data/mnist/labels.gz").exists())

    def test_a_corrupt_download_is_refused_and_removed(self):
        for path in ["mnist/labels.gz", "cifar10/binary.tar.gz"]:
            name, file = path.split("/")
            for wrong in [self.files[path][:-1], self.files[path] + b"x", b"<html>not found</html>", b""]:
                self.put(path, wrong)
                status, output = self.get(name)
                self.assertEqual(status, 1, output)
                if wrong:
                    self.assertIn("expected SHA-256 " + sha256(self.files[path]), output)
                    self.assertIn("refused and removed", output)
                self.assertFalse((self.data / name).exists(), output)
                self.assertFalse((self.data / f".{name}.part" / f".{file}").exists(), output)
            self.put(path, self.files[path])
            self.assertEqual(self.get(name)[0], 0)

    def test_a_gz_that_was_compressed_anew_is_right(self):
        self.put("mnist/images.gz", gzip.compress(IMAGES, 1, mtime=1))
        status, output = self.get("mnist")
        self.assertEqual(status, 0, output)

    def test_an_interrupted_download_goes_on_where_it_stopped(self):
        half = len(self.images) // 2
        self.part("mnist/images.gz", self.images[:half])
        self.put("mnist/images.gz", b"\0" * half + self.images[half:])  # so that only its second half serves
        status, output = self.get("mnist")
        self.assertEqual(status, 0, output)
        self.assertEqual((self.data / "mnist/images.gz").read_bytes(), self.images)

    def test_a_wrong_beginning_is_fetched_anew(self):
        for begin in [b"\0" * 10, b"\0" * len(self.images), b"\0" * (len(self.images) + 10)]:
            shutil.rmtree(self.data, ignore_errors=True)
            self.part("mnist/images.gz", begin)
            status, output = self.get("mnist")
            self.assertEqual(status, 0, output)
            self.assertEqual((self.data / "mnist/images.gz").read_bytes(), self.images)

    def test_a_download_that_was_whole_is_not_fetched_again(self):
        self.part("cifar10/binary.tar.gz", self.files["cifar10/binary.tar.gz"])
        (self.data / ".cifar10.part/unpack").mkdir()
        (self.data / ".cifar10.part/unpack/half").write_bytes(b"half")  # killed while unpacking
        shutil.rmtree(self.mirror)
        status, output = self.get("cifar10")
        self.assertEqual(status, 0, output)
        self.assertEqual(self.in_data(), ["cifar10/batches-bin/a.bin", "cifar10/batches-bin/b.bin"])

    def test_what_is_missing_in_a_folder_is_added(self):
        (self.data / "mnist").mkdir(parents=True)
        (self.data / "mnist/images.gz").write_bytes(b"one's own")
        status, output = self.get("mnist")
        self.assertEqual(status, 0, output)
        self.assertEqual(self.in_data(), ["mnist/images.gz", "mnist/labels.gz"])
        self.assertEqual((self.data / "mnist/images.gz").read_bytes(), b"one's own")

    def test_what_cannot_be_had_is_one_clear_error(self):
        shutil.rmtree(self.mirror)
        status, output = self.get("mnist")
        self.assertEqual(status, 1, output)
        self.assertIn("error: could not fetch images.gz of mnist", output)
        self.assertEqual(list(self.data.iterdir()), [])
        (self.root / "file").write_bytes(b"")
        status, output = self.run_script("mnist", str(self.root / "file"))
        self.assertEqual(status, 1, output)

    def test_wrong_arguments_are_refused(self):
        for arguments in [[], ["imagenet"], [""], [".*"], ["mnist", "a", "b"]]:
            status, output = self.run_script(*arguments)
            self.assertEqual(status, 2, output)
            self.assertIn("expected mnist|cifar10|nuclei", output)

    def test_a_server_that_cannot_resume_is_asked_for_the_whole(self):
        mirror = str(self.mirror)

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments):
                super().__init__(*arguments, directory=mirror)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            self.part("mnist/images.gz", self.images[:100])
            status, output = self.get("mnist", mirror=f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            server.server_close()
        self.assertEqual(status, 0, output)
        self.assertEqual((self.data / "mnist/images.gz").read_bytes(), self.images)

    def test_two_at_once_do_not_disturb_each_other(self):
        with tempfile.TemporaryFile() as errors:
            environment = os.environ | {"DDPRUN_DATA_MIRROR": f"file://{self.mirror}"}
            both = [subprocess.Popen([self.script, "cifar10", str(self.data)], env=environment, stderr=errors)
                    for _ in range(2)]
            self.assertEqual([process.wait(100) for process in both], [0, 0])
        self.assertEqual(self.in_data(), ["cifar10/batches-bin/a.bin", "cifar10/batches-bin/b.bin"])

    def test_our_own_table_is_well_formed(self):
        lines = [line.split() for line in (SCRIPTS / "data_files.txt").read_text().splitlines() if line[0] != "#"]
        self.assertEqual({line[0] for line in lines}, {"mnist", "fashion-mnist", "cifar10", "nuclei"})
        for name, file, sum_of_file, sum_of_content, folder, *addresses in lines:
            self.assertRegex(sum_of_file, "^[0-9a-f]{64}$")
            self.assertRegex(sum_of_content, "^([0-9a-f]{64}|-)$")
            self.assertEqual(folder == "-", sum_of_content != "-")
            self.assertTrue(addresses)
            for address in addresses:
                self.assertTrue(re.fullmatch(r"https?://\S+/" + re.escape(file), address), address)

    @unittest.skipUnless(FASHION.is_dir(), "Fashion-MNIST (package dataset-fashion-mnist) is not installed")
    def test_real_fashion_mnist_has_the_sums_of_our_table(self):
        status, output = self.get("fashion-mnist", mirror=f"file://{FASHION.parent}", script=SCRIPTS / "get_data.sh")
        self.assertEqual(status, 0, output)
        self.assertEqual(len(self.in_data()), 4)


if __name__ == "__main__":
    unittest.main()
