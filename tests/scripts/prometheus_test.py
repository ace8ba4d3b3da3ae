"""--metrics-port beside Debian's real prometheus and promtool: they take the metrics as they are, and every query of the Grafana
dashboard and of docs/metrics.md has an answer.

usage: prometheus_test.py DDPRUN
"""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

from waiting import wait_for

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DDPRUN = sys.argv[1]

# Four ranks in step; rank 2 computes twice as long as the others.
TRAINING = """
import ddprun, os, time
compute = 0.04 if os.environ["RANK"] == "2" else 0.02
for step in range(1, 100000):
    time.sleep(0.05)
    ddprun.status(step=step, steps=100000, epoch=1, epochs=2, loss=1 / step, samples=32 * step,
                  seconds={"data": 0.002 * step, "compute": compute * step, "communication": (0.048 - compute) * step,
                           "evaluation": 0, "checkpoint": 0, "start": 1}, memory={"resident": 1 << 20, "device": 1 << 30})
"""


def get(url, token=None):
    """Status and text."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Job:
    def __init__(self, metrics_port, token=None):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "packaging"), "LOGLEVEL": "INFO"}
        environment.pop("DDPRUN_TOKEN", None)
        if token:
            environment["DDPRUN_TOKEN"] = token
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([DDPRUN, "--nproc-per-node=4", f"--metrics-port={metrics_port}", "python3", "-c", TRAINING],
                                        env=environment, stderr=self.errors)

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode()

    def url(self):
        return wait_for(lambda: re.search(r"http://\S+(?=/metrics)", self.said())).group()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.errors.close()


def queries_of_dashboard():
    dashboard = json.loads((SOURCE / "share/grafana/ddprun.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def queries_of_docs():
    text = (SOURCE / "docs/metrics.md").read_text()
    return text.split("Some queries:\n\n```\n")[1].split("\n```")[0].splitlines()


class Http(unittest.TestCase):
    def test_paths(self):
        with Job(0) as job:
            url = job.url()
            self.assertEqual((200, "ok\n"), get(url + "/healthz"))
            self.assertEqual(404, get(url + "/")[0])
            status = wait_for(lambda: (lambda seen: seen if len(seen["ranks"]) == 4 else None)(json.loads(get(url + "/status")[1])))
            self.assertEqual([0, 1, 2, 3], [rank["rank"] for rank in status["ranks"]])
            self.assertEqual(job.process.pid, status["pid"])

    def test_beyond_loopback_the_token_is_asked_for(self):
        port = free_port()
        with Job(f"0.0.0.0:{port}", token="secret") as job:
            url = wait_for(job.url).replace("0.0.0.0", "127.0.0.1")
            self.assertEqual(401, get(url + "/metrics")[0])
            self.assertEqual(401, get(url + "/healthz", "wrong")[0])
            self.assertEqual(200, get(url + "/metrics", "secret")[0])
        with Job("0.0.0.0:9400") as job:
            self.assertEqual(2, job.process.wait(timeout=60))
            self.assertIn("--metrics-port: expected a loopback address, or a token", job.said())

    def test_a_port_that_is_taken_is_a_warning(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with Job(taken.getsockname()[1]) as job:
                wait_for(lambda: "metrics are not served" in job.said())
                self.assertIsNone(job.process.poll())

    def test_a_client_that_sends_no_http_or_nothing_does_no_harm(self):
        with Job(0) as job:
            url = job.url()
            place = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
            idle = [socket.create_connection(place) for _ in range(20)]
            with socket.create_connection(place) as garbage:
                garbage.sendall(b"\0" * 100000)
            self.assertEqual(200, get(url + "/healthz")[0])
            for client in idle:
                client.close()


@unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"), "prometheus is not installed (scripts/setup.sh --dev)")
class Prometheus(unittest.TestCase):
    def test_promtool_finds_no_fault(self):
        with Job(0) as job:
            url = job.url()
            text = wait_for(lambda: (lambda seen: seen if 'worker_step_seconds{rank="3"}' in seen else None)(get(url + "/metrics")[1]))
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((0, ""), (checked.returncode, checked.stdout + checked.stderr))

    def test_every_query_of_the_dashboard_has_an_answer(self):
        with Job(0) as job, tempfile.TemporaryDirectory() as folder:
            target = job.url().replace("http://", "")
            config = pathlib.Path(folder, "prometheus.yml")
            config.write_text(f"scrape_configs:\n- job_name: training\n  scrape_interval: 500ms\n  scrape_timeout: 400ms\n"
                              f"  static_configs:\n  - targets: ['{target}']\n")
            place = f"127.0.0.1:{free_port()}"
            with open(os.devnull, "wb") as nowhere:
                server = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                           f"--web.listen-address={place}"], stdout=nowhere, stderr=nowhere)
            try:
                def ask(query):
                    query = query.replace("$__rate_interval", "10s").replace("[1m]", "[10s]")
                    try:
                        status, text = get(f"http://{place}/api/v1/query?" + urllib.parse.urlencode({"query": query}))
                    except OSError:
                        return None  # it starts
                    return json.loads(text)["data"]["result"] if status == 200 else None

                slow = wait_for(lambda: ask("max by (rank) (ddprun_worker_slowness_ratio) > 1.5"))
                self.assertEqual("2", slow[0]["metric"]["rank"])
                self.assertAlmostEqual(2, float(slow[0]["value"][1]), delta=0.3)
                for query in queries_of_dashboard() + queries_of_docs():
                    with self.subTest(query):
                        wait_for(lambda: ask(query), 15)
                # Of each second it computes 0.8, once ten seconds are there.
                wait_for(lambda: ask('rate(ddprun_worker_activity_seconds_total{activity="compute",rank="2"}[10s]) > 0.6'))
            finally:
                server.terminate()
                server.wait(timeout=60)


if __name__ == "__main__":
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("prometheus is not installed: a part is skipped (scripts/setup.sh --dev)")
    unittest.main(argv=sys.argv[:1])
