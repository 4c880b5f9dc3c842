"""Errors of users' own code, in words for its author: the line, the statement, what to do.

What users' code raises is a `UsageError`, whatever its class: starting it again changes nothing.
Only a network that does not answer, or a lack of memory, is worth another try.
"""

import importlib.util
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from urllib.error import URLError

import fedloom
from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError, printable
from fedloom.protocol.extras import EXTRAS, remedy

_STATEMENT_CHARS = 100
_PASSING = (ConnectionError, TimeoutError, URLError, MemoryError)
"""What may be gone at the next start."""
_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, which the user mostly did not write."""
_exit = os._exit


@contextmanager
def loading(code: str) -> Iterator[None]:
    """Turn what users' code raises while it is imported or called into an error for its author.

    Args:
        code: as the user named it, for errors that name no line of it.

    Raises:
        UsageError: the code failed; the message has the line, the statement and a remedy.
        UnavailableError: the network or the memory failed it; later it may work.
    """
    _report_exits()
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, too: it would end the command without a word
        raise explained(error, code) from error


def _report_exits() -> None:
    """From now on, users' code that calls `os._exit` ends this process with a message and a code.

    With `os._exit(0)` a command would end without a word, as if it had done its work.
    """
    process = os.getpid()

    def reported(status: int) -> NoReturn:
        caller = traceback.extract_stack(limit=2)[0]
        path, line = caller.filename, caller.lineno or 0
        own = not (_is_ours(path) or _is_installed_file(path))
        if own and os.getpid() == process:  # the user's own child process may
            said = f"os._exit({status}) ended this process. Raise an exception instead."
            sys.stderr.write(f"error: {_written(path, line, caller.line or '')}: {said}\n")
            sys.stderr.flush()
            status = status or 1
        _exit(status)

    os._exit = reported


def explained(error: BaseException, code: str) -> FedloomError:
    """An error of users' code as one for its author.

    Args:
        error: as it was raised.
        code: as the user named it.
    """
    # If the user's package is installed, what fedloom called first is theirs.
    where = place(error) or place(error, installed=True)
    if isinstance(error, FedloomError):
        of_code = where and isinstance(error, UsageError)
        return UsageError(f"{where}: {error}") if of_code else error
    said = f"{where or code}: {message(error)}"
    if isinstance(error, _PASSING):
        return UnavailableError(f"{said}. Try again once that is available.")
    return UsageError(f"{said}. {_remedy(error, where)}")


def _remedy(error: BaseException, where: str) -> str:
    if package := _hidden(error, where):
        return f"The file {package}.py hides the package of the same name: rename the file."
    match error:
        case ImportError():
            return _import_remedy(error)
        case SyntaxError():
            return "Correct the code."
        case SystemExit():
            return (
                'Put what runs as a script under `if __name__ == "__main__":`, since this command '
                "imports the file."
            )
        case OSError():
            return "Check the path, and that this user may read it."
        case _:
            return "Correct the code; FEDLOOM_TRACEBACK=1 shows the traceback."


def summarised(error: BaseException) -> str:
    """An error in one line: the innermost line of the user's own code, its class, its message.

    >>> summarised(ValueError("no rows"))
    'ValueError: no rows'
    """
    where = place(error)
    return f"{where}: {message(error)}" if where else message(error)


def message(error: BaseException) -> str:
    """The class and the first line of the message of an error, without a full stop."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as another:  # noqa: BLE001 - the author's own class
        text = f"<its message raises {type(another).__name__}>"
    first = printable((text or "").partition("\n")[0]).rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def place(error: BaseException, *, installed: bool = False) -> str:
    """The innermost line of the user's own code, with its statement.

    Args:
        error: as it was raised.
        installed: the outermost line of an installed package instead.

    Returns:
        Such as "my_client.py, line 3, `import sklearn`"; empty if there is none.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        text = error.text or linecache.getline(error.filename, error.lineno)
        return _written(error.filename, error.lineno, text)
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not _is_ours(frame.filename)]
    own = [frame for frame in others if not _is_installed_file(frame.filename)]
    found = others[:1] if installed else own[-1:]
    return "".join(_written(f.filename, f.lineno or 0, f.line or "") for f in found)


def _is_installed_file(filename: str) -> bool:
    return any(part in filename for part in _INSTALLED)


def _is_ours(filename: str) -> bool:
    """Whether a file is of fedloom, of Python, or none at all, such as `<frozen importlib>`."""
    folders = tuple(fedloom.__path__)
    if not _is_installed_file(filename):  # Python's own folder holds them, too
        folders += (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return filename.startswith(("<", *(f"{folder}{os.sep}" for folder in folders)))


def _written(filename: str, line: int, text: str) -> str:
    path = Path(filename)
    with suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    statement = printable(text.strip(), _STATEMENT_CHARS)
    return f"{path}, line {line}" + (f", `{statement}`" if statement else "")


def _hidden(error: BaseException, where: str) -> str:
    """The package that the user's own file hides by its name; empty if it hides none."""
    stem = Path(where.partition(", line ")[0]).stem
    match error:
        case ImportError(name=str(name)):
            named = name.partition(".")[0]
        case AttributeError(obj=ModuleType() as module):
            named = module.__name__
        case _:
            named = ""
    return stem if stem == named else ""


def _import_remedy(error: ImportError) -> str:
    name = error.name or ""
    package = name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or _is_installed(package):
        return "Correct the name, or install the version of the package that has it."
    install = f"Install it in the environment that runs this command: {remedy(package)}"
    if package in EXTRAS:
        return f"{install}."
    return f"{install}. If {name} is a file of yours, put it beside this one."


def _is_installed(package: str) -> bool:
    with suppress(ImportError, ValueError):
        return importlib.util.find_spec(package) is not None
    return False
