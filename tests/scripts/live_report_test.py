"""The report page while a training runs: ddprun --metrics-port serves it, and a browser loads it again and again.

usage: live_report_test.py DDPRUN WORKER
"""
import http.server
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from waiting import wait_for

DDPRUN, WORKER = sys.argv[1:3]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def get(url):
    """Status, kind and text."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


class Job:
    """ddprun --metrics-port with this command, until the block ends."""

    def __init__(self, *command):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([DDPRUN, "--metrics-port=0", *command], env={**os.environ, "LOGLEVEL": "INFO"},
                                        stdout=subprocess.DEVNULL, stderr=self.errors)

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode()

    def __enter__(self):
        found = wait_for(lambda: re.search(r"http://\S+(?=/metrics)", self.said()), 120)
        return found.group() + "/report"

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.errors.close()


def page_of_a_running_training(folder):
    """As ddprun serves it, twice, once it has curves: it is written again and again."""
    with Job(WORKER, "linear", "--epochs=1000000", f"--out={folder}/run") as url:
        def page_after(earlier):
            status, kind, text = get(url)
            return text if status == 200 and kind.startswith("text/html") and text != earlier else None
        of_one_row = wait_for(lambda: page_after(None), 120)
        first = wait_for(lambda: page_after(of_one_row), 120)
        return first, wait_for(lambda: page_after(first), 120)


def shown(pages, serves_head=True):
    """What a browser ends with that asks for the first page and, whenever it asks again, the second."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = pages[min(len(asked), len(pages) - 1)].encode()
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def do_HEAD(self):
            self.send_response(200 if serves_head else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                   f"--user-data-dir={profile}", "--virtual-time-budget=8000", "--dump-dom",
                                   f"http://127.0.0.1:{server.server_port}/report"],
                                  capture_output=True, text=True, timeout=200, env={**os.environ, "HOME": profile}, check=True)
        finally:
            server.shutdown()
    return done.stdout


class LiveReport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.first, cls.second = page_of_a_running_training(folder)

    def test_a_running_training_has_a_page(self):
        for page in (self.first, self.second):
            self.assertRegex(page, r'(?s)<title>linear: .*<p id="notice">running, as of \d\d:\d\d:\d\d UTC</p>.*"train_loss_epoch"')

    def test_a_job_without_a_page_says_so(self):
        with Job("sleep", "1000") as url:
            self.assertEqual((404, "no worker of this node has written a report yet\n"), get(url)[::2])

    @unittest.skipUnless(BROWSER, "no chromium")
    def test_a_browser_loads_it_again_and_keeps_what_its_reader_chose(self):
        hide = '<script>document.querySelector(".legend button").click()</script></body>'
        page = shown([self.first.replace("</body>", hide), self.second.replace('id="notice"', 'id="second"')])
        self.assertIn('id="second"', page)
        self.assertEqual(1, page.count('aria-pressed="false"'))

    @unittest.skipUnless(BROWSER, "no chromium")
    def test_when_nobody_serves_it_any_more_the_page_stays_and_says_so(self):
        page = shown([self.first, "gone"], serves_head=False)
        self.assertRegex(page, r"running, as of .*; nobody serves this page any more")
        self.assertIn("<canvas", page)


if __name__ == "__main__":
    if not BROWSER:
        print("chromium is not installed: a part is skipped (scripts/setup.sh --dev)")
    unittest.main(argv=sys.argv[:1])
