"""The plugin of ``pytest --pyargs normgrad.testing``: its options, and the report at the end."""

from __future__ import annotations

import csv
import difflib
import fnmatch
import math
import shlex
import signal
import subprocess
import textwrap
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from . import own
from .cases import Case
from .findings import Finding, findings
from .judging import Judged
from .loading import cases_of, load, module_of, specs_of
from .outcomes import Fault, Level, wrong
from .subjects import Implementation, SubjectError

_SUBJECTS = pytest.StashKey[Mapping[str, Implementation]]()
_CASES = pytest.StashKey[Mapping[str, Mapping[str, Case]]]()
_EXPECTED = pytest.StashKey[Sequence[tuple[str, str]]]()
_TESTS = Path(__file__).with_name("test_subject.py")
#: The most findings of a level that are printed.
_MOST = 30
#: The columns of the file that ``--csv`` writes.
COLUMNS = ("case", "operator", "verdict", "error / bound", "error / plain code", "what", "text")


class Hooks:
    """The hooks that other plugins, and the module under test, may implement."""

    @pytest.hookspec
    def pytest_normgrad_operators(self) -> Sequence[own.Operator]:  # type: ignore[empty-body]
        """Return operators of one's own, for which cases are then made too."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("normgrad")
    group.addoption(
        "--subject",
        metavar="SPEC",
        default="normgrad",
        help="what to test: module:Name (a class or object with some of the operators, or a class "
        "of torch.nn.Module), the path of a shared library, torch, or normgrad",
    )
    group.addoption("--quick", action="store_true", help="only a quarter of the cases")
    group.addoption("--case", metavar="NAME", help="only the case of this name")
    group.addoption(
        "--bound",
        type=float,
        metavar="X",
        help="also fail where an error exceeds X times normgrad's bound",
    )
    group.addoption(
        "--xfails",
        metavar="FILE",
        help="a file of cases that are expected to fail, one a line: the name, in which * matches "
        "any text, and after a # the reason",
    )
    group.addoption("--csv", metavar="FILE", help="write each case's verdict to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Load the implementation before anything is collected."""
    config.addinivalue_line(
        "markers",
        "case(topic, kind, operator, dtype, layout, device): what a case of normgrad's is about",
    )
    spec: str = config.getoption("subject")
    try:
        module = module_of(spec)
        plugins = config.pluginmanager
        if hasattr(module, "pytest_normgrad_operators") and not plugins.is_registered(module):
            plugins.register(module)
        declared = [each for some in config.hook.pytest_normgrad_operators() for each in some]
        loaded = [load(each, declared) for each in specs_of(spec)]
    except SubjectError as error:
        raise pytest.UsageError(f"--subject: {error}") from None
    config.stash[_SUBJECTS] = {each.device: each for each in loaded}
    bound = config.getoption("bound")
    if bound is not None and not 0 < bound < math.inf:
        raise pytest.UsageError(f"--bound: {bound:g}; allowed: a finite number above 0")
    path = config.getoption("xfails")
    config.stash[_EXPECTED] = _expected(Path(path)) if path else ()
    config.stash[_CASES] = _wanted(config, loaded)
    if not hasattr(config, "workerinput"):
        if path := config.getoption("csv"):
            _check_writable(Path(path))
        config.pluginmanager.register(_Results(config))


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Give the tests the same names wherever normgrad is installed."""
    if module_path != _TESTS:
        return None
    name = "normgrad/testing/test_subject.py"
    return pytest.Module.from_parent(parent, path=module_path, nodeid=name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that are expected to fail."""
    for pattern, reason in config.stash[_EXPECTED]:
        for item in items:
            if fnmatch.fnmatchcase(_name_in(item.nodeid), pattern):
                item.add_marker(pytest.mark.xfail(reason=reason))


def subjects_of(config: pytest.Config) -> Mapping[str, Implementation]:
    """The implementation under test on each of its devices."""
    return config.stash[_SUBJECTS]


def cases_on(config: pytest.Config) -> Mapping[str, Mapping[str, Case]]:
    """The cases to try on each device, by their names as tests."""
    return config.stash[_CASES]


def _wanted(
    config: pytest.Config, subjects: Iterable[Implementation]
) -> dict[str, dict[str, Case]]:
    """The cases of the operators that implementations have, by device and by name as a test."""
    only = config.getoption("case")
    quick = config.getoption("quick") and not only
    cases = {each.device: _named(each, quick) for each in subjects}
    if not only:
        return cases
    names = [name for named in cases.values() for name in named]
    if only not in names:
        (close,) = difflib.get_close_matches(only, names, n=1, cutoff=0)
        raise pytest.UsageError(f"--case: {only}; allowed: one of {len(names)}, such as {close}")
    return {
        device: {name: case for name, case in named.items() if name == only}
        for device, named in cases.items()
    }


