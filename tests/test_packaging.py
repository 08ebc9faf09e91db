"""What a user installs: the wheel and the source distribution, in an environment that has nothing of this repository.

TensorFlow and the other dependencies are borrowed from the running environment, since they take minutes to install;
`make versions` installs them from the index as well.
"""

from __future__ import annotations

import email
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import keras_preempt
from tests.docs.pages import program

ROOT = Path(__file__).parents[1]
SOURCES = {
    f"keras_preempt/{path.relative_to(ROOT / 'keras_preempt')}" for path in ROOT.glob("keras_preempt/**/*.py")
}


def run(*command: str | Path, minutes: float = 3, **options: Any) -> str:
    """Runs a command to its good end; returns what it prints."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=minutes * 60.0, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and with the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def environment_with(package: Path, folder: Path) -> Path:
    """Installs a package into an environment of its own; returns the `bin` of that."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # Only folders of packages: the running environment's own link to this repository is not followed.
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    # Without a look at what is installed, since this package is among what is borrowed.
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    install = ["install", "-qq", "--disable-pip-version-check", *alone, package]
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", *install)
    files = {str(path.relative_to(packages)) for path in packages.glob("keras_preempt/**/*.py")}
    assert files == SOURCES
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment of its own that the wheel is installed in."""
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def installed_from_source(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the source distribution, which pip then makes a wheel of by itself."""
    (source,) = built.glob("*.tar.gz")
    return environment_with(source, tmp_path_factory.mktemp("from-source"))


def clean_environment(folder: Path) -> dict[str, str]:
    """The variables of a user who has never heard of this repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "HOME": str(folder), "TMPDIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    others = {name for name in names if name.startswith("keras_preempt/") and not name.endswith(".py")}
    assert {name for name in names if name.endswith(".py")} == SOURCES
    assert names - others == SOURCES
    assert {"keras_preempt/py.typed", "keras_preempt/report/page.css"} <= others


def test_the_description_on_the_index_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = email.message_from_bytes(archive.read(name))
    description = str(fields.get_payload())
    assert description.startswith("# keras-preempt")
    assert fields["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"""\]\(([^)]*)\)|(?:src|srcset)="([^"]*)\"""", description)
    assert "](docs/" in (ROOT / "README.md").read_text()  # Which would lead nowhere there.
    assert all("".join(link).startswith("https://") for link in links)
    assert "YOUR-" not in str(fields)


def test_links_of_the_readme_lead_to_the_tag_in_the_repository_once_its_address_is_known() -> None:
    hook = program("hatch_build.py")
    settings = (ROOT / "mkdocs.yml").read_text()
    assert hook.address('extra:\n  repository: ""\n') is None
    known = re.sub(r"( repository:) \S+", r"\1 https://example.org/keras-preempt/", settings)
    address = hook.address(known)
    assert address == "https://example.org/keras-preempt"
    with pytest.raises(ValueError, match="Received: none"):
        hook.address("site_name: keras_preempt")
    readme = (ROOT / "README.md").read_text()
    assert "](docs/guarantees.md)" in readme
    assert hook.tag("1.3.0.dev0") == "main", "there is no tag between two releases"
    made = hook.description(readme, address, hook.tag("1.2.3"))
    assert "](https://example.org/keras-preempt/blob/v1.2.3/docs/guarantees.md)" in made
    assert 'src="https://example.org/keras-preempt/raw/v1.2.3/docs/images/timeline-light.svg"' in made
    assert not re.search(r"""\]\((?!https:)|(?:src|srcset)="(?!https:)""", made)
    here = re.sub(r"https://example.org/keras-preempt/(blob|raw)/v1.2.3/", "", made)
    assert here == readme, "nothing else is changed"


