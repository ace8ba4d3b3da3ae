"""Says when it is ready, says which signal comes, and ends by it in its own time."""
import signal
import sys


def say(line):
    print(line + "\n", end="", flush=True)  # one write: torchrun does not keep the ranks' lines apart


def end(number, _):
    say(f"got {signal.Signals(number).name}")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda number, _: say(f"saved at {signal.Signals(number).name}"))
say("ready")
while True:
    signal.pause()
