"""What the pages say of the programs, headers and scripts is what the files say."""
import pathlib
import re
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
README = (SOURCE / "README.md").read_text()


def blocks(language):
    """The README's code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


class Examples(unittest.TestCase):
    def test_the_program_of_ones_own_has_at_most_100_lines(self):
        lines = (SOURCE / "examples/own_worker.cpp").read_text().splitlines()
        self.assertLessEqual(len(lines), 100)
        self.assertLessEqual(max(map(len, lines)), 110)

    def test_the_transformer_has_at_most_120_lines(self):
        lines = (SOURCE / "examples/transformer.cpp").read_text().splitlines()
        self.assertLessEqual(len(lines), 120)
        self.assertLessEqual(max(map(len, lines)), 110)

    def test_the_readme_shows_the_programs_as_they_are(self):
        for language, file in (("cpp", "own_worker.cpp"), ("cmake", "CMakeLists.txt"), ("python", "train.py")):
            shown = blocks(language)
            self.assertTrue(shown, language)
            text = (SOURCE / "examples" / file).read_text()
            for block in shown:
                for part in re.split(r"^ *// \.\.\.\n", block, flags=re.M):  # "// ..." stands for lines left out
                    self.assertIn(part, text)

    def test_the_readme_begins_with_the_commands_that_build_and_test_and_their_times(self):
        for script in ("scripts/quickstart.sh", "scripts/test.sh"):
            [line] = [line for line in README.splitlines()[:60] if line.startswith(script)]
            self.assertRegex(line, r"# about \d+( to \d+)? minutes: ")
            self.assertTrue((SOURCE / script).is_file(), script)

    def test_the_examples_of_elastic_have_at_most_60_lines(self):
        examples = [*(SOURCE / "examples").glob("elastic*.py"), SOURCE / "examples/transformers_trainer.py"]
        self.assertEqual(4, len(examples))
        for example in examples:
            self.assertLessEqual(len(example.read_text().splitlines()), 60, example)

    def test_the_readme_and_a_version_in_the_changelog_stay_short(self):
        self.assertLessEqual(len(README.splitlines()), 110)
        versions = re.split(r"^## ", (SOURCE / "CHANGELOG.md").read_text(), flags=re.M)[1:]
        self.assertLessEqual(max(len(version.splitlines()) for version in versions), 60)
        [version] = re.findall(r"^project\(ddprun VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), flags=re.M)
        self.assertEqual(version, versions[0].split()[0])

    def test_the_index_leads_to_the_answers_of_five_questions(self):
        """Each within two hops, and within 300 words from where its link leads."""
        index = (SOURCE / "docs/index.md").read_text()
        for row, answer in (("two machines or more", "--rdzv-endpoint"), ("why it hangs", "ddpctl stacks"),
                            ("own distributed program in C++", "ddprun::run"), ("flags resume a training", "--resume"),
                            ("when a GPU is lost", "CUDA_VISIBLE_DEVICES")):
            [line] = [line for line in index.splitlines() if row in line]
            page, _, anchor = re.search(r"\]\(([^)]*)\)", line).group(1).partition("#")
            text = (SOURCE / "docs" / page).read_text()
            if anchor:
                heading = next(heading for heading in re.findall(r"^#+ .*$", text, re.M)
                               if re.sub(r"[^a-z0-9 -]", "", heading.lstrip("# ").lower()).replace(" ", "-") == anchor)
                text = text[text.index(heading):]
            self.assertIn(answer, " ".join(text.split()[:300]), line)

    def test_every_public_header_is_in_the_index(self):
        listing = (SOURCE / "worker/ddprun/runtime.h").read_text()
        headers = re.findall(r"^#include <ddprun/(.*)>", listing, re.M)
        self.assertGreater(len(headers), 15)
        index = (SOURCE / "docs/runtime.md").read_text()
        self.assertEqual([], [header for header in headers if f"`{header}`" not in index])

    def test_users_are_shown_the_installed_headers(self):
        for page in [SOURCE / "README.md", *(SOURCE / "docs/runtime").glob("*.md")]:
            self.assertNotIn('#include "worker/', page.read_text(), page)


if __name__ == "__main__":
    unittest.main()
