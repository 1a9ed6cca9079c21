"""Many small cases in one test, where a test for each would take longer to set up than to run."""

import functools
import inspect


def each_case(names, cases):
    """Run a test for each case: as `pytest.mark.parametrize`, but in one test.

    Fixtures are those of the whole test, so that it is for cases which leave nothing behind. The
    error of one that fails says in a note which it was.
    """
    names = [name.strip() for name in names.split(",")]
    options = [dict(zip(names, case if len(names) > 1 else [case], strict=True)) for case in cases]

    def decorate(test):
        @functools.wraps(test)
        def run(*args, **fixtures):
            for case in options:
                try:
                    test(*args, **fixtures, **case)
                except BaseException as error:
                    error.add_note(f"with {', '.join(f'{k}={v!r}' for k, v in case.items())}")
                    raise

        signature = inspect.signature(test)
        left = [value for name, value in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=left)
        return run

    assert options, f"there are no cases of {names}"
    return decorate
