"""The report's page: self-contained, escaped, aligned, and honest about budget and missing rows."""

from html.parser import HTMLParser

import pandas as pd
import pytest
from matplotlib.figure import Figure

from mcnn_ray.report.aggregate_table import statistics_lines
from mcnn_ray.report.comparison import compare
from mcnn_ray.report.page import write_report
from mcnn_ray.report.paper_figures import CAPTIONS, figures_of
from tests.report.reports import METHODS, TASKS, lacking, learning_curves, paper, rollouts

EVIL = "<script>alert('&')</script>"
REASON = "D4RL/hammer/human-v2 is not on this machine"
COMMAND = "minari download D4RL/hammer/human-v2"


class Page(HTMLParser):
    """Tags with their attributes, text, and the widths of table rows in columns."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.rows = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "table":
            self.rows.append([])
        if tag == "tr":
            self.rows[-1].append(0)
        if tag in ("td", "th"):
            self.rows[-1][-1] += int(values.get("colspan", 1))

    def handle_data(self, data):
        self.text += data


def write(folder, episodes, published, missing=None, labels=None, title="Returns", figures=None, curves=None):
    table = compare(episodes, published, missing)
    path = write_report(folder, title, table, episodes, curves, figures or {}, labels or {"budget": "standard"})
    return path, table


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of realistic size: 4 tasks, 8 methods, 40 rollouts each, all figures, and a task without data."""
    folder, episodes, curves = tmp_path_factory.mktemp("report"), rollouts(), learning_curves()
    published = pd.concat([paper(), paper(tasks=("hammer-human-v1",))])
    missing = lacking(*[("hammer-human-v1", method, "fixed", REASON, COMMAND) for method in METHODS])
    figures = figures_of("returns", compare(episodes, published, missing), episodes, curves, "SMOKE budget")
    labels = {"budget": "smoke: minutes on 2 cores", "steps": "300", "seeds": "0, 1", "machine": "2 CPUs"}
    path, table = write(folder, episodes, published, missing, labels, figures=figures, curves=curves)
    return folder, Page(path.read_text()), table, figures


def test_page_asks_for_nothing_from_outside_and_its_links_lead_to_files(report):
    folder, page, _, _ = report
    assert not {"script", "link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    assert all(values["src"].startswith("data:image/svg+xml;base64,") for tag, values in page.tags if "src" in values)
    links = [values["href"] for _, values in page.tags if "href" in values]
    assert {"comparison.csv", "statistics.csv", "curves.csv", "figures/profiles.svg"} <= set(links)
    assert all((folder / link).is_file() for link in links)
    assert "http:" not in (text := (folder / "index.html").read_text())
    assert "https:" not in text
    assert "default-src 'none'" in text


def test_every_figure_stands_in_the_page_with_a_caption_and_as_two_files(report):
    folder, page, _, figures = report
    assert set(figures) == {"returns", "scores", "aggregate", "iqm", "profiles", "curves"}
    assert [values["alt"] for tag, values in page.tags if tag == "img"] == [CAPTIONS[name] for name in figures]
    for name in figures:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / "figures" / f"{name}.svg").read_text()


def test_rows_of_each_table_are_as_wide_as_its_head(report):
    tables = report[1].rows
    assert len(tables) == 4  # over all tasks; return, score, success
    for rows in tables:
        assert set(rows) == {rows[0]}
    assert len(tables[1]) == 1 + 5 + 5 * 9  # head; tasks; methods and D4RL's cloning on each


def test_smoke_is_said_in_large_and_labels_tell_how_it_was_made(report, tmp_path):
    text = (report[0] / "index.html").read_text()
    assert "<strong>SMOKE</strong>" in text
    assert "<title>SMOKE: Returns</title>" in text
    assert all(word in report[1].text for word in ("300", "2 CPUs", "minutes on 2 cores"))
    path, _ = write(tmp_path, rollouts(TASKS[:1], ("bc",), starts=3), paper(TASKS[:1], ("bc",)))
    assert "SMOKE" not in path.read_text()


def test_what_a_whole_task_misses_is_said_once_in_each_table_with_its_command(report):
    text = report[1].text
    assert text.count(REASON) == text.count(COMMAND) == 2
    assert "8 rows of these tasks not run, each with the reason: hammer-human-v1." in text
    known = report[2]["inside"].notna().sum()
    assert f"Of {known} published values that we measured too, {report[2]['inside'].sum()} lie inside" in text


