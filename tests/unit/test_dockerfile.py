"""The image's recipe, read: there is no Docker where the tests run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.k8s_checks import RAY_VERSION, ROOT, VERSION

TEXT = (ROOT / "Dockerfile").read_text()
OUR_WHEEL = '"$(echo /tmp/dist/*.whl)[delta,report]"'
PINNED = {
    line.split("==")[0]: line
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if re.fullmatch(r"[\w.-]+==\S+", line)
}


def instructions(text: str) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest), continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def pip_faults(steps: list[tuple[str, str]]) -> list[str]:
    """What pip would look up by itself: a version, a dependency, a build backend."""
    found = []
    for command in (part for word, rest in steps if word == "RUN" for part in rest.split(" && ")):
        words = command[command.find("pip ") :].replace(OUR_WHEEL, "").split()
        if "pip install" in command:
            named = [word for word in words[2:] if not word.startswith("-") and word != "/tmp/constraints.txt"]
            loose = [word for word in named if not re.fullmatch(r"[\w-]+==[\w.]+", word)]
            found += [f"{word} is not pinned" for word in loose]
            other = [word for word in named if PINNED.get(word.split("==")[0], word) != word]
            found += [f"{word}: constraints.txt has {PINNED[word.split('==')[0]]}" for word in other]
            if not {"--no-deps", "--constraint"} & set(words):
                found.append(f"dependencies are not pinned: {command}")
        if "pip wheel" in command and not {"--no-deps", "--no-build-isolation"} <= set(words):
            found.append(f"the build backend is not pinned: {command}")
        if re.search(r"\b(apt|apt-get|conda|mamba|uv|curl|wget)\s", command):
            found.append(f"no version can be told: {command}")
    return found


def faults(text: str) -> list[str]:
    found = []
    steps = instructions(text)
    starts = [number for number, (word, _) in enumerate(steps) if word == "FROM"]
    images = dict(rest.split("=", 1) for word, rest in steps[: starts[0]] if word == "ARG")
    for number in starts:
        image = steps[number][1].split(" AS ")[0]
        image = images.get(image.removeprefix("${").removesuffix("}"), image)
        if image.startswith("rayproject/ray:") and not re.match(rf"{re.escape(RAY_VERSION)}-py31[1-3]", image[15:]):
            found.append(f"{image}: constraints.txt has Ray {RAY_VERSION}")
        if not re.search(r":v?\d+\.\d+\.\d+", image):
            found.append(f"{image} is not pinned")
    build, final = steps[starts[0] : starts[1]], steps[starts[-1] :]
    if not steps[starts[-1]][1].startswith("${RAY_IMAGE}"):
        found.append("the image is not based on Ray's")
    if not any(word == "RUN" and "pip wheel" in rest for word, rest in build):
        found.append("no stage builds the wheel")
    if not any(word == "RUN" and re.search(r"pip install\b.* pip==\d", rest) for word, rest in build):
        found.append("the wheel is built by whatever pip there is")
    found += pip_faults(steps)
    if not any(f"--constraint /tmp/constraints.txt {OUR_WHEEL}" in rest for word, rest in final if word == "RUN"):
        found.append("the wheel is not installed with the pinned versions")
    users = [rest for word, rest in final if word == "USER"]
    if not users or not users[-1].isdigit() or users[-1] == "0" or final[-1][0] != "USER":
        found.append(f"runs as {users or 'whoever the base says'}")
    for word, rest in steps:
        if word == "ADD" or (word == "COPY" and re.search(r"(^|\s)\.(\s|/|$)(?!$)|\.env|\.aws|secret|token|key", rest)):
            found.append(f"{word} {rest}")
        if word in ("ENV", "ARG") and re.search(r"AWS|SECRET|TOKEN|PASSWORD", rest):
            found.append(f"{word} {rest}")
    if any(word == "COPY" and "--from" not in rest for word, rest in final):
        found.append("sources are copied into the image")
    return found


def test_recipe_has_no_fault() -> None:
    assert faults(TEXT) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"rayproject/ray:{RAY_VERSION}-py311-cpu", "rayproject/ray:2.59.0-py311-cpu"),
        (f"rayproject/ray:{RAY_VERSION}-py311-cpu", "rayproject/ray:latest"),
        ("kubectl:v1.36.0", "kubectl"),
        ("USER 1000\n", ""),
        ("USER 1000", "USER root"),
        ("USER 1000", "USER 0"),
        ("USER 1000", "COPY . .\nUSER 1000"),
        ("COPY conf conf", "COPY .env conf"),
        ("COPY conf conf", "ADD conf conf"),
        ("ENV TZ=Etc/UTC", "ENV AWS_SECRET_ACCESS_KEY=x"),
        ("pip wheel", "pip list"),
        (" pip==26.3", ""),
        (" pip==26.3", " pip"),
        ("hatchling==1.33.0", "hatchling"),
        ("hatchling==1.33.0", "'hatchling>=1.33.0'"),
        ("pluggy==1.7.0", "pluggy==1.6.0"),
        ("trove-classifiers==2026.9.21.13", "trove-classifiers"),
        ("--no-deps pip==", "pip=="),
        (" --no-build-isolation", ""),
        ("RUN pip install", "RUN apt-get install -y gcc\nRUN pip install"),
        ("--constraint /tmp/constraints.txt ", ""),
    ],
)
def test_broken_recipe_is_found(old: str, new: str) -> None:
    recipe = TEXT[TEXT.index("ARG RAY_IMAGE") :]
    assert old in recipe
    assert faults(recipe.replace(old, new)) != []


def test_comment_shows_the_gpu_image_of_this_version() -> None:
    assert f"rayproject/ray:{RAY_VERSION}-py311-gpu --tag ray-cfnet:{VERSION}-gpu" in TEXT


def test_only_what_the_wheel_needs_reaches_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert lines[0] == "*"
    copies = [rest.split() for word, rest in instructions(TEXT) if word == "COPY" and "--from" not in rest]
    copied = {name for names in copies for name in names}
    assert allowed == {*copied, "constraints.txt"} - {"./"}


def hadolint(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed")
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def test_hadolint_is_content_and_would_not_be_with_a_floating_base(tmp_path: Path) -> None:
    done = hadolint(str(ROOT / "Dockerfile"))
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:latest\nRUN sudo pip install numpy\n")
    assert hadolint(str(tmp_path / "Dockerfile")).returncode == 1
