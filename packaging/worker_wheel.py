#!/usr/bin/env python3
"""Makes the wheel ddprun-worker of a build: the worker, the library with its headers, and the CUDA plug-in if there is one. LibTorch is
that of the torch wheel beside it; other libraries that a system may lack are in the wheel, with their licences (as Debian and Ubuntu keep them).

usage: worker_wheel.py BUILD_FOLDER DIST_FOLDER
"""
import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
# Of every Linux, or of torch.
GIVEN = re.compile(r"ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+)\.so|lib(torch|c10|gomp|cu|nv|nccl)")


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def install(build, folder):
    """What the wheel holds, of all that the build installs: with a ddprun for the target ddprun::launcher."""
    run("cmake", "--install", build, "--strip", "--prefix", folder / "all")
    for part in ("bin", "include", "lib", "share/ddprun"):
        (folder / "package" / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / "all" / part).rename(folder / "package" / part)
    return folder / "package"


def bundle(program, folder):
    """Copies the libraries that the program loads and other systems may lack. Returns what was copied."""
    paths = [(name, path) for name, path in re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", program), re.M)
             if not GIVEN.match(name) and "/torch/lib/" not in path and "/nvidia/" not in path]
    for name, path in paths:
        shutil.copy(path, folder / name)
    return [pathlib.Path(path).resolve() for _, path in paths]


def licences(libraries):
    """Texts by their place in the wheel: ours, what the distribution says of each package that a library is from, and the licences that
    this refers to."""
    texts = {"LICENSE": (SOURCE / "LICENSE").read_text(), "copyright": (SOURCE / "packaging/copyright").read_text()}
    for library in libraries:
        package = run("dpkg", "--search", f"*/{library.name}").split(":")[0]
        texts[package] = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text()
    for name in sorted(set(re.findall(r"/common-licenses/([\w.+-]*[\w+])", "".join(texts.values())))):
        file = pathlib.Path("/usr/share/common-licenses") / name
        if file.exists():
            texts[f"common/{name}"] = file.read_text()
    return {f"licenses/{name}": text for name, text in texts.items()}


def set_rpath(file, rpath):
    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
        script.write(f'file(RPATH_SET FILE "{file}" NEW_RPATH "{rpath}")\n')
        script.flush()
        run("cmake", "-P", script.name)


def newest_glibc(files):
    versions = [v for file in files for v in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", run("readelf", "-V", file))]
    return max((int(major), int(minor)) for major, minor in versions)


def write_wheel(path, name, files, metadata):
    """files  name in the wheel and path of each."""
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(inside, content, mode=0o644):
            info = zipfile.ZipInfo(inside)
            info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(info, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{inside},sha256={digest},{len(content)}")

        for inside, file in files:
            add(inside, file.read_bytes(), 0o755 if os.access(file, os.X_OK) else 0o644)
        for inside, text in metadata.items():
            add(f"{name}.dist-info/{inside}", text.encode())
        record_name = f"{name}.dist-info/RECORD"
        wheel.writestr(record_name, "\n".join([*record, f"{record_name},,", ""]))


def main():
    build, dist = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    version = re.search(r"project\(ddprun VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text())[1]
    with tempfile.TemporaryDirectory() as temporary:
        package = install(build, pathlib.Path(temporary))
        torch = re.search(r"built with LibTorch (\d+\.\d+)", (package / "lib/cmake/ddprun/ddprunConfig.cmake").read_text())[1]
        libraries = bundle(package / "bin/worker", package / "lib")
        set_rpath(package / "bin/worker", "$ORIGIN/../../torch/lib:$ORIGIN/../lib")
        if (package / "lib/libddprun_cuda.so").exists():
            set_rpath(package / "lib/libddprun_cuda.so", "$ORIGIN/../../torch/lib")
        (package / "torch_version").write_text(torch + "\n")
        shutil.copy(SOURCE / "packaging/ddprun_worker/__init__.py", package)

        glibc = newest_glibc([package / "bin/worker", *package.glob("lib/*.so*")])
        tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"
        name = f"ddprun_worker-{version}"
        files = [(f"ddprun_worker/{file.relative_to(package)}", file) for file in sorted(package.rglob("*")) if file.is_file()]
        write_wheel(dist / f"{name}-{tag}.whl", name, files, {
            "METADATA": f"Metadata-Version: 2.1\nName: ddprun-worker\nVersion: {version}\n"
                        "Summary: trainer and data-parallel C++ library of ddprun, on PyTorch's LibTorch\nLicense: MIT\n"
                        f"Requires-Python: >=3.8\nRequires-Dist: ddprun=={version}\nRequires-Dist: torch=={torch}.*\n",
            "WHEEL": f"Wheel-Version: 1.0\nGenerator: ddprun\nRoot-Is-Purelib: false\nTag: {tag}\n",
            "entry_points.txt": "[console_scripts]\nddprun-worker = ddprun_worker:main\nworker = ddprun_worker:worker\n",
            **licences(libraries)})
    print(dist / f"{name}-{tag}.whl")


main()
