"""The files in packaging/kubernetes: their fields are Kubernetes', JobSet's and Kubeflow Trainer's; what their pods run, with the variables
that these set, is a job of two nodes; and a pod ends, and answers probes, as Kubernetes wants it.

usage: kubernetes_test.py DDPRUN [WORKER] [tests]; DDPRUN_TEST_PYTHON names a Python with yaml and kubeflow_trainer_api
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from packages import SOURCE, skip

sys.path.insert(0, str(SOURCE / "tests/dropin"))
from launchers import find_python

DDPRUN = os.path.abspath(sys.argv[1])
WORKER = os.path.abspath(sys.argv.pop(2)) if len(sys.argv) > 2 and os.path.exists(sys.argv[2]) else None
PYTHON = find_python()
FOLDER = SOURCE / "packaging/kubernetes"
MANIFESTS = ["job.yaml", "jobset.yaml", "trainjob.yaml"]

# As a program: reads the documents, and prints for each what the field's own classes made of it.
READ = """
import json, sys, yaml
import kubeflow_trainer_api.models as models
kinds = {"Service": models.IoK8sApiCoreV1Service, "Job": models.IoK8sApiBatchV1Job, "JobSet": models.JobsetV1alpha2JobSet,
         "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime, "TrainJob": models.TrainerV1alpha1TrainJob}
print(json.dumps([[each, kinds[each["kind"]].from_dict(each).to_dict()] for each in yaml.safe_load_all(sys.stdin)]))
"""


def read(text):
    """The documents, each with what the classes knew of it; None instead if they refuse a value."""
    done = subprocess.run([PYTHON, "-c", READ], input=text, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def unknown(given, known, path=""):
    """The paths of fields that the classes have dropped."""
    if isinstance(given, dict) and isinstance(known, dict):
        return [each for key, value in given.items() for each in unknown(value, known.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        return [each for i, value in enumerate(given) for each in unknown(value, known[i], f"{path}[{i}]")]
    return [] if given == known else [path]


# Words that the API allows and its classes do not know: of Kubernetes 1.31, JobSet 0.8 and Kubeflow Trainer 2.
LABEL, QUANTITY = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?"
WORDS = {"action": "Ignore|FailJob|FailIndex|Count|FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts", "operator": "In|NotIn|All|Any",
         "onJobFailureReasons": "BackoffLimitExceeded|DeadlineExceeded|FailedIndexes|MaxFailedIndexesExceeded|PodFailurePolicy",
         "completionMode": "Indexed|NonIndexed", "restartPolicy": "Always|OnFailure|Never", "medium": "|Memory|HugePages(-[0-9]+[KMG]i)?",
         "terminationMessagePolicy": "File|FallbackToLogsOnError", "imagePullPolicy": "Always|IfNotPresent|Never", "clusterIP": "None|[0-9.]+",
         "cpu": QUANTITY, "memory": QUANTITY, "sizeLimit": QUANTITY, "subdomain": LABEL, "key": "[-._a-zA-Z0-9]+"}
ENVIRONMENT = r"[-._a-zA-Z][-._a-zA-Z0-9]*"


def wrong_words(given, path=""):
    """The paths of texts that the API refuses: words, quantities, and names that a host cannot have."""
    if isinstance(given, list):
        return [wrong for i, each in enumerate(given) for wrong in wrong_words(each, f"{path}[{i}]")]
    if not isinstance(given, dict):
        return []
    found = []
    for key, value in given.items():
        allowed = WORDS.get(key) or (key == "name" and (ENVIRONMENT if ".env[" in path else LABEL))
        for word in value if isinstance(value, list) else [value]:
            if allowed and isinstance(word, (str, int)) and not re.fullmatch(allowed, str(word)):
                found.append(f"{path}.{key}")
        found += wrong_words(value, f"{path}.{key}")
    return found


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Pods:
    """What a manifest's pods run: flags, program and variables, as its controllers complete them."""

    def __init__(self, name):
        documents = {each["kind"]: each for each, _ in read((FOLDER / name).read_text())}
        if "Job" in documents:
            self.job, [service] = documents["Job"]["spec"], [documents["Service"]]
            assert service["metadata"]["name"] == self.job["template"]["spec"]["subdomain"]
            assert service["spec"]["selector"] == {"job-name": documents["Job"]["metadata"]["name"]}
            self.first = f"{documents['Job']['metadata']['name']}-0.{service['metadata']['name']}"
        elif "JobSet" in documents:
            name, [node] = documents["JobSet"]["metadata"]["name"], documents["JobSet"]["spec"]["replicatedJobs"]
            self.job, self.first = node["template"]["spec"], f"{name}-{node['name']}-0-0.{name}"
        else:
            name, trainer = documents["TrainJob"]["metadata"]["name"], documents["TrainJob"]["spec"]["trainer"]
            [node] = documents["ClusterTrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
            self.job, self.first = node["template"]["spec"], f"{name}-node-0-0.{name}"
            assert documents["TrainJob"]["spec"]["runtimeRef"]["name"] == documents["ClusterTrainingRuntime"]["metadata"]["name"]
        self.pod = self.job["template"]["spec"]
        [self.container] = self.pod["containers"]
        self.variables = {each["name"]: each.get("value", "0123456789abcdef") for each in self.container["env"]}
        if "TrainJob" in documents:  # as its plugin for torch
            self.container["args"] = trainer["args"]
            self.variables |= {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                               "PET_MASTER_ADDR": self.first, "PET_MASTER_PORT": str(free_port()), "PET_NODE_RANK": "{index}"}
        self.port = free_port()

    def start(self, index, program=None, **more):
        """The pod's container without one: this node's name is localhost, its folders are in the current one."""
        args = [*self.container["args"]]
        if program:
            args[args.index("worker"):] = program
        variables = {**self.variables, "JOB_COMPLETION_INDEX": str(index), "TORCHELASTIC_HEALTH_CHECK_PORT": str(free_port()), **more}
        args = [re.sub("(^|=)/runs/", rf"\1{os.getcwd()}/runs/", word).replace(self.first, f"localhost:{self.port}") for word in args]
        environment = {name: value.replace("{index}", str(index)).replace(self.first, "localhost") for name, value in variables.items()}
        path = f"{os.path.dirname(WORKER) if WORKER else ''}:{os.environ['PATH']}"
        return subprocess.Popen([*PID_1, DDPRUN, *args], env={**os.environ, "PATH": path, **environment}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *arguments, **more):
        pods = [self.start(index, *arguments, **more) for index in (1, 0)]
        outputs = [pod.communicate(timeout=120)[0] for pod in pods]
        return [pod.returncode for pod in pods], "".join(outputs)


def pid_1():
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []


PID_1 = pid_1()


class Manifests(unittest.TestCase):
    def test_all_fields_are_known(self):
        for name in MANIFESTS:
            documents = read((FOLDER / name).read_text())
            self.assertIsNotNone(documents, name)
            for given, known in documents:
                self.assertEqual([], unknown(given, known), f"{name}, {given['kind']}")
                self.assertEqual([], wrong_words(given), f"{name}, {given['kind']}")
            # The image of docs/kubernetes.md has no tag, so that by default the nodes would not use the one that they have.
            self.assertEqual("IfNotPresent", Pods(name).container["imagePullPolicy"], name)

    def test_the_pods_have_numbers_and_names_before_they_are_ready(self):
        for name in MANIFESTS:
            documents = {each["kind"]: each["spec"] for each, _ in read((FOLDER / name).read_text())}
            pods = Pods(name)
            if "Service" in documents:
                network = documents["Service"]
                self.assertEqual("None", network["clusterIP"], name)
            else:
                network = (documents.get("JobSet") or documents["ClusterTrainingRuntime"]["template"]["spec"])["network"]
            self.assertTrue(network["publishNotReadyAddresses"], name)
            self.assertEqual("Indexed", pods.job.get("completionMode", "Indexed"), name)  # JobSet's own default
            if name != "trainjob.yaml":  # whose number of nodes is the trainer's
                self.assertEqual((2, 2), (pods.job["completions"], pods.job["parallelism"]), name)
            self.assertNotIn("lifecycle", pods.container, name)  # as the page says: ddprun saves at SIGTERM

    def test_a_wrong_field_or_value_would_be_seen(self):
        text = (FOLDER / "job.yaml").read_text()
        [(given, known)] = [each for each in read(text.replace("completionMode", "completionsMode")) if each[0]["kind"] == "Job"]
        self.assertEqual([".spec.completionsMode"], unknown(given, known))
        self.assertIsNone(read(text.replace("completions: 2", "completions: two")))
        for name, right, wrong, path in [
                ("jobset.yaml", "action: FailJobSet", "action: FailJobSett", ".spec.failurePolicy.rules[0].action"),
                ("jobset.yaml", "limits: {memory: 2Gi}", "limits: {memory: 2GiB}", ".limits.memory"),
                ("trainjob.yaml", "metadata: {name: train}", "metadata: {name: Train_1}", ".metadata.name"),
                ("job.yaml", "{name: shm, emptyDir", "{name: _shm, emptyDir", ".volumes[0].name")]:
            text = (FOLDER / name).read_text()
            self.assertIn(right, text)
            documents = read(text.replace(right, wrong))
            self.assertIsNotNone(documents, wrong)
            found = [each for given, _ in documents for each in wrong_words(given)]
            self.assertTrue(len(found) == 1 and found[0].endswith(path), f"{name}: {found}")

    def test_time_to_end_probes_and_exit_codes(self):
        for name in MANIFESTS:
            pods = Pods(name)
            flags = " ".join(pods.container["args"])
            given = re.search(r"--shutdown-timeout=(\d+)", flags) or re.search(r"(\d+)", pods.variables["DDPRUN_SHUTDOWN_TIMEOUT"])
            self.assertLessEqual(int(given[1]) + 5, pods.pod["terminationGracePeriodSeconds"], name)
            for probe in "startupProbe", "livenessProbe":
                self.assertEqual(int(pods.variables["TORCHELASTIC_HEALTH_CHECK_PORT"]), pods.container[probe]["httpGet"]["port"], name)
            [codes] = [rule["onExitCodes"] for rule in pods.job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
            self.assertEqual({"operator": "In", "values": [2, 126, 127]}, codes, name)


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def test_two_pods_are_one_job(self):
        for name in MANIFESTS:
            codes, output = Pods(name).run(["sh", "-c", 'echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK, $LOCAL_RANK"'])
            self.assertEqual([0, 0], codes, output)
            expected = {f"rank {rank} of 4, node {rank // 2}, {rank % 2}" for rank in range(4)}
            self.assertEqual(expected, set(re.findall(r"rank \d of .*", output)), output)

    @unittest.skipUnless(WORKER, "needs worker")
    def test_what_they_train_trains(self):
        for name in MANIFESTS:
            codes, output = Pods(name).run(GLOO_SOCKET_IFNAME="lo")
            self.assertEqual([0, 0], codes, output)
            self.assertRegex(output, r"(?i)epoch 49")
            shutil.rmtree("runs", ignore_errors=True)

    def test_codes_for_which_another_attempt_is_useless(self):
        for name in MANIFESTS:
            for program, code in [["./not-there"], 127], [["/etc/passwd"], 126], [["--no-such-flag", "true"], 2]:
                codes, output = Pods(name).run(program)
                self.assertEqual([code, code], codes, output)

    @unittest.skipUnless(PID_1, "no right to make a PID namespace")
    def test_a_pod_that_is_deleted_saves_and_answers_until_then(self):
        pods = Pods("job.yaml")
        saves = ["sh", "-c", 'trap "sleep 0.5; echo saved $RANK; exit 0" TERM; echo ready; while :; do sleep 0.1; done']
        port = free_port()
        both = [pods.start(0, saves, TORCHELASTIC_HEALTH_CHECK_PORT=str(port)), pods.start(1, saves)]
        begin = time.monotonic()
        seen = ""
        while seen.count("ready") < 2:
            seen += both[0].stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            self.assertEqual(200, answer.status)
        init = int(pathlib.Path(f"/proc/{both[0].pid}/task/{both[0].pid}/children").read_text().split()[0])
        os.kill(init, signal.SIGTERM)  # as kubelet does
        outputs = [seen, *(pod.communicate(timeout=40)[0] for pod in both)]
        self.assertEqual({"0", "1", "2", "3"}, set(re.findall(r"saved (\d)", "".join(outputs))), outputs)
        self.assertLess(time.monotonic() - begin, 40)
        # unshare's own way to tell the end of its child by a signal: PID 1 has died of SIGTERM.
        self.assertEqual({-signal.SIGTERM, 128 + signal.SIGTERM} | {pod.returncode for pod in both}, {-signal.SIGTERM, 128 + signal.SIGTERM}, outputs)


class Image(unittest.TestCase):
    TEXT = (FOLDER / "Containerfile").read_text()

    def test_it_holds_what_package_sh_makes(self):
        stages = re.findall(r"^FROM (\S+) AS (\S+)$", self.TEXT, re.MULTILINE)
        self.assertEqual(["launcher", "worker"], [name for _, name in stages])
        self.assertEqual("launcher", stages[1][0])
        self.assertIn('ENTRYPOINT ["ddprun"]', self.TEXT)
        wheels = ["ddprun-1.2.3-py3-none-manylinux_2_28_x86_64.whl", "ddprun_worker-1.2.3-py3-none-manylinux_2_28_x86_64.whl"]
        patterns = re.findall(r"^COPY dist/(\S+) ", self.TEXT, re.MULTILINE)
        self.assertEqual([[True, False], [False, True]], [[pathlib.PurePath(wheel).match(each) for wheel in wheels] for each in patterns])
        self.assertEqual(set(re.findall(r"image: (\S+)", "".join((FOLDER / name).read_text() for name in MANIFESTS))), {"ddprun-worker"})


if __name__ == "__main__":
    if subprocess.run([PYTHON, "-c", "import yaml, kubeflow_trainer_api"], capture_output=True).returncode != 0:
        skip("no kubeflow_trainer_api (scripts/setup.sh --python installs it)")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
