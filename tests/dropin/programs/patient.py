"""Says when it is ready, says which signal comes, and ends by it in its own time."""
import signal
import sys


def end(number, _):
    print(f"got {signal.Signals(number).name}", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda number, _: print(f"saved at {signal.Signals(number).name}", flush=True))
print("ready", flush=True)
while True:
    signal.pause()
