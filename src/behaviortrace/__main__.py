"""``python -m behaviortrace``."""

from behaviortrace.cli import main

main()
