"""Test deploy/: the image's instructions carried out in a clean folder, and files that name one another's options."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest
import tiny
import yaml
from conftest import PATIENCE
from exported import need

from seq2seq import serve

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
# What the extra `train` installs: the image must work without these
TRAINING = (
    "lightning",
    "pytorch_lightning",
    "hydra",
    "omegaconf",
    "datasets",
    "pyarrow",
    "pandas",
    "tensorboard",
    "rich",
)


def instructions(target: str) -> list[tuple[str, str]]:
    """The instructions of a stage of the Dockerfile and of the stage that it begins with."""
    text = re.sub(r"(?m)^#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8")).replace("\\\n", " ")
    stages: dict[str, list[tuple[str, str]]] = {"": []}
    stage = ""
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            origin, _, stage = rest.partition(" AS ")
            stages[stage] = list(stages.get(origin, []))
        stages[stage].append((name, rest.strip()))
    return stages[target]


def command(target: str) -> list[str]:
    found = dict(instructions(target))
    return [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_image_serves_without_rights(target):
    found = dict(instructions(target))
    # A number, so that Kubernetes can see that it is not root's
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])
    program, name, *options = command(target)
    assert (program, name) == ("seq2seq", "serve")
    parsed = serve._parser().parse_args(options)
    assert parsed.host == "0.0.0.0"
    assert f":{parsed.port}/health" in found["HEALTHCHECK"]
    assert found["EXPOSE"] == str(parsed.port)


def test_compose_names_what_there_is():
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    whole = yaml.safe_load(re.sub(r"\$\{[^}]*\}", "mt.example.org", text))
    services = whole["services"]
    build = services["translate"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    names = [rest.split()[0].partition("=")[0] for name, rest in instructions(build["target"]) if name == "ARG"]
    assert build["args"].keys() <= set(names)
    parsed = serve._parser().parse_args(services["translate"]["command"])
    assert services["translate"]["volumes"] == [f"mt.example.org:{parsed.ckpt[0]}:ro"]
    proxy = services["proxy"]
    assert parsed.proxy == proxy["networks"]["inside"]["ipv4_address"]
    # `translate` starts first, and must not get the address of the proxy
    (network,) = whole["networks"]["inside"]["ipam"]["config"]
    subnet, given = (ipaddress.IPv4Network(network[name]) for name in ("subnet", "ip_range"))
    assert given.subnet_of(subnet)
    assert ipaddress.IPv4Address(parsed.proxy) in set(subnet) - set(given)
    assert proxy["environment"]["SERVICE"] == f"translate:{parsed.port}"
    assert all(f"{{${name}" in (DEPLOY / "Caddyfile").read_text("utf-8") for name in proxy["environment"])
    assert float(services["translate"]["stop_grace_period"].removesuffix("s")) > parsed.grace


def test_unit_starts_the_service(tmp_path: Path):
    text = (DEPLOY / "seq2seq.service").read_text("utf-8")
    match = re.search(r"(?m)^ExecStart=(\S+) serve (.*)$", text)
    assert match is not None
    parsed = serve._parser().parse_args(shlex.split(match[2]))
    assert parsed.proxy == parsed.host == "127.0.0.1"
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "seq2seq.service"
        unit.write_text(text.replace(match[1], sys.executable), "utf-8")
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
        assert "seq2seq.service" not in done.stderr


@pytest.mark.slow
def test_the_instructions_of_the_image_make_a_service(tmp_path: Path):
    """RUN lines as they are, in an environment that offers all packages of this one but those of training."""
    need("onnxruntime", "onnx", "onnxscript", "hatchling")
    root = tmp_path / "image"
    exported = tmp_path / "exported"
    export = ["--ckpt", str(tiny.save(tmp_path)), "--format", "onnx", "--dtype", "int8", "--out", str(exported)]
    subprocess.run([sys.executable, "-m", "seq2seq.export", *export], check=True, capture_output=True, cwd=ROOT)
    environment = _without_training(tmp_path) | {"MODEL": str(exported)}
    folder = root
    for name, rest in instructions("cpu"):
        if name == "WORKDIR":
            folder = root / rest.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            environment |= dict(word.split("=", 1) for word in shlex.split(rest) if not word.startswith("HOME="))
        elif name == "COPY":
            *sources, goal = rest.replace("${MODEL}", environment["MODEL"]).split()
            _copy([ROOT / source for source in sources], folder / goal if goal[0] != "/" else root / goal[1:], goal)
        elif name == "RUN":
            done = subprocess.run(["sh", "-c", rest], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    program, *words = command("cpu")
    words = [str(root / word[1:]) if word == "/model" else word for word in words]
    started = [str(tmp_path / "venv/bin" / program), *words, "--port", "0"]
    with subprocess.Popen(started, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            line = next((line for line in service.stderr if line.startswith("translating")), "")
            port = re.search(r":(\d+) ", line)
            assert port is not None, line
            check = json.loads(dict(instructions("cpu"))["HEALTHCHECK"].partition("CMD ")[2])
            check = [word.replace(":8000", f":{port[1]}") for word in check]
            subprocess.run(check, env=environment, check=True, timeout=PATIENCE)
            body = json.dumps({"text": "haus"}).encode()
            header = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{port[1]}/translate", body, header)
            (answer,) = json.load(urllib.request.urlopen(request, timeout=PATIENCE))["translations"]
            assert answer["candidates"]
        finally:
            service.send_signal(signal.SIGTERM)
    assert service.returncode == 0


def _without_training(folder: Path) -> dict[str, str]:
    """Make an environment, offline, whose pip finds the packages of this one but this project and those of training."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    offered = folder / "offered"
    offered.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.replace("-", "_").lower().startswith((*TRAINING, "seq2seq", "__editable__", "_")):
            (offered / path.name).symlink_to(path)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "offered.pth").write_text(str(offered))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    path = f"{folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
    # pip reads `0` here as: without a build environment of its own, which would be downloaded
    return kept | {"PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "OMP_NUM_THREADS": "1"}


def _copy(sources: list[Path], goal: Path, written: str) -> None:
    """Copy as COPY does: a folder's content, or files into a folder whose name ends in a slash."""
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, goal, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            assert written.endswith("/")
            shutil.copy(source, goal)
