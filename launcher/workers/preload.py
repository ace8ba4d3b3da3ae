# What ddprun --preload has Python import as `sitecustomize`, which is before the script: it imports the modules, then forks a process for each
# worker. In a fork that has become a worker this import ends, and the interpreter runs the script as it does in any process: nothing of what the
# script sees, of its traceback or of its end is ours.
import os
import sys

if sys.version_info < (3, 10):
    os.write(int(os.environ["DDPRUN_PRELOAD_FD"]), b'{"refused": "expected Python 3.10 or newer"}')
    os._exit(1)
if sys.argv[0] == "-c":  # this start has shown that the Python imports us: now the command line of the script, as whatever started Python has it
    flags = sys.orig_argv[: -len(sys.argv) - 1]
    os.execve(sys.executable, flags + sys.argv[1:], os.environ)

try:
    import contextlib
    import ctypes
    import gc
    import importlib
    import io
    import json
    import runpy
    import signal
    import site
    import socket
    import threading
    import time
    import warnings
except BaseException:  # or the script would run here
    os.write(int(os.environ["DDPRUN_PRELOAD_FD"]), b'{"refused": "this Python lacks a module such as ctypes or socket"}')
    os._exit(1)

# What these import only when they are first used: a worker would wait for it.
LATER = {"torch": ["torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.optim", "torch._dynamo"]}

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61


def forget_cache():
    """Where bytecode is kept elsewhere (PYTHONPYCACHEPREFIX), the file of this module would be left."""
    with contextlib.suppress(OSError, TypeError):
        os.unlink(__cached__)
        os.rmdir(os.path.dirname(__cached__))
        os.rmdir(os.path.dirname(os.path.dirname(__cached__)))


class Refused(Exception):
    """Workers have to start without us."""


def import_theirs(name):
    """The sitecustomize that is hidden by ours. Returns the exception with which our own import must end."""
    del sys.modules[name]
    try:
        importlib.import_module(name)
    except Exception as error:  # as site does; an ImportError of this name means that there is none
        return error
    finally:
        if site.ENABLE_USER_SITE:
            site.execusercustomize()  # the interpreter does it next, when it is too late for the modules
    return None


