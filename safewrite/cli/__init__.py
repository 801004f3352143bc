"""The command line `safewrite`: one module a group of commands.  Importing this imports nothing else."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the arguments of this process, and exit with its code."""
    try:
        from safewrite.cli.app import run
    except KeyboardInterrupt:  # while modules are imported: nothing was begun
        sys.exit(130)
    sys.exit(run())