def test_the_source_distribution_holds_what_its_two_commands_need(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {
        "Makefile",
        "pyproject.toml",
        "hatch_build.py",
        "constraints.txt",
        "examples/digits.py",
        "tests/conftest.py",
    }
    assert names >= SOURCES


@pytest.mark.parametrize("kind", ["installed", "installed_from_source"])
def test_the_installed_command_starts_in_both_ways(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    installed = request.getfixturevalue(kind)
    for command in ([f"{installed}/keras-preempt"], [f"{installed}/python", "-m", "keras_preempt"]):
        said = run(*command, "--version", cwd=tmp_path, env=clean_environment(tmp_path))
        assert said.strip() == f"keras-preempt, version {keras_preempt.__version__}"


def test_the_dockerfile_copies_all_that_its_installation_needs(tmp_path: Path) -> None:
    assert not (ROOT / ".dockerignore").exists(), "what it leaves out would have to be left out here"
    text = (ROOT / "examples" / "Dockerfile").read_text()
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert [name for name, _ in steps] == ["FROM", "COPY", "COPY", "RUN", "COPY", "ENTRYPOINT"]
    image = tmp_path / "image"
    for name, rest in steps:
        if name == "COPY":
            *sources, target = rest.split()
            for source in map(ROOT.joinpath, sources):
                if source.is_dir():
                    shutil.copytree(source, f"{image}{target}", ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    assert target.endswith("/"), "a folder that COPY makes"
                    (image / target.strip("/")).mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, f"{image}{target}")
        elif name == "RUN":
            install, _, clean_up = rest.partition(" && ")
            *command, package = shlex.split(install)
            assert (command, clean_up) == (["pip", "install", "--no-cache-dir"], "rm -r /src")
            path, _, wanted = package.rstrip("]").partition("[")
            alone = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
            run(sys.executable, "-m", "pip", "wheel", "-qq", *alone, "-w", tmp_path, f"{image}{path}")
            shutil.rmtree(f"{image}/src")
        elif name == "ENTRYPOINT":
            assert (image / json.loads(rest)[1].strip("/")).is_file()
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        assert set(archive.namelist()) >= SOURCES
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = email.message_from_bytes(archive.read(metadata))
    assert fields["Version"] == keras_preempt.__version__
    assert set(wanted.split(",")) <= set(fields.get_all("Provides-Extra", []))


def test_placeholders_stand_only_in_examples_that_say_to_replace_them() -> None:
    texts = [*ROOT.glob("*.*"), ROOT / "Makefile", *ROOT.glob("docs/**/*.*"), *ROOT.glob("examples/**/*")]
    readable = [path for path in texts if path.is_file() and path.suffix not in {".png", ".pyc"}]
    named = {path for path in readable if re.search("YOUR[-_]|<your|example-org", path.read_text())}
    assert ROOT / "examples" / "Dockerfile" in named
    for path in named - {ROOT / "examples" / "Dockerfile"}:
        assert path.is_relative_to(ROOT / "examples"), path
        assert "in place of `YOUR-...`" in " ".join((path.parent / "README.md").read_text().split()), path


def extras() -> dict[str, list[Requirement]]:
    """What pyproject.toml says of each extra."""
    # tomllib came with Python 3.11; the extras are lists of quoted requirements.
    text = (ROOT / "pyproject.toml").read_text()
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n[project.")[0]
    found = re.findall(r"^(\w+) = \[(.*?)\]$", table, re.MULTILINE | re.DOTALL)
    return {name: [Requirement(each) for each in re.findall(r'"([^"]+)"', listed)] for name, listed in found}


def locked() -> dict[str, set[Version]]:
    """The versions of each package in constraints.txt; some differ between Pythons."""
    found: dict[str, set[Version]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, separator, version = line.partition(";")[0].strip().partition("==")
        if separator:
            found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


@pytest.mark.parametrize("extra", ["dev", "docs", "examples", "tensorflow"])
def test_what_make_setup_installs_is_locked(extra: str) -> None:
    asked = extras()
    assert set(asked) == {"tensorflow", "tpu", "jax", "s3", "azure", "examples", "dev", "torch", "docs"}
    assert asked[extra]
    for requirement in asked[extra]:
        versions = locked().get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in constraints.txt: run `make lock`"
        assert all(version in requirement.specifier for version in versions), requirement


def test_the_newest_verified_versions_are_those_that_the_tests_run_on() -> None:
    """So `.ci/run` has `make versions` look at the oldest ones only."""
    newest = (ROOT / "tests" / "versions" / "newest.txt").read_text().splitlines()
    for name, version in (line.split("==") for line in newest if not line.startswith("#")):
        assert Version(version) in locked()[canonicalize_name(name)], name


@pytest.mark.chaos
def test_type_checkers_read_the_installed_package(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(
        "import keras_preempt\nreveal_type(keras_preempt.TerminationConfig().exit_code)\n"
    )
    mypy = (sys.executable, "-m", "mypy", "--python-executable", f"{installed}/python", "uses.py")
    said = run(*mypy, cwd=tmp_path, env=clean_environment(tmp_path), minutes=5)
    assert 'Revealed type is "int | None"' in said


@pytest.mark.chaos
def test_the_readme_s_script_passes_a_drill_with_the_installed_package(
    installed: Path, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- file: train.py -->\n```python\n(.*?)```", readme, re.DOTALL)
    assert found
    (tmp_path / "train.py").write_text(found[1])
    command = (f"{installed}/keras-preempt", "drill", "--", f"{installed}/python", "train.py")
    said = run(*command, cwd=tmp_path, env=clean_environment(tmp_path), minutes=8)
    assert "VERDICT: identical" in said