def test_single_missing_row_says_why_itself_and_one_not_run_yet_says_so(tmp_path):
    missing = lacking(("pen-human-v1", "ibc", "fixed", "no memory for it", "mcnn reproduce returns"))
    path, _ = write(tmp_path, rollouts(TASKS[:1], ("bc",), starts=3), paper(TASKS[:1], ("bc", "ibc", "bet")), missing)
    text = Page(path.read_text()).text
    assert "no memory for it mcnn reproduce returns" in text
    assert text.count("not run yet") == 3  # of the return and the score, and counted above
    assert text.count("published only") == 2


def test_csv_holds_the_comparison_in_full_precision(report):
    folder, _, table, _ = report
    read = pd.read_csv(folder / "comparison.csv", keep_default_na=False, na_values={"mean": "", "low": "", "n": ""})
    assert list(read.columns) == list(table.columns)
    assert read["mean"].to_numpy() == pytest.approx(table["mean"].to_numpy(dtype=float), nan_ok=True, rel=1e-12)
    assert set(read["command"]) == {"", COMMAND}
    statistics = pd.read_csv(folder / "statistics.csv")
    assert len(statistics) == 8
    assert (statistics["iqm_low"] < statistics["iqm"]).all()


def test_whatever_is_interpolated_is_escaped(tmp_path):
    episodes = rollouts(TASKS[:1], ("bc",), starts=3).assign(task=EVIL, setting=EVIL)
    published = paper((EVIL,), ("bc",), (EVIL,)).assign(note=EVIL, source=EVIL)
    missing = lacking(("t", EVIL, "fixed", EVIL, EVIL), ("t", "bc", "fixed", "other", EVIL))
    path, _ = write(tmp_path, episodes, published, missing, {EVIL: EVIL, "budget": EVIL}, title=EVIL)
    page = Page(path.read_text())
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) > 12


def test_report_without_rollouts_or_numbers_holds_its_figures(tmp_path):
    figure = Figure(figsize=(2, 1))
    path, _ = write(tmp_path, pd.DataFrame(), paper().iloc[:0], figures={"figure2": figure})
    page = Page(path.read_text())
    assert page.rows == []
    assert [values["alt"] for tag, values in page.tags if tag == "img"] == [CAPTIONS["figure2"]]
    assert not (tmp_path / "comparison.csv").exists()


def test_page_of_before_stays_whole_where_writing_fails(tmp_path):
    class Broken(Figure):
        def savefig(self, *args, **kwargs):
            raise OSError("no space left on device")

    episodes, published = rollouts(TASKS[:1], ("bc",), starts=3), paper(TASKS[:1], ("bc",))
    path, _ = write(tmp_path, episodes, published)
    before = path.read_bytes()
    with pytest.raises(OSError, match="no space"):
        write(tmp_path, episodes, published, title="Later", figures={"returns": Broken()})
    assert path.read_bytes() == before


def test_lines_for_the_terminal_say_iqm_runs_tasks_and_the_chance_over_cloning():
    lines = statistics_lines(pd.concat([rollouts(methods=("bc", "mcnn+mlp"))]))
    assert len(lines) == 2
    assert lines[0].startswith("bc        IQM ")
    assert lines[0].endswith(" of 8 runs on 4 tasks")
    assert " of 8 runs on 4 tasks; beats bc with probability 1.00 [0.68, 1.00]" in lines[1]
    assert "no normalised scores" in statistics_lines(rollouts(TASKS[:1], ("bc",)).assign(score=None))[0]


def test_shares_of_subtasks_are_one_table_that_says_once_what_a_task_misses(tmp_path):
    names = [f"p{count}" for count in range(1, 6)]
    episodes = rollouts(("kitchen-scripted-v0",), ("bet", "diff"), starts=3).assign(score=None, success=None)
    published = pd.concat([paper(("kitchen-relay-v0",), ("bet", "diff")).iloc[[2, 4]].assign(metric=p) for p in names])
    missing = lacking(*[("kitchen-relay-v0", method, "fixed", REASON, COMMAND) for method in ("bet", "diff")])
    path, _ = write(tmp_path, episodes.assign(**dict.fromkeys(names, 1.0)), published, missing)
    page = Page(path.read_text())
    assert page.text.count(REASON) == 1
    returns, shares = sorted(page.rows, key=len)
    assert set(shares) == {12}
    assert len(shares) == 1 + 2 * (1 + 2 * 5)
    assert set(returns) == {7}
    assert "beats bc" not in page.text
