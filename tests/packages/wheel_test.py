"""`pip install .` in an unpacked source archive: into an empty virtual environment, whose ddprun runs a job. The same as a wheel.

usage: wheel_test.py FOLDER VERSION
"""
import os
import pathlib
import re
import resource
import subprocess
import sys
import tomllib

from packages import GLIBC, SOURCE, check_job, check_program, empty_folder, need, run, skip

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

# One build folder, which ccache knows.
OFFLINE = ["--no-index", "--no-build-isolation", "--config-settings=build-dir=build"]


def install_backend(folder):
    """The wheel's build tools, from the network. Returns an environment that has them."""
    requirements = tomllib.loads((SOURCE / "pyproject.toml").read_text())["build-system"]["requires"]
    done = subprocess.run([*PIP, "install", "--quiet", "--target", folder, *requirements], capture_output=True, text=True)
    if done.returncode != 0:
        skip(f"pip cannot install {' '.join(requirements)}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return {**os.environ, "PYTHONPATH": str(folder)}


def unpack_sources(folder, version, environment):
    run(sys.executable, "-c", f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})", cwd=SOURCE, env=environment)
    run("tar", "-xf", folder / f"ddprun-{version}.tar.gz", "-C", folder)  # not by pip, whose folder ccache never saw
    return folder / f"ddprun-{version}"


def check_install(sources, environment, target):
    """`pip install .` takes at most three minutes of two cores, on slow ones too."""
    def used():
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    before = used()
    run(*PIP, "--python", target / "bin" / "python", "install", *OFFLINE, ".", cwd=sources, env=environment)
    print(f"pip install . took {used() - before:.0f} s of CPU time")
    assert used() - before < 360, "more than three minutes of two cores"


def check_python(target, folder):
    """Scripts run with the Python that ddprun was installed for, whatever python3 comes first on PATH."""
    wrong = folder / "wrong" / "python3"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\nexit 9\n")
    wrong.chmod(0o755)
    (folder / "where.py").write_text("import sys\nprint(sys.prefix)\n")
    environment = {"PATH": f"{wrong.parent}:/usr/bin:/bin"}
    for command in [target / "bin" / "ddprun"], [target / "bin" / "python", "-m", "ddprun"]:
        output = run(*command, folder / "where.py", env=environment)
        assert output == f"{target}\n", output
        chosen = run(*command, folder / "where.py", env={**environment, "PYTHON_EXEC": sys.executable})
        assert chosen == f"{sys.prefix}\n", chosen


def check_modules(target):
    """What needs PyTorch or Lightning is there, too, and a Python that has them can import it."""
    [folder] = (target / "lib").glob("python*/site-packages")
    for name in "elastic", "_shards", "lightning":
        assert (folder / "ddprun" / f"{name}.py").is_file(), name
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    if python is None:
        print("DDPRUN_TEST_PYTHON names no Python with PyTorch: its modules were not imported")
        return
    imports = f"""
import importlib.util, ddprun
assert ddprun.__file__.startswith({str(folder)!r}), ddprun.__file__
assert ddprun.elastic.State
import ddprun._shards
if importlib.util.find_spec("lightning"): import ddprun.lightning
"""
    run(python, "-c", imports, env={**os.environ, "PYTHONPATH": str(folder)}, cwd=target)


def main():
    folder, version = empty_folder(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2]
    need("cmake", "ninja", "readelf", "tar")
    if subprocess.run([*PIP, "--version"], capture_output=True).returncode != 0:
        skip(f"{sys.executable} has no pip")
    environment, target = install_backend(folder / "backend"), folder / "environment"
    sources = unpack_sources(folder, version, environment)
    run(sys.executable, "-m", "venv", "--without-pip", target)
    check_install(sources, environment, target)
    for file in ["man/man1/ddprun.1", "bash-completion/completions/ddprun", "zsh/site-functions/_ddprun"]:
        assert (target / "share" / file).exists(), file
    check_program(target / "bin" / "ddprun", version)
    check_program(target / "bin" / "ddpctl", version)
    check_job(target / "bin" / "ddprun", folder)
    check_python(target, folder)
    run(target / "bin" / "python", "-c", "import ddprun, ddprun.notebook; ddprun.heartbeat(); assert ddprun.read_run and ddprun.record")
    check_modules(target)
    assert (target / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages/ddprun/py.typed").exists()

    # As scripts/package.sh makes it.
    run(*PIP, "wheel", "--no-deps", *OFFLINE, "--wheel-dir", folder, sources, env=environment)
    [wheel] = folder.glob("*.whl")
    assert re.fullmatch(rf"ddprun-{re.escape(version)}-py3-none-(manylinux_{GLIBC[0]}_{GLIBC[1]}|linux)_\w+\.whl", wheel.name), wheel
    run(sys.executable, "-m", "venv", "--without-pip", "--clear", target)
    run(*PIP, "--python", target / "bin" / "python", "install", "--no-index", wheel)
    assert run(target / "bin" / "python", "-m", "ddprun", "--version") == f"ddprun {version}\n"


main()
