"""The one exception a user is meant to see: one line that names the thing and the remedy."""

from __future__ import annotations


class BehaviorTraceError(Exception):
    """A problem the user can mend.

    The message is one line: what is wrong (file, column, setting and value) and what to do.
    The command line prints it on stderr and exits with code 2; a traceback only with ``--debug``.
    """
