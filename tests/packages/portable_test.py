"""The portable ddprun needs a glibc alone, an old one, and runs a job. usage: portable_test.py BUILD_FOLDER VERSION"""
import os
import pathlib
import subprocess
import sys

from packages import SOURCE, check_in_bare_root, check_job, check_program, need, run

build, version = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
need("readelf", "ninja")
run("cmake", "--preset", "portable", "-B", build, cwd=SOURCE)
run("cmake", "--build", build, "-j", str(os.cpu_count()))
check_program(build / "bin" / "ddprun", version)
size = (build / "bin" / "ddprun").stat().st_size
assert size <= 3_500_000, f"the portable ddprun has {size} bytes: more than 3.5 MB"
check_job(build / "bin" / "ddprun", build)
check_in_bare_root(build / "bin" / "ddprun", build)

# What stands in for functions that an old glibc lacks: names of signals, files' status, exceptions.
done = subprocess.run([build / "bin" / "ddprun", "--nproc-per-node=2", "sh", "-c", "kill -USR2 $$"],
                      capture_output=True, text=True)
assert done.returncode == 128 + 12 and "SIGUSR2" in done.stderr, done
done = subprocess.run([build / "bin" / "ddprun", "--no-such-flag"], capture_output=True, text=True)
assert done.returncode == 2 and "unknown flag" in done.stderr, done
