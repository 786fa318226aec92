"""The files of `deploy/`: they parse, agree with each other, and use only commands and options that exist."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.docs.pages import ROOT

from synergon.cli.main import command_tree
from synergon.options.settings import load

DEPLOY: Final = ROOT / "deploy"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS: Final = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VARIABLES: Final = {f"SYNERGON_{name.upper()}" for name in load({}).sources} | {
    *("SYNERGON_APP", "SYNERGON_LOG_FORMAT"),
}
SECONDS_BEYOND_GRACE: Final = 10


class Service(configparser.RawConfigParser):
    """A unit of systemd."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=True, interpolation=None)
        self.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
        self.read_string(path.read_text(encoding="utf-8"))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def manifests() -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in MANIFESTS if path.name != "kustomization.yaml"]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod with each of its containers."""
    for document in manifests():
        if "template" in document.get("spec", {}):
            pod = document["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where a command of synergon stands, and its arguments."""
    for path in UNITS:
        yield path.name, shlex.split(Service(path)["Service"]["ExecStart"])[1:]
    for name, service in compose()["services"].items():
        for words in (service.get("command"), service.get("healthcheck", {}).get("test", [])[1:]):
            if words and words[0] == "synergon":
                yield f"compose.yaml {name}", words[1:]
    for _, container in containers():
        assert container["args"][0] == "synergon"
        yield f"kubernetes {container['name']}", container["args"][1:]
    (last,) = re.findall(r"^CMD \[(.*)\]$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    yield "Dockerfile", [word.strip(' "') for word in last.split(",")][1:]


def grace_of(words: Sequence[str]) -> int:
    return int(words[words.index("--grace") + 1].removesuffix("s"))


@pytest.mark.parametrize(
    ("place", "arguments"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_is_one_that_synergon_accepts(place: str, arguments: list[str]) -> None:
    command = command_tree().commands.get(arguments[0])
    assert command is not None, f"{place}: there is no command {arguments[0]!r}"
    if not command.hidden:  # announced: its options are not known yet
        command.make_context(arguments[0], arguments[1:])


def test_there_are_workers_and_a_dashboard_everywhere() -> None:
    names = [(place.split(".")[0].split()[0], arguments[0]) for place, arguments in commands()]
    for place in ("compose", "kubernetes"):
        assert {"migrate", "worker", "dashboard"} <= {name for where, name in names if where == place}
    assert compose()["services"]["worker"]["deploy"]["replicas"] == 2


def test_every_variable_is_a_setting() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {name for text in texts for name in re.findall(r"SYNERGON_[A-Z_]+", text)}
    assert named
    assert named <= VARIABLES


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_waits_longer_than_the_grace(path: Path) -> None:
    unit = Service(path)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    assert service["User"] != "root"
    words = shlex.split(service["ExecStart"])
    if "worker" in words:
        assert service["Type"] == "notify"
        assert (service["KillMode"], service["RestartForceExitStatus"]) == ("mixed", "86")
        assert int(service["TimeoutStopSec"]) >= grace_of(words) + SECONDS_BEYOND_GRACE
        assert ("WatchdogSec" in service) == ("--processes" not in words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name
    unit.write_text(path.read_text(encoding="utf-8").replace("/srv/app/.venv/bin/synergon", sys.executable))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=30
    )
    said = [line for line in ended.stderr.splitlines() if path.stem.split("@")[0] in line]
    assert (ended.returncode, said) == (0, []), ended.stderr


def test_compose_starts_in_order_and_waits_longer_than_the_grace() -> None:
    document = compose()
    worker = document["services"]["worker"]
    assert int(worker["stop_grace_period"].removesuffix("s")) >= grace_of(worker["command"]) + SECONDS_BEYOND_GRACE
    assert worker["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    for name, service in document["services"].items():
        for needed in service.get("depends_on", {}):
            assert needed in document["services"]
        if name != "postgres":
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert (DEPLOY / "compose.yaml").parent / document["x-app"]["build"][
        "context"
    ] / "deploy" == DEPLOY / ".." / "deploy"
    assert (ROOT / document["x-app"]["build"]["dockerfile"]).is_file()
    assert "deploy/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_pods_have_probes_grace_and_no_rights() -> None:
    found = list(containers())
    assert {container["name"] for _, container in found} == {"migrate", "worker", "dashboard"}
    for pod, container in found:
        assert pod["securityContext"]["runAsNonRoot"]
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"]
        assert not rights["allowPrivilegeEscalation"]
        if container["name"] == "worker":
            assert pod["terminationGracePeriodSeconds"] >= grace_of(container["args"]) + SECONDS_BEYOND_GRACE
            assert container["livenessProbe"]["httpGet"]["path"] == "/health"
            assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            listen = next(entry["value"] for entry in container["env"] if entry["name"] == "SYNERGON_HEALTH_LISTEN")
            assert listen.endswith(f":{ports['health']}")


def test_selectors_find_their_pods() -> None:
    labels = [
        document["spec"]["template"]["metadata"]["labels"] for document in manifests() if "template" in document["spec"]
    ]
    for document in manifests():
        selector = document["spec"].get("selector")
        if selector is not None:
            assert selector.get("matchLabels", selector) in labels


def test_the_kustomization_names_every_manifest() -> None:
    document = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text(encoding="utf-8"))
    assert sorted(document["resources"]) == [path.name for path in MANIFESTS if path.name != "kustomization.yaml"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_accepts_the_kustomization() -> None:
    ended = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.returncode == 0, ended.stderr
    assert "image: synergon-app" not in ended.stdout


def test_the_image_is_not_root_and_copies_what_exists() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 10001"
    default = next(line.partition("=")[2] for line in lines if line.startswith("ARG APP="))
    for line in lines:
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            for source in words[1:-1]:
                assert (ROOT / source.replace("${APP}", default)).exists(), f"{line}: {source} does not exist"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (extras,) = re.findall(r'pip install "\.\[([a-z,]+)\]"', "\n".join(lines))
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"there is no extra {extra}"


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint")
def test_hadolint_accepts_the_dockerfile() -> None:
    subprocess.run(["hadolint", DEPLOY / "Dockerfile"], check=True, timeout=30)


def _has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="needs docker compose")
def test_docker_compose_accepts_the_file() -> None:
    command = ["docker", "compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    subprocess.run(
        command, check=True, timeout=60, env={"POSTGRES_PASSWORD": "x", "PATH": "/usr/bin:/usr/local/bin:/bin"}
    )
