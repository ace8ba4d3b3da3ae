"""The Debian package has what it should where it should, and its program runs a job.

usage: deb_test.py PORTABLE_BUILD_FOLDER VERSION
"""
import gzip
import pathlib
import shutil
import subprocess
import sys

from packages import GLIBC, SOURCE, check_in_bare_root, check_job, check_program, empty_folder, need, run

FILES = """
usr/bin/ddpctl
usr/bin/ddprun
usr/include/ddprun/report_error.h
usr/include/ddprun/report_status.h
usr/share/bash-completion/completions/ddpctl
usr/share/bash-completion/completions/ddprun
usr/share/ddprun/grafana/ddprun.json
usr/share/doc/ddprun/changelog.Debian.gz
usr/share/doc/ddprun/changelog.gz
usr/share/doc/ddprun/copyright
usr/share/man/man1/ddpctl.1.gz
usr/share/man/man1/ddprun.1.gz
usr/share/zsh/vendor-completions/_ddpctl
usr/share/zsh/vendor-completions/_ddprun
""".split()


def check_checksums(build, folder):
    """scripts/package.sh, with this build as its own: sha256sum accepts what it leaves in dist/, and no other bytes."""
    scripts, dist = folder / "scripts", folder / "dist"
    scripts.mkdir()
    for name in ["package.sh", "common.sh"]:
        shutil.copy(SOURCE / "scripts" / name, scripts)
    (scripts / "build.sh").write_text("#!/bin/sh\n")  # it is built
    (scripts / "build.sh").chmod(0o755)
    (folder / "build-portable").symlink_to(build)
    dist.mkdir()
    (dist / "made-before.whl").write_bytes(b"wheel")
    run("bash", scripts / "package.sh", "deb")
    [package] = dist.glob("*.deb")
    assert run("sha256sum", "-c", "SHA256SUMS", cwd=dist) == f"{package.name}: OK\nmade-before.whl: OK\n"
    package.write_bytes(package.read_bytes() + b"x")
    done = subprocess.run(["sha256sum", "-c", "--status", "SHA256SUMS"], cwd=dist)
    assert done.returncode == 1, done.returncode
    shutil.rmtree(folder)  # with its link to the folder above


def main():
    build, version = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    need("cpack", "dpkg-deb", "gzip", "readelf", "sha256sum")
    made = empty_folder(build / "packages")
    run("cpack", "--config", build / "CPackConfig.cmake", "-B", made)
    [package] = made.glob("*.deb")

    def field(name):
        return run("dpkg-deb", "--field", package, name).strip()

    assert field("Package") == "ddprun"
    assert field("Version") == f"{version}-1"
    assert field("Depends") == f"libc6 (>= {GLIBC[0]}.{GLIBC[1]})"

    root = empty_folder(build / "root")
    run("dpkg-deb", "-x", package, root)
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
    assert files == FILES, files
    assert gzip.decompress((root / "usr/share/man/man1/ddprun.1.gz").read_bytes()).startswith(b".TH DDPRUN 1")
    assert b"ddprun (" in gzip.decompress((root / "usr/share/doc/ddprun/changelog.Debian.gz").read_bytes())
    check_program(root / "usr/bin/ddprun", version)
    check_program(root / "usr/bin/ddpctl", version)
    check_job(root / "usr/bin/ddprun", root)
    check_in_bare_root(root / "usr/bin/ddprun", build)
    check_checksums(build, empty_folder(build / "checksums"))
    if shutil.which("lintian"):
        run("lintian", "--fail-on", "error", "--allow-root", package)


main()
