"""Says at the end of a run what the generated stores covered."""

from tests.contracts.generated.coverage import RUN


def pytest_terminal_summary(terminalreporter):
    if RUN.n_cases:
        title, *lines = RUN.lines()
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
