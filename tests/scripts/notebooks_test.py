"""The cells of docs/notebooks.md run, in their order, as one notebook in a real Jupyter kernel.

usage: notebooks_test.py DDPRUN WORKER      (exit status 4: skipped)
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

python = os.environ.get("DDPRUN_TEST_PYTHON")
if not python:
    print("skipped: DDPRUN_TEST_PYTHON names no Python with Jupyter and PyTorch")
    sys.exit(4)
if pathlib.Path(sys.executable) != pathlib.Path(python):
    os.execv(python, [python, *sys.argv])
try:
    import nbclient
    import nbformat
    import ipykernel  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: {python}, which DDPRUN_TEST_PYTHON names: {error}")
    sys.exit(4)
if not pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir():
    print("skipped: Fashion-MNIST (package dataset-fashion-mnist) is not installed")
    sys.exit(4)

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "notebooks.md"


def outputs(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def ends_with_its_kernel(define):
    """A killed kernel leaves no job behind; stood for by a plain Python, which runs the cell as a kernel does."""
    with tempfile.TemporaryDirectory() as folder:
        mark = pathlib.Path(folder, "rank0")
        job = f"run('ddprun', '--nproc-per-node=2', 'sh', '-c', 'echo $$ > {folder}/rank$RANK; exec sleep 100')"
        kernel = subprocess.Popen([sys.executable, "-c", f"{define}\n{job}"])
        until(mark.exists)
        kernel.kill()
        kernel.wait()
        until(lambda: not pathlib.Path("/proc", mark.read_text().strip()).exists())


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def main():
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(word).resolve().parent) for word in sys.argv[1:3]] + [os.environ["PATH"]])
    os.environ["PYTHON_EXEC"] = sys.executable
    os.environ["PYTHONPATH"] = str(PAGE.parents[1] / "packaging")
    cells = [nbformat.v4.new_code_cell(code) for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)]
    spawn = nbformat.v4.new_code_cell("import multiprocessing as mp\ndef train(rank): pass\n"
                                      "p = mp.get_context('spawn').Process(target=train, args=(0,)); p.start(); p.join(); print(p.exitcode)")
    notebook = nbformat.v4.new_notebook(cells=cells + [spawn])
    ends_with_its_kernel(next(cell.source for cell in cells if "def run(" in cell.source))
    with tempfile.TemporaryDirectory() as folder:
        kernel = nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": folder}})
        kernel.execute()
        load, own, define, mnist, rows, pictures, spawned = notebook.cells
        assert "Test set: Average loss" in outputs(mnist), outputs(mnist)
        assert float(re.search(r"loss (\S+)", outputs(own))[1]) < 5, outputs(own)
        assert 0.3 < float(outputs(rows)) < 1, outputs(rows)
        kinds = [next(kind for kind in output.data if kind.startswith("image/")) for output in pictures.outputs]
        assert kinds == ["image/svg+xml", "image/svg+xml", "image/png"], kinds
        assert "Can't get attribute 'train'" in outputs(spawned), outputs(spawned)  # why the page exists
        assert not subprocess.run(["pgrep", "-f", folder], capture_output=True).stdout
    print("passed")


main()