def _end_of(report: pytest.TestReport) -> str:
    """How a test's process ended, and by which signal if that can be told."""
    said = str(report.longrepr).partition("\n")[0]
    # xdist has no public way to the process.
    with suppress(AttributeError, subprocess.TimeoutExpired, ValueError):
        status = report.node.gateway._io.popen.wait(timeout=5)
        return f"{signal.Signals(-status).name}: {said}"
    return said


def _named(subject: Implementation, quick: bool) -> dict[str, Case]:
    suffix = "" if subject.device == "cpu" else f"/{subject.device}"
    cases = cases_of(subject, quick)
    return {f"{case.name}{suffix}": case for case in cases if subject.has(case)}


def _expected(path: Path) -> list[tuple[str, str]]:
    """The patterns and the reasons in a file of cases that are expected to fail."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise pytest.UsageError(f"--xfails: {path}: {reason}; allowed: a text file") from None
    parts = ((part.strip() for part in line.partition("#")) for line in lines)
    return [(pattern, reason) for pattern, _, reason in parts if pattern]


def _check_writable(path: Path) -> None:
    try:
        path.open("a").close()
    except OSError as error:
        allowed = "a file that can be written"
        raise pytest.UsageError(f"--csv: {path}: {error.strerror}; allowed: {allowed}") from None


def _name_in(nodeid: str) -> str:
    """The case's name in a test's."""
    return nodeid.partition("[")[2].removesuffix("]")


# What is said at the end


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Count what passes with a fault of the second or third level by that level's word."""
    verdict = dict(getattr(report, "user_properties", ())).get("verdict")
    if report.when != "call" or not report.passed:
        return None
    words = {Level.BEYOND.value: "b", Level.CONVENTION.value: "c"}
    return (verdict, words[verdict], verdict.upper()) if verdict in words else None


class _Results:
    """What collects the verdicts in the process that reports, and says them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._judged: dict[str, Judged] = {}
        self._handler: Any = None
        self._cases = {
            name: case for cases in cases_on(config).values() for name, case in cases.items()
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test's verdict; that of a test without one is that its process has ended."""
        name = _name_in(report.nodeid)
        found: dict[str, Any] = dict(report.user_properties)
        is_lost = report.failed and "verdict" not in found
        is_told = "verdict" in found and report.when == "call"
        if name not in self._cases or not (is_told or is_lost):
            return
        faults = [Fault(Level[level], *rest) for level, *rest in found.get("faults", ())]
        if is_lost:
            faults = [wrong("the process ends or hangs", _end_of(report))]
        absent = found["verdict"] if found.get("verdict") == "not offered" else ""
        units, plain = found.get("error / bound"), found.get("error / plain code")
        self._judged[name] = Judged(self._cases[name], tuple(faults), absent, units, plain)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End with pytest's status for no tests if nothing that was tried is offered.

        An interrupt has nothing to end now but the report, so it is ignored.
        """
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        is_tried = any(not each.absent for each in self._judged.values())
        if session.exitstatus == pytest.ExitCode.OK and not is_tried:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_unconfigure(self) -> None:
        """Let interrupts end the process again."""
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a table, the findings, and a sentence; write the file."""
        # In the suite's order: workers end in any.
        by_name = {name: self._judged[name] for name in self._cases if name in self._judged}
        if not by_name or self._config.getoption("case"):
            for each in by_name.values():
                terminalreporter.write_line(f"{each.case}: {each.word}")
                for detail in each.details:
                    for text in _wrapped(detail, "    "):
                        terminalreporter.write_line(text)
        else:
            self._report(terminalreporter, by_name)
        if path := self._config.getoption("csv"):
            _write(Path(path), by_name)

    def _report(
        self, terminalreporter: pytest.TerminalReporter, by_name: Mapping[str, Judged]
    ) -> None:
        line = terminalreporter.write_line
        judged = [*by_name.values()]
        terminalreporter.section("normgrad")
        for row in _table(judged):
            line(row)
        for row in _signatures(subjects_of(self._config).values()):
            line(row)
        found = findings(judged)
        patterns = [pattern for pattern, _ in self._config.stash[_EXPECTED]]
        known = {name for pattern in patterns for name in fnmatch.filter(by_name, pattern)}
        others = [each for name, each in by_name.items() if name not in known]
        unexpected = {each.case for each in others if each.faults}
        expected = [each for each in found if unexpected.isdisjoint(dict(each.found))]
        for level in Level:
            some = [each for each in found if each.level is level]
            for finding in some[:_MOST]:
                case, fault = finding.smallest
                line("")
                title = f"{finding} (expected)" if finding in expected else str(finding)
                for text in _wrapped(title, ""):
                    line(text, bold=level is Level.WRONG)
                # The title need not name the output, since a cause may spoil several.
                said = str(fault) if fault.is_of_value else fault.text or fault.what
                for text in _wrapped(said, "    "):
                    line(text)
                line(f"    {_command(self._config, case)}")
            if len(some) > _MOST:
                line(f"{len(some) - _MOST} more findings: {level.value}; --csv FILE has every case")
        line("")
        for pattern in self._unmatched(patterns):
            line(f"--xfails: no case has the name {pattern}")
        said = conclusion(judged, found, expected)
        if (bound := self._config.getoption("bound")) is not None:
            more = sum(each.level is not Level.WRONG and each.beyond(bound) for each in others)
            said += f"; --bound {bound:g} fails {more} more"
        for text in _wrapped(said, ""):
            line(text)

    def _unmatched(self, patterns: Sequence[str]) -> list[str]:
        """The patterns that are of no case, whichever of them are run."""
        subjects = subjects_of(self._config).values() if patterns else ()
        names = [name for subject in subjects for name in _named(subject, quick=False)]
        return [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]


