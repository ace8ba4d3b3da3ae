"""find_package(ddprun COMPONENTS ...): each part of the library as a project of three lines has it, from an installation that was moved,
where nothing can be found that the part should not need.

usage: components_test.py BUILD_FOLDER FOLDER COMPILER
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from packages import SOURCE, empty_folder, run

PROJECT = """find_package(ddprun REQUIRED COMPONENTS {part})
add_executable(program program.cpp)
target_link_libraries(program PRIVATE ddprun::{part})
"""

DDP = """
#include <ddprun/run/context.h>
#include <ddprun/run/data_loader.h>
#include <ddprun/run/distributed.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
struct Ones {
  std::int64_t size() const { return 8; }
  std::pair<at::Tensor, at::Tensor> get(std::int64_t) const { return {at::ones({3}), at::ones({1})}; }
};
int main() {
  return ddprun::run([](ddprun::Context& ctx) {
    ddprun::DistributedDataParallel model(ctx, torch::nn::Sequential(torch::nn::Linear(3, 1)));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ddprun::DataLoader loader(ctx, Ones(), {.batch_size = 2});
    for (auto& [input, target] : loader.epoch(0)) {
      optimizer.zero_grad();
      (model(input) - target).square().mean().backward();
      optimizer.step();
    }
    ctx.print("ranks ", ctx.all_reduce(1.0));
  });
}
"""
WRONG_DATA = """
#include <ddprun/run/data_loader.h>
#include <ddprun/train/model/task.h>
#include <string>
struct Lengths {  // it has no size()
  int get(std::int64_t) const { return 1; }
};
struct Words {
  std::int64_t size() const { return 1; }
  std::string get(std::int64_t) const { return "word"; }
};
void train(ddprun::Context& ctx) {
  ddprun::DataLoader lengths(ctx, Lengths(), {.batch_size = 2});
  ddprun::DataLoader words(ctx, Words(), {.batch_size = 2});
  ddprun::train::Task task;
  task.train_set = std::make_shared<Words>();
}
"""
TRAIN = """
#include <ddprun/run/checkpoint.h>
#include <ddprun/run/metric_files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/model/metrics.h>
#include <ddprun/train/optim/lr_schedule.h>
#include <ddprun/train/state/state_dict_file.h>
#include <ddprun/report/metric_sink.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <iostream>
int main() {
  torch::nn::Linear net(2, 2);
  ddprun::serialize::write_pt("net.pt", ddprun::train::state_dict(*net));
  ddprun::train::load_weights(*net, ddprun::train::read_weights("net.pt"), "net.pt");
  ddprun::report::JsonlSink("metrics.jsonl").add({{"loss", 1.0}});
  const ddprun::WorkerEnv env;
  const ddprun::Context ctx(env, ddprun::ddp::ProcessGroup::connect(env, {}));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ddprun::MetricFiles metrics(ctx, {.csv = "metrics.csv"});
  ddprun::Checkpoint checkpoint(ctx, "checkpoint.pt", *net, optimizer);
  checkpoint.keep("metrics", metrics);
  checkpoint.save(1);
  std::cout << "trained\\n";
}
"""
REPORT = """
#include <ddprun/image/image_files.h>
#include <ddprun/report/charts.h>
#include <ddprun/report/html_report.h>
#include <iostream>
int main() {
  ddprun::report::LineChart chart{.title = "loss", .series = {{"train", {0, 1, 2}, {3, 2, 1}}}};
  std::cout << ddprun::report::line_chart_svg(chart).substr(0, 4);
  ddprun::image::write_png("grid.png", ddprun::image::draw_image_grid({{ddprun::image::make_image(28, 28, 1), "a"}}));
  std::cout << " drawn " << ddprun::image::read_png("grid.png").width << "\\n";
}
"""
# By part: program, its output, packages that it finds nowhere, libraries that it must not load.
PARTS = {
    "ddp": (DDP, "ranks 1\n", ["ZLIB", "Libzip", "Libdeflate", "JPEG", "PNG"], ["libzip", "libdeflate", "libjpeg", "libpng"]),
    "train": (TRAIN, "trained\n", ["JPEG", "PNG"], ["libjpeg", "libpng"]),
    "report": (REPORT, "<svg drawn 280\n", ["LibTorch", "Libzip", "Libdeflate"], ["libtorch", "libzip", "libdeflate"]),
}


def build(prefixes, folder, compiler, part, hidden):
    ccache = shutil.which("ccache")
    (folder / "CMakeLists.txt").write_text(PROJECT.format(part=part))
    (folder / "program.cpp").write_text(PARTS[part][0])
    run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={';'.join(map(str, prefixes))}",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []),
        *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in hidden))
    run("cmake", "--build", folder / "build")
    return folder / "build" / "program"


def compile_command(folder):
    """That of the component's program, without what it compiles."""
    [unit] = json.loads((folder / "build" / "compile_commands.json").read_text())
    words = shlex.split(unit["command"])
    return [word for word in words[:words.index("-o")] if not word.endswith("ccache")]


def check_wrong_data(folder):
    """A data set of another shape: each mistake is one error, in plain English."""
    (folder / "wrong.cpp").write_text(WRONG_DATA)
    done = subprocess.run([*compile_command(folder), "-fsyntax-only", folder / "wrong.cpp"], capture_output=True, text=True)
    errors = re.findall(r"error: (?:static assertion failed: )?(.*)", done.stderr)
    assert [error.split(",")[0] for error in errors] == [
        "DataLoader: expected a data set with size()", "DataLoader: expected examples that are pairs of tensors",
        "Task: expected a std::shared_ptr to a data set that derives from ddprun::data::Dataset and overrides size() and get_batch(indices)",
    ], done.stderr


