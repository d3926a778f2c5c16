"""Error tree of the compiler: the exit code of every class, and no class without one."""

from ds4c import errors
from ds4c.errors import Ds4cError


def test_every_error_has_the_exit_code_of_the_command_line() -> None:
    codes = {error.__name__: error.exit_code for error in Ds4cError.__subclasses__()}
    assert codes == {
        "CompileError": 1,
        "UsageError": 2,
        "CheckFailedError": 3,
        "MalformedInputError": 4,
        "TargetError": 5,
        "MemoryBudgetError": 6,
    } | {name: code for name, code in codes.items() if not hasattr(errors, name)}
