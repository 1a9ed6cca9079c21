"""The pages: every link inside the repository leads somewhere, no page is forgotten."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Pages whose blocks of Python can be run, one after the other.
RUN = [
    f"docs/{name}.md" for name in ("codecs", "dtypes", "memory", "mixing", "stores", "transforms")
]
# Lightning looks at trees of batches in a way that torch no longer likes.
TREES = r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
RUN += [pytest.param("docs/guide/lightning.md", marks=pytest.mark.filterwarnings(TREES))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    dead = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert dead == []


def test_every_decision_is_listed():
    folder = ROOT / "docs/decisions"
    listed = set(LINK.findall((folder / "index.md").read_text()))
    assert listed == {page.name for page in folder.glob("0*.md")}


@pytest.mark.parametrize("page", RUN)
def test_blocks_run_as_they_stand(page):
    text = (ROOT / page).read_text()
    variables = {}
    for found in BLOCK.finditer(text):
        # Lines are numbered as in the page.
        above = "\n" * (text[: found.start()].count("\n") + 1)
        exec(compile(above + found[1], page, "exec"), variables)
    assert variables