def declared_functions(command, headers, folder):
    """Mangled names of the functions and methods that the headers declare and do not define. With clang, which can print them."""
    (folder / "headers.cpp").write_text("".join(f"#include <ddprun/{header}>\n" for header in headers))
    flags = [word for word in command[1:] if not word.startswith(("-W", "-f"))]
    tree = run("clang++", *flags, "-fsyntax-only", "-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=ddprun", folder / "headers.cpp")
    names, decoder, place = set(), json.JSONDecoder(), tree.find("{")

    def visit(node):
        if not node.get("kind", "").endswith("Decl") or "Template" in node["kind"]:
            return
        inner = node.get("inner", [])
        is_function = node["kind"] in ("FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXDestructorDecl")
        given = any(node.get(key) for key in ("isImplicit", "inline", "constexpr", "explicitlyDeleted", "explicitlyDefaulted", "pure"))
        if is_function and not given and not any(child.get("kind") == "CompoundStmt" for child in inner):
            names.add(node["mangledName"])
        for child in inner if not is_function else []:
            visit(child)

    while place >= 0:
        node, end = decoder.raw_decode(tree, place)
        visit(node)
        place = tree.find("{", end)
    return names


def check_declared(prefix, folder):
    """What the headers of the component ddp declare is in the libraries of the component, not in those of others."""
    if shutil.which("clang++") is None:
        return print("without clang++: not whether all that the headers declare links")
    rooms = ("common/", "flight/", "group/", "ddp/", "sharding/", "data/", "run/")
    of_train = {"run/checkpoint.h", "run/metric_files.h"}
    listing = (prefix / "include/ddprun/runtime.h").read_text()
    headers = [header for header in re.findall(r"#include <ddprun/(.*)>", listing) if header.startswith(rooms) and header not in of_train]
    declared = declared_functions(compile_command(folder), headers, folder)
    libraries = [next(prefix.rglob(f"libddprun_{part}.a")) for part in ("ddp", "common")]
    defined = {line.split()[-1] for line in run("nm", "--defined-only", *libraries).splitlines() if len(line.split()) == 3}
    missing = [name for name in declared if name not in defined]
    assert len(declared) > 100, declared
    assert not missing, run("c++filt", *missing)


def check_bare_group(prefix, folder, compiler):
    """The program of docs/runtime/process_groups.md with its one header and its lines of CMake, alone and as two ranks."""
    page = (SOURCE / "docs" / "runtime" / "process_groups.md").read_text()
    [(text, lines)] = re.findall(r"^```cpp\n(#include.*?)^```\n```cmake\n(.*?)^```", page, re.M | re.S)
    assert re.findall("#include <ddprun/.*?>", text) == ["#include <ddprun/group/collectives.h>"], text
    (folder / "ranks.cpp").write_text(text)
    (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.22)\nproject(ranks LANGUAGES CXX)\n" + lines)
    run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", folder / "build")
    assert run(folder / "build" / "ranks") == "the ranks of 1 add up to 0\n"
    two = run(prefix / "bin" / "ddprun", "--nproc-per-node=2", folder / "build" / "ranks")
    assert "the ranks of 2 add up to 1\n" in two, two


def check_unknown(prefix, folder):
    (folder / "CMakeLists.txt").write_text("find_package(ddprun COMPONENTS ddq)\n")
    done = subprocess.run(["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}"], capture_output=True, text=True)
    assert "unknown component ddq, expected ddp, train, report or runtime" in " ".join(done.stderr.split()), done.stderr


def check_torch_of_python(prefix, folder, compiler):
    """CMAKE_PREFIX_PATH=$(python -c 'import torch; print(torch.utils.cmake_prefix_path)'), where there is one."""
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    if python:
        where = run(python, "-c", "import torch; print(torch.utils.cmake_prefix_path)").strip()
        program = build([where, prefix], folder, compiler, "ddp", [])
        assert f"{pathlib.Path(where).parents[1]}/lib/libtorch_cpu.so" in run("ldd", program), "it links another LibTorch"
        assert run(program) == "ranks 1\n"


def main():
    build_folder, folder, compiler = pathlib.Path(sys.argv[1]), empty_folder(pathlib.Path(sys.argv[2]).resolve()), sys.argv[3]
    os.environ.pop("CMAKE_PREFIX_PATH", None)
    os.environ["OMP_NUM_THREADS"] = "1"
    run("cmake", "--install", build_folder, "--prefix", folder / "before")
    prefix = (folder / "before").rename(folder / "after")
    for part, (_, output, hidden, strangers) in PARTS.items():
        program = build([prefix], empty_folder(folder / part), compiler, part, hidden)
        assert run(program, cwd=folder) == output
        if part == "ddp":
            check_wrong_data(folder / part)
            check_declared(prefix, folder / part)
            assert run(prefix / "bin" / "ddprun", "--nproc-per-node=2", program) == "ranks 2\n"
        loaded = run("ldd", program)
        assert not any(name in loaded for name in strangers), loaded
    check_bare_group(prefix, empty_folder(folder / "group"), compiler)
    check_unknown(prefix, empty_folder(folder / "unknown"))
    check_torch_of_python(prefix, empty_folder(folder / "pip"), compiler)
    shutil.rmtree(folder)


main()
