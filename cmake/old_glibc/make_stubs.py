#!/usr/bin/env python3
"""Makes stand-ins for glibc's libraries to link against, so that the program also runs with an older glibc.

usage: make_stubs.py COMPILER VERSION FOLDER

The stand-ins have the symbols of this machine's glibc, each in its newest form that is not newer than VERSION, and no code.
What did not exist then does not link: missing.cpp has what is needed of that. The program loads the real libraries.
"""
import pathlib
import re
import subprocess
import sys

# "   543: 00000000000f77e0    18 FUNC    WEAK   DEFAULT   16 stat@@GLIBC_2.33"
SYMBOL = re.compile(r"^\s*\d+: (?P<address>[0-9a-f]+)\s+(?P<size>\w+) (?P<type>FUNC|IFUNC|OBJECT)\s+(?P<binding>GLOBAL|WEAK)"
                    r"\s+DEFAULT\s+\d+ (?P<name>\w+)@@?GLIBC_(?P<version>[0-9.]+)$", re.M)


def as_numbers(version):
    return tuple(int(part) for part in version.split("."))


def newest_symbols(library, limit):
    """Name -> its newest entry up to this version."""
    text = subprocess.run(["readelf", "-W", "--dyn-syms", library], check=True, capture_output=True, text=True).stdout
    found = {}
    for symbol in SYMBOL.finditer(text):
        version = as_numbers(symbol["version"])
        old = found.get(symbol["name"])
        if version <= limit and (old is None or as_numbers(old["version"]) < version):
            found[symbol["name"]] = symbol
    return found.values()


def assembly(symbols):
    """A label for each symbol. Variables at one address stay so: the linker must see that environ is __environ."""
    lines, address = [".data"], None
    for symbol in sorted(symbols, key=lambda s: (s["type"] == "OBJECT", int(s["address"], 16), -int(s["size"], 0))):
        name, is_object = symbol["name"], symbol["type"] == "OBJECT"
        if not is_object or symbol["address"] != address:
            lines += [".balign 32", f".skip {int(symbol['size'], 0) if is_object else 1}"]
            address = symbol["address"]
        here = f". - {int(symbol['size'], 0)}" if is_object else "."
        lines += [f".{'weak' if symbol['binding'] == 'WEAK' else 'globl'} {name}", f".set {name}, {here}",
                  f".type {name}, %{'object' if is_object else 'function'}", f".size {name}, {int(symbol['size'], 0)}"]
    return "\n".join(lines) + "\n"


def version_script(symbols):
    names = {}
    for symbol in symbols:
        names.setdefault(symbol["version"], []).append(symbol["name"])
    return "".join(f"GLIBC_{version} {{ global: {'; '.join(of)}; }};\n" for version, of in sorted(names.items()))


def make_stub(compiler, folder, file, soname, symbols):
    (folder / "stub.s").write_text(assembly(symbols))
    (folder / "stub.map").write_text(version_script(symbols))
    scripted = [f"-Wl,--version-script={folder / 'stub.map'}"] if symbols else []
    subprocess.run([compiler, "-shared", "-nostdlib", *scripted, f"-Wl,-soname,{soname}", "-o", folder / file,
                    folder / "stub.s"], check=True)


def main():
    compiler, limit, folder = sys.argv[1], as_numbers(sys.argv[2]), pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)

    def host(name):
        return subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()

    make_stub(compiler, folder, "libc.so.6", "libc.so.6", newest_symbols(host("libc.so.6"), limit))
    make_stub(compiler, folder, "libm.so", "libm.so.6", newest_symbols(host("libm.so.6"), limit))
    # Since 2.34 their content is in libc.so.6, in the old form too.
    make_stub(compiler, folder, "libpthread.so", "libpthread.so.0", [])
    make_stub(compiler, folder, "libdl.so", "libdl.so.2", [])
    script = pathlib.Path(host("libc.so")).read_text()
    (folder / "libc.so").write_text(re.sub(r"\S*/libc\.so\.6", lambda _: f'"{folder / "libc.so.6"}"', script))


if __name__ == "__main__":
    main()
