"""The source archive makes a wheel; installed into a virtual environment, its ddprun runs a job.

usage: wheel_test.py FOLDER VERSION
"""
import os
import pathlib
import re
import subprocess
import sys
import tomllib

from packages import GLIBC, SOURCE, check_job, check_program, empty_folder, need, run, skip

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def install_backend(folder):
    """The wheel's build tools, from the network. Returns an environment that has them."""
    requirements = tomllib.loads((SOURCE / "pyproject.toml").read_text())["build-system"]["requires"]
    done = subprocess.run([*PIP, "install", "--quiet", "--target", folder, *requirements], capture_output=True, text=True)
    if done.returncode != 0:
        skip(f"pip cannot install {' '.join(requirements)}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return {**os.environ, "PYTHONPATH": str(folder)}


def build_wheel(folder, version):
    environment = install_backend(folder / "backend")
    run(sys.executable, "-c", f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})", cwd=SOURCE, env=environment)
    run("tar", "-xf", folder / f"ddprun-{version}.tar.gz", "-C", folder)  # not by pip, whose folder ccache never saw
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, folder / f"ddprun-{version}",
        env=environment)
    [wheel] = folder.glob("*.whl")
    return wheel


def main():
    folder, version = empty_folder(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2]
    need("cmake", "ninja", "readelf", "tar")
    if subprocess.run([*PIP, "--version"], capture_output=True).returncode != 0:
        skip(f"{sys.executable} has no pip")
    wheel = build_wheel(folder, version)
    assert re.fullmatch(rf"ddprun-{re.escape(version)}-py3-none-(manylinux_{GLIBC[0]}_{GLIBC[1]}|linux)_\w+\.whl", wheel.name), wheel

    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    run(*PIP, "--python", environment / "bin" / "python", "install", "--no-index", wheel)
    for file in ["man/man1/ddprun.1", "bash-completion/completions/ddprun", "zsh/site-functions/_ddprun"]:
        assert (environment / "share" / file).exists(), file
    check_program(environment / "bin" / "ddprun", version)
    check_job(environment / "bin" / "ddprun", folder)


main()
