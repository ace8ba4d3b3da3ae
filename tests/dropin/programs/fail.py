"""Rank 1 raises an exception inside @record, and exits with 7; rank 0 would go on for ever."""
import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("batch 3 is empty: \u00e9")
    while True:
        signal.pause()


try:
    main()
except ValueError:
    sys.exit(7)
