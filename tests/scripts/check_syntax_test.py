"""check_syntax.py passes this tree and names each kind of fault."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_syntax.py"


def check(root):
    """Exit status and output."""
    done = subprocess.run([sys.executable, str(SCRIPT), str(root)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class CheckSyntax(unittest.TestCase):
    def check_files(self, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                pathlib.Path(root, name).parent.mkdir(exist_ok=True)
                pathlib.Path(root, name).write_text(text)
            subprocess.run(["git", "init", "-q", root], check=True)
            subprocess.run(["git", "-C", root, "add", "."], check=True)
            return check(root)

    @unittest.skipUnless((ROOT / ".git").exists(), "these sources are not a git checkout")
    def test_our_own_tree_has_no_fault(self):
        status, output = check(ROOT)
        self.assertEqual(status, 0, output)

    def test_files_without_a_fault_pass(self):
        status, output = self.check_files({"a.py": "print('<<<<<<< x')\n", "b": "#!/bin/sh\ntrue\n", "c.md": "Title\n=======\n"})
        self.assertEqual((status, output), (0, "3 files, 0 faults\n"))

    def test_faults_are_named_with_their_line(self):
        for name, text in [
            ("a.py", "x = 1\ndef f(:\n"),
            ("a_test.cpp", "\nTEST_CASE(\"--flag\") {}\n"),
            ("a.sh", "true\nif true; then\n"),
            ("run", "#!/usr/bin/env bash\n(\n"),
            ("a.md", "text\n<<<<<<< ours\ntext\n=======\n"),
            ("a.txt", "text\n>>>>>>> theirs\n"),
            ("a.md", "[here](a.md#part), [there](https://example.org)\n[nowhere](b.md)\n"),
            ("a.md", "text\n`worker/gone.cpp`\n"),
            ("launcher/a.cpp", "  first();\n  const auto now = std::chrono::steady_clock::now();\n"),
            ("launcher/a.h", "  first();\n  boost::asio::steady_timer timer_;\n"),
            ("a.cpp", "  if (x) y();\n  while (!done() && co_await next()) {\n  }\n"),
            ("a.cpp", "bool both(bool a) {\n  co_return a || f(1, co_await g());\n}\n"),
            ("a.h", "  first();\n  const int x = a ? co_await b() : 0;\n"),
            ("a.h", "  first();\n  const int x = a ? 0 : co_await b();\n"),
            ("a.h", "  first();\n  const int x = a ? Foo{1} : co_await b();\n"),
            ("a.h", "  first();\n  const bool x = a and co_await b();\n"),
            ("a.h", "  first();\n  return a && Foo{co_await b()};\n"),
        ]:
            status, output = self.check_files({name: text})
            self.assertEqual(status, 1, f"{name}: {output}")
            self.assertRegex(output, rf"(?m)^{name}:.*[23]\b")

    def test_an_await_that_depends_on_nothing_passes(self):
        text = """#if A && \\
    B
auto&& x = co_await f(a && b, c ? d : e);  // a && co_await b
if (co_await g() && !a) h("x && ", '?');
if (a && b) co_return co_await g(a || b, [&]() { return c; });
if (a && b) { co_await g(); } else { co_await h(); }
a && spawn([&]() -> awaitable<void> { co_await g(); });
for (auto y : co_await z()) {}
"""
        self.assertEqual(self.check_files({"a.cpp": text}), (0, "1 files, 0 faults\n"))

    def test_a_folder_without_git_is_an_error(self):
        with tempfile.TemporaryDirectory() as root:
            status, output = check(root)
        self.assertEqual(status, 1)
        self.assertIn("expected a checkout of git", output)


if __name__ == "__main__":
    unittest.main()
