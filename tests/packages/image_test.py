"""The image of packaging/kubernetes/Containerfile, built by buildah from the wheel that package_wheel made, on a Debian that stands for
python:3.11-slim; and a job in it.

usage: image_test.py FOLDER
"""
import os
import pathlib
import shutil
import subprocess
import sys

from packages import SOURCE, empty_folder, need, run, skip

BASE = "docker.io/library/python:3.11-slim"  # what `FROM python:3.11-slim` means to a builder


def main():
    folder = empty_folder(pathlib.Path(sys.argv[1]).resolve())
    need("buildah", "mmdebstrap")
    if os.geteuid() != 0:
        skip("only root can make an image here")
    wheels = [*(folder.parent / "wheel").glob("ddprun-*.whl")]
    if not wheels:
        skip("package_wheel has made no wheel")
    buildah = ["buildah", f"--root={folder / 'images'}", f"--runroot={folder / 'state'}", "--storage-driver=vfs"]
    try:
        done = subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", "--include=python3,python3-pip", "bookworm", folder / "base.tar"])
        if done.returncode != 0:
            skip("mmdebstrap cannot make a Debian: no network?")
        (folder / "base").write_text("FROM scratch\nADD base.tar /\nRUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED\n")
        build = [*buildah, "bud", "--isolation=chroot", "--pull-never", "--quiet"]
        done = subprocess.run([*build, f"--file={folder / 'base'}", f"--tag={BASE}", folder], capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"buildah cannot run a command in an image here: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        (folder / "context/dist").mkdir(parents=True)
        shutil.copy(wheels[0], folder / "context/dist")
        run(*build, f"--file={SOURCE / 'packaging/kubernetes/Containerfile'}", "--target=launcher", "--tag=ddprun", folder / "context")
        container = run(*buildah, "from", "--pull-never", "ddprun").strip()
        entry = run(*buildah, "inspect", "--format", "{{.OCIv1.Config.Entrypoint}}", container)
        assert entry.strip() == "[ddprun]", entry
        script = folder / "job.py"
        script.write_text("import ddprun, os\nprint(f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\", end='', flush=True)\n")
        run(*buildah, "copy", container, script, "/app/")
        output = run(*buildah, "run", "--isolation=chroot", container, "--", "ddprun", "--nproc-per-node=2", "job.py")
        assert sorted(output.split("\n")) == ["", "rank 0 of 2", "rank 1 of 2"], output
    finally:
        shutil.rmtree(folder)  # a gigabyte


main()
