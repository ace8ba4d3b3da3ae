"""Every C++ piece of README.md and docs/ compiles as it stands there, against the installed headers' sources. A piece with a main() is a file's
content; any other is the inside of a function that has what its page speaks of: NAMES, and what PAGES adds for this page.

usage: snippets_test.py BUILD_FOLDER
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]

FRAME = """
#include <ddprun/runtime.h>
#include <torch/script.h>
#include <torch/torch.h>
using namespace std::chrono_literals;
namespace {
using namespace ddprun;
struct Net : torch::nn::Module {
  explicit Net(std::int64_t = 64) {}
  torch::Tensor forward(const torch::Tensor& input) { return input; }
};
struct Moons {
  explicit Moons(std::int64_t);
  std::int64_t size() const;
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t) const;
};
struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(int) {}
  torch::Tensor forward(const torch::Tensor& input) { return input; }
};
TORCH_MODULE(Transformer);
template <typename... Inputs>
void train_step(const Inputs&...) {}
void train_epoch(std::int64_t) {}
void end(const std::exception_ptr&) {}
double validate() { return 0; }
torch::Tensor criterion(const torch::Tensor& output, const torch::Tensor& target) { return torch::mse_loss(output, target); }
}
"""
# What a piece may use without defining it: of a program with ddprun::run, and of one without.
NAMES = """Context& ctx; const Moons dataset; const Moons valid_set; torch::Tensor input; torch::Tensor target; torch::Tensor loss;
std::int64_t epoch; DistributedDataParallel<Net>& model; torch::optim::Adam& optimizer; DataLoader<Moons>& loader"""
PARTS = """const WorkerEnv& env; const ddp::ProcessGroup& group; std::shared_ptr<Net> model; torch::optim::Adam& optimizer; torch::Tensor loss;
torch::Tensor input; torch::Tensor target; data::Loader& loader; std::int64_t epoch; bool wants_to_stop; std::string path;
ddp::DistributedDataParallel& ddp"""
# By page: names, and headers of its own.
PAGES = {
    "docs/recovery.md": ("void (*train)(const ddp::ProcessGroup&)", ""),
    "docs/runtime/fully_sharded.md": (f"{PARTS}; std::vector<data::Batch> batches; int config; void (*save)(Net&); "
                                      "ddp::FullyShardedDataParallel& fsdp", ""),
    "docs/training/data.md": (f"{PARTS}; std::string folder; std::uint64_t seed; data::ImageTransform augmented; data::ImageTransform plain; "
                              "const data::Subset& train; data::DistributedSampler& sampler",
                              "#include <ddprun/data/dataset_files.h>\n#include <ddprun/data/image_dataset.h>\n#include <ddprun/data/dataset.h>"),
    "docs/training/sam_model.md": ("torch::Tensor pixel_values; torch::Tensor points; torch::Tensor labels", '#include "worker/sam/sam_model.h"'),
    **{f"docs/training/{page}.md": (f"{PARTS}; std::int64_t count", "")
       for page in ("learning_rate", "losses_and_metrics", "optimizers", "precision")},
    **{f"docs/runtime/{page}.md": (PARTS, "")
       for page in ("comm_hooks", "flight_recorder", "distributed_data_parallel", "gpu", "process_groups", "sync_batch_norm", "zero")},
}


def pieces(page):
    text = page.read_text()
    for match in re.finditer(r"^( *)```(?i:cpp|c\+\+|cc|c)\n(.*?)^ *```", text, re.M | re.S):
        yield text[:match.start()].count("\n") + 2, match[2]


def compiled(page, line, piece, names):
    """The piece in a namespace of its own; its #include lines go in front of all."""
    place = f'#line {line} "{page}"\n'
    includes = [f"{place}{text}\n" for text in re.findall(r"^#include .*", piece, re.M)]
    piece = re.sub(r"^#include .*", "", piece, flags=re.M)
    if not re.search(r"^int main\(", piece, re.M):
        parameters = ", ".join("[[maybe_unused]] " + " ".join(name.split()) for name in names.split(";"))
        piece = f"void piece({parameters}) {{ {{\n{place}{piece}}} }}\n"
    name = re.sub(r"\W", "_", f"{page.relative_to(SOURCE)}_{line}")
    return includes, f"namespace {name} {{\nusing namespace ddprun;\n{place}{piece}}}\n"


def program(pages):
    heads, bodies = [], []
    for page in pages:
        names, header = PAGES.get(str(page.relative_to(SOURCE)), (NAMES, ""))
        heads.append(f"{header}\n")
        for line, piece in pieces(page):
            includes, body = compiled(page, line, piece, names)
            heads += includes
            bodies.append(body)
    return len(bodies), "".join([*heads, FRAME, *bodies])


def main():
    build = pathlib.Path(sys.argv[1])
    units = json.loads((build / "compile_commands.json").read_text())
    unit = next(u for u in units if u["file"].endswith("worker/main.cpp"))
    words = shlex.split(unit["command"])
    flags = [w for i, w in enumerate(words) if w.startswith(("-I", "-D", "-std")) or words[i - 1] == "-isystem" or w == "-isystem"]
    compiler = next(w for w in words if not w.endswith("ccache"))
    count, text = program([SOURCE / "README.md", *sorted((SOURCE / "docs").rglob("*.md"))])
    print(f"{count} pieces", flush=True)
    assert count >= 45, "they are not found"
    done = subprocess.run([compiler, *flags, "-fsyntax-only", "-x", "c++", "-"], input=text, text=True, cwd=unit["directory"])
    sys.exit(done.returncode)


main()