def folder_of_script(is_module):
    """What the interpreter will put in front of sys.path; None: nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if is_module else os.path.dirname(os.path.realpath(sys.argv[0]))


def load(name):
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
        elif os.path.isfile(name):
            runpy.run_path(name, run_name="ddprun_preload")
        else:
            raise SystemExit({"missing": name + ": no such file"})
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            raise SystemExit({"missing": "no module named " + error.name}) from error
        raise Refused(f"{name}: {error}") from error
    except Exception as error:
        raise Refused(f"{name}: {type(error).__name__}: {error}") from error
    for later in LATER.get(name, []):
        with contextlib.suppress(Exception):
            importlib.import_module(later)


def count_threads():
    return len(os.listdir("/proc/self/task"))


def check_can_fork(modules):
    """A fork has only the thread that forks, and cannot use CUDA if its parent has."""
    imports = "the import of " + ", ".join(modules)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork with threads
        pid = os.fork()  # a trial, and the threads of OpenBLAS end before a fork
    if pid == 0:
        os._exit(1 if cuda is not None and getattr(cuda, "_is_in_bad_fork", bool)() else 0)
    is_bad = os.waitpid(pid, 0)[1] != 0
    if count_threads() > 1:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        raise Refused(f"{imports} has started a thread ({', '.join(names) or 'not by Python'}), and forks would not have it")
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as children:
            if children.read().strip():
                raise Refused(f"{imports} has started a process, which would not be the forks' child")
    if is_bad or (cuda is not None and cuda.is_initialized()):
        raise Refused(f"{imports} has initialized CUDA, which forks cannot use")
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            device = os.readlink("/proc/self/fd/" + fd)
            if device in ("/dev/nvidia-uvm", "/dev/kfd"):  # those of CUDA and ROCm
                raise Refused(f"{imports} has opened {device}, and forks could not use the GPUs")


def serve(control, settings):
    """Forks for each request. Returns in a fork that becomes a worker, with its order."""
    while True:
        text, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not text:
            os._exit(0)  # ddprun has ended
        ours = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            control.send(json.dumps({"failed": int(text), "why": f"fork: {error.strerror}"}).encode())
            child = None
        if child == 0:
            order = wait_as_fork(control, settings, int(text), fds[0], ours)
            if order is not None:
                return order
            os._exit(0)
        os.close(fds[0])
        if child is not None:
            os.waitpid(child, 0)


def wait_as_fork(control, settings, number, channel, server):
    """Ends its own parent, so that it becomes a child of ddprun, like every worker. Returns None if ddprun has no use for it."""
    middle = os.getpid()
    try:
        if os.fork() != 0:
            os._exit(0)
    except OSError as error:
        control.send(json.dumps({"failed": number, "why": f"fork: {error.strerror}"}).encode())
        return None
    while os.getppid() == middle:
        time.sleep(0.0005)
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["launcher"]:
        return None
    if settings["traceable"]:
        libc.prctl(PR_SET_PTRACER, settings["launcher"])
    control.send(json.dumps({"fork": number, "pid": os.getpid()}).encode())
    control.close()
    with socket.socket(fileno=channel) as orders:
        orders.settimeout(None)  # a module may have set another default
        text, fds, _, _ = socket.recv_fds(orders, 1 << 20, 16)
    return (json.loads(text), fds) if text else None


def obey(order, fds):
    for name, fd in zip(order["fds"], fds):
        if name in ("0", "1", "2"):
            os.dup2(fd, int(name))
            os.close(fd)
        else:
            os.set_inheritable(fd, True)
            os.environ[name] = str(fd)
    for name, value in order["env"].items():  # whatever the locale
        os.environb[name.encode()] = value.encode()
    if "argv" in order:
        arguments = len(sys.argv) - 1
        if arguments > 0:
            sys.argv[1:] = sys.orig_argv[-arguments:] = [os.fsdecode(word.encode()) for word in order["argv"][-arguments:]]
    reopen("stdin", 0, "rb")
    reopen("stdout", 1, "wb")
    reopen("stderr", 2, "wb")
    threading.main_thread()._set_native_id()
    if "numpy.random" in sys.modules:  # Python's own generator does it itself
        sys.modules["numpy.random"].seed()


def reopen(name, fd, mode):
    """As the interpreter does when it starts: it may be a terminal, or a file, and was not."""
    old = getattr(sys, name)
    if type(old) is not io.TextIOWrapper or old is not getattr(sys, f"__{name}__"):
        return
    buffer = open(fd, mode, 0 if isinstance(old.buffer, io.FileIO) else -1, closefd=False)
    getattr(buffer, "raw", buffer).name = old.buffer.name
    new = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", old.line_buffering, old.write_through)
    new.mode = old.mode
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


def run():
    """Returns in a worker. Returns the exception with which our import must end there."""
    control = socket.socket(fileno=int(os.environ.pop("DDPRUN_PRELOAD_FD")))
    try:
        control.set_inheritable(False)
        forget_cache()
        ours, more, theirs = os.environ["PYTHONPATH"].partition(os.pathsep)
        if more:
            os.environ["PYTHONPATH"] = theirs
        else:
            del os.environ["PYTHONPATH"]
        sys.path.remove(ours)
        sys.path_importer_cache.pop(ours, None)
        settings = json.loads(control.recv(1 << 16))
        is_module = sys.argv[0] == "-m"
        if not is_module and not os.path.isfile(sys.argv[0]):
            raise Refused(f"{sys.argv[0]} is not a regular file")
        end = import_theirs(__name__)
        folder = folder_of_script(is_module)
        if folder is not None:
            sys.path.insert(0, folder)
        place = os.getcwd()
        for name in settings["modules"]:
            load(name)
        if os.getcwd() != place:
            raise Refused("the import of " + ", ".join(settings["modules"]) + " has changed the current folder")
        if folder is not None and sys.path[:1] == [folder]:
            sys.path.remove(folder)  # the interpreter will add it
        elif folder is not None:
            raise Refused("the import of " + ", ".join(settings["modules"]) + " has put a folder before the script's in sys.path")
        check_can_fork(settings["modules"])
        gc.collect()
        gc.freeze()  # or the garbage collector would write to, and so copy, the memory that the forks share
        control.send(b'{"ready": true}')
        order = serve(control, settings)
    except Refused as reason:
        answer = {"refused": str(reason)}
    except SystemExit as reason:
        answer = reason.code if isinstance(reason.code, dict) else {"refused": f"the import ends Python: {reason!r}"}
    except BaseException as error:  # or the script would run here
        answer = {"refused": f"{type(error).__name__}: {error}"}
    else:
        try:
            obey(*order)
        except BaseException as error:
            os.write(2, f"ddprun --preload: this worker cannot begin: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        return end
    with contextlib.suppress(OSError):
        control.send(json.dumps(answer).encode())
    os._exit(1)


_end = run()
if _end is not None:
    raise _end
