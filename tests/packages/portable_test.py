"""The portable ddprun needs a glibc alone, an old one, and runs a job. usage: portable_test.py BUILD_FOLDER VERSION"""
import os
import pathlib
import sys

from packages import SOURCE, check_job, check_program, need, run

build, version = pathlib.Path(sys.argv[1]), sys.argv[2]
need("readelf", "ninja")
run("cmake", "--preset", "portable", "-B", build, cwd=SOURCE)
run("cmake", "--build", build, "-j", str(os.cpu_count()))
check_program(build / "bin" / "ddprun", version)
check_job(build / "bin" / "ddprun", build)
