"""Every C++ piece of docs/from_python.md compiles against the installed headers' sources.

usage: snippets_test.py BUILD_FOLDER
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGE = SOURCE / "docs/from_python.md"

FRAME = """
#include <ddprun/runtime.h>
#include <torch/torch.h>
using namespace ddprun;
struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) { return input; }
};
struct Set {
  std::int64_t size() const;
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t) const;
};
torch::Tensor criterion(const torch::Tensor&, const torch::Tensor&);
void train_step();
void train_epoch(std::int64_t);
"""
# What a piece may use without defining it.
NAMES = {"dataset": "Set dataset", "valid_set": "Set valid_set", "input": "torch::Tensor input", "target": "torch::Tensor target",
         "model": "DistributedDataParallel<Net>& model", "optimizer": "torch::optim::Adam& optimizer",
         "loader": "DataLoader<Set>& loader"}


def defines(name, piece):
    return re.search(rf"^\w[\w:<>]* {name}\(", piece, re.M)


def program(text):
    parts = [FRAME]
    for match in re.finditer(r"^```cpp\n(.*?)^```", text, re.M | re.S):
        line, piece = text[:match.start()].count("\n") + 2, match[1]
        given = ", ".join(["Context& ctx", *(f"[[maybe_unused]] {what}" for name, what in NAMES.items() if not defines(name, piece))])
        parts.append(f"void piece_{line}([[maybe_unused]] {given}) {{\n#line {line} \"{PAGE}\"\n{piece}}}\n")
    assert len(parts) >= 11, "a piece for each task"
    return "\n".join(parts)


def main():
    build = pathlib.Path(sys.argv[1])
    units = json.loads((build / "compile_commands.json").read_text())
    unit = next(u for u in units if u["file"].endswith("worker/main.cpp"))
    words = shlex.split(unit["command"])
    flags = [w for i, w in enumerate(words) if w.startswith(("-I", "-D", "-std")) or words[i - 1] == "-isystem" or w == "-isystem"]
    compiler = next(w for w in words if not w.endswith("ccache"))
    done = subprocess.run([compiler, *flags, "-fsyntax-only", "-x", "c++", "-"], input=program(PAGE.read_text()), text=True,
                          cwd=unit["directory"])
    sys.exit(done.returncode)


main()
