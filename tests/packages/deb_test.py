"""The Debian package has what it should where it should, and its program runs a job.

usage: deb_test.py PORTABLE_BUILD_FOLDER VERSION
"""
import gzip
import pathlib
import shutil
import sys

from packages import GLIBC, check_in_bare_root, check_job, check_program, empty_folder, need, run

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


def main():
    build, version = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    need("cpack", "dpkg-deb", "gzip", "readelf")
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
    if shutil.which("lintian"):
        run("lintian", "--fail-on", "error", "--allow-root", package)


main()
