"""The Kubernetes example: valid by the schemas, locked down, every device with a Secret and a folder of its own."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from conformesh import Network
from conformesh.mesh.config.checks import examine_folder
from conformesh.mesh.config.folders import init_mesh

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
DEVICES = ["device-00", "device-01", "device-02"]
VERSIONS = ("1.31.0", "1.37.0")
LOCKED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def rendered():
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    command = ["kubectl", "kustomize", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def objects(rendered):
    return [*yaml.safe_load_all(rendered)]


@pytest.fixture(scope="module")
def devices(objects):
    found = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "StatefulSet"}
    assert [*found] == DEVICES
    return found


def of_kind(objects, kind):
    return [one for one in objects if one["kind"] == kind]


@pytest.mark.skipif(
    shutil.which("kubernetes-validate") is None, reason="needs kubernetes-validate, of the package index"
)
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(rendered, tmp_path, version):
    file = tmp_path / "all.yaml"
    file.write_text(rendered)
    command = ["kubernetes-validate", "--strict", "-k", version]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    file.write_text(rendered.replace("replicas: 1", "replicaz: 1", 1))  # the check itself
    assert subprocess.run([*command, str(file)], capture_output=True, check=False, timeout=60).returncode != 0


def test_every_device_has_its_own_secret_service_and_labels(objects, devices):
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "Service")}
    assert [*services] == DEVICES
    for name, spec in devices.items():
        labels = {"app.kubernetes.io/name": "conformesh", "app.kubernetes.io/instance": name}
        assert spec["replicas"] == 1, "there may never be two of a device"
        assert spec["serviceName"] == name
        assert spec["selector"]["matchLabels"] == services[name]["selector"] == labels
        assert spec["template"]["metadata"]["labels"] == labels
        secrets = [one["secret"]["secretName"] for one in spec["template"]["spec"]["volumes"] if "secret" in one]
        assert secrets == [name]
        assert services[name]["clusterIP"] == "None"
        assert services[name]["publishNotReadyAddresses"], "they become ready by talking to each other"


def test_devices_are_spread_and_drained_as_one_mesh(objects, devices):
    """Not each for itself, which would spread nothing and let all go at once."""
    everybody = {"matchLabels": {"app.kubernetes.io/name": "conformesh"}}
    for spec in devices.values():
        assert [one["labelSelector"] for one in spec["template"]["spec"]["topologySpreadConstraints"]] == [everybody]
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert (budget["spec"]["selector"], budget["spec"]["maxUnavailable"]) == (everybody, 1)


def test_pods_keep_the_restricted_standard(objects, devices):
    (space,) = of_kind(objects, "Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for spec in devices.values():
        pod = spec["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all({"secret", "emptyDir", "configMap"} & volume.keys() for volume in pod["volumes"])
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"] == LOCKED, container["name"]
            assert container["resources"].keys() == {"requests", "limits"}
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert "secret" not in mounts or container["name"] == "folder"
        assert pod["securityContext"]["runAsUser"] == 10001, "as in the image"


def test_only_the_mesh_port_is_open_between_devices(objects, devices):
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    own, agents = policies["devices"], policies["agents"]
    mesh = [{"protocol": "TCP", "port": 7600}]
    here = [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "conformesh"}}}]
    assert own["policyTypes"] == ["Ingress", "Egress"]
    assert own["ingress"] == [{"from": here, "ports": mesh}]
    assert own["egress"][0] == {"to": here, "ports": mesh}
    assert [{port["port"] for port in rule["ports"]} for rule in (*own["egress"][1:], *agents["egress"])] == [
        {53},
        {9090},
    ]
    for spec in devices.values():
        ports = [port for container in spec["template"]["spec"]["containers"] for port in container.get("ports", ())]
        assert ports == [{"name": "mesh", "containerPort": 7600}]


def test_the_pod_asks_where_the_node_answers(objects, devices):
    """Probes run inside, since the kubelet is not on the pod's loopback; the agent scrapes the same address."""
    (config,) = of_kind(objects, "ConfigMap")
    agent = yaml.safe_load(config["data"]["agent.yml"])
    targets = [target for one in agent["scrape_configs"][0]["static_configs"] for target in one["targets"]]
    assert agent["global"]["external_labels"].keys() == {"mesh", "device"}
    for spec in devices.values():
        (node,) = [one for one in spec["template"]["spec"]["containers"] if one["name"] == "node"]
        address = node["args"][node["args"].index("--http") + 1]
        assert targets == [address] == [{one["name"]: one["value"] for one in node["env"]}["CONFORMESH_NODE"]]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert node[probe].keys() & {"exec", "httpGet", "tcpSocket"} == {"exec"}


def script(devices):
    (container,) = devices["device-00"]["template"]["spec"]["initContainers"]
    assert container["command"][:2] == ["sh", "-euc"]
    return container["command"][2]


def started(code, secret, root):
    """Run the init container's script on folders of this machine, as they are mounted in a pod."""
    for name in ("identity", "device"):
        (root / name).mkdir(exist_ok=True)
    places = {"/secret/": f"{secret}/", "/identity/": f"{root / 'identity'}/", "/device/": f"{root / 'device'}/"}
    code = re.sub("|".join(places), lambda found: places[found[0]], code)
    done = subprocess.run(["sh", "-euc", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return root / "device"


@pytest.fixture
def secret(tmp_path):
    """A device's folder as the README makes it, as a Secret with fsGroup is mounted: its group may read it."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("\n".join(re.findall(r"^ +(device-\d+ \S+:\d+)$", (FOLDER / "README.md").read_text(), re.M)))
    folder, *_ = init_mesh(tmp_path / "mesh", Network.cycle(3), hosts=hosts)
    (folder / "scores.csv").write_text("device,score\n" + "device-00,0.5\n" * 30)
    for file in folder.iterdir():
        file.chmod(0o440)
    return folder


def test_a_pod_starts_with_a_folder_that_is_right(devices, secret, tmp_path):
    folder = started(script(devices), secret, tmp_path)
    problems = examine_folder(folder)
    assert len(problems) > 4
    assert [one for one in problems if one.level != "fine"] == []
    assert any("listens on 0.0.0.0:7600, reached at device-00.conformesh.svc" in one.text for one in problems)


def test_a_pod_that_starts_again_keeps_its_roster_and_scores_and_takes_a_new_key(devices, secret, tmp_path):
    folder = started(script(devices), secret, tmp_path)
    for name in ("roster.json", "scores.csv"):
        (folder / name).write_text("newer")
    (secret / "device.key").chmod(0o600)
    (secret / "device.key").write_text("renewed")
    started(script(devices), secret, tmp_path)
    assert (folder / "roster.json").read_text() == (folder / "scores.csv").read_text() == "newer"
    assert (folder / "device.key").read_text() == "renewed"
    assert (folder / "device.key").stat().st_mode & 0o077 == 0
