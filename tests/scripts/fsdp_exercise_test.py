"""The commands of docs/exercises/fsdp.md run as they stand, and their table shows what the page says about memory and losses.

usage: fsdp_exercise_test.py DDPRUN WORKER
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "exercises" / "fsdp.md"
PARAMETERS_MIB = 30_443_312 * 4 / 2**20
assert "30.4 million parameters" in PAGE.read_text()


def table(text):
    rows = re.findall(r"^\| (\w+-\d) \| (\d+) \| (\d+) \| (\d+)[ (\d)-]* \| ([\d.]+) \|$", text, re.M)
    return {name: (int(steps), int(peak), float(loss)) for name, steps, peak, _, loss in rows}


def main():
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(word).resolve().parent) for word in sys.argv[1:3]] + [os.environ["PATH"]])
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 3, blocks
    with tempfile.TemporaryDirectory() as folder:
        done = [subprocess.run(["bash", "-euc", block], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout for block in blocks]
        shares = [file.stat().st_size for file in pathlib.Path(folder, "runs/fsdp-2/checkpoints").glob("*.shards/rank-*")]
        whole = pathlib.Path(folder, "whole.safetensors").stat().st_size
        resumed = pathlib.Path(folder, "runs/resumed/metrics.csv").read_text().splitlines()
    got = table(done[1])
    assert sorted(got) == ["ddp-2", "fsdp-2", "zero1-2"], done[1]
    ddp, zero1, fsdp = got["ddp-2"], got["zero1-2"], got["fsdp-2"]
    # Of parameters, gradients and two averages ZeRO-1 leaves half of the averages away on two ranks, FSDP half of everything; resident
    # memory shows less of it, because it counts what the allocator keeps.
    assert 0.4 * PARAMETERS_MIB < ddp[0] - zero1[0] < 1.3 * PARAMETERS_MIB, got
    assert 1.3 * PARAMETERS_MIB < ddp[0] - fsdp[0] < 2.3 * PARAMETERS_MIB, got
    assert fsdp[1] < ddp[1] - 2 * PARAMETERS_MIB, got  # a checkpoint gathers nothing
    assert max(abs(ddp[2] - zero1[2]), abs(ddp[2] - fsdp[2])) < 0.001, got
    assert len(shares) == 2 and all(abs(share / 2**20 - 1.5 * PARAMETERS_MIB) < 10 for share in shares), shares
    assert abs(whole / 2**20 - PARAMETERS_MIB) < 10, whole
    assert resumed[-1].startswith("4,28,"), resumed  # 24 steps of two ranks, and the fifth epoch of three
    assert table(PAGE.read_text()).keys() >= got.keys(), "the page's own table"
    print("passed")


main()