#: The columns that the report keeps to, except in commands, which are on one line.
_WIDTH = 80


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def conclusion(
    judged: Sequence[Judged], found: Sequence[Finding], expected: Sequence[Finding] = ()
) -> str:
    """What was found, in a sentence."""
    words = Counter(each.word for each in judged)
    offered = len(judged) - words.pop("not offered", 0)
    passed = words.pop("passed", 0)
    wrongs = words.pop(Level.WRONG.value, 0)
    number = len([each for each in found if each.level is Level.WRONG])
    known = len([each for each in expected if each.level is Level.WRONG])
    causes = f" ({number} finding{'s' if number > 1 else ''}" if number else ""
    causes += f", {known} expected)" if known else ")" if number else ""
    others = "".join(f", {count} {word}" for word, count in words.items())
    cases = f"{offered} case{'s' if offered != 1 else ''} offered"
    return f"{cases}: {wrongs} wrong{causes}{others}, {passed} passed"


def _table(judged: Sequence[Judged]) -> list[str]:
    """The number of cases of each verdict and the largest errors, by operator.

    Columns without a number are left out. The heads have two lines. An operator whose name leaves
    too little room is on a line of its own.
    """
    levels = [level.value for level in Level]
    heads = (
        *(("", "operator"), ("", "offered"), ("", "passed"), ("", "wrong")),
        *(("beyond", "the bound"), ("another", "convention")),
        *(("error /", "bound"), ("error /", "plain code")),
    )
    rows: list[list[str]] = []
    for operator in dict.fromkeys(each.case.operator for each in judged):
        some = [each for each in judged if each.case.operator == operator and not each.absent]
        words = Counter(each.word for each in some)
        counts = (len(some), *(words[word] for word in ("passed", *levels)))
        errors = [
            max((getattr(e, n) or 0.0 for e in some), default=0.0) for n in ("units", "plain")
        ]
        cells = [str(each or "") for each in counts] + [f"{e:.3g}" if e else "" for e in errors]
        rows.append([operator, *cells])
    # The number of cases offered is shown even if it is 0.
    kept = [i for i, of in enumerate(zip(*rows, strict=True)) if i <= 1 or any(of)]
    upper, lower = ([heads[index][at] for index in kept] for at in (0, 1))
    body = [[row[index] or ("0" if index == 1 else "") for index in kept] for row in rows]
    lines = [*([upper] if any(upper) else ()), lower, *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[0] = min(widths[0], _WIDTH - sum(1 + width for width in widths[1:]))
    found = []
    for first, *cells in lines:
        numbers = "".join(f" {c:>{w}}" for c, w in zip(cells, widths[1:], strict=True))
        if len(first) > widths[0]:
            found.append(first)
            first = ""
        found.append(f"{first:{widths[0]}}{numbers}".rstrip())
    return found


def _signatures(subjects: Iterable[Implementation]) -> list[str]:
    """A table of the parameters that functions lack, for which calls were not tried."""
    rows = {name: each for subject in subjects for name, each in subject.lacking().items()}
    if not rows:
        return []
    lines = ["", "not tried: calls that need a parameter which the function lacks"]
    for name, lacking in rows.items():
        lines += textwrap.wrap(f"{name}: {', '.join(lacking)}", _WIDTH, subsequent_indent="  ")
    return lines


def _command(config: pytest.Config, case: Case) -> str:
    """The shell command that repeats a case."""
    return shlex.join(("normgrad", "verify", config.getoption("subject"), "--case", case.name))


def _write(path: Path, judged: Mapping[str, Judged]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, each in judged.items():
            errors = ("" if e is None else f"{e:.3g}" for e in (each.units, each.plain))
            said = (each.gravest.what, each.gravest.text) if each.gravest else ("", "")
            writer.writerow((name, each.case.operator, each.word, *errors, *said))
