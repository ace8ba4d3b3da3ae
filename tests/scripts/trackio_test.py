"""The importer in docs/training/reports.md hands a run of the real worker to the real Trackio, in a Python environment made for it.

usage: trackio_test.py WORKER      (exit status 4: skipped)
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "training" / "reports.md"
READ = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps({run.name: [run.config, SQLiteStorage.get_logs("ddprun", run.name)] for run in trackio.Api().runs("ddprun")}))
"""


def main():
    importer, = (code for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "trackio" in code)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        python = folder / "venv" / "bin" / "python"
        made = subprocess.run([sys.executable, "-m", "venv", folder / "venv"], capture_output=True, text=True)
        if made.returncode == 0:
            made = subprocess.run([python, "-m", "pip", "install", "--quiet", "--retries=1", "trackio"], capture_output=True, text=True)
        if made.returncode != 0:
            print(f"skipped: Trackio cannot be installed: {(made.stderr.strip() or made.stdout.strip()).splitlines()[-1]}")
            sys.exit(4)
        (folder / "to_trackio.py").write_text(importer)
        for run in ("first", "second"):
            subprocess.run([sys.argv[1], "linear", "--epochs=2", f"--out={folder / run}"], check=True, stdout=subprocess.DEVNULL)
        environment = {**os.environ, "HOME": name, "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}
        subprocess.run([python, "to_trackio.py", "first", "second"], cwd=folder, env=environment, check=True, timeout=300)
        read = subprocess.run([python, "-c", READ], env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True)
        runs = json.loads(read.stdout.splitlines()[-1])
        assert sorted(runs) == ["first", "second"], sorted(runs)
        for run, (config, logs) in runs.items():
            rows = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
            assert config["train"]["epochs"] == 2, config
            assert len(logs) == len(rows), (len(logs), len(rows))
            for row, log in zip(rows, sorted(logs, key=lambda log: log["timestamp"])):
                assert log["step"] == row["step"], (log, row)
                wrong = {name: value for name, value in row.items() if name != "step" and log.get(name) != value}
                assert not wrong, (wrong, log)
    print("Trackio has every row of both runs")


if __name__ == "__main__":
    main()
