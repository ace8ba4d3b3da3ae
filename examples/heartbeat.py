"""Signs of life for ddprun's --hang-timeout: a rank that stops sending them counts as hung.

ddprun --nproc-per-node=2 --hang-timeout=60 examples/heartbeat.py
"""
import contextlib
import os
import stat
import time


def heartbeat(fd=int(os.environ.get("DDPRUN_HEARTBEAT_FD", -1))):
    """Call this every step. It costs a microsecond, and does nothing without ddprun."""
    with contextlib.suppress(OSError):  # not under ddprun, or the pipe is full of beats
        if stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.get_blocking(fd):  # a child of the rank may have another one there
            os.write(fd, b".")


if __name__ == "__main__":
    for step in range(3):
        time.sleep(0.01)  # a step of the training
        heartbeat()
    print(f"rank {os.environ.get('RANK', 0)} is done")
