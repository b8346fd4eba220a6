#!/usr/bin/env python3
"""What deploy/ holds fits the binary: files parse, flags and variables exist, the board asks for metrics that are served.

usage: test_deploy.py COPPICE_BINARY      (exit 77 when PyYAML or models/tiny-k2 is absent)
"""
import copy
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from test_serve_cli import MODEL, DRAFTER, PATIENCE, ROOT, Serve, check, get

DEPLOY = ROOT / "deploy"


def flags_of(binary):
    """Every long flag of coppice serve."""
    text = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True, timeout=PATIENCE).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]*", text))


def served_names(binary):
    """Names on /metrics after requests that touch all of them."""
    server = Serve(binary, str(MODEL), "--spec-model", str(DRAFTER), "--ddtree-budget", "8")
    for _ in range(2):
        get(server.port, "/v1/completions", {"prompt": "def f", "max_tokens": 24, "temperature": 0})
    text = get(server.port, "/metrics")[1]
    routes = set(json.loads(get(server.port, "/openapi.json")[1])["paths"])
    server.stop()
    return set(re.findall(r"^([a-z_:0-9]+)\{", text, re.M)), routes


def unknown_metrics(board, names):
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for expr in expressions for name in re.findall(r"(?:vllm|coppice):[a-z_0-9]+", expr)}
    assert len(asked) > 10
    return sorted(asked - names)


def unknown_flags(text, flags):
    """Flags on the lines that start coppice serve, and COPPICE_ variables that stand for flags."""
    used = {flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)}
    used |= {"--" + name.lower().replace("_", "-") for name in re.findall(r"\bCOPPICE_([A-Z_]+)", text)}
    return sorted(used - flags)


def serve_arguments(documents):
    """Arguments of every container or service that runs coppice serve."""
    for kind, document in documents:
        if kind == "compose":
            yield from document["services"]["coppice"]["command"]
        else:
            for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
                yield from container["args"]
                yield from (entry["name"] for entry in container.get("env", []))


def probe_paths(document):
    for container in document["spec"]["template"]["spec"]["containers"]:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            yield container[probe]["httpGet"]["path"]


def check_systemd(binary, flags):
    unit = (DEPLOY / "coppice.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.M)[1]
    check(not unknown_flags(start, flags), "coppice.service: flags exist")
    check("Type=notify" in unit and "WatchdogSec=" in unit, "coppice.service: readiness and watchdog")
    check(not unknown_flags((DEPLOY / "coppice.env").read_text(), flags), "coppice.env: variables stand for flags")
    tool = shutil.which("systemd-analyze")
    if not tool:
        print("skipped: systemd-analyze is absent")
        return
    here = unit.replace("/usr/local/bin/coppice", str(pathlib.Path(binary).resolve()))
    with tempfile.TemporaryDirectory() as folder:
        copy_of_unit = pathlib.Path(folder) / "coppice-test.service"
        copy_of_unit.write_text(here)
        result = subprocess.run([tool, "verify", str(copy_of_unit)], capture_output=True, text=True, timeout=PATIENCE)
    complaints = [line for line in (result.stdout + result.stderr).splitlines() if "coppice-test.service" in line]
    check(not complaints, "systemd-analyze verify: " + ("clean" if not complaints else complaints[0]))


def check_dockerfiles():
    for path in sorted(DEPLOY.glob("Dockerfile.*")):
        text = path.read_text()
        sources = re.findall(r"^COPY (?!--from)(\S+) ", text, re.M)
        check(all((ROOT / source).exists() for source in sources), f"{path.name}: copies what exists")
        presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        used = set(re.findall(r"--preset ([a-z-]+)", text)) | set(re.findall(r"^ARG PRESET=(\S+)", text, re.M))
        check(used and used <= presets, f"{path.name}: presets exist")
        check(re.search(r"^USER 10001$", text, re.M) and "HEALTHCHECK" in text, f"{path.name}: no root, health check")
        if tool := shutil.which("hadolint"):
            result = subprocess.run([tool, str(path)], capture_output=True, text=True, timeout=PATIENCE)
            check(result.returncode == 0, f"{path.name}: hadolint {result.stdout.strip()}")


def check_faults_are_caught(board, names, flags):
    bad = copy.deepcopy(board)
    bad["panels"][0]["targets"][0]["expr"] = "rate(vllm:no_such_metric[1m])"
    check(unknown_metrics(bad, names) == ["vllm:no_such_metric"], "a metric that is not served is caught")
    check(unknown_flags("--port 1 --no-such-flag COPPICE_ABSENT=1", flags) == ["--absent", "--no-such-flag"],
          "a flag that does not exist is caught")


def main():
    try:
        import yaml
    except ImportError:
        print("PyYAML is absent")
        sys.exit(77)
    if not (MODEL / "config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    binary = sys.argv[1]
    flags = flags_of(binary)
    documents = {path: list(yaml.safe_load_all(path.read_text())) for path in sorted(DEPLOY.rglob("*.yaml"))}
    check(len(documents) >= 5 and all(all(isinstance(d, dict) for d in ds) for ds in documents.values()),
          f"{len(documents)} YAML files parse")
    arguments = list(serve_arguments(
        [("compose" if path.name == "compose.yaml" else "other", d) for path, ds in documents.items() for d in ds]))
    check(len(arguments) > 6 and not unknown_flags(" ".join(arguments), flags), "compose, Kubernetes: flags exist")
    compose = documents[DEPLOY / "compose.yaml"][0]
    mounted = [v.split(":")[0] for s in compose["services"].values() for v in s.get("volumes", []) if v.startswith("./")]
    check(mounted and all((DEPLOY / path).is_file() for path in mounted), "compose: mounted files exist")
    names, routes = served_names(binary)
    deployments = [d for ds in documents.values() for d in ds if d.get("kind") == "Deployment"]
    check(deployments and all(path in routes for d in deployments for path in probe_paths(d)), "probes' paths are routes")
    board = json.loads((DEPLOY / "grafana/coppice.json").read_text())
    check(not unknown_metrics(board, names), f"the board's metrics are served {unknown_metrics(board, names)}")
    check_systemd(binary, flags)
    check_dockerfiles()
    check_faults_are_caught(board, names, flags)


if __name__ == "__main__":
    main()
