"""Man page and completions know the flags that ddprun --help shows, and it takes the commands with which the pages of each place begin.

usage: flags_test.py DDPRUN
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MAN_PAGE = SOURCE / "docs/man/ddprun.1"
BASH = SOURCE / "completions/ddprun.bash"
ZSH = SOURCE / "completions/_ddprun"
FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][a-z-]*")


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def flags_of_help(ddprun):
    lines = [line for line in output(ddprun, "--help").splitlines() if not line.startswith("  ddprun ")]  # examples
    return set(FLAG.findall("\n".join(lines))) - {"--flag"}


def flags_of_man_page():
    text = re.sub(r"\\f.", " ", MAN_PAGE.read_text().replace("\\-", "-"))
    return set(FLAG.findall(text[text.index(".SH OPTIONS"):text.index(".SH EXIT STATUS")]))


def flags_of_bash():
    return set(output("bash", "-c", f"source '{BASH}'; echo $_ddprun_flags").split())


def flags_of_zsh():
    specs = re.findall(r"^  '(?:\([^)]*\))?(?:'\{(.*?)\}'|(-.*?)\[)", ZSH.read_text(), re.M)
    return set(FLAG.findall("\n".join(" ".join(spec).replace(",", " ") for spec in specs)))


def complete(*words):
    """What bash offers for the last word, the words being split as bash splits them."""
    script = f"source '{BASH}'; compopt() {{ :; }}; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _ddprun; echo \"${{COMPREPLY[*]}}\""
    return output("bash", "-c", script, "bash", "ddprun", *words).split()


class Flags(unittest.TestCase):
    def test_help_names_only_flags_of_the_man_page_and_the_completions(self):
        shown = flags_of_help(DDPRUN)
        self.assertIn("--nproc-per-node", shown)
        for name, known in [("man page", flags_of_man_page()), ("bash", flags_of_bash()), ("zsh", flags_of_zsh())]:
            self.assertEqual(shown - known, set(), f"not in {name}")
            self.assertEqual(known - shown - {"-h"}, set(), f"in {name} only")

    def test_man_page_and_completions_name_the_same_flags(self):
        self.assertEqual(flags_of_man_page() ^ flags_of_bash(), set())
        self.assertEqual(flags_of_man_page() ^ flags_of_zsh(), set())


class Pages(unittest.TestCase):
    def test_each_place_begins_with_a_command_that_ddprun_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            token = pathlib.Path(folder, ".ddprun-token")
            token.write_text("0123456789abcdef")
            token.chmod(0o600)
            pathlib.Path(folder, "train.py").touch()
            environment = {**os.environ, "HOME": folder, "PATH": f"{DDPRUN.parent}:{os.environ['PATH']}"}
            for page in "one_machine", "ssh", "slurm", "mpi", "etcd":
                block = re.search(r"\A# [^\n]*\n+(?:[^`#\n]+\n\n)?```sh\n(.*?)```", (SOURCE / f"docs/{page}.md").read_text(), re.DOTALL)
                self.assertIsNotNone(block, page)
                for line in block[1].splitlines():
                    # Without the scheduler before it, and what it sets, and without GPUs, which this machine may lack.
                    line = re.sub(r"^.*?\bddprun ", "ddprun --dry-run ", line).replace("--gpus=0,2-3 ", "").replace("--master-addr=node1 ", "").replace("=gpu", "=2")
                    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
                    self.assertEqual(0, done.returncode, f"{page}: {line}\n{done.stderr}")
                    self.assertRegex(done.stdout, r"argv: python3 -u train\.py|ddprun's words: ", line)


class BashCompletion(unittest.TestCase):
    def test_a_flag_is_completed(self):
        self.assertEqual(complete("--numa"), ["--numa-binding"])
        self.assertEqual(complete("--standalone", "-r3", "--tee", "=", "1", "--dry"), ["--dry-run"])

    def test_a_value_is_completed_after_a_space_and_after_an_equals_sign(self):
        self.assertEqual(complete("--numa-binding", "e"), ["exclusive"])
        self.assertEqual(complete("--numa_binding", "=", "e"), ["exclusive"])
        self.assertEqual(complete("-t", ""), ["0", "1", "2", "3"])
        self.assertIn("auto", complete("--nproc-per-node", "="))

    def test_the_last_of_several_signals_is_completed(self):
        self.assertEqual(complete("--forward-signals", "SIGUSR1,SIGWIN"), ["SIGUSR1,SIGWINCH"])

    def test_the_programs_own_flags_are_left_alone(self):
        self.assertEqual(complete("python3", "--dry"), [])
        self.assertEqual(complete("--", "--dry"), [])
        self.assertEqual(complete("--tee", "3", "python3", "--dry"), [])


class Syntax(unittest.TestCase):
    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_can_read_its_completion(self):
        output("zsh", "-f", "-n", ZSH)

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_mandoc_has_no_complaint(self):
        output("mandoc", "-T", "lint", "-W", "warning", MAN_PAGE)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_groff_has_no_complaint(self):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", MAN_PAGE], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    DDPRUN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
