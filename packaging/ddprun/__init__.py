"""The launcher ddprun as a Python package: the program `ddprun`, `python -m ddprun`, and functions for the training script.

>>> @ddprun.record                       # ddprun's report shows the error that ends the rank, with its traceback
... def main():
...     for batch in loader:
...         train(batch)
...         ddprun.heartbeat()           # a sign of life for --hang-timeout
...         ddprun.status(step=step, seconds={"data": waited, "compute": worked})  # for ddpctl and --metrics-port
>>> run = ddprun.read_run("runs/mnist-1")
>>> pandas.DataFrame(run["metrics"])

In a notebook, %load_ext ddprun provides the cell magic %%ddprun.
"""
import contextlib
import faulthandler
import functools
import importlib
import json
import math
import os
import pathlib
import stat
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, Optional, SupportsFloat, SupportsInt, TypeVar, Union

__all__ = ["heartbeat", "read_run", "record", "status"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def heartbeat() -> None:
    """Shows ddprun that this rank is alive. Call it every step: it costs a microsecond, and does nothing without ddprun.

    Once a rank has sent a heartbeat, it counts as hung when it has been silent for --hang-timeout seconds.
    """
    with contextlib.suppress(OSError, ValueError):  # no ddprun, or the pipe is full of beats
        fd = int(os.environ.get("DDPRUN_HEARTBEAT_FD", "-1"))
        if stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.get_blocking(fd):  # a child of the rank may have another one there
            os.write(fd, b".")


def status(
    *,
    step: Optional[SupportsInt] = None,
    steps: Optional[SupportsInt] = None,
    epoch: Optional[SupportsInt] = None,
    epochs: Optional[SupportsInt] = None,
    phase: Optional[str] = None,
    loss: Optional[SupportsFloat] = None,
    samples: Optional[SupportsInt] = None,
    seconds: Optional[Mapping[str, SupportsFloat]] = None,
    memory: Optional[Mapping[str, SupportsInt]] = None,
) -> None:
    """Tells ddprun the progress of this rank's training. Call it every step, or every few steps. It does nothing without ddprun.

    step, epoch: how many are done since the beginning of the training; steps, epochs: how many there will be in all.
    samples: how many this rank has processed since the process began.
    seconds: the time spent since the process began, with the keys "data" (waiting for input), "compute" (this rank's own work),
    "communication" (waiting for other ranks), "evaluation", "checkpoint" and "start".
    memory: the bytes in use, with the keys "resident" and "device".
    """
    global _reports_steps
    _reports_steps = _reports_steps or step is not None
    counts = {"step": step, "steps": steps, "epoch": epoch, "epochs": epochs, "samples": samples}
    said: Dict[str, Any] = {name: int(count) for name, count in counts.items() if count is not None}
    if phase is not None:
        said["phase"] = str(phase)
    if loss is not None:
        said["loss"] = float(loss) if math.isfinite(loss) else None
    if seconds is not None:
        said["seconds"] = {name: float(value) for name, value in seconds.items() if math.isfinite(value)}
    if memory is not None:
        said["memory"] = {name: int(value) for name, value in memory.items()}
    _send_status(said)


_reports_steps = False  # this program calls status() itself, so elastic.State leaves it alone


def _send_status(said: Mapping[str, Any]) -> None:
    line = json.dumps(said).encode() + b"\n"
    with contextlib.suppress(OSError, ValueError):  # no ddprun, or the pipe is full
        fd = int(os.environ.get("DDPRUN_STATUS_FD", "-1"))
        if stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.get_blocking(fd) and len(line) <= 4096:  # written in one piece
            os.write(fd, line)


def record(function: _Function) -> _Function:
    """Decorates the main function of a training program: if an exception ends it, ddprun's report shows that exception. This works like
    torch.distributed.elastic.multiprocessing.errors.record, but without torch. The exception is raised again."""

    @functools.wraps(function)
    def recorded(*arguments: Any, **keywords: Any) -> Any:
        with contextlib.suppress(Exception):  # stderr is not a file
            faulthandler.enable(all_threads=True)
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            _write_error_file(error)
            raise

    return recorded  # type: ignore[return-value]


def _write_error_file(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):  # the first error is the cause
        return
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    text = json.dumps({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}})
    with contextlib.suppress(OSError):  # a full disk must not hide the error itself
        pathlib.Path(f"{path}.part").write_text(text)
        os.replace(f"{path}.part", path)


def read_run(path: Union[str, "os.PathLike[str]"]) -> Dict[str, Any]:
    """Reads a run folder of `worker`, even while the training is running.

    "metrics": a list for each column, with None where a row has no value (for pandas.DataFrame). "summary" and
    "environment": {} until they are written; the summary is {} again while a run that had ended is continued. "config": the
    settings by section. "checkpoints": their paths, oldest first.

    Raises FileNotFoundError if the folder has no metrics.jsonl, and ValueError, with the file's name and line, if a file
    cannot be read.
    """
    folder = pathlib.Path(path)
    metrics = _columns(folder / "metrics.jsonl")
    return {
        "metrics": metrics,
        "summary": _summary(folder, max(filter(None, metrics.get("step", [])), default=0)),
        "environment": _json(folder / "environment.json"),
        "config": _config(folder / "config.toml"),
        "checkpoints": _checkpoints(folder / "checkpoints"),
    }


def __getattr__(name: str) -> Any:
    if name in ("elastic", "lightning", "notebook"):  # imported only when they are used, because of what they import themselves
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """%load_ext ddprun"""
    from . import notebook

    notebook.load_ipython_extension(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """%unload_ext ddprun"""
    from . import notebook

    notebook.unload_ipython_extension(ipython)


def _columns(file: pathlib.Path) -> Dict[str, list]:
    rows = []
    lines = file.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):  # whatever follows the last newline is still being written
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from None
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _json(file: pathlib.Path) -> Dict[str, Any]:
    try:
        content: Dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _summary(folder: pathlib.Path, step: float) -> Dict[str, Any]:
    """The summary. {} if it is that of an earlier end: of a branch before that of the metrics, or at an earlier step."""
    branch_of = _json(folder / "run.json").get("files", {})
    if 0 < branch_of.get("summary.json", 0) < branch_of.get("metrics.jsonl", 0):
        return {}
    summary = _json(folder / "summary.json")
    return {} if summary.get("steps", step) < step else summary


def _checkpoints(folder: pathlib.Path) -> List[pathlib.Path]:
    """The checkpoint files, without folders of shards and files that are still being written."""
    found = []
    for file in folder.glob("[!.]*"):
        with contextlib.suppress(FileNotFoundError):  # a better checkpoint has replaced it meanwhile
            if file.suffix in (".pt", ".ckpt") and file.is_file():
                found.append((file.stat().st_mtime, file))
    return [file for _, file in sorted(found)]


def _config(file: pathlib.Path) -> Dict[str, Any]:
    try:
        import tomllib as toml
    except ModuleNotFoundError:  # before Python 3.11
        import tomli as toml  # type: ignore[no-redef]
    try:
        return toml.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
