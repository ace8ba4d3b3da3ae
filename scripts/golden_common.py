"""Shared by the scripts that make golden files."""

import json
import math

# The same instructions on every x86-64 processor: otherwise processors round differently, and training amplifies
# the difference. The tests set the same variables.
SAME_ON_EVERY_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, separators=(",", ":"))
        f.write("\n")


def number(value):
    """A float for JSON; nan, inf and -inf as text."""
    return value if math.isfinite(value) else str(value)
