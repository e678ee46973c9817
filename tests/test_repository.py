"""The repository itself: what people look for is there, and nothing of one machine is in it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Written in parts, so that this file does not find itself.
ELSEWHERE = re.compile("|".join(["/wo" + "rk/", "/ro" + "ot/", "/opt/py" + "pi", "index-" + "url", "/tmp/he" + "avy"]))


def committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_machine_path_and_no_registry_host() -> None:
    found = []
    for path in committed():
        if path.suffix in (".png", ".safetensors", ".npz", ".svg", ".gif", ".jsonl"):
            continue
        found += [f"{path.relative_to(ROOT)}: {line.strip()[:100]}" for line in path.read_text().splitlines()
                  if ELSEWHERE.search(line)]
    assert not found, "\n".join(found)


def test_what_people_look_for_is_there() -> None:
    for name in ("README.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", ".pre-commit-config.yaml",
                 "src/foldline/py.typed", "constraints.txt"):
        assert (ROOT / name).is_file(), name
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    assert (ROOT / ".ci" / "run").read_text().split("\n", 1)[1].strip() == "exec make test"
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()


def test_links_between_the_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        broken += [f"{page.name}: {link}" for link in links
                   if "://" not in link and not link.startswith("mailto:") and not (page.parent / link).exists()]
    assert not broken, broken


def test_no_pickle_is_loaded_and_no_global_seed_is_set() -> None:
    forbidden = re.compile(r"torch\.load\(|pickle\.load|joblib\.load|np\.random\.seed|manual_seed_all|^\s*random\.seed")
    found = [f"{path.relative_to(ROOT)}: {line.strip()}" for path in sorted((ROOT / "src").rglob("*.py"))
             for line in path.read_text().splitlines() if forbidden.search(line)]
    assert not found, found
