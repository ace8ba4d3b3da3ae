"""The wheel ddprun-worker beside PyTorch's torch wheel in a fresh virtual environment: `worker` trains under ddprun, and a program of
one's own is built against the environment. The torch wheel is that of DDPRUN_TEST_PYTHON.

usage: worker_wheel_test.py BUILD_FOLDER FOLDER COMPILER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from packages import SOURCE, empty_folder, run, skip


def make_environment(folder, python):
    """A virtual environment with torch, by links to the packages of another one, whose torch is that of the wheel."""
    run(python, "-m", "venv", "--without-pip", folder)
    [packages] = folder.glob("lib/python3*/site-packages")
    for package in pathlib.Path(run(python, "-c", "import torch; print(torch.__path__[0])").strip()).parents[0].iterdir():
        if not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
    return packages


def check_wheel(wheel):
    """It says which glibc it needs, and has the licence of each library in it."""
    tag = re.fullmatch(r"ddprun_worker-[0-9.]+-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl", wheel.name)
    assert tag, wheel
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        archive.extractall(folder)
        [info] = pathlib.Path(folder).glob("*.dist-info")
        programs = [*pathlib.Path(folder).glob("ddprun_worker/bin/*"), *pathlib.Path(folder).glob("ddprun_worker/lib/*.so*")]
        needed = [tuple(map(int, v)) for file in programs for v in re.findall(r"\(GLIBC_(\d+)\.(\d+)", run("objdump", "-T", file))]
        assert tuple(map(int, tag.groups())) == max(needed), max(needed)
        named = re.findall(r"^Files: (.*)", (info / "licenses/copyright").read_text(), re.M)
        libraries = {file.name.split(".so")[0] for file in programs if ".so" in file.name} - {"libddprun_cuda"}
        assert len(libraries) > 5 and libraries <= set(" ".join(named).split()), libraries - set(" ".join(named).split())
        texts = {file.name: file.read_text() for file in info.glob("licenses/*") if file.is_file() and file.name != "copyright"}
        for words in "libzip", "Independent JPEG Group", "libpng", "OpenSSL":
            assert any(words.lower() in text.lower() for text in texts.values()), words


def check_loaded(package):
    """Nothing comes from where it was built, and nothing but glibc and libstdc++ from the system."""
    for line in run("ldd", package / "bin" / "worker").splitlines():
        found = re.search(r"^\s*(\S+) => (\S+)", line)
        if found and not re.match(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|util|resolv)\.so", found[1]):
            assert os.path.abspath(found[2]).startswith(str(package.parent)) or "/site-packages/nvidia/" in found[2], line


def check_training(environment, folder, task, *flags):
    output = run("ddprun", "--nproc-per-node=2", "worker", task, *flags, f"--out={folder / task}", cwd=folder, env=environment)
    print(output)
    assert (folder / task / "summary.json").exists() and list((folder / task).rglob("*.pt")), output


def check_other_torch(worker, packages, environment):
    """A torch of another version is named, not loaded."""
    [info] = packages.glob("torch-*.dist-info")
    info.unlink()
    (packages / "torch-2.9.1.dist-info").mkdir()
    (packages / "torch-2.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    done = subprocess.run([worker, "linear"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and re.search(r"built for torch 2\.\d+, found 2\.9\.1: pip install 'torch==", done.stderr), done


def main():
    build, folder, compiler = pathlib.Path(sys.argv[1]), empty_folder(pathlib.Path(sys.argv[2]).resolve()), sys.argv[3]
    python = os.environ.get("DDPRUN_TEST_PYTHON") or skip("DDPRUN_TEST_PYTHON is not set")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        skip(f"{sys.executable} has no pip")
    run(sys.executable, SOURCE / "packaging" / "worker_wheel.py", build, folder)
    [wheel] = folder.glob("*.whl")
    check_wheel(wheel)
    packages = make_environment(folder / "environment", python)
    bin_folder = folder / "environment" / "bin"
    launcher = [*(folder.parent / "wheel").glob("ddprun-*.whl")]  # of package_wheel, which has made it unless there is no network
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", bin_folder / "python", "install", "--no-index", "--no-deps",
        *launcher, wheel)
    if not launcher:
        shutil.copy(build / "bin" / "ddprun", bin_folder)
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    check_loaded(packages / "ddprun_worker")
    check_training(environment, folder, "linear", "--epochs=2")
    if pathlib.Path("/usr/share/datasets/fashion-mnist").exists():
        check_training(environment, folder, "mnist", "--data=fashion-mnist", "--epochs=1", "--limit-train=640", "--limit-test=100")

    prefix = run(bin_folder / "ddprun-worker", "--prefix", env=environment).strip()
    assert prefix == str(packages / "ddprun_worker"), prefix
    ccache = shutil.which("ccache")
    run("cmake", "-S", SOURCE / "examples", "-B", folder / "examples", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}", *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []))
    run("cmake", "--build", folder / "examples", "--target", "own_worker")
    output = run("ddprun", "--nproc-per-node=2", folder / "examples" / "own_worker", cwd=folder, env=environment)
    assert output.count("epoch ") == 5, output
    check_other_torch(bin_folder / "worker", packages, environment)
    shutil.rmtree(folder)


main()
